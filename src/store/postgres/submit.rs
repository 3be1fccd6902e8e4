//! Submits: one statement charges, queues and records a batch of tasks.
//!
//! The statement charges an account for all of its orders or for none. Where it charges none, the balance that it saw
//! tells which orders the account can pay: the others are refused, and those go into another statement.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::batch::{AccountStatement, Leftover, Locked, Request, fail_all, or_exit};
use super::columns::to_json;
use super::connection::{Database, Failure, words};
use super::newest;
use super::partitions::Partitions;
use super::settle::Unanswered;
use crate::clock::Timestamp;
use crate::domain::model::{CREDITS_PER_IMAGE, Id, Status, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::{Effect, Faults, Point};
use crate::store::{START_WITHIN, StartLimit, StoreError, Submission};

/// Most statements for the orders of one batch: each time another process may have changed the balances in between.
const MAX_ROUNDS: u32 = 16;

/// A task to submit.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) account_id: Id,
    pub(super) key_id: Option<Id>,
    pub(super) surface: Surface,
    pub(super) request: GenerateRequest,
    /// 0: no limit.
    pub(super) max_unfinished: u32,
    pub(super) start: StartLimit,
}

/// The state of the submitter.
#[derive(Debug, Clone)]
pub(super) struct SubmitStatement {
    pub(super) database: Arc<Database>,
    pub(super) partitions: Arc<Partitions>,
    pub(super) faults: Faults,
}

type Asked = Request<Order, Submission>;

/// An order with the id that its task is to have.
struct Sent {
    id: Id,
    asked: Asked,
}

/// A locked account, as the statement found it.
struct LockedAccount {
    balance: i64,
    unfinished: i64,
    charged: bool,
}

/// The accounts that a statement locked.
struct Outcome {
    accounts: BTreeMap<Id, LockedAccount>,
    /// Whether the deadline had passed, so that nothing was done.
    late: bool,
}

impl AccountStatement for SubmitStatement {
    type Query = Order;
    type Answer = Submission;

    async fn run(&self, mut open: Vec<Asked>, locked: Locked) -> Leftover<Asked> {
        let mut skipped = Vec::new();
        for _ in 0..MAX_ROUNDS {
            open = self.startable(open);
            if open.is_empty() {
                return Leftover::Skipped(skipped);
            }
            let sent: Vec<Sent> = open.into_iter().map(|asked| Sent { id: self.database.new_id(), asked }).collect();
            let deadline = self.deadline(&sent);
            let outcome = match self.send(&sent, deadline, locked).await {
                Ok(outcome) => outcome,
                Err(Failure::Unknown(error)) => {
                    let settling = self.clone().settle(sent, deadline, error);
                    tokio::spawn(or_exit(settling));
                    return Leftover::Skipped(skipped);
                }
                Err(failure) => {
                    // A failover may have lost the partition that the tasks belong to.
                    self.partitions.forget_known();
                    let skipped = skipped.into_iter().map(|(_, asked)| asked);
                    return Leftover::Failed(failure, sent.into_iter().map(|one| one.asked).chain(skipped).collect());
                }
            };
            if outcome.late
                && let Err(error) = self.database.compare_clocks().await
            {
                tracing::warn!(%error, "could not compare the clocks after the server found a submit too late");
            }
            let (unsettled, locked_out) = answer(sent, outcome.accounts, locked);
            open = unsettled;
            skipped.extend(locked_out);
        }
        fail_all(open, &StoreError::Other("the account changes too quickly".into()));
        Leftover::Skipped(skipped)
    }
}

impl SubmitStatement {
    /// Refuses the orders that are too late or whose callers have gone, and returns the others.
    fn startable(&self, orders: Vec<Asked>) -> Vec<Asked> {
        let now = self.database.clock.elapsed();
        let (over, open): (Vec<_>, Vec<_>) = orders.into_iter().partition(|asked| asked.query.start.is_over(now));
        over.into_iter().for_each(|asked| asked.answer(Ok(Submission::NotStarted)));
        open
    }

    /// When the first of these orders is too late, by the server's clock.
    fn deadline(&self, sent: &[Sent]) -> Timestamp {
        let now = self.database.clock.elapsed();
        let left = sent.iter().map(|one| one.asked.query.start.deadline.saturating_sub(now)).min();
        self.database.now().saturating_add(left.unwrap_or_default().min(START_WITHIN))
    }

    async fn send(&self, sent: &[Sent], deadline: Timestamp, locked: Locked) -> Result<Outcome, Failure> {
        for one in sent {
            self.partitions.prepare(&self.database, one.id.timestamp()).await.map_err(Failure::Nothing)?;
        }
        let passed = self.faults.pass(Point::before(Effect::Commit)).await;
        passed.map_err(|error| Failure::Nothing(error.into()))?;
        let rows = write(&self.database, sent, deadline, locked).await?;
        let passed = self.faults.pass(Point::after(Effect::Commit)).await;
        passed.map_err(|error| Failure::Unknown(error.into()))?;
        let mut outcome = Outcome { accounts: BTreeMap::new(), late: false };
        for row in &rows {
            let account = || -> crate::store::Result<_> {
                Ok(LockedAccount {
                    balance: row.try_get("balance")?,
                    unfinished: row.try_get("unfinished")?,
                    charged: row.try_get("charged")?,
                })
            };
            let of_row = || -> crate::store::Result<_> { Ok((row.try_get("id")?, account()?, row.try_get("late")?)) };
            let (id, account, late): (Id, LockedAccount, bool) = of_row().map_err(Failure::Unknown)?;
            outcome.late |= late;
            outcome.accounts.insert(id, account);
        }
        Ok(outcome)
    }

    /// Determines the outcome of a statement whose response was lost and answers its callers; those whose outcome stays
    /// unknown get [`StoreError::Unknown`].
    async fn settle(self, sent: Vec<Sent>, deadline: Timestamp, error: StoreError) {
        let mut accounts: Vec<Id> = sent.iter().map(|one| one.asked.query.account_id).collect();
        accounts.sort();
        accounts.dedup();
        let tasks: Vec<Id> = sent.iter().map(|one| one.id).collect();
        tracing::warn!(tasks = tasks.len(), %error, "the response to a submit was lost; querying its outcome");
        let existing = Unanswered { accounts, tasks, deadline }.settle(&self.database).await;
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

/// Answers the orders that are settled. Returns those that their accounts can pay but were not charged for, and those
/// whose accounts were skipped.
fn answer(
    sent: Vec<Sent>,
    mut accounts: BTreeMap<Id, LockedAccount>,
    locked: Locked,
) -> (Vec<Asked>, Vec<(Id, Asked)>) {
    let (mut open, mut skipped) = (Vec::new(), Vec::new());
    for one in sent {
        let order = &one.asked.query;
        let (account_id, cost, max_unfinished) =
            (order.account_id, order.request.cost(), i64::from(order.max_unfinished));
        match accounts.get_mut(&account_id) {
            None if locked == Locked::Skip => skipped.push((account_id, one.asked)),
            None => one.asked.answer(Err(StoreError::Other("there is no such account".into()))),
            Some(account) if account.charged => {
                let task = one.task();
                one.asked.answer(Ok(Submission::Accepted(task)));
            }
            Some(account) if max_unfinished != 0 && account.unfinished >= max_unfinished => {
                one.asked.answer(Ok(Submission::TooManyUnfinished));
            }
            Some(account) if account.balance < cost => {
                one.asked.answer(Ok(Submission::InsufficientCredits { available: account.balance }));
            }
            Some(account) => {
                account.balance -= cost;
                account.unfinished += 1;
                open.push(one.asked);
            }
        }
    }
    (open, skipped)
}

/// The orders of one account together.
#[derive(Default)]
struct Sum {
    cost: i64,
    tasks: i64,
    /// Most unfinished tasks that the account may have before them.
    room: Option<i64>,
}

impl Sum {
    /// Adds an order and returns the cost of all so far.
    fn add(&mut self, order: &Order) -> i64 {
        if order.max_unfinished != 0 {
            let room = i64::from(order.max_unfinished) - 1 - self.tasks;
            self.room = Some(self.room.map_or(room, |least| least.min(room)));
        }
        self.cost += order.request.cost();
        self.tasks += 1;
        self.cost
    }
}

/// $1 to $4 describe the accounts, $5 to $15 and $18 the tasks; `spent` is the cost of a task and those of its account
/// before it. $16 is the deadline, null where the clock is moved by hand, and $17 the price of an image.
fn statement(locked: Locked) -> String {
    let (locked, is_locked, turned) = (newest::locked("wanted", locked), newest::IS_LOCKED, newest::TURNED);
    format!(
        "
    WITH
    -- The accounts, in the order of their ids.
    wanted AS (
        SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w (account_id, cost, tasks, room)
    ),
    -- Locks them; now nothing else charges or refunds them.
    {locked},
    -- Charges those that can pay for all of their orders, unless it is too late: the clock runs on while a statement
    -- waits for locks, so one that waited too long does nothing (see settle.rs).
    charged AS (
        UPDATE accounts a SET balance = a.balance - locked.cost, unfinished = a.unfinished + locked.tasks, {turned}
        FROM locked
        WHERE {is_locked} AND locked.balance >= locked.cost AND locked.unfinished <= locked.room
            AND ($16::bigint IS NULL OR extract(epoch FROM clock_timestamp()) * 1000 < $16)
        RETURNING a.id, locked.balance
    ),
    -- The same as two arrays: a join would compare each task with each account.
    paid AS (
        SELECT array_agg(id) AS accounts, array_agg(balance) AS balances FROM charged
    ),
    -- The tasks of charged accounts, each with the balance after it.
    new AS (
        SELECT * FROM (
            SELECT n.*, paid.balances[array_position(paid.accounts, n.account_id)] - n.spent AS balance
            FROM paid,
                unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::boolean[], $10::bigint[], $11::smallint[],
                       $12::text[], $13::text[], $14::text[], $15::bigint[], $18::text[])
                WITH ORDINALITY AS n (id, account_id, key_id, surface, image_to_image, made_at, n, aspect_ratio,
                                      reference_images, prompt, spent, request_id, ordinal)
            OFFSET 0
        ) asked WHERE balance IS NOT NULL
    ),
    made AS (
        INSERT INTO tasks (id, account_id, surface, image_to_image, updated_at, n, aspect_ratio, reference_images, prompt,
                           request_id)
        SELECT id, account_id, surface, image_to_image, made_at, n, aspect_ratio, reference_images, prompt, request_id
        FROM new
    ),
    queued AS (
        INSERT INTO queue (task_id, account_id, key_id) SELECT id, account_id, key_id FROM new
    ),
    -- In order, so that each balance follows from the entry before it.
    booked AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
        SELECT account_id, 'charge', -$17::bigint * n, balance, made_at, id FROM new ORDER BY ordinal
    )
    -- What was found of each account that was locked.
    SELECT account_id AS id, balance, unfinished, coalesce(account_id = ANY (accounts), false) AS charged,
        coalesce(extract(epoch FROM clock_timestamp()) * 1000 >= $16, false) AS late
    FROM locked, paid"
    )
}

static SKIPPING: LazyLock<String> = LazyLock::new(|| statement(Locked::Skip));
static WAITING: LazyLock<String> = LazyLock::new(|| statement(Locked::Wait));

async fn write(
    database: &Database,
    sent: &[Sent],
    deadline: Timestamp,
    locked: Locked,
) -> Result<Vec<tokio_postgres::Row>, Failure> {
    let sql = if locked == Locked::Skip { &SKIPPING } else { &WAITING };
    let orders: Vec<&Order> = sent.iter().map(|one| &one.asked.query).collect();
    let mut accounts: BTreeMap<Id, Sum> = BTreeMap::new();
    let spent: Vec<i64> = orders.iter().map(|order| accounts.entry(order.account_id).or_default().add(order)).collect();
    let of_account = |value: fn(&Sum) -> i64| -> Vec<i64> { accounts.values().map(value).collect() };
    let column = |value: fn(&Order) -> String| -> Vec<String> { orders.iter().map(|order| value(order)).collect() };
    let ids: Vec<Id> = sent.iter().map(|one| one.id).collect();
    let made_at: Vec<Timestamp> = ids.iter().map(|id| id.timestamp()).collect();
    let n: Vec<i16> = orders.iter().map(|order| order.request.n.into()).collect();
    let image_to_image: Vec<bool> = orders.iter().map(|order| !order.request.reference_images.is_empty()).collect();
    let prompts: Vec<&str> = orders.iter().map(|order| order.request.prompt.as_str()).collect();
    let deadline = database.given_time().is_none().then_some(deadline);
    database
        .write(
            sql,
            &[
                &accounts.keys().copied().collect::<Vec<Id>>(),
                &of_account(|sum| sum.cost),
                &of_account(|sum| sum.tasks),
                &of_account(|sum| sum.room.unwrap_or(i64::MAX)),
                &ids,
                &orders.iter().map(|order| order.account_id).collect::<Vec<Id>>(),
                &orders.iter().map(|order| order.key_id).collect::<Vec<Option<Id>>>(),
                &column(|order| order.surface.as_str().to_owned()),
                &image_to_image,
                &made_at,
                &n,
                &column(|order| order.request.aspect_ratio.as_str().to_owned()),
                &column(|order| to_json(&order.request.reference_images)),
                &prompts,
                &spent,
                &deadline,
                &CREDITS_PER_IMAGE,
                &orders.iter().map(|order| order.request.request_id.as_deref()).collect::<Vec<Option<&str>>>(),
            ],
        )
        .await
}
