//! Submitting: one statement charges, queues and books all that is submitted at once.
//!
//! The statement charges an account for all of its submissions or for none. Where it charges none, what it saw
//! of the account tells which of them fit; those are sent again, the others are refused.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock, OnceLock};

use super::batch;
use super::columns::to_json;
use super::connection::{Database, Failure, words};
use super::journal::Journal;
use super::lanes::Shared;
use super::months::Months;
use super::{newest, settle};
use crate::clock::Timestamp;
use crate::domain::model::{CREDITS_PER_IMAGE, Id, Status, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::{Effect, Faults, Point};
use crate::store::{Result, StoreError, Submission};

/// How often what fits is sent again because others were quicker.
const MAX_ROUNDS: u32 = 16;

/// One submission.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) account_id: Id,
    pub(super) key_id: Option<Id>,
    pub(super) surface: Surface,
    pub(super) request: GenerateRequest,
    /// 0: no limit.
    pub(super) max_unfinished: u32,
}

/// What submitting takes.
#[derive(Debug, Clone)]
pub(super) struct Submitting {
    pub(super) database: Arc<Database>,
    pub(super) months: Arc<Months>,
    pub(super) faults: Faults,
    /// Where what cannot be settled is written down, if anywhere.
    pub(super) journal: Arc<OnceLock<Arc<Journal>>>,
}

type Asked = batch::Asked<Order, Submission>;

/// An order on its way, with the id that its task is to have.
struct Sent<'a> {
    id: Id,
    asked: &'a mut Asked,
}

/// An account as the statement found it.
struct Found {
    balance: i64,
    unfinished: i64,
    charged: bool,
    /// Whether the deadline had passed.
    late: bool,
}

fn too_busy() -> StoreError {
    StoreError::Other("the account changes too quickly".into())
}

impl Shared for Submitting {
    type What = Order;
    type Answer = Submission;

    async fn run(&self, asked: &mut [Asked]) -> std::result::Result<(), Failure> {
        for _ in 0..MAX_ROUNDS {
            let open = asked.iter_mut().filter(|one| one.is_open());
            let mut open: Vec<Sent<'_>> = open.map(|asked| Sent { id: self.database.new_id(), asked }).collect();
            if open.is_empty() {
                return Ok(());
            }
            for one in &open {
                self.months.prepare(&self.database, one.id.timestamp()).await.map_err(Failure::Nothing)?;
            }
            let deadline = self.database.now().saturating_add(settle::START_WITHIN);
            match self.together(&open, deadline).await {
                Ok(accounts) => {
                    answer(&mut open, &accounts);
                    if open.iter().any(|one| one.is_late(&accounts)) {
                        // It waited for long, or a clock was set; nobody knows for how long it will be wrong.
                        self.database.compare_clocks().await.map_err(Failure::Nothing)?;
                    }
                }
                Err(Failure::Unknown(error)) => self.settle(&mut open, deadline, &error).await,
                Err(failure) => return Err(failure),
            }
        }
        if asked.iter().any(Asked::is_open) { Err(Failure::Refused(too_busy())) } else { Ok(()) }
    }

    async fn accounts(&self, asked: &[Asked]) -> Result<Vec<Option<Id>>> {
        Ok(asked.iter().map(|one| Some(one.what.account_id)).collect())
    }

    fn database(&self) -> &Database {
        &self.database
    }
}

impl Submitting {
    /// Sends one statement for all of `open`, to be begun before the deadline.
    async fn together(
        &self,
        open: &[Sent<'_>],
        deadline: Timestamp,
    ) -> std::result::Result<BTreeMap<Id, Found>, Failure> {
        let passed = self.faults.pass(Point::before(Effect::Commit)).await;
        passed.map_err(|error| Failure::Refused(error.into()))?;
        let rows = write(&self.database, open, deadline).await?;
        let passed = self.faults.pass(Point::after(Effect::Commit)).await;
        passed.map_err(|error| Failure::Unknown(error.into()))?;
        let found = rows.iter().map(|row| {
            let found = Found {
                balance: row.try_get("balance")?,
                unfinished: row.try_get("unfinished")?,
                charged: row.try_get("charged")?,
                late: row.try_get("late")?,
            };
            Ok((row.try_get("id")?, found))
        });
        found.collect::<Result<_>>().map_err(Failure::Unknown)
    }

    /// Finds out what became of a statement that was never answered.
    async fn settle(&self, open: &mut [Sent<'_>], deadline: Timestamp, error: &StoreError) {
        let doubtful = settle::Doubtful {
            accounts: open.iter().map(|one| one.order().account_id).collect(),
            tasks: open.iter().map(|one| one.id).collect(),
            deadline,
        };
        tracing::warn!(tasks = doubtful.tasks.len(), %error, "no answer to a submit; looking what became of it");
        let kept: Option<HashSet<Id>> = settle::settle(&self.database, self.journal.get(), doubtful).await;
        for one in open {
            one.asked.answer(match &kept {
                Some(kept) if kept.contains(&one.id) => Ok(Submission::Accepted(one.task())),
                Some(_) => Err(error.clone()),
                None => Err(StoreError::Unknown(words(error.clone()))),
            });
        }
    }
}

impl Sent<'_> {
    fn order(&self) -> &Order {
        &self.asked.what
    }

    /// Whether it is still open, and not because others were quicker.
    fn is_late(&self, accounts: &BTreeMap<Id, Found>) -> bool {
        self.asked.is_open() && accounts.get(&self.order().account_id).is_some_and(|found| found.late)
    }

    fn task(&self) -> Task {
        Task {
            id: self.id,
            account_id: self.order().account_id,
            surface: self.order().surface,
            image_to_image: !self.order().request.reference_images.is_empty(),
            status: Status::Processing,
            updated_at: self.id.timestamp(),
        }
    }
}

/// Answers what is clear now; what fits into its account and was not charged stays open.
fn answer(open: &mut [Sent<'_>], accounts: &BTreeMap<Id, Found>) {
    let mut left: BTreeMap<Id, (i64, i64)> =
        accounts.iter().map(|(id, found)| (*id, (found.balance, found.unfinished))).collect();
    for one in open {
        let Some(found) = accounts.get(&one.order().account_id) else {
            one.asked.answer(Err(StoreError::Other("there is no such account".into())));
            continue;
        };
        if found.charged {
            one.asked.answer(Ok(Submission::Accepted(one.task())));
            continue;
        }
        let (balance, unfinished) = left.get_mut(&one.order().account_id).expect("the same accounts");
        let (cost, max_unfinished) = (one.order().request.cost(), i64::from(one.order().max_unfinished));
        if max_unfinished != 0 && *unfinished >= max_unfinished {
            one.asked.answer(Ok(Submission::TooManyUnfinished));
        } else if *balance < cost {
            one.asked.answer(Ok(Submission::InsufficientCredits { available: *balance }));
        } else {
            *balance -= cost;
            *unfinished += 1;
        }
    }
}

/// What one account is asked for.
#[derive(Default)]
struct Wanted {
    cost: i64,
    tasks: i64,
    /// Most unfinished tasks that it may have before all of these.
    room: Option<i64>,
}

/// $1..$4 are the accounts, $5.. the tasks; `spent` is what the account has paid with a task and those before it.
/// Accounts are locked in the order of their ids, as everywhere, so that nobody waits in a circle. The deadline $16
/// is compared with a clock that runs on while the statement waits for these locks: see [`settle`]. Who was charged is
/// looked up in an array, as a join would compare each task with each account by way of the executor.
static SUBMIT: LazyLock<String> = LazyLock::new(|| {
    let (locked, is_locked, turned) = (newest::locked("wanted"), newest::IS_LOCKED, newest::TURNED);
    format!(
        "
    WITH wanted AS (
        SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w (account_id, cost, tasks, room)
    ), {locked}, charged AS (
        UPDATE accounts a SET balance = a.balance - locked.cost, unfinished = a.unfinished + locked.tasks, {turned}
        FROM locked
        WHERE {is_locked} AND locked.balance >= locked.cost AND locked.unfinished <= locked.room
            AND ($16::bigint IS NULL OR extract(epoch FROM clock_timestamp()) * 1000 < $16)
        RETURNING a.id, locked.balance
    ), paid AS (
        SELECT array_agg(id) AS accounts, array_agg(balance) AS balances FROM charged
    ), new AS (
        SELECT * FROM (
            SELECT n.*, paid.balances[array_position(paid.accounts, n.account_id)] - n.spent AS balance
            FROM paid,
                unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::boolean[], $10::bigint[], $11::smallint[],
                       $12::text[], $13::text[], $14::text[], $15::bigint[], $18::text[])
                WITH ORDINALITY AS n (id, account_id, key_id, surface, image_to_image, made_at, n, aspect_ratio,
                                      reference_images, prompt, spent, request_id, place)
            OFFSET 0
        ) asked WHERE balance IS NOT NULL
    ), made AS (
        INSERT INTO tasks (id, account_id, surface, image_to_image, updated_at, n, aspect_ratio, reference_images, prompt,
                           request_id)
        SELECT id, account_id, surface, image_to_image, made_at, n, aspect_ratio, reference_images, prompt, request_id
        FROM new
    ), queued AS (
        INSERT INTO queue (task_id, account_id, key_id) SELECT id, account_id, key_id FROM new
    ), booked AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
        SELECT account_id, 'charge', -$17::bigint * n, balance, made_at, id FROM new ORDER BY place
    )
    SELECT account_id AS id, balance, unfinished, coalesce(account_id = ANY (accounts), false) AS charged,
        coalesce(extract(epoch FROM clock_timestamp()) * 1000 >= $16, false) AS late
    FROM locked, paid"
    )
});

async fn write(
    database: &Database,
    open: &[Sent<'_>],
    deadline: Timestamp,
) -> std::result::Result<Vec<tokio_postgres::Row>, Failure> {
    let mut accounts: BTreeMap<Id, Wanted> = BTreeMap::new();
    let spent: Vec<i64> =
        open.iter().map(|one| accounts.entry(one.order().account_id).or_default().add(one.order())).collect();
    let of_account = |value: fn(&Wanted) -> i64| -> Vec<i64> { accounts.values().map(value).collect() };
    let column = |value: fn(&Sent<'_>) -> String| -> Vec<String> { open.iter().map(|one| value(one)).collect() };
    let ids: Vec<Id> = open.iter().map(|one| one.id).collect();
    let made_at: Vec<Timestamp> = ids.iter().map(|id| id.timestamp()).collect();
    let n: Vec<i16> = open.iter().map(|one| one.order().request.n.into()).collect();
    let image_to_image: Vec<bool> = open.iter().map(|one| !one.order().request.reference_images.is_empty()).collect();
    let prompts: Vec<&str> = open.iter().map(|one| one.order().request.prompt.as_str()).collect();
    let deadline = database.given_time().is_none().then_some(deadline);
    database
        .write(
            &SUBMIT,
            &[
                &accounts.keys().copied().collect::<Vec<Id>>(),
                &of_account(|wanted| wanted.cost),
                &of_account(|wanted| wanted.tasks),
                &of_account(|wanted| wanted.room.unwrap_or(i64::MAX)),
                &ids,
                &open.iter().map(|one| one.order().account_id).collect::<Vec<Id>>(),
                &open.iter().map(|one| one.order().key_id).collect::<Vec<Option<Id>>>(),
                &column(|one| one.order().surface.as_str().to_owned()),
                &image_to_image,
                &made_at,
                &n,
                &column(|one| one.order().request.aspect_ratio.as_str().to_owned()),
                &column(|one| to_json(&one.order().request.reference_images)),
                &prompts,
                &spent,
                &deadline,
                &CREDITS_PER_IMAGE,
                &open.iter().map(|one| one.order().request.request_id.as_deref()).collect::<Vec<Option<&str>>>(),
            ],
        )
        .await
}

impl Wanted {
    /// Adds an order and returns what is paid with it and those before it.
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
