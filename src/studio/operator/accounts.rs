//! All accounts, and single accounts with their keys and people.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::StatusCode;

use super::{Operator, OperatorForm, ReversibleForm};
use crate::studio::action::{AccountAction, AnyKeyAction, AnyPersonAction, action};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{DAY, Draft, Frame, form_page, html, last_of_page, redirect};
use crate::studio::search::{PAGE, Search};
use crate::studio::session::{Fields, Visitor};
use tintype_domain::key::{ApiKey, KeyState};
use tintype_domain::model::{Account, ExpiringGrant, Id, LedgerEntry, MAX_BALANCE};
use tintype_domain::text;
use tintype_store::{AccountChange, AccountSummary, CreditChange, FoundPerson, KeyChange, PersonChange};
use tintype_system::clock::Timestamp;

const ACCOUNTS: &str = "/studio/operator/accounts";
const ENTRIES: u32 = 20;
/// Most days after which granted credits expire.
const MAX_DAYS: u32 = 36_500;

#[derive(Template)]
#[template(path = "operator/accounts.html")]
struct AccountsPage<'a> {
    frame: Frame<'a>,
    accounts: Vec<AccountSummary>,
    q: String,
    /// The query of the next page.
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "operator/account.html")]
struct AccountPage<'a> {
    frame: Frame<'a>,
    account: Account,
    keys: Vec<ApiKey>,
    people: Vec<FoundPerson>,
    /// Whether the account has more people than these.
    more_people: bool,
    entries: Vec<LedgerEntry>,
    /// The grants that have not lapsed, the soonest expiry first.
    grants: Vec<ExpiringGrant>,
    now: Timestamp,
    /// The form for a grant.
    draft: Draft,
    /// Whether the operator belongs to it.
    is_own: bool,
}

impl AccountPage<'_> {
    /// The newest entry, which the form for a grant names.
    fn newest(&self) -> i64 {
        self.entries.first().map_or(0, |entry| entry.id)
    }

    fn state(&self, key: &ApiKey) -> KeyState {
        key.state(self.now)
    }
}

fn account_state(account: &Account) -> &'static str {
    match (account.deleted_at, account.disabled_at) {
        (Some(_), _) => "account-deleted",
        (None, Some(_)) => "account-disabled",
        (None, None) => "account-active",
    }
}

/// The list.
pub async fn accounts(operator: Operator, Query(search): Query<Search>) -> PageResult {
    let visitor = &operator.0;
    let q = search.text();
    let mut accounts = visitor.studio.shared.store.find_accounts(&q, &search.after, PAGE + 1).await?;
    let next = search.next(&mut accounts, |found| &found.account.name);
    html(&AccountsPage { frame: Frame::new("operator-accounts", visitor).await?, accounts, q, next })
}

pub(super) async fn find(visitor: &Visitor, id: &str) -> Result<Account, PageError> {
    let id: Id = id.parse()?;
    let account = visitor.studio.shared.store.find_account(id.as_str()).await?;
    account.ok_or_else(PageError::not_found)
}

async fn page(visitor: &Visitor, account: Account, draft: Draft) -> PageResult {
    let store = &visitor.studio.shared.store;
    let mut keys = store.list_keys(Some(account.id)).await?;
    keys.reverse();
    let mut people = store.find_people(Some(account.id), "", "", PAGE + 1).await?;
    let more_people = last_of_page(&mut people, PAGE).is_some();
    let mut grants = store.expiring_grants(account.id, ENTRIES).await?;
    grants.retain(|grant| grant.remaining > 0);
    let page = AccountPage {
        frame: Frame::new("operator-accounts", visitor).await?,
        keys,
        people,
        more_people,
        entries: store.history(account.id, None, ENTRIES).await?,
        grants,
        now: store.now(),
        draft,
        is_own: visitor.account_id() == account.id,
        account,
    };
    form_page(&page, page.draft.refusal)
}

/// One account.
pub async fn account(operator: Operator, Path(id): Path<String>) -> PageResult {
    let account = find(&operator.0, &id).await?;
    page(&operator.0, account, Draft::default()).await
}

/// Grants credits, which expire after some days if the form says so.
pub async fn grant(Path(id): Path<String>, form: OperatorForm) -> PageResult {
    let (visitor, fields) = (form.0.visitor, form.0.fields);
    let account = find(&visitor, &id).await?;
    let amount = fields.text("amount").trim().parse().ok().filter(|amount| (1..=MAX_BALANCE).contains(amount));
    let note = text::ledger_note(fields.text("note").trim()).ok();
    let expires_at = expiry(fields.text("days").trim(), visitor.studio.shared.store.now());
    // The same form, sent twice, grants once: it names the newest entry that its page has shown.
    let seen = fields.text("newest").parse().unwrap_or_default();
    let mut refusal = match (amount, &note) {
        _ if account.deleted_at.is_some() => Some("account-deleted-refusal"),
        (None, _) | (_, None) => Some("grant-invalid"),
        _ if expires_at.is_err() => Some("grant-invalid"),
        (Some(amount), _) if account.credits > MAX_BALANCE - amount => Some("grant-invalid"),
        _ => None,
    };
    // Enter in a field presses a button that only asks.
    let is_sure = fields.text("ask").is_empty();
    if let (Some(amount), Some(note), Ok(expires_at), None, true) = (amount, note, expires_at, refusal, is_sure) {
        let note = Some(note.as_str()).filter(|note| !note.is_empty());
        match visitor.store().grant_after(account.id, Some(seen), amount, note, expires_at).await? {
            CreditChange::Done(_) => {
                let person = visitor.person_id();
                tracing::info!(account = %account.id, %person, amount, "credits were granted in the studio");
                return Ok(redirect(&format!("{ACCOUNTS}/{}", account.id)));
            }
            CreditChange::NoAccount | CreditChange::TooFew(_) => return Err(PageError::not_found()),
            // Its twin came first.
            CreditChange::Repeated => refusal = Some("grant-repeated"),
        }
    }
    // A form that was sent twice isn't filled in again, so that pressing once more doesn't grant again.
    let fields = if refusal == Some("grant-repeated") { Fields::default() } else { fields };
    page(&visitor, account, Draft { refusal, fields }).await
}

/// The time in `days` days; none if the field is empty.
fn expiry(days: &str, now: Timestamp) -> Result<Option<Timestamp>, ()> {
    if days.is_empty() {
        return Ok(None);
    }
    let days: u32 = days.parse().map_err(|_| ())?;
    if (1..=MAX_DAYS).contains(&days) { Ok(Some(now.saturating_add(DAY * days))) } else { Err(()) }
}

/// Disables or enables an account.
pub async fn change(Path((id, word)): Path<(String, String)>, form: ReversibleForm) -> PageResult {
    let visitor = form.0.visitor;
    let account = find(&visitor, &id).await?;
    let change = match action(&word)? {
        // It would end this very session, and only the command line could undo it.
        AccountAction::Disable if account.id == visitor.account_id() => {
            return Err(PageError::new(StatusCode::CONFLICT, "account-own"));
        }
        AccountAction::Disable => AccountChange::Disable,
        AccountAction::Enable => AccountChange::Enable,
    };
    if account.disabled_at.is_some() != (change == AccountChange::Disable) {
        visitor.store().change_account(account.id, change).await?;
        tracing::info!(account = %account.id, person = %visitor.person_id(), ?change, "an account was changed in the studio");
    }
    Ok(redirect(&format!("{ACCOUNTS}/{}", account.id)))
}

/// Disables a key of any account, lifts its strikes with its suspension, or enables it, which does that too.
pub async fn change_key(Path((id, word)): Path<(String, String)>, form: OperatorForm) -> PageResult {
    let visitor = form.0.visitor;
    let id: Id = id.parse()?;
    let change = match action(&word)? {
        AnyKeyAction::Disable => KeyChange::Disable,
        AnyKeyAction::Enable => KeyChange::Enable,
        AnyKeyAction::Lift => KeyChange::Lift,
    };
    let key = visitor.store().change_key(id, change).await?.ok_or_else(PageError::not_found)?;
    tracing::info!(key = %id, person = %visitor.person_id(), ?change, "a key was changed in the studio");
    Ok(redirect(&format!("{ACCOUNTS}/{}", key.account_id)))
}

/// Lifts the strikes of a person of any account, with the suspension, or removes the second factor of one who has lost it.
pub async fn change_person(Path((id, word)): Path<(String, String)>, form: OperatorForm) -> PageResult {
    let visitor = form.0.visitor;
    let id: Id = id.parse()?;
    let action = action(&word)?;
    let person = match action {
        AnyPersonAction::Lift => visitor.store().change_person(id, PersonChange::Lift).await?,
        AnyPersonAction::ResetFactor => {
            visitor.store().reset_factor(id).await?;
            visitor.studio.shared.store.find_person(id.as_str()).await?.map(|found| found.person)
        }
    };
    let person = person.ok_or_else(PageError::not_found)?;
    tracing::info!(person = %id, by = %visitor.person_id(), ?action, "a person was changed by an operator in the studio");
    Ok(redirect(&format!("{ACCOUNTS}/{}", person.account_id)))
}
