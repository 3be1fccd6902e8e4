//! Tasks, accounts, ledger entries and their ids. No I/O.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::string_enum;
use crate::timestamp::Timestamp;

/// Credits per image.
pub const CREDITS_PER_IMAGE: i64 = 2;

/// Highest balance after a grant. All JSON parsers represent this number exactly, and a refund always fits on top; a
/// task whose refund didn't fit could never end.
pub const MAX_BALANCE: i64 = 1 << 53;

/// Prefix of every `task_id`, and the neutral name of provider and model.
pub const MODEL_NAME: &str = "imgmodel";

pub(crate) const ID_LEN: usize = 21;
const RANDOM_BITS: u32 = 78;
/// Bits of them that a rank keeps.
const RANK_BITS: u32 = 21;
/// Offset of the timestamp, so that no id starts with '-' and looks like a command-line flag.
const TIME_OFFSET: i64 = 1 << 46;
/// 64 characters in ASCII order, so that ids sort like the numbers that they encode.
const ALPHABET: &[u8; 64] = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

/// Index of a character in [`ALPHABET`].
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

/// A 21-character identifier: a 48-bit timestamp in milliseconds and 78 random bits, with six bits per character. Ids
/// therefore sort by their time of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; ID_LEN]);

impl Id {
    fn from_number(number: u128) -> Self {
        let mut text = [0; ID_LEN];
        for (index, character) in text.iter_mut().rev().enumerate() {
            *character = ALPHABET[(number >> (6 * index)) as usize & 63];
        }
        Self(text)
    }

    /// The lowest id that can be created at `at`.
    pub fn floor(at: Timestamp) -> Self {
        Self::from_number(Self::time_bits(at))
    }

    fn time_bits(at: Timestamp) -> u128 {
        let offset = at.as_millis().saturating_add(TIME_OFFSET);
        (u128::try_from(offset).unwrap_or(0) & 0xFFFF_FFFF_FFFF) << RANDOM_BITS
    }

    /// Time of creation.
    pub fn timestamp(self) -> Timestamp {
        let leading = self.0[..8].iter().fold(0_i64, |number, character| {
            let digit = digit(*character).expect("an Id contains only its alphabet");
            (number << 6) | i64::from(digit)
        });
        Timestamp::from_millis(leading - TIME_OFFSET)
    }

    /// A number of 63 bits that rises with ids: 42 bits of the time and the first 21 random ones. Ids of one
    /// millisecond may share it.
    pub fn rank(self) -> i64 {
        let number = self.0.iter().fold(0_u128, |number, character| {
            let digit = digit(*character).expect("an Id contains only its alphabet");
            (number << 6) | u128::from(digit)
        });
        let random = (number & ((1 << RANDOM_BITS) - 1)) >> (RANDOM_BITS - RANK_BITS);
        (self.rank_millis(0) << RANK_BITS) | i64::try_from(random).expect("21 bits")
    }

    /// The lowest number that no id of this millisecond or an earlier one has as its rank.
    pub fn rank_after(self) -> i64 {
        self.rank_millis(1) << RANK_BITS
    }

    /// Its time and `more` milliseconds, as far as a rank has room for it.
    fn rank_millis(self, more: i64) -> i64 {
        self.timestamp().as_millis().saturating_add(more).clamp(0, (1 << (63 - RANK_BITS)) - 1)
    }

    /// The 21 characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an Id contains only ASCII")
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

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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

/// The longest that ids can run ahead of the clock after it was set back. Up to this limit ids keep rising; beyond it
/// they follow the clock, because a task's time limit is calculated from its id.
const MAX_LEAD: Duration = Duration::from_secs(30);

/// Creates rising ids, even within a millisecond and when the clock is set back a little.
#[derive(Debug, Default)]
pub struct IdSource {
    last: Mutex<u128>,
}

impl IdSource {
    /// Creates an id at `now`.
    pub fn next(&self, now: Timestamp) -> Id {
        // Half of the random range stays free for further ids in the same millisecond: with steps of up to 2^60,
        // a quarter of a million of them.
        let random = rand::random::<u128>() >> (128 - RANDOM_BITS + 1);
        let fresh = Id::time_bits(now) | random;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let too_far = Id::from_number(*last).timestamp() > now.saturating_add(MAX_LEAD);
        let after_last = *last + 1 + u128::from(rand::random::<u64>() >> 4);
        *last = if fresh > *last || too_far { fresh } else { after_last };
        Id::from_number(*last)
    }
}

string_enum! {
    /// The part of the service that created a task. The API shows only its own tasks.
    pub enum Surface: "surface" {
        /// Through `/api/v1`.
        Api = "api",
        /// Through the web studio.
        Web = "web",
    }
}

/// A task, and who may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRef {
    /// Its id.
    pub id: Id,
    /// The account that owns it.
    pub account_id: Id,
    /// The surface on which the account created it.
    pub surface: Surface,
}

/// Status of a task. Terminal states never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Queued or rendering.
    Processing,
    /// Completed, with the names of its result files in order, at least one.
    Completed(Vec<String>),
    /// Failed and refunded.
    Failed(TaskFailure),
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskFailure {
    /// What went wrong. Codes derive from it.
    pub cause: FailureCause,
    /// A message for the caller, in English. The studio has its own messages for each cause.
    pub message: String,
}

impl TaskFailure {
    /// A failure with this cause and message.
    pub fn new(cause: FailureCause, message: &str) -> Self {
        Self { cause, message: message.to_owned() }
    }
}

/// What made a task fail. The API and the studio each have their own words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCause {
    /// The content policy refused it.
    Policy,
    /// A reference image can't be used; its index, from 0.
    Reference(usize, ReferenceProblem),
    /// It has more reference images than this, the most that any engine takes.
    TooManyReferences(u32),
    /// No engine of the service renders such tasks.
    NoEngine,
    /// The engine can't render it.
    Engine,
    /// Its last attempt was lost.
    Lost,
    /// It wasn't finished in time.
    Expired,
    /// A person of its account cancelled it. That is not a failure of the service.
    Cancelled,
    /// An operator failed it.
    Operator,
    /// Another release wrote it; only the message says why.
    Unknown,
}

string_enum! {
    /// What is wrong with a reference image.
    pub enum ReferenceProblem or Unknown {
        /// The service does not download from such an address.
        Address = "address",
        /// It could not be downloaded.
        Unreachable = "unreachable",
        /// It has too many bytes or pixels.
        TooLarge = "too-large",
        /// It is not a PNG, JPEG or WebP image.
        NotAnImage = "not-an-image",
        /// It can't be decoded to its end.
        Damaged = "damaged",
        /// It is a picture of the account that was deleted.
        Gone = "gone",
        /// The mask for it was deleted.
        MaskGone = "mask-gone",
        /// The mask for it has another size.
        MaskSize = "mask-size",
        /// Another release wrote it.
        Unknown = "",
    }
}

/// The name that is stored and shown, such as `policy` and `reference:0:too-large`.
impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("policy"),
            Self::Reference(index, ReferenceProblem::Unknown) => write!(f, "reference:{index}"),
            Self::Reference(index, problem) => write!(f, "reference:{index}:{}", problem.as_str()),
            Self::TooManyReferences(most) => write!(f, "references:{most}"),
            Self::NoEngine => f.write_str("no-engine"),
            Self::Engine => f.write_str("engine"),
            Self::Lost => f.write_str("lost"),
            Self::Expired => f.write_str("expired"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Operator => f.write_str("operator"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl FailureCause {
    /// The cause with this name. Every text is read, because another release may have written it.
    pub fn named(text: &str) -> Self {
        let mut parts = text.split(':');
        let cause = match (parts.next().unwrap_or_default(), parts.next()) {
            ("policy", None) => Some(Self::Policy),
            ("no-engine", None) => Some(Self::NoEngine),
            ("engine", None) => Some(Self::Engine),
            ("lost", None) => Some(Self::Lost),
            ("expired", None) => Some(Self::Expired),
            ("cancelled", None) => Some(Self::Cancelled),
            ("operator", None) => Some(Self::Operator),
            ("references", Some(most)) => most.parse().ok().map(Self::TooManyReferences),
            ("reference", Some(index)) => {
                let Ok(problem) = parts.next().unwrap_or_default().parse::<ReferenceProblem>();
                index.parse().ok().map(|index| Self::Reference(index, problem))
            }
            _ => None,
        };
        cause.unwrap_or(Self::Unknown)
    }
}

impl Status {
    /// The name in the interface.
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

string_enum! {
    /// The part of the content policy that refused a task.
    pub enum Violation: "violation" {
        /// A rule that matches words of the prompt.
        Words = "words",
        /// The moderation endpoint.
        Moderation = "moderation",
        /// The list of blocked pictures.
        Blocklist = "blocklist",
        /// The engine itself.
        Engine = "engine",
    }
}

/// A task as its owner sees it. The request is a [`crate::request::GenerateRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Row identifier, which contains the time of creation.
    pub id: Id,
    /// The account that pays for the task and may see it.
    pub account_id: Id,
    /// The part of the service that created it.
    pub surface: Surface,
    /// Whether reference images were given.
    pub image_to_image: bool,
    /// Status.
    pub status: Status,
    /// When the status last changed.
    pub updated_at: Timestamp,
}

impl Task {
    /// The identifier for polling.
    pub fn task_id(&self) -> TaskId {
        TaskId(self.id)
    }

    /// Time at which the task was accepted.
    pub fn created_at(&self) -> Timestamp {
        self.id.timestamp()
    }

    /// `text-to-image` or `image-to-image`.
    pub fn type_name(&self) -> &'static str {
        if self.image_to_image { "image-to-image" } else { "text-to-image" }
    }
}

/// `imgmodel-` and the id of the task.
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

/// An account, which owns keys, credits and tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Identifier.
    pub id: Id,
    /// Unique name, chosen by the operator.
    pub name: String,
    /// Credits left.
    pub credits: i64,
    /// The balance below which its endpoints get one `credits.low` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_balance: Option<i64>,
    /// Whether its owners manage all accounts in the studio.
    #[serde(skip)]
    pub admin: bool,
    /// Time at which it was disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Timestamp>,
    /// Time at which it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

impl Account {
    /// An account that was just created.
    pub fn new(id: Id, name: String, credits: i64, admin: bool) -> Self {
        Self { id, name, credits, low_balance: None, admin, disabled_at: None, deleted_at: None }
    }
}

string_enum! {
    /// Kind of a ledger entry.
    pub enum EntryKind: "ledger entry" {
        /// The operator gave credits.
        Grant = "grant",
        /// A task was accepted.
        Charge = "charge",
        /// A task failed.
        Refund = "refund",
        /// Granted credits expired.
        Expiry = "expiry",
    }
}

/// One entry in the ledger of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerEntry {
    /// Increases with every entry.
    pub id: i64,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Signed credits; charges and expiries are negative.
    pub amount: i64,
    /// Balance after the entry.
    pub balance: i64,
    /// The task charged or refunded.
    pub task_id: Option<TaskId>,
    /// Note of the operator on a grant.
    pub note: Option<String>,
    /// Time of the entry.
    pub created_at: Timestamp,
}

impl LedgerEntry {
    /// Whether an operator took the credits from the account.
    pub fn is_taken(&self) -> bool {
        self.kind == EntryKind::Grant && self.amount < 0
    }
}

/// Expiring credits: from a grant, or from a refund whose grant had lapsed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpiringGrant {
    /// The ledger entry that brought the credits.
    pub entry_id: i64,
    /// Credits at first.
    pub amount: i64,
    /// Credits that can still be spent.
    pub remaining: i64,
    /// Credits that were left when it expired; `None` until an entry took them from the balance.
    pub lapsed: Option<i64>,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Note of the operator.
    pub note: Option<String>,
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
    fn ranks_rise_with_ids() {
        let ids = IdSource::default();
        let later = NOON.saturating_add(Duration::from_millis(1));
        let made: Vec<Id> = [NOON, NOON, NOON, later, later].map(|at| ids.next(at)).into();
        assert!(made.iter().is_sorted_by_key(|id| id.rank()));
        assert!(made[2].rank() < made[2].rank_after() && made[2].rank_after() <= made[3].rank());
        assert_eq!(Id::floor(later).rank(), made[0].rank_after());
        assert!(Id::floor(Timestamp::from_millis(0)).rank() == 0 && Id::floor(Timestamp::MAX).rank() > 0);
    }

    #[test]
    fn every_cause_is_read_as_it_was_written_and_strange_ones_are_read_too() {
        let references = ReferenceProblem::ALL.map(|problem| FailureCause::Reference(3, problem));
        let others = [
            FailureCause::Policy,
            FailureCause::Reference(0, ReferenceProblem::Unknown),
            FailureCause::TooManyReferences(2),
            FailureCause::NoEngine,
            FailureCause::Engine,
            FailureCause::Lost,
            FailureCause::Expired,
            FailureCause::Cancelled,
            FailureCause::Operator,
            FailureCause::Unknown,
        ];
        for cause in references.into_iter().chain(others) {
            assert_eq!(FailureCause::named(&cause.to_string()), cause);
        }
        // An earlier release stored no more than the place.
        assert_eq!(FailureCause::named("reference:1"), FailureCause::Reference(1, ReferenceProblem::Unknown));
        assert_eq!(FailureCause::named("reference:1:melted"), FailureCause::Reference(1, ReferenceProblem::Unknown));
        for strange in ["", "melted", "reference", "reference:", "reference:x:gone", "references:-1", "policy:2"] {
            assert_eq!(FailureCause::named(strange), FailureCause::Unknown, "{strange}");
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
