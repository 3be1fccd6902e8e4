//! The nouns: tasks, accounts, keys, credits and their ids. No I/O.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::domain::timestamp::Timestamp;

/// Credits one image costs (interface, section 1).
pub const CREDITS_PER_IMAGE: i64 = 2;

/// Most credits that a grant may leave in an account. Every JSON reader holds the number exactly, and a
/// refund always fits on top of it: a task whose refund did not fit could never end.
pub const MAX_BALANCE: i64 = 1 << 53;

/// What stands before the id in a `task_id`, and the neutral name of provider and model.
pub const MODEL_NAME: &str = "imgmodel";

const ID_LEN: usize = 21;
const RANDOM_BITS: u32 = 78;
/// Added to the timestamp, so that no id of our time begins with '-' and looks like a flag.
const TIME_OFFSET: i64 = 1 << 46;
/// 64 characters in ASCII order, so that ids sort as the numbers they spell.
const ALPHABET: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

/// The place of a character in [`ALPHABET`].
const fn digit(character: u8) -> Option<u8> {
    match character {
        b'-' => Some(0),
        b'0'..=b'9' => Some(character - b'0' + 1),
        b'A'..=b'Z' => Some(character - b'A' + 11),
        b'_' => Some(37),
        b'a'..=b'z' => Some(character - b'a' + 38),
        _ => None,
    }
}

/// A 21-character identifier: 48 bits of millisecond timestamp, then 78 bits of randomness, written six
/// bits a character. Ids therefore sort by the time they were made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; ID_LEN]);

impl Id {
    fn from_number(number: u128) -> Self {
        let mut text = [0; ID_LEN];
        for (place, character) in text.iter_mut().rev().enumerate() {
            *character = ALPHABET[(number >> (6 * place)) as usize & 63];
        }
        Self(text)
    }

    /// The lowest id that a thing made at `at` can have.
    pub fn floor(at: Timestamp) -> Self {
        Self::from_number(Self::time_bits(at))
    }

    fn time_bits(at: Timestamp) -> u128 {
        let offset = at.as_millis().saturating_add(TIME_OFFSET);
        (u128::try_from(offset).unwrap_or(0) & 0xFFFF_FFFF_FFFF) << RANDOM_BITS
    }

    /// When the id was made.
    pub fn timestamp(self) -> Timestamp {
        let leading = self.0[..8].iter().fold(0_i64, |number, character| {
            let digit = digit(*character).expect("an Id holds only its alphabet");
            (number << 6) | i64::from(digit)
        });
        Timestamp::from_millis(leading - TIME_OFFSET)
    }

    /// The 21 characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an Id holds only ASCII")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The text is not an id.
#[derive(Debug, thiserror::Error)]
#[error("an id has 21 characters of A-Z, a-z, 0-9, '-' and '_'")]
pub struct InvalidId;

impl FromStr for Id {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let bytes: [u8; ID_LEN] = text.as_bytes().try_into().map_err(|_| InvalidId)?;
        if bytes.iter().all(|byte| digit(*byte).is_some()) { Ok(Self(bytes)) } else { Err(InvalidId) }
    }
}

/// Furthest that ids run ahead of the clock after it has stepped back. Within it ids go on rising;
/// beyond it they follow the clock, because the end of a task is reckoned from the time in its id.
const MAX_LEAD: Duration = Duration::from_secs(30);

/// Makes ids that rise, also within a millisecond and when the clock steps back a little.
#[derive(Debug, Default)]
pub struct IdSource {
    last: Mutex<u128>,
}

impl IdSource {
    /// A new id for a thing made at `now`.
    pub fn next(&self, now: Timestamp) -> Id {
        // Half of the random range is left free for the ids that follow in the same millisecond: at
        // 2^60 a step, a quarter of a million of them.
        let random = rand::random::<u128>() >> (128 - RANDOM_BITS + 1);
        let fresh = Id::time_bits(now) | random;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let too_far = Id::from_number(*last).timestamp() > now.saturating_add(MAX_LEAD);
        let after_last = *last + 1 + u128::from(rand::random::<u64>() >> 4);
        *last = if fresh > *last || too_far { fresh } else { after_last };
        Id::from_number(*last)
    }
}

/// Where a task was created. The API sees only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Surface {
    /// Through `/api/v1`.
    Api,
    /// Through the web studio.
    Web,
}

impl Surface {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Web => "web",
        }
    }
}

/// How far a task has come; terminal states never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Queued or being drawn.
    Processing,
    /// Drawn: the names of its result files, in order, at least one.
    Completed(Vec<String>),
    /// Given up and refunded, with a sentence for the caller.
    Failed(String),
}

impl Status {
    /// The word the interface uses.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
        }
    }

    /// Whether the task has ended.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Processing)
    }
}

/// What refused a task under the content policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A rule, by the words of the prompt.
    Words,
    /// The moderation endpoint.
    Moderation,
    /// The list of blocked pictures.
    Blocklist,
    /// The engine itself.
    Engine,
}

impl Violation {
    /// The word shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Moderation => "moderation",
            Self::Blocklist => "blocklist",
            Self::Engine => "engine",
        }
    }
}

/// A task as its owner sees it. What was asked for is in [`crate::domain::request::GenerateRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Row identifier; holds the time of creation.
    pub id: Id,
    /// Who pays for it and may see it.
    pub account_id: Id,
    /// Where it was created.
    pub surface: Surface,
    /// Whether reference images were given.
    pub image_to_image: bool,
    /// How far it has come.
    pub status: Status,
    /// When the status last changed.
    pub updated_at: Timestamp,
}

impl Task {
    /// The identifier callers poll with.
    pub fn task_id(&self) -> TaskId {
        TaskId(self.id)
    }

    /// When the task was accepted.
    pub fn created_at(&self) -> Timestamp {
        self.id.timestamp()
    }

    /// `text-to-image` or `image-to-image`.
    pub fn type_name(&self) -> &'static str {
        if self.image_to_image { "image-to-image" } else { "text-to-image" }
    }
}

/// `imgmodel-` and the task's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskId(pub Id);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MODEL_NAME}-{}", self.0)
    }
}

impl FromStr for TaskId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let id = text.strip_prefix(MODEL_NAME).and_then(|rest| rest.strip_prefix('-')).ok_or(InvalidId)?;
        id.parse().map(TaskId)
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Who owns keys, credits and tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Identifier.
    pub id: Id,
    /// Unique name, chosen by the operator.
    pub name: String,
    /// Credits left.
    pub credits: i64,
}

/// What a ledger entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// The operator gave credits.
    Grant,
    /// A task was accepted.
    Charge,
    /// A task failed.
    Refund,
}

impl EntryKind {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// One line of an account's credit history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerEntry {
    /// Rises with every entry.
    pub id: i64,
    /// What happened.
    pub kind: EntryKind,
    /// Credits, signed: charges are negative.
    pub amount: i64,
    /// Credits left afterwards.
    pub balance: i64,
    /// The task charged or refunded.
    pub task_id: Option<TaskId>,
    /// The operator's words, on grants.
    pub note: Option<String>,
    /// When it happened.
    pub created_at: Timestamp,
}

/// The text names neither of an enum's variants: the database holds something this code never wrote.
#[derive(Debug, thiserror::Error)]
#[error("unknown {what}: {text:?}")]
pub struct UnknownWord {
    what: &'static str,
    text: String,
}

impl FromStr for Surface {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "api" => Ok(Self::Api),
            "web" => Ok(Self::Web),
            _ => Err(UnknownWord { what: "surface", text: text.into() }),
        }
    }
}

impl FromStr for EntryKind {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "grant" => Ok(Self::Grant),
            "charge" => Ok(Self::Charge),
            "refund" => Ok(Self::Refund),
            _ => Err(UnknownWord { what: "ledger entry", text: text.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_795_262_400_000);

    #[test]
    fn ids_hold_their_time_and_look_like_no_flag() {
        for millis in [0, 1, 1_795_262_400_000, 4_102_444_800_000] {
            let id = IdSource::default().next(Timestamp::from_millis(millis));
            assert_eq!(id.timestamp().as_millis(), millis);
            assert!(!id.as_str().starts_with('-'));
            assert!(id >= Id::floor(id.timestamp()));
            assert_eq!(id.as_str().parse::<Id>().ok(), Some(id));
        }
    }

    #[test]
    fn ids_rise_when_the_clock_steps_back_a_little() {
        let ids = IdSource::default();
        let first = ids.next(NOON);
        let second = ids.next(NOON.saturating_sub(MAX_LEAD));
        assert!(second > first);
        assert_eq!(second.timestamp(), NOON);
    }

    #[test]
    fn ids_follow_a_clock_that_steps_back_far() {
        let ids = IdSource::default();
        ids.next(NOON);
        let earlier = NOON.saturating_sub(Duration::from_secs(1_200));
        assert_eq!(ids.next(earlier).timestamp(), earlier, "or its task would end 20 minutes late");
    }
}
