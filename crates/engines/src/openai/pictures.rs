//! The pictures in an answer. Everything else is skipped, because servers differ in other fields.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Most pictures kept from an answer.
const MAX_PICTURES: usize = 10;

/// The answer to a generation or an edit, which can be an error with a status of 200.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Pictures<'a> {
    #[serde(borrow, default, deserialize_with = "first_pictures")]
    pub(super) data: Vec<Item<'a>>,
}

/// A picture: its file in base64, or its file's URL. Servers fill the unused one in different ways.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow, default)]
    b64_json: Option<&'a RawValue>,
    #[serde(borrow, default)]
    url: Option<&'a RawValue>,
}

impl<'a> Pictures<'a> {
    /// Reads an answer's body, which some servers start with a byte order mark.
    pub(super) fn read(body: &'a [u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body))
    }
}

impl<'a> Item<'a> {
    pub(super) fn b64_json(&self) -> Option<Cow<'a, str>> {
        self.b64_json.and_then(text)
    }

    pub(super) fn url(&self) -> Option<Cow<'a, str>> {
        self.url.and_then(text)
    }
}

fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    // A string with escapes cannot be borrowed.
    let borrowed = serde_json::from_str::<&str>(value.get()).map(Cow::Borrowed);
    let text = borrowed.or_else(|_| serde_json::from_str(value.get()).map(Cow::Owned));
    text.ok().filter(|text| !text.is_empty())
}

/// Reads a list of any length.
fn first_pictures<'de: 'a, 'a, D: Deserializer<'de>>(list: D) -> Result<Vec<Item<'a>>, D::Error> {
    struct First;
    impl<'de> Visitor<'de> for First {
        type Value = Vec<Item<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pictures")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut pictures = Vec::new();
            while pictures.len() < MAX_PICTURES
                && let Some(picture) = list.next_element::<Option<Item<'de>>>()?
            {
                pictures.push(picture.unwrap_or_default());
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(pictures)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
    }
    list.deserialize_any(First)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_no_more_pictures_than_there_can_be() {
        let answer = format!(r#"{{"data": [{{"b64_json": "AA=="}}, {}{{}}]}}"#, "{},".repeat(1_000));
        let Pictures { data } = Pictures::read(answer.as_bytes()).expect("an answer");
        assert_eq!(data.len(), MAX_PICTURES);
        assert!(matches!(data[0].b64_json(), Some(Cow::Borrowed("AA=="))), "{data:?}");
    }
}
