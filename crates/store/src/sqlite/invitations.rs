//! Statements for invitations.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::word;
use super::writer::Writing;
use super::{SqliteStore, audit_log, people};
use crate::{Acceptance, Accepting, Actor, Deed, Invitation, Invitations, NewInvitation, PersonCreation, Result};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, TokenHash};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The invitations that have not expired at the time ?1.
const OPEN: &str = "SELECT i.*, a.name AS account, p.name AS maker,
    p.role = 'owner' AND p.suspended_at IS NULL AND a.disabled_at IS NULL AS works FROM invitations i
    JOIN people p ON p.id = i.person_id JOIN accounts a ON a.id = i.account_id WHERE i.expires_at > ?1";

fn invitation(row: &Row<'_>) -> rusqlite::Result<Invitation> {
    Ok(Invitation {
        id: row.get("id")?,
        account_id: row.get("account_id")?,
        account: row.get("account")?,
        maker: row.get("maker")?,
        role: word(row, "role")?,
        places: row.get("places")?,
        expires_at: row.get("expires_at")?,
        works: row.get("works")?,
    })
}

fn create(writing: &mut Writing, new: &NewInvitation, most: u32) -> rusqlite::Result<Option<Id>> {
    let NewInvitation { account_id, person_id, hash, role, places, expires_at } = *new;
    let now = writing.clock.now();
    let id = writing.ids.next(now);
    let sql = "INSERT INTO invitations (id, account_id, person_id, hash, role, places, expires_at)
        SELECT ?1, ?2, id, ?4, ?5, ?6, ?7 FROM people WHERE id = ?3 AND account_id = ?2
        AND (SELECT count(*) FROM invitations WHERE account_id = ?2 AND expires_at > ?8) < ?9";
    let values = params![id, account_id, person_id, hash, role.as_str(), places, expires_at, now, most];
    let made = writing.connection.prepare_cached(sql)?.execute(values)?;
    Ok((made > 0).then_some(id))
}

fn find(connection: &Connection, hash: &TokenHash, now: Timestamp) -> rusqlite::Result<Option<Invitation>> {
    let sql = format!("{OPEN} AND i.hash = ?2");
    let found = connection.prepare_cached(&sql)?.query_row(params![now, hash], invitation).optional()?;
    Ok(found.filter(|invitation| invitation.works))
}

fn accept(writing: &mut Writing, new: &Acceptance) -> rusqlite::Result<Accepting> {
    let now = writing.clock.now();
    let Some(invitation) = find(&writing.connection, &new.hash, now)? else { return Ok(Accepting::Gone) };
    let id = writing.ids.next(now);
    let person = match people::create(writing, id, invitation.account_id, &new.name, invitation.role)? {
        PersonCreation::Created(person) => Person { has_password: true, ..person },
        PersonCreation::NameTaken => return Ok(Accepting::NameTaken),
        PersonCreation::NotPossible => return Ok(Accepting::Full),
    };
    let connection = &writing.connection;
    connection.prepare_cached("UPDATE people SET password = ?2 WHERE id = ?1")?.execute(params![id, new.password])?;
    let last = "DELETE FROM invitations WHERE id = ?1 AND places = 1";
    if connection.prepare_cached(last)?.execute([invitation.id])? == 0 {
        let take = "UPDATE invitations SET places = places - 1 WHERE id = ?1";
        connection.prepare_cached(take)?.execute([invitation.id])?;
    }
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_acceptance(&person));
    audit_log::record(writing, &actor, &deed)?;
    Ok(Accepting::Done(person))
}

#[async_trait]
impl Invitations for SqliteStore {
    async fn create_invitation(&self, new: NewInvitation, most: u32) -> Result<Option<Id>> {
        let deed = move |made: &Option<Id>| Deed::of_new_invitation(&new, *made);
        let create = self.recorded(move |writing| create(writing, &new, most), deed);
        self.write(Effect::SignIn, create).await
    }

    async fn find_invitation(&self, hash: TokenHash) -> Result<Option<Invitation>> {
        self.read(|connection| find(connection, &hash, self.clock.now()))
    }

    async fn list_invitations(&self, account_id: Id) -> Result<Vec<Invitation>> {
        let sql = format!("{OPEN} AND i.account_id = ?2 ORDER BY i.id DESC");
        self.read(|connection| {
            connection.prepare_cached(&sql)?.query_map(params![self.clock.now(), account_id], invitation)?.collect()
        })
    }

    async fn revoke_invitation(&self, account_id: Id, id: Id) -> Result<bool> {
        let revoke = move |writing: &mut Writing| {
            let sql = "DELETE FROM invitations WHERE id = ?2 AND account_id = ?1";
            Ok(writing.connection.prepare_cached(sql)?.execute([account_id, id])? > 0)
        };
        let deed = move |revoked: &bool| Deed::of_revoked_invitation(account_id, id, *revoked);
        self.write(Effect::SignIn, self.recorded(revoke, deed)).await
    }

    async fn accept_invitation(&self, new: Acceptance) -> Result<Accepting> {
        self.write(Effect::ChangePerson, move |writing| accept(writing, &new)).await
    }
}
