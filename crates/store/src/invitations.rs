//! Invitations: an owner creates a link that lets several people join the account.

use super::driver::{Dialect, Parameter, Store, from_row};
use super::{Action, Actor, AuditedChange, PersonAdded, Result, audit_log, ledger, people};
use tintype_domain::model::Id;
use tintype_domain::person::{Role, TokenHash};
use tintype_domain::text::counted;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// An invitation to make.
#[derive(Debug, Clone, Copy)]
pub struct NewInvitation {
    /// The account of its maker, which people join.
    pub account_id: Id,
    /// Who makes it.
    pub person_id: Id,
    /// The hash of its token.
    pub hash: TokenHash,
    /// The role that people join with.
    pub role: Role,
    /// How many people may join: 1 to 100.
    pub places: i64,
    /// When it stops working.
    pub expires_at: Timestamp,
}

/// An invitation that has not expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The invitation.
    pub id: Id,
    /// The account that people join.
    pub account_id: Id,
    /// Its name.
    pub account: String,
    /// The name of its maker.
    pub maker: String,
    /// The role that people join with.
    pub role: Role,
    /// How many people may still join.
    pub places: i64,
    /// When it stops working.
    pub expires_at: Timestamp,
    /// Whether it works now: its maker is an owner who is not suspended, and the account is enabled.
    pub works: bool,
}

/// Someone who accepts an invitation.
#[derive(Clone)]
pub struct InvitationAcceptance {
    /// The hash of its token.
    pub hash: TokenHash,
    /// The name of the new person.
    pub name: String,
    /// The Argon2id hash of the password in PHC format.
    pub password: String,
    /// The address range from which the person joins.
    pub source: String,
}

tintype_domain::opaque_debug!(InvitationAcceptance);

/// The invitations that have not expired at the time $1.
const OPEN: &str = "SELECT i.id, i.account_id, i.role, i.places, i.expires_at, a.name AS account, p.name AS maker,
    p.role = 'owner' AND p.suspended_at IS NULL AND a.disabled_at IS NULL AS works FROM invitations i
    JOIN people p ON p.id = i.person_id JOIN accounts a ON a.id = i.account_id WHERE i.expires_at > $1";

from_row! { fn invitation(row) -> Invitation { id, account_id, account, maker, role, places, expires_at, works } }

/// Invitations. One works until it expires, its places are taken, or it is revoked; and while its maker is an owner who
/// is not suspended, and its account is enabled. The sweep of sessions deletes those that have expired.
impl Store {
    /// Makes an invitation; `None` if the account has `most` that have not expired, or the maker is not one of its
    /// people. The audit log records it.
    pub async fn create_invitation(&self, new: NewInvitation, most: u32) -> Result<Option<Id>> {
        self.write(Effect::SignIn, async move |tx| {
            let NewInvitation { account_id, person_id, hash, role, places, expires_at } = &new;
            if !ledger::lock(tx, *account_id).await? {
                return Ok(None);
            }
            let sql = "INSERT INTO invitations (id, account_id, person_id, hash, role, places, expires_at)
                SELECT $1, $2, id, $4, $5, $6, $7 FROM people WHERE id = $3 AND account_id = $2
                AND (SELECT count(*) FROM invitations WHERE account_id = $2 AND expires_at > $8) < $9";
            let (id, now) = (tx.new_id(), tx.now());
            let parameters: [&dyn Parameter; 9] =
                [&id, account_id, person_id, hash, role, places, expires_at, &now, &most];
            if tx.execute(sql, &parameters).await? == 0 {
                return Ok(None);
            }
            let detail = format!("{role}, {}", counted(*places, "place", "places"));
            tx.audit(AuditedChange::of(Action::Invite, *account_id).about(id).with(detail)).await?;
            Ok(Some(id))
        })
        .await
    }

    /// The invitation with a token, if it works.
    pub async fn find_invitation(&self, hash: TokenHash) -> Result<Option<Invitation>> {
        let sql = format!("{OPEN} AND i.hash = $2");
        let found = self.driver.find(&sql, &[&self.driver.now(), &hash], invitation).await?;
        Ok(found.filter(|invitation| invitation.works))
    }

    /// The invitations of an account that have not expired, newest first.
    pub async fn list_invitations(&self, account_id: Id) -> Result<Vec<Invitation>> {
        let sql = format!("{OPEN} AND i.account_id = $2 ORDER BY i.id DESC");
        self.driver.list(&sql, &[&self.driver.now(), &account_id], invitation).await
    }

    /// Revokes an invitation of an account. The audit log records it. Returns whether there was one.
    pub async fn revoke_invitation(&self, account_id: Id, id: Id) -> Result<bool> {
        self.write(Effect::SignIn, async move |tx| {
            let sql = "DELETE FROM invitations WHERE id = $2 AND account_id = $1";
            let revoked = tx.execute(sql, &[&account_id, &id]).await? > 0;
            if revoked {
                tx.audit(AuditedChange::of(Action::RevokeInvitation, account_id).about(id)).await?;
            }
            Ok(revoked)
        })
        .await
    }

    /// Adds a person to an invitation's account, and takes one of its places. The audit log names the person as the
    /// actor.
    pub async fn accept_invitation(&self, new: InvitationAcceptance) -> Result<PersonAdded> {
        self.write(Effect::ChangePerson, async move |tx| {
            // What ends the rights of its maker waits for the lock, or this waits for that and looks again. People are
            // locked before accounts.
            let working = format!(
                "SELECT i.id, i.account_id, i.role FROM invitations i JOIN people p ON p.id = i.person_id
                 WHERE i.hash = $1 AND i.expires_at > $2 AND p.role = 'owner' AND p.suspended_at IS NULL {}",
                tx.locking("FOR SHARE OF p")
            );
            let Some(row) = tx.query_opt(&working, &[&new.hash, &tx.now()]).await? else {
                return Ok(PersonAdded::InvitationGone);
            };
            let (invitation, account_id): (Id, Id) = (row.get("id")?, row.get("account_id")?);
            let account = "SELECT 1 FROM accounts WHERE id = $1 AND disabled_at IS NULL";
            if tx.lock(account, &[&account_id]).await?.is_none() {
                return Ok(PersonAdded::InvitationGone);
            }
            // Others may have taken the last place, or revoked it, while this one waited.
            let still = format!("SELECT 1 FROM invitations WHERE id = $1 {}", tx.locking("FOR UPDATE"));
            if tx.query_opt(&still, &[&invitation]).await?.is_none() {
                return Ok(PersonAdded::InvitationGone);
            }
            let (id, role) = (tx.new_id(), row.get("role")?);
            let person = match people::create(tx, id, account_id, &new.name, role, Some(&new.password)).await? {
                PersonAdded::Done(person) => person,
                refused => return Ok(refused),
            };
            let last = "DELETE FROM invitations WHERE id = $1 AND places = 1";
            if tx.execute(last, &[&invitation]).await? == 0 {
                tx.execute("UPDATE invitations SET places = places - 1 WHERE id = $1", &[&invitation]).await?;
            }
            let audited =
                AuditedChange::of_person(Action::AddPerson, &person).with(format!("{} by invitation", person.role));
            audit_log::record(tx, &Actor::newcomer(&person, &new.source), &audited).await?;
            Ok(PersonAdded::Done(person))
        })
        .await
    }
}
