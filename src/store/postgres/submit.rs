//! Submits: one statement charges, queues and records a batch of tasks.
//!
//! Within a batch, the tasks of an account are accepted in their order until one of them exceeds the balance or the
//! limit of unfinished tasks. That one is refused, and those after it go into the next batch if the account can pay them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_postgres::Row;

use super::batch::{Request, or_exit};
use super::budgets::{self, budget};
use super::columns::to_json;
use super::connection::Database;
use super::failure::{Failure, words};
use super::settle::settle;
use crate::clock::Timestamp;
use crate::domain::budget::{Allowance, Period};
use crate::domain::model::{CREDITS_PER_IMAGE, Id, Status, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::{Effect, Faults, Point};
use crate::store::calls::FOUND_WITHIN;
use crate::store::{Call, Origin, Result, Right, START_WITHIN, StartLimit, StoreError, Submission};

/// Pause before the next batch after one without an answer: all accounts were locked by other transactions, or all orders
/// too late by the server's clock but not yet by that of this process.
const PAUSE: Duration = Duration::from_millis(5);

/// A task to submit.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) account_id: Id,
    pub(super) origin: Origin,
    pub(super) surface: Surface,
    pub(super) request: GenerateRequest,
    /// 0: no limit.
    pub(super) max_unfinished: u32,
    pub(super) start: StartLimit,
}

type Asked = Request<Order, Submission>;

/// The state of the submitter.
#[derive(Debug, Clone)]
pub(super) struct Submitter {
    pub(super) database: Arc<Database>,
    pub(super) faults: Faults,
}

/// An order with the id of its task.
struct Sent {
    id: Id,
    /// When it is too late, by the server's clock.
    deadline: Timestamp,
    asked: Asked,
}

/// The answer of the statement to one order.
struct Found {
    exists: bool,
    /// Credits that can be spent and unfinished tasks of the account before the statement; `None` if another transaction has
    /// locked it.
    account: Option<(i64, i64)>,
    /// The first of the keys that share the budget of its key, and the use of that budget before the statement.
    budget: Option<(Id, Allowance)>,
    accepted: bool,
    /// Whether it repeats a call, so that it was not accepted.
    repeated: bool,
    /// Whether its deadline had passed, so that it was not accepted.
    late: bool,
    /// Whether its caller has lost the right to submit, so that it was not accepted.
    revoked: bool,
}

impl Submitter {
    /// Runs one statement for these orders. Returns those that belong into the next one: of accounts that other
    /// transactions had locked, those that come after a refused order, and those that were too late, which it refuses.
    pub(super) fn run(self, orders: Vec<Asked>) -> BoxFuture<'static, Vec<Asked>> {
        Box::pin(async move {
            let (orders, mut later) = without_repeats(orders);
            let (sent, tomorrow) = of_one_day(self.startable(orders));
            later.extend(tomorrow);
            if sent.is_empty() {
                return later;
            }
            let error = match self.send(&sent).await {
                Ok(found) => {
                    later.extend(self.answer(sent, found).await);
                    return later;
                }
                Err(Failure::Unknown(error)) => {
                    tokio::spawn(or_exit(self.settle(sent, error)));
                    return later;
                }
                // A damaged account or task does not fail the others.
                Err(Failure::Refused(error)) if sent.len() > 1 => {
                    tracing::warn!(orders = sent.len(), %error, "the database refused a batch of submits; sending each alone");
                    for one in sent {
                        later.extend(self.clone().run(vec![one.asked]).await);
                    }
                    return later;
                }
                Err(failure) => StoreError::from(failure),
            };
            sent.into_iter().for_each(|one| one.asked.answer(Err(error.clone())));
            later
        })
    }

    /// Refuses the orders that are too late or whose callers have gone, and gives the others their ids and deadlines.
    fn startable(&self, orders: Vec<Asked>) -> Vec<Sent> {
        let (elapsed, now) = (self.database.clock.elapsed(), self.database.now());
        let (over, open): (Vec<_>, Vec<_>) = orders.into_iter().partition(|asked| asked.query.start.is_over(elapsed));
        over.into_iter().for_each(|asked| asked.answer(Ok(Submission::NotStarted)));
        let sent = |asked: Asked| {
            let left = asked.query.start.deadline.saturating_sub(elapsed).min(START_WITHIN);
            // The server's clock does not move with a manual one.
            let deadline = if self.database.clock.is_manual() { Timestamp::MAX } else { now.saturating_add(left) };
            Sent { id: self.database.new_id(), deadline, asked }
        };
        open.into_iter().map(sent).collect()
    }

    async fn send(&self, sent: &[Sent]) -> std::result::Result<Vec<Found>, Failure> {
        let passed = self.faults.pass(Point::before(Effect::Commit)).await;
        passed.map_err(|error| Failure::Broken(error.into()))?;
        let rows = write(&self.database, sent).await?;
        let passed = self.faults.pass(Point::after(Effect::Commit)).await;
        passed.map_err(|error| Failure::Unknown(error.into()))?;
        rows.iter().map(found).collect::<Result<_>>().map_err(Failure::Unknown)
    }

    /// Answers the orders that are settled, and returns the others.
    async fn answer(&self, sent: Vec<Sent>, found: Vec<Found>) -> Vec<Asked> {
        if found.iter().any(|found| found.late) {
            // The server's clock may have been set ahead.
            let database = self.database.clone();
            tokio::spawn(async move { database.compare_clocks().await });
        }
        let count = sent.len();
        let mut accounts: HashMap<Id, (i64, i64)> = HashMap::new();
        let mut budgets: HashMap<Id, Allowance> = HashMap::new();
        let mut again = Vec::new();
        for (one, found) in sent.into_iter().zip(found) {
            let order = &one.asked.query;
            if found.revoked {
                one.asked.answer(Err(StoreError::Revoked));
                continue;
            }
            let Some(account) = found.account else {
                if found.exists {
                    again.push(one.asked);
                } else {
                    one.asked.answer(Err(StoreError::Other("there is no such account".into())));
                }
                continue;
            };
            if found.repeated {
                one.asked.answer(Ok(Submission::Repeated));
                continue;
            }
            if found.late {
                // It takes nothing from those after it. It is refused when its start limit is over by the clock of this
                // process, too.
                again.push(one.asked);
                continue;
            }
            let (balance, unfinished) = accounts.entry(order.account_id).or_insert(account);
            let (cost, max_unfinished) = (order.request.cost(), i64::from(order.max_unfinished));
            let mut budget = found.budget.map(|(line, allowance)| budgets.entry(line).or_insert(allowance));
            if !found.accepted && max_unfinished != 0 && *unfinished >= max_unfinished {
                one.asked.answer(Ok(Submission::TooManyUnfinished));
            } else if let Some(over) = budget.as_ref().filter(|budget| !found.accepted && budget.left() < cost) {
                let (left, resets_at) = (over.left(), over.resets_at);
                one.asked.answer(Ok(Submission::OverBudget { available: left.min(*balance), left, resets_at }));
            } else if !found.accepted && *balance < cost {
                one.asked.answer(Ok(Submission::InsufficientCredits { available: *balance }));
            } else {
                *balance -= cost;
                *unfinished += 1;
                if let Some(budget) = &mut budget {
                    budget.spent += cost;
                }
                if found.accepted {
                    let task = one.task();
                    one.asked.answer(Ok(Submission::Accepted(task)));
                } else {
                    again.push(one.asked);
                }
            }
        }
        if again.len() == count {
            self.database.sleep(PAUSE).await;
        }
        again
    }

    /// Determines the outcome of a statement whose response was lost and answers its callers; those whose outcome stays
    /// unknown get [`StoreError::Unknown`].
    async fn settle(self, sent: Vec<Sent>, error: StoreError) {
        let deadline = sent.iter().map(|one| one.deadline).max().unwrap_or(Timestamp::MAX);
        let accounts: Vec<Id> = sent.iter().map(|one| one.asked.query.account_id).collect();
        let tasks: Vec<Id> = sent.iter().map(|one| one.id).collect();
        tracing::warn!(tasks = tasks.len(), %error, "the response to a submit was lost; querying its outcome");
        let existing = settle(&self.database, &accounts, &tasks, deadline).await;
        for one in sent {
            let answer = match &existing {
                Some(existing) if existing.contains(&one.id) => Ok(Submission::Accepted(one.task())),
                Some(_) => Err(error.clone()),
                None => Err(StoreError::Unknown(words(error.clone()))),
            };
            one.asked.answer(answer);
        }
    }
}

impl Sent {
    fn task(&self) -> Task {
        let order = &self.asked.query;
        Task {
            id: self.id,
            account_id: order.account_id,
            surface: order.surface,
            image_to_image: !order.request.reference_images.is_empty(),
            status: Status::Processing,
            updated_at: self.id.timestamp(),
        }
    }
}

/// Takes out the orders that may repeat a call of the same batch: the statement sees only what was committed before it.
fn without_repeats(orders: Vec<Asked>) -> (Vec<Asked>, Vec<Asked>) {
    let mut seen = HashSet::new();
    orders.into_iter().partition(|asked| {
        let Origin { key_id, call, .. } = &asked.query.origin;
        let (key_id, call) = (*key_id, *call);
        let Some(call) = call else { return true };
        let repeats = call.may_repeat() && seen.contains(&(key_id, call.idempotency.unwrap_or(call.digest)));
        seen.insert((key_id, call.idempotency.unwrap_or(call.digest)));
        !repeats
    })
}

/// Takes out the orders whose tasks count to another day, and so maybe to other periods of budgets, than the first one.
fn of_one_day(sent: Vec<Sent>) -> (Vec<Sent>, Vec<Asked>) {
    let Some((begin, end)) = sent.first().map(|first| Period::Day.around(first.id.timestamp())) else {
        return (sent, Vec::new());
    };
    let (today, tomorrow): (Vec<_>, Vec<_>) =
        sent.into_iter().partition(|one| (begin..end).contains(&one.id.timestamp()));
    (today, tomorrow.into_iter().map(|one| one.asked).collect())
}

fn found(row: &Row) -> Result<Found> {
    let (balance, unfinished): (Option<i64>, Option<i64>) = (row.try_get("balance")?, row.try_get("unfinished")?);
    let mut allowance = None;
    if let Some(budget) = budget(row)? {
        let made_at: Timestamp = row.try_get("made_at")?;
        let (_, resets_at) = budget.period.around(made_at);
        allowance = Some((row.try_get("line")?, Allowance { budget, spent: row.try_get("budget_spent")?, resets_at }));
    }
    Ok(Found {
        budget: allowance,
        exists: row.try_get("exists")?,
        account: balance.zip(unfinished),
        accepted: row.try_get("accepted")?,
        repeated: row.try_get("repeated")?,
        late: row.try_get("late")?,
        revoked: row.try_get("revoked")?,
    })
}

const SUBMIT: &str = "
    WITH
    -- The orders; `spent` is the cost of an order and of those of its account before it, `place` their number.
    orders AS (
        SELECT *, ($15::bigint * sum(n) OVER of_account)::bigint AS spent, row_number() OVER of_account AS place
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[],
                    $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
                    $17::bytea[], $18::bytea[], $19::bigint[], $20::bigint[], $22::text[], $26::boolean[],
                    $27::text[], $28::bytea[], $29::bytea[])
            WITH ORDINALITY AS o (id, account_id, key_id, surface, image_to_image, made_at, n, aspect_ratio,
                                  reference_images, prompt, request_id, max_unfinished, deadline,
                                  digest, idempotency, attempt, holder, person_id, wants_previews, engine, key_hash,
                                  session_hash, ordinal)
        WINDOW of_account AS (PARTITION BY account_id ORDER BY ordinal)
    ),
    -- Orders whose caller has lost the right to submit: the key must be valid, or the session last and its person be neither
    -- a viewer nor suspended.
    revoked AS MATERIALIZED (
        SELECT ordinal FROM orders WHERE (key_hash IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM api_keys k JOIN accounts a ON a.id = k.account_id AND a.disabled_at IS NULL
            WHERE k.hash = key_hash AND NOT k.disabled AND k.revoked_at IS NULL AND k.suspended_at IS NULL
            AND (k.expires_at IS NULL OR k.expires_at > tintype_now($25))
        )) OR (session_hash IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM sessions s JOIN people p ON p.id = s.person_id
            JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
            WHERE s.hash = session_hash AND s.expires_at > tintype_now($25)
            AND p.role <> 'viewer' AND p.suspended_at IS NULL
        ))
    ),
    -- Locks the accounts in the order of their ids: nothing else charges or refunds them until the commit. An account
    -- that another transaction has locked is skipped, so that it delays no other.
    locked AS MATERIALIZED (
        SELECT id, low_balance FROM accounts WHERE id = ANY ($2) AND deleted_at IS NULL
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ),
    -- The functions see all that was committed before the lock, which the snapshot of this statement may not.
    found AS MATERIALIZED (
        SELECT locked.id, tintype_credits(locked.id) AS balance, tintype_unfinished(locked.id, $14, $16) AS unfinished,
            expired, live, low_balance
        FROM locked, LATERAL tintype_expiring(locked.id, tintype_now($25))
    ),
    -- The orders of keys with a budget; `drawn` is the cost of an order and of those of its budget before it. Their tasks
    -- are all of the periods that begin with the ids $23 and end before the ids $24.
    budgeted AS MATERIALIZED (
        SELECT ordinal, orders.account_id, k.first_id AS line, k.budget, k.budget_period,
            ($15::bigint * sum(n) OVER (PARTITION BY k.first_id ORDER BY ordinal))::bigint AS drawn
        FROM orders JOIN api_keys k ON k.id = orders.key_id WHERE k.budget IS NOT NULL
    ),
    budgets AS MATERIALIZED (
        SELECT line, tintype_spent(locked.id, line, ($23::text[])[place], ($24::text[])[place]) AS spent
        FROM (SELECT DISTINCT account_id, line, array_position(ARRAY['day', 'week', 'month'], budget_period) AS place
              FROM budgeted) AS b
        JOIN locked ON locked.id = b.account_id
    ),
    repeats AS MATERIALIZED (
        SELECT orders.ordinal, tintype_call(locked.id, key_id, digest, idempotency, attempt, $21) AS earlier
        FROM orders JOIN locked ON locked.id = account_id WHERE attempt > 0 OR idempotency IS NOT NULL
    ),
    -- An account's orders are accepted up to the first that it cannot pay, that exceeds its limit or the budget of its key,
    -- that is too late, or that repeats a call.
    judged AS MATERIALIZED (
        SELECT orders.*, balance, low_balance, balance - expired AS spendable, live > 0 AS draws, unfinished,
            budgeted.line, budgeted.budget, budgeted.budget_period, budgets.spent AS budget_spent,
            bool_and(orders.spent <= balance - expired AND (budgeted.line IS NULL OR budgets.spent + drawn <= budget)
                AND (max_unfinished = 0 OR unfinished + place <= max_unfinished)
                AND extract(epoch FROM clock_timestamp()) * 1000 < deadline AND repeats.earlier IS NULL
                AND revoked.ordinal IS NULL)
            OVER (PARTITION BY orders.account_id ORDER BY orders.ordinal) AS accepted,
            repeats.earlier IS NOT NULL AS repeated
        FROM orders JOIN found ON found.id = account_id LEFT JOIN repeats ON repeats.ordinal = orders.ordinal
        LEFT JOIN revoked ON revoked.ordinal = orders.ordinal
        LEFT JOIN budgeted ON budgeted.ordinal = orders.ordinal LEFT JOIN budgets ON budgets.line = budgeted.line
    ),
    new AS (SELECT * FROM judged WHERE accepted),
    made AS (
        INSERT INTO tasks (id, account_id, surface, image_to_image, updated_at, n, aspect_ratio, reference_images, prompt,
                           request_id)
        SELECT id, account_id, surface, image_to_image, made_at, n, aspect_ratio, reference_images, prompt, request_id
        FROM new
    ),
    -- The search gets to know of tasks of the studio.
    unindexed AS (INSERT INTO unindexed (task_id) SELECT id FROM new WHERE surface = 'web'),
    queued AS (
        INSERT INTO queue (task_id, account_id, key_id, person_id, reference_count, wants_previews, engine, taken)
        SELECT id, account_id, key_id, person_id, json_array_length(reference_images::json), wants_previews, engine,
            CASE WHEN draws THEN tintype_spend(account_id, $15 * n, tintype_now($25)) END
        FROM new
    ),
    called AS (
        INSERT INTO calls (task_id, key_id, digest, idempotency, attempt, holder)
        SELECT id, key_id, digest, idempotency, attempt, holder FROM new WHERE digest IS NOT NULL AND key_id IS NOT NULL
    ),
    -- In order, so that each balance follows from the entry before it.
    charged AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, key_id)
        SELECT account_id, 'charge', -$15 * n, balance - spent, made_at, id, key_id FROM new ORDER BY ordinal
    )
    -- One row for each order. It has no balance if its account was locked.
    SELECT EXISTS (SELECT 1 FROM accounts WHERE accounts.id = orders.account_id AND deleted_at IS NULL) AS exists,
        judged.spendable AS balance, judged.unfinished, coalesce(judged.accepted, false) AS accepted,
        judged.line, judged.budget, judged.budget_period, judged.budget_spent, orders.made_at,
        -- An event is written last, when all locks are held.
        CASE WHEN judged.accepted THEN tintype_tell_if_low(orders.account_id, judged.low_balance,
            $15 * orders.n, judged.balance - judged.spent, orders.made_at) END AS told,
        coalesce(judged.repeated, false) AS repeated,
        NOT coalesce(judged.accepted, false) AND extract(epoch FROM clock_timestamp()) * 1000 >= orders.deadline AS late,
        EXISTS (SELECT 1 FROM revoked WHERE revoked.ordinal = orders.ordinal) AS revoked
    FROM orders LEFT JOIN judged ON judged.ordinal = orders.ordinal ORDER BY orders.ordinal";

/// The hashes of the key and of the session from which a right follows.
fn hashes(right: Option<&Right>) -> (Option<&[u8]>, Option<&[u8]>) {
    match right {
        None => (None, None),
        Some(Right::Key(hash)) => (Some(hash), None),
        Some(Right::Session(right)) => (None, Some(&right.session)),
    }
}

async fn write(database: &Database, sent: &[Sent]) -> std::result::Result<Vec<Row>, Failure> {
    let orders: Vec<&Order> = sent.iter().map(|one| &one.asked.query).collect();
    let column = |value: fn(&Order) -> String| -> Vec<String> { orders.iter().map(|order| value(order)).collect() };
    let number = |value: fn(&Order) -> i64| -> Vec<i64> { orders.iter().map(|order| value(order)).collect() };
    let calls: Vec<Option<Call>> = orders.iter().map(|order| order.origin.call).collect();
    let limits = number(|order| order.max_unfinished.into());
    let most = limits.iter().max().copied().unwrap_or_default();
    let (begins, ends) = budgets::bounds(sent[0].id.timestamp());
    let rights: Vec<_> = orders.iter().map(|order| hashes(order.origin.right.as_ref())).collect();
    database
        .write(
            SUBMIT,
            &[
                &sent.iter().map(|one| one.id).collect::<Vec<Id>>(),
                &orders.iter().map(|order| order.account_id).collect::<Vec<Id>>(),
                &orders.iter().map(|order| order.origin.key_id).collect::<Vec<Option<Id>>>(),
                &column(|order| order.surface.as_str().to_owned()),
                &orders.iter().map(|order| !order.request.reference_images.is_empty()).collect::<Vec<bool>>(),
                &sent.iter().map(|one| one.id.timestamp()).collect::<Vec<Timestamp>>(),
                &number(|order| order.request.n.into()),
                &column(|order| order.request.aspect_ratio.as_str().to_owned()),
                &column(|order| to_json(&order.request.reference_images)),
                &orders.iter().map(|order| order.request.prompt.as_str()).collect::<Vec<&str>>(),
                &orders.iter().map(|order| order.request.request_id.as_deref()).collect::<Vec<Option<&str>>>(),
                &limits,
                &sent.iter().map(|one| one.deadline).collect::<Vec<Timestamp>>(),
                &database.horizon(),
                &CREDITS_PER_IMAGE,
                &most,
                &calls.iter().map(|call| call.map(|call| call.digest.to_vec())).collect::<Vec<_>>(),
                &calls.iter().map(|call| call.and_then(|call| call.idempotency).map(Vec::from)).collect::<Vec<_>>(),
                &calls.iter().map(|call| call.map(|call| i64::from(call.attempt))).collect::<Vec<_>>(),
                &calls.iter().map(|call| call.map(|call| call.holder)).collect::<Vec<_>>(),
                &Id::floor(database.now().saturating_sub(FOUND_WITHIN)),
                &orders.iter().map(|order| order.origin.person_id).collect::<Vec<Option<Id>>>(),
                &begins,
                &ends,
                &database.given_time(),
                &orders.iter().map(|order| order.origin.wants_previews()).collect::<Vec<bool>>(),
                &orders.iter().map(|order| order.origin.engine.as_deref().unwrap_or_default()).collect::<Vec<&str>>(),
                &rights.iter().map(|(key, _)| *key).collect::<Vec<Option<&[u8]>>>(),
                &rights.iter().map(|(_, session)| *session).collect::<Vec<Option<&[u8]>>>(),
            ],
        )
        .await
}
