//! Statements for invitations.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::word;
use super::connection::{Database, Parameter, Transaction};
use super::gallery::lock;
use super::{PostgresStore, audit_log, people};
use crate::failure::Failure;
use crate::{Acceptance, Accepting, Actor, Deed, Invitation, Invitations, NewInvitation, PersonCreation, Result};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, TokenHash};
use tintype_system::fault::Effect;

/// The invitations that have not expired at the time $1.
const OPEN: &str = "SELECT i.*, a.name AS account, p.name AS maker,
    p.role = 'owner' AND p.suspended_at IS NULL AND a.disabled_at IS NULL AS works FROM invitations i
    JOIN people p ON p.id = i.person_id JOIN accounts a ON a.id = i.account_id WHERE i.expires_at > $1";

/// The invitation with the hash $1 that works at the time $2, unless its account is disabled. What ends the rights of its
/// maker waits for the lock, or this waits for that and looks anew. People are locked before accounts.
const TO_ACCEPT: &str = "SELECT i.id, i.account_id, i.role FROM invitations i JOIN people p ON p.id = i.person_id
    WHERE i.hash = $1 AND i.expires_at > $2 AND p.role = 'owner' AND p.suspended_at IS NULL FOR SHARE OF p";

fn invitation(row: &Row) -> Result<Invitation> {
    Ok(Invitation {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        account: row.try_get("account")?,
        maker: row.try_get("maker")?,
        role: word(row, "role")?,
        places: row.try_get("places")?,
        expires_at: row.try_get("expires_at")?,
        works: row.try_get("works")?,
    })
}

async fn accept(
    database: &Database,
    begun: &Transaction<'_>,
    new: &Acceptance,
) -> std::result::Result<Accepting, Failure> {
    let Some(row) = begun.query_opt(TO_ACCEPT, &[&&new.hash[..], &database.now()]).await? else {
        return Ok(Accepting::Gone);
    };
    let (invitation, account_id): (Id, Id) = (row.try_get("id")?, row.try_get("account_id")?);
    let account = "SELECT 1 FROM accounts WHERE id = $1 AND disabled_at IS NULL FOR NO KEY UPDATE";
    if begun.query_opt(account, &[&account_id]).await?.is_none() {
        return Ok(Accepting::Gone);
    }
    // Others may have taken the last place, or revoked it, while this one waited.
    let still = "SELECT 1 FROM invitations WHERE id = $1 FOR UPDATE";
    if begun.query_opt(still, &[&invitation]).await?.is_none() {
        return Ok(Accepting::Gone);
    }
    let id = database.new_id();
    let person = match people::create(begun, id, account_id, &new.name, word(&row, "role")?).await? {
        PersonCreation::Created(person) => Person { has_password: true, ..person },
        PersonCreation::NameTaken => return Ok(Accepting::NameTaken),
        PersonCreation::NotPossible => return Ok(Accepting::Full),
    };
    begun.execute("UPDATE people SET password = $2 WHERE id = $1", &[&id, &new.password]).await?;
    let last = "DELETE FROM invitations WHERE id = $1 AND places = 1";
    if begun.execute(last, &[&invitation]).await? == 0 {
        begun.execute("UPDATE invitations SET places = places - 1 WHERE id = $1", &[&invitation]).await?;
    }
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_acceptance(&person));
    audit_log::record(begun, database.new_id(), &actor, &deed).await?;
    Ok(Accepting::Done(person))
}

#[async_trait]
impl Invitations for PostgresStore {
    async fn create_invitation(&self, new: NewInvitation, most: u32) -> Result<Option<Id>> {
        let (id, now) = (self.database.new_id(), self.database.now());
        let NewInvitation { account_id, person_id, hash, role, places, expires_at } = new;
        let create = async |begun: &Transaction<'_>| {
            if !lock(begun, account_id).await? {
                return Ok(None);
            }
            let sql = "INSERT INTO invitations (id, account_id, person_id, hash, role, places, expires_at)
                SELECT $1, $2, id, $4, $5, $6, $7 FROM people WHERE id = $3 AND account_id = $2
                AND (SELECT count(*) FROM invitations WHERE account_id = $2 AND expires_at > $8) < $9 RETURNING id";
            let (hash, role, most) = (&hash[..], role.as_str(), i64::from(most));
            let values: [Parameter<'_>; 9] =
                [&id, &account_id, &person_id, &hash, &role, &places, &expires_at, &now, &most];
            Ok(begun.query_opt(sql, &values).await?.map(|_| id))
        };
        let deed = |made: &Option<Id>| Deed::of_new_invitation(&new, *made);
        self.write(Effect::SignIn, self.recorded(create, deed)).await
    }

    async fn find_invitation(&self, hash: TokenHash) -> Result<Option<Invitation>> {
        let sql = format!("{OPEN} AND i.hash = $2");
        let row = self.database.read_one(&sql, &[&self.database.now(), &&hash[..]]).await?;
        Ok(row.as_ref().map(invitation).transpose()?.filter(|invitation| invitation.works))
    }

    async fn list_invitations(&self, account_id: Id) -> Result<Vec<Invitation>> {
        let sql = format!("{OPEN} AND i.account_id = $2 ORDER BY i.id DESC");
        self.database.read(&sql, &[&self.database.now(), &account_id]).await?.iter().map(invitation).collect()
    }

    async fn revoke_invitation(&self, account_id: Id, id: Id) -> Result<bool> {
        let sql = "DELETE FROM invitations WHERE id = $2 AND account_id = $1";
        let revoke = async |begun: &Transaction<'_>| Ok(begun.execute(sql, &[&account_id, &id]).await? > 0);
        let deed = |revoked: &bool| Deed::of_revoked_invitation(account_id, id, *revoked);
        self.write(Effect::SignIn, self.recorded(revoke, deed)).await
    }

    async fn accept_invitation(&self, new: Acceptance) -> Result<Accepting> {
        let accept = async {
            let accept = async |begun: &Transaction<'_>| accept(&self.database, begun, &new).await;
            Ok(self.database.transaction(accept).await?)
        };
        self.write(Effect::ChangePerson, accept).await
    }
}
