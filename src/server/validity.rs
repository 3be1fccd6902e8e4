//! The validity period of a certificate.

use std::time::Duration;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::time::Time;

use tintype_system::clock::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// Reads the period; `None` if the bytes are not a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
        let time = |time: Time| i64::try_from(time.to_unix_duration().as_millis()).ok().map(Timestamp::from_millis);
        Some(Self { from: time(validity.not_before)?, until: time(validity.not_after)? })
    }

    pub(super) fn length(&self) -> Duration {
        self.until.since(self.from)
    }
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
