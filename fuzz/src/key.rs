//! API keys.

use tintype_domain::key::KeySecret;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const BODY_LEN: usize = 32;

/// A text parses as a key exactly if it has the documented format and checksum. A key is also found anywhere inside a
/// longer text.
pub fn key(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let parsed = KeySecret::parse(&text);
    assert_eq!(parsed.is_some(), is_key(&text));
    if let Some(secret) = &parsed {
        assert_eq!(secret.reveal(), text);
        assert_eq!(KeySecret::find_shape(&text), Some(&*text));
        assert!(!format!("{secret:?}").contains(&text[3..]));
        assert!(text.starts_with(secret.hint().trim_end_matches('…')) && secret.hint().chars().count() == 8);
    }

    let Some((letters, rest)) = data.split_at_checked(BODY_LEN) else { return parsed.is_some() };
    let letters: String = letters.iter().map(|byte| char::from(BASE62[usize::from(*byte) % BASE62.len()])).collect();
    let made = format!("tt_{letters}{}", checksum(&letters));
    assert!(KeySecret::parse(&made).is_some_and(|secret| secret.reveal() == made));
    let rest = String::from_utf8_lossy(rest);
    for around in [format!("{rest}{made}"), format!("{made}{rest}"), format!("{rest}{made}{rest}")] {
        assert!(KeySecret::find_shape(&around).is_some(), "{around}");
        assert_eq!(KeySecret::parse(&around).is_some(), is_key(&around), "{around}");
    }
    parsed.is_some()
}

fn is_key(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("tt_") else { return false };
    rest.len() == BODY_LEN + 6
        && rest.bytes().all(|byte| BASE62.contains(&byte))
        && checksum(&rest[..BODY_LEN]) == rest[BODY_LEN..]
}

/// CRC-32 of the text in base 62, calculated bit by bit.
fn checksum(text: &str) -> String {
    let crc = text.bytes().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    });
    let digit = |power| char::from(BASE62[(!crc / 62_u32.pow(power) % 62) as usize]);
    (0..6).rev().map(digit).collect()
}
