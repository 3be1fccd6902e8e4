//! The body of a submit.

use std::collections::HashMap;

use serde_json::value::RawValue;
use tintype_domain::reference_url::HTTPS_PORT;
use tintype_domain::request::{AspectRatio, GenerateRequest};

use super::reference_url;

/// Longest error message, in characters: it may quote a part of the body, but not all of it.
const MAX_MESSAGE_CHARS: usize = 600;
/// Longest list of ignored fields, in bytes.
const MAX_HEADER: usize = 500;

/// An accepted body obeys the interface, another JSON parser reads the same values from it, and the names of its ignored
/// fields fit a header.
pub fn body(data: &[u8]) -> bool {
    match GenerateRequest::parse_noting(data, &[HTTPS_PORT]) {
        Ok((request, ignored)) => {
            let header = ignored.to_string();
            assert!(header.len() <= MAX_HEADER && header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header}");
            check_limits(&request);
            check_reading(data, &request).expect("the fields of an accepted body have the right types");
            let written = serde_json::to_vec(&request).expect("a request is always JSON");
            assert_eq!(GenerateRequest::parse(&written, &[HTTPS_PORT]), Ok(request));
            true
        }
        Err(fault) => {
            let message = fault.to_string();
            assert!(!message.is_empty() && message.chars().count() <= MAX_MESSAGE_CHARS, "{message}");
            false
        }
    }
}

/// Parses each field on its own as its expected type.
fn check_reading(data: &[u8], request: &GenerateRequest) -> serde_json::Result<()> {
    let fields: HashMap<String, Box<RawValue>> = serde_json::from_slice(data)?;
    let field = |name| fields.get(name).map(|field| field.get());
    let prompt: Option<String> = field("prompt").map(serde_json::from_str).transpose()?;
    let aspect_ratio: Option<String> = field("aspect_ratio").map(serde_json::from_str).transpose()?;
    let n: Option<f64> = field("n").map(serde_json::from_str).transpose()?;
    let references: Option<Vec<String>> = field("reference_images").map(serde_json::from_str).transpose()?;
    assert_eq!(prompt.as_deref(), Some(request.prompt.as_str()));
    assert_eq!(aspect_ratio.as_deref().unwrap_or("1:1"), request.aspect_ratio.as_str());
    assert_eq!(n.unwrap_or(1.0), f64::from(request.n));
    assert_eq!(references.unwrap_or_default(), request.reference_images);
    Ok(())
}

fn check_limits(request: &GenerateRequest) {
    let GenerateRequest { prompt, aspect_ratio, n, reference_images, .. } = request;
    assert!(!prompt.trim().is_empty() && !prompt.contains('\0') && prompt.chars().count() <= 32_000);
    assert!((1..=4).contains(n) && request.cost() == 2 * i64::from(*n));
    assert!(AspectRatio::ALL.contains(aspect_ratio));
    assert!(reference_images.len() <= 4);
    for url in reference_images {
        assert!(reference_url(url.as_bytes()), "{url}");
    }
}
