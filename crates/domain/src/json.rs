//! JSON of callers.

use std::collections::HashSet;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A JSON value. `serde_json::Value` is unsuitable: it treats an object with a certain key
/// as the JSON in the string under that key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    String(String),
    Number(f64),
    Array(Vec<Json>),
    /// The fields in order, including repeated ones.
    Object(Vec<(String, Json)>),
}

/// The fields of a body.
///
/// # Errors
/// A message for the caller: it is not a JSON object, or repeats a field.
pub(super) fn fields(body: &[u8]) -> Result<Vec<(String, Json)>, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed = deserializer.deserialize_any(JsonVisitor { is_body: true });
    let parsed = parsed.and_then(|json| deserializer.end().map(|()| json));
    match parsed.map_err(|error| format!("The body is not a valid JSON object: {error}."))? {
        Json::Object(fields) => refuse_repeated(&fields).map(|()| fields),
        _ => Err("The body must be a JSON object.".into()),
    }
}

/// # Errors
/// A message for the caller.
pub(super) fn refuse_repeated(fields: &[(String, Json)]) -> Result<(), String> {
    let mut seen = HashSet::new();
    let Some((repeated, _)) = fields.iter().find(|(name, _)| !seen.insert(name.as_str())) else { return Ok(()) };
    let shown: String = repeated.chars().take(40).collect();
    Err(format!("The body repeats the field {shown:?}."))
}

/// The number of images, which determines the price. Values that aren't integers as written, such as
/// 4.0000000000000001, are rejected, although the nearest 64-bit number is an integer. A text stays a text.
pub(super) fn image_count(written: &str) -> Json {
    match written {
        "null" => Json::Null,
        text if text.starts_with('"') => Json::String(text.trim_matches('"').to_owned()),
        text => Json::Number(text.parse().ok().filter(|_| is_whole(text)).unwrap_or(f64::NAN)),
    }
}

fn is_whole(number: &str) -> bool {
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let zeros = digits.bytes().rev().filter(|byte| *byte != b'.').take_while(|byte| *byte == b'0').count();
    let shift = exponent.parse::<i64>().ok();
    shift.is_some_and(|shift| decimals as i64 - zeros as i64 <= shift)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor { is_body: false })
    }
}

struct JsonVisitor {
    /// Whether the value is a body, whose field `n` is read as written.
    is_body: bool,
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::String(text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number as f64))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Number(number))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = seq.next_element()? {
            entries.push(entry);
        }
        Ok(Json::Array(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let is_count = self.is_body && name == "n";
            let value = if is_count { image_count(map.next_value::<&RawValue>()?.get()) } else { map.next_value()? };
            fields.push((name, value));
        }
        Ok(Json::Object(fields))
    }
}
