//! References to pictures that the service has: what an account uploaded, or what an earlier task of it made. They
//! stand among the URLs of a request, which always begin with `https:`.

use std::fmt;

use crate::model::Id;
use crate::request::MAX_IMAGES;

/// A picture of the account that a task uses as a reference. Displays as it is stored: `upload:ID`, or
/// `result:ID/NUMBER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredReference {
    /// An upload.
    Upload(Id),
    /// A picture of an earlier task.
    Result {
        /// The task.
        task: Id,
        /// Its place among the pictures of the task, from 1.
        number: u8,
    },
}

impl StoredReference {
    /// Parses a reference as it is stored; `None` for anything else, such as a URL.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("upload", id) => id.parse().ok().map(Self::Upload),
            ("result", rest) => {
                let (task, number) = rest.split_once('/')?;
                let (task, number) = (task.parse().ok()?, number.parse().ok()?);
                let found = Self::Result { task, number };
                // One spelling for each picture: `parse` of a number takes "+1" and "01", too.
                ((1..=MAX_IMAGES).contains(&number) && found.to_string() == text).then_some(found)
            }
            _ => None,
        }
    }
}

impl fmt::Display for StoredReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upload(id) => write!(f, "upload:{id}"),
            Self::Result { task, number } => write!(f, "result:{task}/{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_is_written_and_in_no_other_spelling() {
        let id: Id = "FAAAAAAAAAAAAAAAAAAAA".parse().expect("an id");
        for known in [StoredReference::Upload(id), StoredReference::Result { task: id, number: 4 }] {
            assert_eq!(StoredReference::parse(&known.to_string()), Some(known));
        }
        for text in ["", "upload:", "upload:x", "Upload:FAAAAAAAAAAAAAAAAAAAA", "https://example.com/a.png"] {
            assert_eq!(StoredReference::parse(text), None, "{text}");
        }
        for number in ["", "0", "5", "+1", "01", "1/", "256", "-1"] {
            assert_eq!(StoredReference::parse(&format!("result:{id}/{number}")), None, "{number}");
        }
    }
}
