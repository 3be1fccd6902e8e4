//! The audit log: each change that someone made to accounts, credits, keys, people, the queue or a task, and who made
//! it.

use std::fmt;
use std::sync::Arc;

use super::driver::{Store, Transaction, from_row, of_account};
use super::tasks::upper;
use super::{Result, Right};
use crate::failure::DbResult;
use tintype_domain::endpoint::Endpoint;
use tintype_domain::key::ApiKey;
use tintype_domain::model::Id;
use tintype_domain::person::Person;
use tintype_domain::string_enum;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Someone who changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name of the person, or of the user of the system.
    pub name: String,
    /// The person, if it is one of the studio.
    pub person_id: Option<Id>,
    /// What the change was made through.
    pub via: Via,
    /// The address from which it came, or the name of the machine.
    pub source: Option<String>,
}

string_enum! {
    /// What a change was made through.
    pub enum Via: "via" {
        /// The command line.
        Command = "command",
        /// The studio.
        Studio = "studio",
        /// Nothing: the server itself made the change.
        Server = "server",
    }
}

impl Actor {
    /// Someone who has just signed up.
    pub(super) fn newcomer(person: &Person, source: &str) -> Self {
        Self {
            name: person.name.clone(),
            person_id: Some(person.id),
            via: Via::Studio,
            source: Some(source.to_owned()),
        }
    }

    /// The rules of an OpenID Connect provider, which grant and revoke roles.
    pub fn joining() -> Self {
        Self { name: "OpenID Connect".into(), person_id: None, via: Via::Server, source: None }
    }

    /// The content policy, which suspends keys and people for the tasks that they create.
    pub(super) fn policy() -> Self {
        Self { name: "content policy".into(), person_id: None, via: Via::Server, source: None }
    }

    /// The server, which disables endpoints that take nothing.
    pub(super) fn webhooks() -> Self {
        Self { name: "webhooks".into(), person_id: None, via: Via::Server, source: None }
    }
}

string_enum! {
    /// A change in the audit log. During a rolling upgrade, a newer process in the cluster may record one that this
    /// version doesn't know.
    pub enum Action or Unknown {
        /// An account was created. The detail is its opening balance.
        CreateAccount = "audit-create-account",
        /// An account was enabled.
        EnableAccount = "audit-enable-account",
        /// An account was disabled.
        DisableAccount = "audit-disable-account",
        /// The threshold of low credits of an account was set. The detail is the threshold.
        SetLowBalance = "audit-low-balance",
        /// An account was deleted.
        DeleteAccount = "audit-delete-account",
        /// Credits were granted. The detail is the amount and the note.
        Grant = "audit-grant",
        /// Credits were taken. The detail is the amount and the note.
        Take = "audit-take",
        /// A key was created. The detail is its label.
        CreateKey = "audit-create-key",
        /// A key was enabled, and its strikes were lifted.
        EnableKey = "audit-enable-key",
        /// An owner of the account enabled a key; its strikes stayed.
        UndisableKey = "audit-undisable-key",
        /// The strikes and the suspension of a key or a person were lifted. The detail of a key is its label.
        Lift = "audit-lift",
        /// A person was suspended for violations of the content policy. The detail is the reason.
        SuspendPerson = "audit-suspend-person",
        /// A key was suspended for violations of the content policy. The detail is the reason.
        SuspendKey = "audit-suspend-key",
        /// A key was disabled.
        DisableKey = "audit-disable-key",
        /// A key was revoked.
        RevokeKey = "audit-revoke-key",
        /// The budget of a key was set. The detail is the budget.
        ChangeBudget = "audit-change-budget",
        /// A key was rotated. The detail is the id of the new key.
        RotateKey = "audit-rotate-key",
        /// A person opened an account in the studio. The detail is its opening balance, and the provider of the
        /// person's identity.
        SignUp = "audit-sign-up",
        /// A person was added, or joined by a rule or an invitation. The detail is the role, and the provider of the
        /// person's identity or "by invitation".
        AddPerson = "audit-add-person",
        /// An invitation was made. The detail is the role and the number of people that it lets in.
        Invite = "audit-invite",
        /// An invitation was revoked.
        RevokeInvitation = "audit-revoke-invitation",
        /// A person matches no rule of the account any more, and lost access.
        RevokeAccess = "audit-shut-out",
        /// A person got another role. The detail is the role.
        ChangeRole = "audit-change-role",
        /// The password of a person was set.
        SetPassword = "audit-set-password",
        /// A person was removed.
        RemovePerson = "audit-remove-person",
        /// A sign-in link for a person was made.
        MakeLink = "audit-make-link",
        /// A person linked an identity at a provider. The detail is the provider.
        LinkIdentity = "audit-link-identity",
        /// A person removed an identity at a provider. The detail is the provider.
        UnlinkIdentity = "audit-unlink-identity",
        /// A person turned on a second factor.
        AddFactor = "audit-add-factor",
        /// A person turned off the second factor.
        RemoveFactor = "audit-remove-factor",
        /// The second factor of a person was reset by the operator.
        ResetFactor = "audit-reset-factor",
        /// A person made new recovery codes.
        ReplaceRecoveryCodes = "audit-recovery-codes",
        /// An endpoint was added. The detail is the origin of its URL.
        AddEndpoint = "audit-add-endpoint",
        /// An endpoint was enabled. The detail is the origin of its URL.
        EnableEndpoint = "audit-enable-endpoint",
        /// An endpoint was disabled. The detail is the reason, if it was not asked for.
        DisableEndpoint = "audit-disable-endpoint",
        /// An endpoint got a new secret. The detail says how long both secrets sign.
        RotateEndpoint = "audit-rotate-endpoint",
        /// An endpoint subscribes to other events. The detail is their types.
        SubscribeEndpoint = "audit-subscribe-endpoint",
        /// An endpoint was removed. The detail is the origin of its URL.
        RemoveEndpoint = "audit-remove-endpoint",
        /// A delivery was replayed.
        ReplayDelivery = "audit-replay-delivery",
        /// The queue was paused.
        PauseQueue = "audit-pause-queue",
        /// The queue was resumed.
        ResumeQueue = "audit-resume-queue",
        /// A person deleted a task that another one had created.
        DeleteTask = "audit-delete-task",
        /// A person deleted an upload of another one.
        RemoveUpload = "audit-remove-upload",
        /// A person shared a task or a board by a link. The detail is when the link expires.
        Share = "audit-share",
        /// A shared link was revoked.
        Unshare = "audit-unshare",
        /// A task was failed. The detail is the message for its owner.
        FailTask = "audit-fail-task",
        /// A change that a newer version of this server recorded, which this version cannot name.
        Unknown = "audit-unknown",
    }
}

/// A change as the audit log keeps it. It never holds a secret or a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedChange {
    /// The change.
    pub action: Action,
    /// The account that it concerns.
    pub account_id: Option<Id>,
    /// The name of the person, or the id of the key or the task, that it concerns.
    pub subject: Option<String>,
    /// More about it.
    pub detail: Option<String>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id, which contains the time of the change.
    pub id: Id,
    /// The one who made the change.
    pub actor: Actor,
    /// The change.
    pub audited: AuditedChange,
    /// The name of the account that it concerns.
    pub account: Option<String>,
}

impl AuditedChange {
    pub(super) fn of(action: Action, account_id: impl Into<Option<Id>>) -> Self {
        Self { action, account_id: account_id.into(), subject: None, detail: None }
    }

    pub(super) fn of_person(action: Action, person: &Person) -> Self {
        Self::of(action, person.account_id).about(&person.name)
    }

    pub(super) fn of_key(action: Action, key: &ApiKey) -> Self {
        Self::of(action, key.account_id).about(key.id)
    }

    /// About an endpoint. Its URL may hold a secret, so the log keeps no more than the origin.
    pub(super) fn of_endpoint(action: Action, endpoint: &Endpoint) -> Self {
        Self::of(action, endpoint.account_id).about(endpoint.id).with(endpoint.url.origin())
    }

    pub(super) fn about(self, subject: impl fmt::Display) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }

    /// With a detail, unless it is empty.
    pub(super) fn with(self, detail: impl fmt::Display) -> Self {
        Self { detail: Some(detail.to_string()).filter(|detail| !detail.is_empty()), ..self }
    }
}

/// Adds an entry, in the transaction of the change.
pub(crate) async fn record(tx: &Transaction<'_>, actor: &Actor, audited: &AuditedChange) -> DbResult {
    let sql = "INSERT INTO audit_log (id, actor, person_id, via, source, action, account_id, subject, detail)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let Actor { name, person_id, via, source } = actor;
    let AuditedChange { action, account_id, subject, detail } = audited;
    tx.execute(sql, &[&tx.new_id(), name, person_id, via, source, action, account_id, subject, detail]).await.map(drop)
}

/// Records a change to a person, if it was made. Returns whether it was.
pub(crate) async fn of_person(tx: &Transaction<'_>, action: Action, changed: Option<Person>) -> DbResult<bool> {
    if let Some(person) = &changed {
        tx.audit(AuditedChange::of_person(action, person)).await?;
    }
    Ok(changed.is_some())
}

from_row! { fn actor(row) -> Actor { name: row.get("actor")?, person_id, via, source } }

from_row! { fn change(row) -> AuditedChange { action, account_id, subject, detail } }

from_row! { fn entry(row) -> AuditEntry { id, actor: actor(row)?, audited: change(row)?, account } }

impl Store {
    /// This store for an actor: changes are recorded in the audit log, in the same commit. Without an actor, nothing is
    /// recorded.
    pub fn acting(&self, actor: Actor) -> Arc<Store> {
        Arc::new(Self { actor: Some(Arc::new(actor)), ..self.clone() })
    }

    /// This store for a caller with a right: each write checks in its transaction that the right still holds, and fails
    /// with [`StoreError::Revoked`](super::StoreError::Revoked) otherwise. Reads do not, nor does what only workers and
    /// sweeps do.
    pub fn with_right(&self, right: Right) -> Arc<Store> {
        Arc::new(Self { right: Some(right), ..self.clone() })
    }

    /// Entries about one account or all, newest first, older than the entry `before`.
    pub async fn audit_entries(
        &self,
        account_id: Option<Id>,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>> {
        let sql = format!(
            "SELECT l.*, a.name AS account FROM (
                 SELECT id, actor, person_id, via, source, action, account_id, subject, detail FROM audit_log
                 WHERE {} AND id < $2 ORDER BY id DESC LIMIT $3
             ) l LEFT JOIN accounts a ON a.id = l.account_id ORDER BY l.id DESC",
            of_account(account_id)
        );
        self.driver.list(&sql, &[&account_id, &upper(before), &limit], entry).await
    }

    /// Deletes the entries from before `cutoff`. Returns their number.
    pub async fn delete_audit_entries(&self, cutoff: Timestamp) -> Result<usize> {
        self.write(Effect::DeleteAuditEntries, async move |tx| {
            Ok(tx.execute("DELETE FROM audit_log WHERE id < $1", &[&Id::floor(cutoff)]).await? as usize)
        })
        .await
    }
}
