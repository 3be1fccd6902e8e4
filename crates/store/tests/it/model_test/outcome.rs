//! The outcome of a step in a form that can be compared.

use tintype_domain::key::ApiKey;
use tintype_domain::model::{Account, Id, TaskRef};
use tintype_store::{Claim, CreditChange, Lease, LeaseWrite, Reclaimed, Refused, Retry, StoreError, Submission};

/// Defines the outcomes, each with the answer of a driver that becomes it.
macro_rules! outcomes {
    ($($(#[$doc:meta])* $kind:ident($answer:ty),)+) => {
        #[derive(Debug, Clone, PartialEq)]
        pub enum Outcome {
            $($(#[$doc])* $kind($answer),)+
            /// An error: nothing was written.
            Refused,
            Quiet,
        }

        $(impl From<Result<$answer, StoreError>> for Outcome {
            fn from(answer: Result<$answer, StoreError>) -> Self {
                answer.map_or(Self::Refused, Self::$kind)
            }
        })+
    };
}

outcomes! {
    Creation(Option<Account>),
    First(Option<(Account, ApiKey)>),
    Key(Option<ApiKey>),
    Balance(Option<i64>),
    Taking(CreditChange),
    /// The number of grants that lapsed.
    Lapsed(usize),
    /// Accepted tasks by id, then refusals.
    Submissions(Vec<Submission>),
    Claims(Vec<Claim>),
    Lost(Vec<Lease>),
    Write(LeaseWrite),
    Retry(Retry),
    Refusal(Option<Refused>),
    Failed(Option<TaskRef>),
    Reclaimed(Reclaimed),
    Expired(Vec<TaskRef>),
}

impl Outcome {
    pub fn account_id(&self) -> Option<Id> {
        match self {
            Self::Creation(Some(account)) | Self::First(Some((account, _))) => Some(account.id),
            _ => None,
        }
    }

    pub fn key_id(&self) -> Option<Id> {
        match self {
            Self::Key(Some(key)) | Self::First(Some((_, key))) => Some(key.id),
            _ => None,
        }
    }

    pub fn submissions(&self) -> &[Submission] {
        match self {
            Self::Submissions(submissions) => submissions,
            _ => &[],
        }
    }

    pub fn claimed(&self) -> &[Claim] {
        match self {
            Self::Claims(claims) => claims,
            _ => &[],
        }
    }

    /// Sorts what a driver returns in any order: the tasks that a sweep ended, and the answers to submits at once.
    pub fn sorted(mut self) -> Self {
        match &mut self {
            Self::Reclaimed(Reclaimed { failed: ended, .. }) | Self::Expired(ended) => {
                ended.sort_by_key(|ended| ended.id);
            }
            Self::Submissions(submissions) => submissions.sort_by_key(|submission| match submission {
                Submission::Accepted(task) => (false, Some(task.id)),
                _ => (true, None),
            }),
            _ => {}
        }
        self
    }
}
