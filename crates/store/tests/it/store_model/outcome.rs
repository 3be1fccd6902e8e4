//! The outcome of a step in a form that can be compared.

use tintype_domain::key::ApiKey;
use tintype_domain::model::{Account, Id};
use tintype_store::{
    AccountCreation, Claim, Ended, Lease, LeaseWrite, Refusal, Rescued, Retry, StoreError, Submission, Taking,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Creation(AccountCreation),
    First(Option<(Account, ApiKey)>),
    Key(Option<ApiKey>),
    Balance(Option<i64>),
    Taking(Option<Taking>),
    /// The number of grants that lapsed.
    Lapsed(usize),
    Submission(Submission),
    Crowd(Vec<Submission>),
    Claims(Vec<Claim>),
    Lost(Vec<Lease>),
    Write(LeaseWrite),
    Retry(Retry),
    Refusal(Refusal),
    Failed(Option<Ended>),
    Rescued(Rescued),
    Expired(Vec<Ended>),
    /// An error: nothing was written.
    Refused,
    Quiet,
}

impl Outcome {
    /// The driver's answer, converted by `wrap`.
    pub fn of<T>(answer: Result<T, StoreError>, wrap: impl FnOnce(T) -> Self) -> Self {
        answer.map_or(Self::Refused, wrap)
    }

    pub fn account_id(&self) -> Option<Id> {
        match self {
            Self::Creation(AccountCreation::Created(account)) | Self::First(Some((account, _))) => Some(account.id),
            _ => None,
        }
    }

    pub fn key_id(&self) -> Option<Id> {
        match self {
            Self::Key(Some(key)) | Self::First(Some((_, key))) => Some(key.id),
            _ => None,
        }
    }

    /// The ids of accepted tasks.
    pub fn task_ids(&self) -> Vec<Id> {
        let id = |submission: &Submission| match submission {
            Submission::Accepted(task) => Some(task.id),
            _ => None,
        };
        match self {
            Self::Submission(submission) => id(submission).into_iter().collect(),
            Self::Crowd(submissions) => submissions.iter().filter_map(id).collect(),
            _ => Vec::new(),
        }
    }

    /// Sorts the tasks that a sweep ended, which a driver returns in any order.
    pub fn sorted(mut self) -> Self {
        if let Self::Rescued(Rescued { failed: ended, .. }) | Self::Expired(ended) = &mut self {
            ended.sort_by_key(|ended| ended.task_id);
        }
        self
    }

    /// The answers to submits, in order.
    pub fn submissions(&self) -> &[Submission] {
        match self {
            Self::Submission(submission) => std::slice::from_ref(submission),
            Self::Crowd(submissions) => submissions,
            _ => &[],
        }
    }

    pub fn claimed(&self) -> &[Claim] {
        match self {
            Self::Claims(claims) => claims,
            _ => &[],
        }
    }
}
