//! The keys of the account, for its owners.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};

use super::overlap::Overlap;
use super::secret::{self, Secret};
use crate::service::keys::{AccountKeys, KeyRefusal, MAX_KEYS};
use crate::studio::Studio;
use crate::studio::action::{KeyAction, action};
use crate::studio::cards::name_of;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{DAY, Draft, Frame, form_page, redirect};
use crate::studio::session::{Fields, Form, Visitor};
use tintype_domain::budget::{Allowance, Budget, InvalidBudget, Period};
use tintype_domain::key::{ApiKey, KeySecret, KeyState};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Role};
use tintype_domain::text;
use tintype_store::{Addition, KeyChange, NewKey};
use tintype_system::clock::Timestamp;

const KEYS: &str = "/studio/keys";

/// The key of the text for an account with as many keys as its owners can create.
const TOO_MANY: &str = "key-too-many";
/// The key of the text for a budget that would allow more than the present one.
const RAISED: &str = "key-budget-raised";

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage<'a> {
    frame: Frame<'a>,
    keys: Vec<ApiKey>,
    people: Vec<Person>,
    /// The use of the budgets of keys, by key.
    allowances: HashMap<Id, Allowance>,
    periods: [Period; 3],
    now: Timestamp,
    /// The key of the text that says why there is no form for another key.
    closed: Option<&'static str>,
    /// The form for another key.
    draft: Draft,
}

impl KeysPage<'_> {
    fn state(&self, key: &ApiKey) -> KeyState {
        key.state(self.now)
    }

    /// Who made it, if that is a person of the account or was one.
    fn maker(&self, key: &ApiKey) -> Option<String> {
        let name = name_of(&self.people, key.made_by?);
        Some(if name.is_empty() {
            self.frame.t.get("key-made-by-former")
        } else {
            self.frame.t.word("key-made-by", &name)
        })
    }

    /// The key of the text that says why there is no other key, or no form for one.
    fn refusal(&self) -> Option<&'static str> {
        self.draft.refusal.or(self.closed)
    }

    fn rate(&self, rate: &Option<u32>) -> String {
        match rate {
            None => self.frame.t.get("key-default"),
            Some(0) => self.frame.t.get("key-unlimited"),
            Some(rate) => rate.to_string(),
        }
    }

    /// Whether the form for another key suggests this period.
    fn is_drafted(&self, period: &Period) -> bool {
        period.as_str() == self.draft.fields.text("period")
    }

    /// Whether the form for another key is shown again with limits, which it then displays at once.
    fn has_drafted_limits(&self) -> bool {
        ["submit_rate", "read_rate", "budget"].into_iter().any(|field| !self.draft.fields.text(field).is_empty())
    }

    fn is_period(&self, key: &ApiKey, period: &Period) -> bool {
        key.budget.is_some_and(|budget| budget.period == *period)
    }

    /// Whether its owner has to do something about it.
    fn stands_out(&self, key: &ApiKey) -> bool {
        self.is_suspended(key) || (key.leaked_at.is_some() && !self.state(key).is_final())
    }

    fn is_suspended(&self, key: &ApiKey) -> bool {
        key.state(self.now) == KeyState::Suspended
    }
}

async fn page(visitor: &Visitor, draft: Draft) -> PageResult {
    let store = &visitor.studio.shared.store;
    let mut keys = store.list_keys(Some(visitor.account_id())).await?;
    keys.reverse();
    let mut allowances = HashMap::new();
    for key in keys.iter().filter(|key| key.budget.is_some() && key.revoked_at.is_none()) {
        allowances.extend(store.find_allowance(key.id).await?.map(|allowance| (key.id, allowance)));
    }
    let page = KeysPage {
        frame: Frame::new("keys", visitor).await?,
        keys,
        people: store.list_people(Some(visitor.account_id())).await?,
        allowances,
        periods: Period::ALL,
        now: store.now(),
        closed: account_keys(visitor).await?.may_add().err().map(refusal_text),
        draft,
    };
    form_page(&page, page.draft.refusal)
}

/// The page.
pub async fn keys(visitor: Visitor) -> PageResult {
    visitor.require(Role::Owner)?;
    page(&visitor, Draft::default()).await
}

/// Creates a key and shows it, this once.
pub async fn create(State(studio): State<Arc<Studio>>, form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    visitor.check_can_manage()?;
    let secret = KeySecret::random();
    let new = match new_key(&fields, &secret, studio.shared.store.now()) {
        Err(refusal) => return page(&visitor, Draft::refused(refusal, fields)).await,
        Ok(new) => new,
    };
    if let Err(refusal) = account_keys(&visitor).await?.may_create(&new) {
        return page(&visitor, Draft::refused(refusal_text(refusal), fields)).await;
    }
    let account_id = visitor.account_id();
    let key = match visitor.store().create_key_within(account_id, new, Some(MAX_KEYS)).await? {
        Addition::Created(key) => key,
        Addition::TooMany => return page(&visitor, Draft::refused(TOO_MANY, fields)).await,
        Addition::NotPossible => return Err(PageError::not_found()),
    };
    tracing::info!(key = %key.id, person = %visitor.person_id(), "a key was created in the studio");
    let lead = visitor.texts.get("key-created");
    show(&visitor, &secret, lead).await
}

/// Leads to the page that shows a key, this once.
async fn show(visitor: &Visitor, key: &KeySecret, lead: String) -> PageResult {
    let texts = vec![key.reveal().to_owned()];
    secret::show(visitor, &Secret { lead, texts, copy: "key-copy".into(), back: KEYS.into() }).await
}

/// The key that a form asks for, or the key of the text that says why there is none.
fn new_key(fields: &Fields, secret: &KeySecret, now: Timestamp) -> Result<NewKey, &'static str> {
    let name = text::key_label(fields.text("name").trim()).map_err(|_| "key-name-invalid")?;
    let expires_at = match fields.text("days") {
        "" => None,
        days => {
            let days: u32 = days.parse().map_err(|_| "error-request")?;
            Some(now.saturating_add(DAY * days.clamp(1, 3_650)))
        }
    };
    let (submit_rate, read_rate) = (rate(fields.text("submit_rate"))?, rate(fields.text("read_rate"))?);
    Ok(NewKey { name, submit_rate, read_rate, budget: budget(fields)?, expires_at, ..NewKey::new(secret) })
}

fn rate(text: &str) -> Result<Option<u32>, &'static str> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.parse().map_err(|_| "key-rate-invalid")).transpose()
}

fn budget(fields: &Fields) -> Result<Option<Budget>, &'static str> {
    let credits = fields.text("budget").trim();
    let invalid = |_: InvalidBudget| "key-budget-invalid";
    let whole = || format!("{credits}/{}", fields.text("period"));
    (!credits.is_empty()).then(|| whole().parse().map_err(invalid)).transpose()
}

async fn account_keys(visitor: &Visitor) -> Result<AccountKeys<'_>, PageError> {
    let studio = &visitor.studio;
    Ok(AccountKeys::of(visitor.account_id(), &studio.shared.store, &studio.limits).await?)
}

fn refusal_text(refusal: KeyRefusal) -> &'static str {
    match refusal {
        KeyRefusal::TooManySuspended => "key-account-struck",
        KeyRefusal::BudgetOfOperator => "key-account-budget",
        KeyRefusal::RateTooHigh => "key-rate-too-high",
    }
}

async fn refused(visitor: &Visitor, refusal: &'static str) -> PageResult {
    page(visitor, Draft::refused(refusal, Fields::default())).await
}

/// Disables, enables, revokes or rotates a key, or sets its budget.
pub async fn change(
    State(studio): State<Arc<Studio>>,
    Path((id, word)): Path<(String, String)>,
    form: Form,
) -> PageResult {
    let Form { visitor, fields, .. } = form;
    visitor.require(Role::Owner)?;
    let (id, action): (Id, _) = (id.parse()?, action(&word)?);
    let store = &studio.shared.store;
    let own = store.find_key(id).await?.filter(|key| key.account_id == visitor.account_id());
    let key = own.ok_or_else(PageError::not_found)?;
    let person = visitor.person_id();
    if matches!(action, KeyAction::Rotate | KeyAction::Enable | KeyAction::Budget) {
        visitor.check_can_manage()?;
    }
    let allowed = match action {
        KeyAction::Rotate | KeyAction::Enable => account_keys(&visitor).await?.may_enable(),
        _ => Ok(()),
    };
    if let Err(refusal) = allowed {
        return refused(&visitor, refusal_text(refusal)).await;
    }
    let change = match action {
        KeyAction::Rotate => {
            let secret = KeySecret::random();
            let overlap = Overlap::of(&fields);
            let store = visitor.store();
            let (hash, hint, most) = (secret.hash(), secret.hint(), Some(MAX_KEYS));
            let new = match store.rotate_key_within(id, hash, &hint, overlap.duration(), most).await? {
                Addition::Created(new) => new,
                Addition::TooMany => return refused(&visitor, TOO_MANY).await,
                Addition::NotPossible => return Err(PageError::not_found()),
            };
            tracing::info!(key = %id, new = %new.id, %person, "a key was rotated in the studio");
            let lead = visitor.texts.count("key-rotated", overlap.hours);
            return show(&visitor, &secret, lead).await;
        }
        // Only the operator lifts a suspension.
        KeyAction::Enable if key.suspension.is_some() => return Err(PageError::forbidden("key-suspended")),
        KeyAction::Enable => KeyChange::EnableByOwner,
        KeyAction::Disable => KeyChange::Disable,
        KeyAction::Budget => match budget(&fields) {
            Ok(budget) if !Budget::may_replace(key.budget, budget) => return refused(&visitor, RAISED).await,
            Ok(budget) => KeyChange::Budget(budget),
            Err(refusal) => return refused(&visitor, refusal).await,
        },
        KeyAction::Revoke => KeyChange::Revoke,
    };
    let changes = match change {
        KeyChange::EnableByOwner => key.disabled,
        KeyChange::Disable => !key.disabled,
        KeyChange::Revoke => key.revoked_at.is_none(),
        KeyChange::Budget(budget) => key.budget != budget,
        _ => true,
    };
    if changes {
        if visitor.store().change_key(id, change).await?.is_none() {
            return match change {
                // The operator has set a lower budget meanwhile.
                KeyChange::Budget(_) => refused(&visitor, RAISED).await,
                _ => Err(PageError::not_found()),
            };
        }
        tracing::info!(key = %id, ?change, %person, "a key was changed in the studio");
    }
    Ok(redirect(KEYS))
}
