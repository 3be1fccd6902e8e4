//! The audit log: each change that someone made to accounts, credits, keys, people, the queue or a task, and who made
//! it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::driver::{Store, Transaction, from_row, of_account};
use super::tasks::upper;
use super::{
    AccountChange, AccountCreation, Credential, Ended, EndpointChange, EndpointCreation, FactorRemoval, KeyChange,
    KeyCreation, NewInvitation, NewSharedLink, Newcomer, PersonChange, PersonCreation, Result, Right,
    SharedLinkCreation, SignUp, TakeOutcome, Target, Upload,
};
use crate::failure::Done;
use tintype_domain::endpoint::Endpoint;
use tintype_domain::key::ApiKey;
use tintype_domain::model::{Account, Id};
use tintype_domain::person::Person;
use tintype_domain::words;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Someone who changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name of the person, or of the user of the system.
    pub name: String,
    /// The person, if it is one of the studio.
    pub person_id: Option<Id>,
    /// The door through which the change came.
    pub via: Via,
    /// The address from which it came, or the name of the machine.
    pub source: Option<String>,
}

words! {
    /// The door through which a change came.
    pub enum Via: "door" {
        /// The command line.
        Command = "command",
        /// The studio.
        Studio = "studio",
        /// No door: the server itself made the change.
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

    /// The rules of an OpenID Connect provider, which give roles and take them away.
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

words! {
    /// A change that the audit log knows. During a rolling upgrade, a newer process of the cluster may record one that
    /// this version lacks.
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
        ShutOut = "audit-shut-out",
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
        /// An endpoint got a new secret. The detail is the time for which both sign.
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
    fn of(action: Action, account_id: Id) -> Self {
        Self { action, account_id: Some(account_id), subject: None, detail: None }
    }

    fn about(self, subject: impl fmt::Display) -> Self {
        Self { subject: Some(subject.to_string()), ..self }
    }

    /// About the deletion of another person's task. One's own, and one without an author, leaves no entry.
    pub(super) fn of_deletion(task: Id, account_id: Id, author: Option<Id>, actor: &Actor) -> Option<Self> {
        let is_others = author.is_some() && author != actor.person_id;
        is_others.then(|| Self::of(Action::DeleteTask, account_id).about(task))
    }

    /// About the removal of another person's upload. One's own, and one without an author, leaves no entry.
    pub(super) fn of_removed_upload(upload: &Upload, actor: &Actor) -> Option<Self> {
        let is_others = upload.person_id.is_some() && upload.person_id != actor.person_id;
        is_others.then(|| Self::of(Action::RemoveUpload, upload.account_id).about(upload.id))
    }

    /// About a shared link that was made, if it was.
    pub(super) fn of_new_shared_link(new: &NewSharedLink, made: SharedLinkCreation) -> Option<Self> {
        let SharedLinkCreation::Created(_) = made else { return None };
        let end = new.expires_at.map(|end| end.to_string()).unwrap_or_default();
        Some(Self::of(Action::Share, new.account_id).about_target(new.target).with(end))
    }

    /// About a shared link that was revoked.
    pub(super) fn of_revoked_link(account_id: Id, target: Target) -> Self {
        Self::of(Action::Unshare, account_id).about_target(target)
    }

    fn about_target(self, target: Target) -> Self {
        match target {
            Target::Task(id) | Target::Board(id) => self.about(id),
        }
    }

    /// With a detail, unless it is empty.
    pub(super) fn with(self, detail: impl fmt::Display) -> Self {
        Self { detail: Some(detail.to_string()).filter(|detail| !detail.is_empty()), ..self }
    }

    pub(super) fn of_creation(outcome: &AccountCreation) -> Option<Self> {
        let AccountCreation::Created(account) = outcome else { return None };
        let Account { id, credits, admin, .. } = account;
        let rank = if *admin { " (admin)" } else { "" };
        Some(Self::of(Action::CreateAccount, *id).with(format!("+{credits}{rank}")))
    }

    /// About a change to an account, which is now as `outcome` says.
    pub(super) fn of_account(change: AccountChange, outcome: Option<&Account>) -> Option<Self> {
        let account = outcome?;
        let (action, is_done) = match change {
            AccountChange::Enable => (Action::EnableAccount, account.deleted_at.is_none()),
            AccountChange::Disable => (Action::DisableAccount, account.deleted_at.is_none()),
            AccountChange::Delete => (Action::DeleteAccount, account.deleted_at.is_some()),
            AccountChange::LowBalance(threshold) => {
                let detail = threshold.map_or_else(|| "none".to_owned(), |threshold| threshold.to_string());
                let is_done = account.deleted_at.is_none();
                return is_done.then(|| Self::of(Action::SetLowBalance, account.id).with(detail));
            }
        };
        is_done.then(|| Self::of(action, account.id))
    }

    pub(super) fn of_grant(account_id: Id, amount: i64, note: Option<&str>, expires_at: Option<Timestamp>) -> Self {
        let until = expires_at.map(|end| format!(" (until {end})")).unwrap_or_default();
        let detail = format!("+{amount}{until} {}", note.unwrap_or_default());
        Self::of(Action::Grant, account_id).with(detail.trim())
    }

    pub(super) fn of_taking(account_id: Id, amount: i64, note: &str, outcome: Option<TakeOutcome>) -> Option<Self> {
        let taken = matches!(outcome, Some(TakeOutcome::Taken(_)));
        taken.then(|| Self::of(Action::Take, account_id).with(format!("-{amount} {note}").trim()))
    }

    pub(super) fn of_new_key(outcome: &KeyCreation) -> Option<Self> {
        let KeyCreation::Created(key) = outcome else { return None };
        let budget = key.budget.map(|budget| budget.to_string()).unwrap_or_default();
        Some(Self::of(Action::CreateKey, key.account_id).about(key.id).with(format!("{} {budget}", key.name).trim()))
    }

    pub(super) fn of_key(change: KeyChange, key: Option<&ApiKey>) -> Option<Self> {
        let key = key?;
        let action = match change {
            KeyChange::Enable => Action::EnableKey,
            KeyChange::Undisable => Action::UndisableKey,
            KeyChange::Lift => Action::Lift,
            KeyChange::Disable => Action::DisableKey,
            KeyChange::Revoke => Action::RevokeKey,
            KeyChange::Budget(budget) => {
                let detail = budget.map_or_else(|| "none".to_owned(), |budget| budget.to_string());
                return Some(Self::of(Action::ChangeBudget, key.account_id).about(key.id).with(detail));
            }
            // The service itself does that.
            KeyChange::FlagLeaked => return None,
        };
        Some(Self::of(action, key.account_id).about(key.id).with(&key.name))
    }

    pub(super) fn of_rotation(old: Id, overlap: Duration, outcome: &KeyCreation) -> Option<Self> {
        let KeyCreation::Created(new) = outcome else { return None };
        let detail = format!("{}, {} h", new.id, overlap.as_secs() / 3_600);
        Some(Self::of(Action::RotateKey, new.account_id).about(old).with(detail))
    }

    pub(super) fn of_sign_up(person: &Person, new: &SignUp) -> Self {
        let credits = new.credits;
        let detail = match &new.credential {
            Credential::Password(_) => format!("+{credits}"),
            Credential::Identity(identity) => format!("+{credits} {}", identity.issuer),
        };
        Self::of(Action::SignUp, person.account_id).about(&person.name).with(detail)
    }

    /// About an identity at a provider.
    pub(super) fn of_identity(action: Action, person: Option<&Person>, issuer: &str) -> Option<Self> {
        person.map(|person| Self::of(action, person.account_id).about(&person.name).with(issuer))
    }

    pub(super) fn of_new_person(outcome: &PersonCreation) -> Option<Self> {
        let PersonCreation::Created(person) = outcome else { return None };
        Some(Self::of(Action::AddPerson, person.account_id).about(&person.name).with(person.role))
    }

    /// About someone who joined by a rule.
    pub(super) fn of_newcomer(person: &Person, new: &Newcomer) -> Self {
        let detail = format!("{} {}", new.role, new.identity.issuer);
        Self::of(Action::AddPerson, person.account_id).about(&person.name).with(detail)
    }

    /// About someone who joined by an invitation.
    pub(super) fn of_acceptance(person: &Person) -> Self {
        Self::of(Action::AddPerson, person.account_id)
            .about(&person.name)
            .with(format!("{} by invitation", person.role))
    }

    /// About an invitation that was made, if it was.
    pub(super) fn of_new_invitation(new: &NewInvitation, made: Option<Id>) -> Option<Self> {
        let places = if new.places == 1 { "place" } else { "places" };
        let detail = format!("{}, {} {places}", new.role, new.places);
        made.map(|id| Self::of(Action::Invite, new.account_id).about(id).with(detail))
    }

    /// About an invitation that was revoked, if it was.
    pub(super) fn of_revoked_invitation(account_id: Id, id: Id, revoked: bool) -> Option<Self> {
        revoked.then(|| Self::of(Action::RevokeInvitation, account_id).about(id))
    }

    pub(super) fn of_person(change: &PersonChange, person: Option<&Person>) -> Option<Self> {
        let person = person?;
        let audited = |action| Self::of(action, person.account_id).about(&person.name);
        Some(match change {
            PersonChange::Role(role) | PersonChange::RoleByRule(role) => audited(Action::ChangeRole).with(role),
            PersonChange::Password(_) => audited(Action::SetPassword),
            PersonChange::Lift => audited(Action::Lift),
            PersonChange::ShutOut => audited(Action::ShutOut),
        })
    }

    /// About a person whom the content policy has suspended.
    pub(super) fn of_suspension(person: &Person) -> Self {
        let reason = person.suspension.as_ref().map_or("", |suspension| suspension.reason.as_str());
        Self::of(Action::SuspendPerson, person.account_id).about(&person.name).with(reason)
    }

    /// About a key that the content policy has suspended.
    pub(super) fn of_suspended_key(key: &ApiKey) -> Self {
        let reason = key.suspension.as_ref().map_or("", |suspension| suspension.reason.as_str());
        Self::of(Action::SuspendKey, key.account_id).about(key.id).with(reason)
    }

    /// About a person who has lost a second factor.
    pub(super) fn of_lost_factor(removal: FactorRemoval, person: Option<&Person>) -> Option<Self> {
        let action = match removal {
            FactorRemoval::Off(_) => Action::RemoveFactor,
            FactorRemoval::Reset => Action::ResetFactor,
        };
        Self::of_found(action, person)
    }

    /// About a removed person, a link for one, or one's second factor.
    pub(super) fn of_found(action: Action, person: Option<&Person>) -> Option<Self> {
        person.map(|person| Self::of(action, person.account_id).about(&person.name))
    }

    /// About an endpoint. Its URL may hold a secret, so the log keeps no more than the origin.
    pub(super) fn of_endpoint(action: Action, endpoint: &Endpoint) -> Self {
        Self::of(action, endpoint.account_id).about(endpoint.id).with(endpoint.url.origin())
    }

    pub(super) fn of_new_endpoint(outcome: &EndpointCreation) -> Option<Self> {
        let EndpointCreation::Created(endpoint) = outcome else { return None };
        Some(Self::of_endpoint(Action::AddEndpoint, endpoint))
    }

    pub(super) fn of_endpoint_change(change: &EndpointChange, endpoint: Option<&Endpoint>) -> Option<Self> {
        let audited = |action| endpoint.map(|endpoint| Self::of_endpoint(action, endpoint));
        match change {
            EndpointChange::Enable => audited(Action::EnableEndpoint),
            EndpointChange::Disable => audited(Action::DisableEndpoint),
            EndpointChange::Rotate { overlap, .. } => {
                Some(audited(Action::RotateEndpoint)?.with(format!("{} h", overlap.as_secs() / 3_600)))
            }
            EndpointChange::Subscribe(events) => Some(audited(Action::SubscribeEndpoint)?.with(events)),
        }
    }

    /// About a delivery that is sent again.
    pub(super) fn of_replay(id: Id, replayed: Option<Id>, account_id: Option<Id>) -> Option<Self> {
        replayed.and(account_id).map(|account_id| Self::of(Action::ReplayDelivery, account_id).about(id))
    }

    pub(super) fn of_queue(action: Action) -> Self {
        Self { action, account_id: None, subject: None, detail: None }
    }

    pub(super) fn of_failure(ended: Option<&Ended>, message: &str) -> Option<Self> {
        let ended = ended?;
        Some(Self::of(Action::FailTask, ended.account_id).about(ended.task_id).with(message))
    }
}

/// Adds an entry, in the transaction of the change.
pub(crate) async fn record(begun: &Transaction<'_>, actor: &Actor, audited: &AuditedChange) -> Done {
    let sql = "INSERT INTO audit_log (id, actor, person_id, via, source, action, account_id, subject, detail)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let Actor { name, person_id, via, source } = actor;
    let AuditedChange { action, account_id, subject, detail } = audited;
    let (id, via, action) = (begun.new_id(), via.as_str(), action.as_str());
    begun.execute(sql, &[&id, name, person_id, &via, source, &action, account_id, subject, detail]).await?;
    Ok(())
}

from_row! { fn actor(row) -> Actor { name: row.get("actor")?, person_id, via, source } }

from_row! { fn change(row) -> AuditedChange { action, account_id, subject, detail } }

from_row! { fn entry(row) -> AuditEntry { id, actor: actor(row)?, audited: change(row)?, account } }

/// The audit log.
impl Store {
    /// This store for an actor: it records each change that the audit log knows in the commit of the change. Without an
    /// actor, nothing is recorded.
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
        self.driver.list(&sql, &[&account_id, &upper(before), &i64::from(limit)], entry).await
    }

    /// Deletes the entries from before `cutoff`. Returns their number.
    pub async fn delete_audit_entries(&self, cutoff: Timestamp) -> Result<usize> {
        self.write(Effect::DeleteAuditEntries, async move |begun| {
            Ok(begun.execute("DELETE FROM audit_log WHERE id < $1", &[&Id::floor(cutoff)]).await? as usize)
        })
        .await
    }
}
