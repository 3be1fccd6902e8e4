//! Fields of a provider's documents. The ones in use are unambiguous; the others can be anything.

use serde_json::{Map, Value};

pub(super) type Fields = Map<String, Value>;

/// The type of a field, without its value: for the log, which gets no tokens.
pub(super) fn kind(value: Option<&Value>) -> &'static str {
    match value {
        None => "missing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(text)) if text.is_empty() => "an empty text",
        Some(Value::String(_)) => "a text",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "an object",
    }
}

/// A field that must be a text.
pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Result<&'a str, String> {
    let found = fields.get(name);
    let text = found.and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| format!("`{name}` is {}, and must be a text", kind(found)))
}

/// A text, or a whole number that a provider did not quote.
pub(super) fn text_or_number(fields: &Fields, name: &str) -> Result<String, String> {
    match fields.get(name) {
        Some(Value::Number(number)) if number.is_u64() => Ok(number.to_string()),
        _ => text(fields, name).map(str::to_owned),
    }
}

/// Seconds since 1970 as a number, whole or not, or as a text that holds one.
pub(super) fn seconds(fields: &Fields, name: &str) -> Result<Option<f64>, String> {
    let found = fields.get(name);
    let number = match found {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(_) => None,
    };
    let number = number.filter(|number: &f64| number.is_finite());
    number.map(Some).ok_or_else(|| format!("`{name}` is {}, and must be a time in seconds", kind(found)))
}
