//! The bytes of a JSON body as text: without the compression that its sender applied, and without a byte order mark.

use std::io::Read;

use axum::http::header::{self, HeaderMap};
use bytes::Bytes;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use crate::http::pipeline::error::ApiError;
use tintype_config::MAX_BODY;

/// The compression of a body, by its `Content-Encoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Coding {
    Plain,
    Gzip,
    Deflate,
}

impl Coding {
    /// Reads the header. Anything but one known coding is refused by name.
    pub(in crate::http) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let lines = headers.get_all(header::CONTENT_ENCODING).iter();
        let text = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect::<Vec<_>>().join(",");
        let mut coding = Self::Plain;
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let next = match name.to_ascii_lowercase().as_str() {
                "identity" => continue,
                "gzip" | "x-gzip" => Self::Gzip,
                "deflate" => Self::Deflate,
                _ => return Err(ApiError::unknown_coding()),
            };
            if coding != Self::Plain {
                return Err(ApiError::unknown_coding());
            }
            coding = next;
        }
        Ok(coding)
    }

    pub(super) fn text(self, body: Bytes) -> Result<Bytes, ApiError> {
        let body = match self {
            Self::Plain => body,
            Self::Gzip => unpacked(&mut MultiGzDecoder::new(&*body))?,
            // The standard wants zlib's frame; some programs send the data without it.
            Self::Deflate if has_zlib_frame(&body) => {
                let mut packed = ZlibDecoder::new(&*body);
                unpacked(&mut packed).and_then(|plain| whole(plain, packed.into_inner()))?
            }
            Self::Deflate => {
                let mut packed = DeflateDecoder::new(&*body);
                unpacked(&mut packed).and_then(|plain| whole(plain, packed.into_inner()))?
            }
        };
        text(body)
    }
}

/// UTF-8 without a byte order mark, which programs on Windows put first.
pub(in crate::http) fn text(mut body: Bytes) -> Result<Bytes, ApiError> {
    if body.starts_with(b"\xff\xfe") || body.starts_with(b"\xfe\xff") {
        return Err(ApiError::invalid_request("The body is in UTF-16; it must be JSON in UTF-8."));
    }
    if body.starts_with(b"\xef\xbb\xbf") {
        drop(body.split_to(3));
    }
    match std::str::from_utf8(&body) {
        Ok(_) => Ok(body),
        Err(fault) => {
            let message = format!("The body must be JSON in UTF-8; its byte {} is not UTF-8.", fault.valid_up_to() + 1);
            Err(ApiError::invalid_request(message))
        }
    }
}

fn has_zlib_frame(body: &[u8]) -> bool {
    matches!(body, [first, second, ..]
        if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31))
}

/// These bytes, if nothing of the body is left.
fn whole(plain: Bytes, left: &[u8]) -> Result<Bytes, ApiError> {
    if left.is_empty() { Ok(plain) } else { Err(badly_packed()) }
}

fn badly_packed() -> ApiError {
    ApiError::invalid_request("The body is not compressed as its Content-Encoding says.")
}

/// The unpacked bytes, which have the limit of every body.
fn unpacked(packed: &mut impl Read) -> Result<Bytes, ApiError> {
    let mut plain = Vec::new();
    let read = packed.take(MAX_BODY as u64 + 1).read_to_end(&mut plain);
    if plain.len() > MAX_BODY {
        return Err(ApiError::of_status(axum::http::StatusCode::PAYLOAD_TOO_LARGE));
    }
    match read {
        Ok(_) => Ok(plain.into()),
        Err(_) => Err(badly_packed()),
    }
}
