//! The marker that shows whether a database and a store of result files belong together.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

const MARKER_BYTES: usize = 16;

/// A random value stored both beside result files and in their database. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FilesMarker([u8; MARKER_BYTES]);

/// The text is not a marker.
#[derive(Debug, thiserror::Error)]
#[error("a marker has {} hexadecimal digits", 2 * MARKER_BYTES)]
pub struct InvalidMarker;

impl FilesMarker {
    /// Creates a new marker.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The bytes of the marker.
    pub fn as_bytes(&self) -> &[u8; MARKER_BYTES] {
        &self.0
    }
}

impl From<[u8; MARKER_BYTES]> for FilesMarker {
    fn from(bytes: [u8; MARKER_BYTES]) -> Self {
        Self(bytes)
    }
}

impl FromStr for FilesMarker {
    type Err = InvalidMarker;

    fn from_str(text: &str) -> Result<Self, InvalidMarker> {
        if text.len() != 2 * MARKER_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidMarker);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| InvalidMarker)
    }
}

impl fmt::Display for FilesMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for FilesMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for FilesMarker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_reads_as_it_is_written() {
        let marker = FilesMarker::random();
        assert_eq!(marker.to_string().parse::<FilesMarker>().ok(), Some(marker));
        assert_eq!(FilesMarker::from(*marker.as_bytes()), marker);
        for wrong in ["", "0123", &"g".repeat(32), &format!("+{}", "0".repeat(31)), &"0".repeat(33)] {
            assert!(wrong.parse::<FilesMarker>().is_err(), "{wrong:?}");
        }
    }
}
