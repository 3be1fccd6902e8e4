//! Undoes the `Content-Encoding` of a body, as browsers do. No request asks for one, but many servers compress whatever
//! they send.

use std::io::{self, Read};

use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use reqwest::header::{CONTENT_ENCODING, HeaderMap};

/// Most encodings of one body. No honest server applies more than one.
const MAX_ENCODINGS: usize = 3;
/// Buffer of the decompressor for Brotli, in bytes.
const BUFFER: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Deflate,
    Brotli,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum EncodingError {
    #[error("more than {MAX_ENCODINGS} content encodings")]
    TooMany,
    #[error("{0:?} cannot be undone: {1}")]
    Damaged(Encoding, io::Error),
    /// It has more bytes than this.
    #[error("more than {0} bytes without {1:?}")]
    TooLarge(usize, Encoding),
}

/// A body's encodings, in the order in which they were applied. Like browsers, ignores unknown names that servers make
/// up: `utf-8`, `binary`, `aws-chunked`.
///
/// # Errors
/// [`EncodingError::TooMany`].
pub(super) fn of(headers: &HeaderMap) -> Result<Vec<Encoding>, EncodingError> {
    let values = headers.get_all(CONTENT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let known = |name: &str| match name.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => Some(Encoding::Gzip),
        "deflate" => Some(Encoding::Deflate),
        "br" => Some(Encoding::Brotli),
        _ => None,
    };
    let encodings: Vec<_> =
        values.flat_map(|value| value.split(',')).filter_map(known).take(MAX_ENCODINGS + 1).collect();
    if encodings.len() > MAX_ENCODINGS { Err(EncodingError::TooMany) } else { Ok(encodings) }
}

/// The body without an encoding. Memory is allocated as bytes come out, and no more than `max_bytes` do.
pub(super) fn undo(encoding: Encoding, body: &[u8], max_bytes: usize) -> Result<Vec<u8>, EncodingError> {
    let decoded = match encoding {
        Encoding::Gzip => read(GzDecoder::new(body), max_bytes),
        Encoding::Brotli => read(brotli_decompressor::Decompressor::new(body, BUFFER), max_bytes),
        // The standard says zlib. Some servers leave its header out, and browsers take both.
        Encoding::Deflate => {
            read(ZlibDecoder::new(body), max_bytes).or_else(|_| read(DeflateDecoder::new(body), max_bytes))
        }
    };
    let decoded = decoded.map_err(|error| EncodingError::Damaged(encoding, error))?;
    if decoded.len() > max_bytes { Err(EncodingError::TooLarge(max_bytes, encoding)) } else { Ok(decoded) }
}

/// All bytes of a decoder, or one more than allowed.
fn read(decoder: impl Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    decoder.take(max_bytes as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn known_encodings_are_found_in_all_headers_and_unknown_ones_are_ignored() {
        for (values, expected) in [
            (&[][..], Some(&[][..])),
            (&["identity"], Some(&[])),
            (&["GZIP"], Some(&[Encoding::Gzip])),
            (&["x-gzip", "br"], Some(&[Encoding::Gzip, Encoding::Brotli])),
            (&["deflate, gzip"], Some(&[Encoding::Deflate, Encoding::Gzip])),
            (&["utf-8"], Some(&[])),
            (&["aws-chunked,gzip"], Some(&[Encoding::Gzip])),
            (&["gzip,gzip", "gzip,gzip"], None),
        ] {
            let mut map = HeaderMap::new();
            for value in values {
                map.append(CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(of(&map).ok().as_deref(), expected, "{values:?}");
        }
    }
}
