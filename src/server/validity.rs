//! Parses the validity period of a certificate, the only part of it that the server needs.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;

use tintype_system::clock::Timestamp;

// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// Parses the period (RFC 5280, section 4.1); `None` if the bytes are not a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate, _) = element(certificate)?;
        let (SEQUENCE, mut fields, _) = element(certificate)? else { return None };
        if fields.first() == Some(&VERSION) {
            (_, _, fields) = element(fields)?;
        }
        // Serial number, algorithm and issuer.
        for _ in 0..3 {
            (_, _, fields) = element(fields)?;
        }
        let (SEQUENCE, times, _) = element(fields)? else { return None };
        let (tag, from, rest) = element(times)?;
        let from = time(tag, from)?;
        let (tag, until, _) = element(rest)?;
        Some(Self { from, until: time(tag, until)? })
    }

    /// Total length of the period.
    pub(super) fn length(&self) -> Duration {
        self.until.since(self.from)
    }
}

/// Tag and content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// Parses a time. In the short form the years are 1950 to 2049.
fn time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(Timestamp::from_millis(time.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn times_are_read_in_both_forms() {
        let millis = |text: &str| text.parse::<jiff::Timestamp>().expect("a time").as_millisecond();
        for (from, until) in [(1999, 2049), (2026, 2050), (2050, 2100)] {
            let mut params = CertificateParams::new(["a.example".to_owned()]).expect("a name");
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 2), date_time_ymd(until, 12, 31));
            let certificate = params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate");
            let validity = Validity::of(certificate.der()).expect("a validity");
            assert_eq!(validity.from.as_millis(), millis(&format!("{from}-01-02T00:00:00Z")));
            assert_eq!(validity.until.as_millis(), millis(&format!("{until}-12-31T00:00:00Z")));
            for length in 0..certificate.der().len() {
                let cut = CertificateDer::from(certificate.der()[..length].to_vec());
                assert_eq!(Validity::of(&cut), None, "the first {length} bytes");
            }
        }
    }
}
