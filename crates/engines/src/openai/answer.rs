//! Reads a server's answers, including invalid ones.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tintype_engine::EngineError;

use super::super::endpoint::{Endpoint, EngineResponse, Fault};
use super::pictures::{Item, Pictures};
use super::server_error::ServerError;
use tintype_domain::text::counted;

/// The first bytes of a gzip stream, which some servers send although the request forbids compression.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Some servers omit the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum File {
    Bytes(Vec<u8>),
    At(String),
}

/// An answer's files, which must be at least `count`.
///
/// # Errors
/// The fault that the answer stands for.
pub(super) fn files(endpoint: &Endpoint, answer: &EngineResponse, count: usize) -> Result<Vec<File>, Fault> {
    let name = endpoint.name();
    let server_error = || ServerError::read(&answer.body);
    if !answer.status.is_success() {
        let server_error = server_error().unwrap_or_default();
        let refused = server_error.is_refusal && answer.status.is_client_error();
        return Err(match refused {
            true => EngineError::Refused(format!("{name}{}", endpoint.quoted(&server_error.words))).into(),
            false => endpoint.failure(answer, &server_error.words),
        });
    }
    let nonsense = |what: String| Fault::from(EngineError::Temporary(format!("{name} {what}")));
    let data = match Pictures::read(&answer.body) {
        Ok(Pictures { data }) => data,
        // The parser's error could quote the answer, and so the prompt.
        Err(error) => {
            let media_type = answer.media_type();
            if answer.body.starts_with(&GZIP) {
                return Err(nonsense("answered 200 with compressed bytes: turn off its compression".into()));
            }
            let kind =
                if media_type.contains("json") || media_type.is_empty() { "no Images API answer" } else { &media_type };
            return Err(nonsense(format!(
                "answered 200 with {kind} (line {}, column {})",
                error.line(),
                error.column()
            )));
        }
    };
    if data.len() < count {
        if let Some(server_error) = server_error() {
            let words = endpoint.quoted(&server_error.words);
            return Err(match (server_error.is_refusal, server_error.words.advice) {
                (true, _) => EngineError::Refused(format!("{name}{words}")).into(),
                (false, Some(advice)) => {
                    EngineError::NotAvailable(format!("{name} answered 200 with an error inside{words}: {advice}"))
                        .into()
                }
                (false, None) => nonsense(format!("answered 200 with an error inside{words}")),
            });
        }
        let returned = counted(data.len() as u64, "picture", "pictures");
        return Err(nonsense(format!("returned {returned} instead of {count}")));
    }
    let files = data.iter().take(count).map(|data| file(data).map_err(|what| nonsense(what.into())));
    files.collect()
}

/// A picture's file; the error is the rest of a sentence about the server.
fn file(item: &Item<'_>) -> Result<File, &'static str> {
    let url = item.url();
    let inline = item.b64_json().or_else(|| url.clone().filter(|url| url.starts_with("data:")));
    match (inline, url) {
        (Some(text), _) => decode(text).map(File::Bytes),
        (None, Some(url)) => Ok(File::At(url.into_owned())),
        (None, None) => Err("returned a picture with neither b64_json nor url"),
    }
}

fn decode(text: Cow<'_, str>) -> Result<Vec<u8>, &'static str> {
    // A data URL contains a comma, base64 doesn't.
    let text = text.rsplit_once(',').map_or(&*text, |(_, base64)| base64);
    let text: Cow<'_, str> = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => text.split_ascii_whitespace().collect::<String>().into(),
        false => text.into(),
    };
    // Some servers use the URL-safe alphabet.
    let text = match text.contains(['-', '_']) {
        true => text.replace('-', "+").replace('_', "/").into(),
        false => text,
    };
    BASE64.decode(text.as_bytes()).map_err(|_| "returned invalid base64")
}
