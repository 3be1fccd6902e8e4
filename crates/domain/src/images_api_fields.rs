//! The fields of a call of OpenAI's Images API, from JSON or from a form.

use std::ops::RangeInclusive;

use super::images_api_request::InvalidCall;
use super::json::{self, Json};

/// Fields that are numbers.
const NUMBERS: [&str; 10] = [
    "n",
    "output_compression",
    "partial_images",
    "seed",
    "steps",
    "num_inference_steps",
    "guidance_scale",
    "strength",
    "width",
    "height",
];

/// The fields that haven't been taken yet.
#[derive(Debug)]
pub struct Fields {
    pub(super) rest: Vec<(String, Json)>,
}

pub(super) fn invalid<T>(param: &'static str, rule: &str) -> Result<T, InvalidCall> {
    Err(InvalidCall { message: format!("{param} {rule}."), param: Some(param) })
}

fn of_body(message: String) -> InvalidCall {
    InvalidCall { message, param: None }
}

impl Fields {
    /// Reads a body in JSON.
    pub fn of_json(body: &[u8]) -> Result<Self, InvalidCall> {
        Ok(Self::of_given(json::fields(body).map_err(of_body)?))
    }

    /// Reads a form's fields, except its `images`, which are passed in order.
    pub fn of_form(fields: Vec<(String, String)>, images: Vec<String>) -> Result<Self, InvalidCall> {
        let fields: Vec<_> = fields.into_iter().map(|(name, text)| (name, Json::String(text))).collect();
        json::refuse_repeated(&fields).map_err(of_body)?;
        let mut read = Self::of_given(fields);
        if !images.is_empty() {
            read.rest.push(("image".into(), Json::Array(images.into_iter().map(Json::String).collect())));
        }
        Ok(read)
    }

    /// A field that is null or an empty text counts as absent, because some programs send every field. Forms write all
    /// values as text, and so do many programs in JSON.
    fn of_given(fields: Vec<(String, Json)>) -> Self {
        let is_empty = |value: &Json| *value == Json::Null || *value == Json::String(String::new());
        let typed = |(name, value): (String, Json)| {
            let Json::String(text) = value else { return (name, value) };
            let value = match text.parse::<f64>() {
                Ok(_) if name == "n" => json::image_count(&text),
                Ok(number) if NUMBERS.contains(&name.as_str()) && number.is_finite() => Json::Number(number),
                _ if name == "stream" && text.eq_ignore_ascii_case("true") => Json::Bool(true),
                _ if name == "stream" && text.eq_ignore_ascii_case("false") => Json::Bool(false),
                _ => Json::String(text),
            };
            (name, value)
        };
        Self { rest: fields.into_iter().filter(|(_, value)| !is_empty(value)).map(typed).collect() }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Json> {
        let index = self.rest.iter().position(|(known, _)| known == name)?;
        Some(self.rest.remove(index).1)
    }

    pub(super) fn word(&mut self, name: &'static str) -> Result<Option<String>, InvalidCall> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => invalid(name, "must be a string"),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, InvalidCall> {
        match self.take(name) {
            None => Ok(false),
            Some(Json::Bool(value)) => Ok(value),
            Some(_) => invalid(name, "must be true or false"),
        }
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<f64>, InvalidCall> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(number)) => Ok(Some(number)),
            Some(_) => invalid(name, "must be a number"),
        }
    }

    /// A whole number that is not negative. One beyond 32 bits is out of every bounds.
    pub(super) fn count_of(&mut self, name: &'static str) -> Result<Option<u32>, InvalidCall> {
        match self.number(name)? {
            None => Ok(None),
            Some(number) if number.fract() == 0.0 && number >= 0.0 => Ok(Some(number.min(f64::from(u32::MAX)) as u32)),
            Some(_) => invalid(name, "must be a whole number"),
        }
    }

    pub(super) fn integer(&mut self, name: &'static str, range: RangeInclusive<u8>) -> Result<Option<u8>, InvalidCall> {
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(number)) if number.fract() == 0.0 && bounds.contains(&number) => Ok(Some(number as u8)),
            Some(_) => invalid(name, &format!("must be an integer from {} to {}", range.start(), range.end())),
        }
    }
}
