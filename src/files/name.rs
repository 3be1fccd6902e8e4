//! Names of result files.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use tintype_domain::model::Id;

/// Length of a day such as `2026-11-21`.
pub(super) const DAY_LENGTH: usize = 10;
/// The extension of a picture, and of its thumbnail.
const PNG: &str = ".png";
const THUMBNAIL: &str = ".webp";
const RANDOM_BYTES: usize = 18;

/// The name of a result file: `DAY/TASK-INDEX-RANDOM.png`.
///
/// The day keeps directories small, the task identifies the owner, and 144 random bits make the name unguessable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileName<'a> {
    text: &'a str,
    task_id: Id,
}

impl<'a> FileName<'a> {
    /// Parses a name; `None` if it does not have this format.
    pub fn parse(text: &'a str) -> Option<Self> {
        Some(Self { text, task_id: Self::owner(text.strip_suffix(PNG)?)? })
    }

    /// Parses the name of a picture or its thumbnail, or of an interrupted write's leftovers; `None` for anything else.
    pub fn parse_any(text: &'a str) -> Option<AnyName<'a>> {
        // An interrupted write leaves a temporary file: the intended name, `#` and a number.
        let (intended, is_temporary) = text.split_once('#').map_or((text, false), |(intended, _)| (intended, true));
        let stem = intended.strip_suffix(PNG).or_else(|| intended.strip_suffix(THUMBNAIL))?;
        Some(AnyName { text, stem, task_id: Self::owner(stem)?, is_temporary })
    }

    /// The task or the upload that a name without its extension belongs to.
    fn owner(stem: &str) -> Option<Id> {
        let (day, file) = stem.split_once('/')?;
        let (task, rest) = file.split_at_checked(21)?;
        let mut rest = rest.bytes();
        let well_formed = is_day(day)
            && rest.next() == Some(b'-')
            && rest.next().is_some_and(|index| index.is_ascii_digit())
            && rest.next() == Some(b'-')
            && rest.len() == RANDOM_BYTES * 4 / 3
            && rest.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        well_formed.then(|| task.parse().ok())?
    }

    pub(super) fn thumbnail(self) -> String {
        format!("{}{THUMBNAIL}", self.text.strip_suffix(PNG).unwrap_or(self.text))
    }

    pub(super) fn random(task_id: Id, index: usize) -> String {
        let day = task_id.timestamp().to_string();
        let random = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; RANDOM_BYTES]>());
        format!("{}/{task_id}-{index}-{random}.png", &day[..DAY_LENGTH])
    }

    /// The whole name.
    pub fn as_str(self) -> &'a str {
        self.text
    }

    /// The task or the upload that the file belongs to.
    pub fn task_id(self) -> Id {
        self.task_id
    }
}

/// The name of a picture or its thumbnail, or of an interrupted write's leftovers.
#[derive(Debug, Clone, Copy)]
pub struct AnyName<'a> {
    /// The whole name.
    pub text: &'a str,
    /// The name of the picture without its extension.
    stem: &'a str,
    /// The task or the upload that the file belongs to.
    pub task_id: Id,
    is_temporary: bool,
}

impl AnyName<'_> {
    /// Whether this file is one of the pictures `images`, or a thumbnail of one.
    pub fn is_of(&self, images: &[String]) -> bool {
        !self.is_temporary && images.iter().any(|image| image.strip_suffix(PNG) == Some(self.stem))
    }
}

/// Whether the text has the format of `2026-11-21`.
pub(super) fn is_day(text: &str) -> bool {
    let fits = |byte: u8, expected: u8| if expected == b'0' { byte.is_ascii_digit() } else { byte == expected };
    text.len() == DAY_LENGTH && text.bytes().zip(*b"0000-00-00").all(|(byte, expected)| fits(byte, expected))
}
