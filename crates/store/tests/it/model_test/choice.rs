//! The choice of the next step: random, with a bias to the edges of rules.
//!
//! Uniform choices would hardly ever reach a third lost lease, a full account or the exact millisecond of a deadline, so
//! targets are chosen from the content of the model.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use tintype_domain::budget::{Budget, Period};
use tintype_domain::model::{MAX_BALANCE, Surface};
use tintype_store::{ANY_REFERENCES, KeyChange, Reclaim, StrikeRule};
use tintype_system::clock::Timestamp;

use super::act::{Act, Held, KeyOrder, Name, Order, Step};
use super::model::{Model, Ticket};
use super::process::MAX_LEAD;
use tintype_rigs::database::NOON;

/// The bias of a case. It makes cases differ more than their random steps do.
#[derive(Debug, Clone, Copy)]
pub struct Taste {
    /// The start of the second process's clock.
    pub other_clock: Timestamp,
    clock: u32,
    keys: u32,
    ends: u32,
    stale: u32,
}

type Choices = Vec<(u32, BoxedStrategy<Act>)>;

const MINUTE: i64 = 60_000;

impl Taste {
    pub fn any() -> impl Strategy<Value = Self> {
        let clock = prop_oneof![Just(0), -11 * MINUTE..11 * MINUTE];
        (clock, 1..4_u32, prop_oneof![Just(0), Just(1), Just(3)], 1..4_u32, 1..4_u32).prop_map(
            |(other, clock, keys, ends, stale)| Self { other_clock: moved(NOON, other), clock, keys, ends, stale },
        )
    }
}

pub fn step(model: &Model) -> BoxedStrategy<Step> {
    (0..2_usize, 0..2_usize, 1..6_u32)
        .prop_flat_map({
            let acts = [0, 1].map(|by| Union::new_weighted(acts(model, by)).boxed());
            move |(by, reader, page)| acts[by].clone().prop_map(move |act| Step { by, act, reader, page })
        })
        .boxed()
}

/// All steps of the process. The simplest comes first: failing cases shrink towards it.
fn acts(model: &Model, by: usize) -> Choices {
    let mut choices = vec![(1, Just(Act::Ping).boxed()), (2, Just(Act::Restart).boxed())];
    choices.extend(account_acts(model));
    choices.extend(key_acts(model, by));
    choices.push((4 * model.taste.clock, clock(model, by)));
    choices.extend(ends_of_time(model, by));
    let delays: Vec<_> =
        model.tasks.iter().filter(|task| !task.status.is_terminal()).filter_map(|task| task.ready_at).collect();
    if !delays.is_empty() {
        choices.push((12, select(delays).prop_map(|to| Act::SetClock { to }).boxed()));
    }
    if !model.accounts.is_empty() {
        choices.extend(submits(model));
        let claims = if model.tasks.iter().any(|task| is_at_an_edge(task, model.now_of(by))) { 100 } else { 14 };
        choices.push((claims, claim(model)));
    }
    if !model.leases.is_empty() {
        let (current, lost) = leases(model);
        let (outlived, ended): (Vec<_>, Vec<_>) = lost.into_iter().partition(|index| is_unfinished(model, *index));
        let rule = strike_rule(model, by);
        choices.extend(lease_acts(&current, 2, &rule));
        choices.extend(late_releases(model, &current));
        choices.extend(lease_acts(&outlived, model.taste.stale, &rule));
        choices.extend(lease_acts(&ended, 1, &rule));
    }
    choices.extend(sweeps(model));
    choices
}

/// Steps to the exact milliseconds at which grants expire and budgets start again, if there are any.
fn ends_of_time(model: &Model, by: usize) -> Choices {
    let now = model.now_of(by);
    let mut moments: Vec<_> =
        model.grants.iter().filter(|grant| grant.lapsed.is_none()).map(|grant| grant.expires_at).collect();
    moments.extend(model.keys.iter().filter_map(|key| Some(key.key.budget?.period.around(now).1)));
    moments.retain(|moment| *moment >= now);
    if moments.is_empty() {
        return Vec::new();
    }
    let moment = (select(moments), select(vec![0, 0, -1, 1])).prop_map(|(moment, millis)| moved(moment, millis));
    vec![(2, moment.prop_map(|to| Act::SetClock { to }).boxed())]
}

fn moved(from: Timestamp, millis: i64) -> Timestamp {
    Timestamp::from_millis(from.as_millis() + millis)
}

fn account_acts(model: &Model) -> Choices {
    let few = model.accounts.len() < 3;
    let name = prop_oneof![6 => (0..6_u8).prop_map(Name::Word), 1 => (0..4_usize).prop_map(Name::IdOf)];
    let credits = prop_oneof![1 => Just(0), 8 => 1..40_i64, 1 => Just(-1)];
    let create = (name.clone(), credits.clone()).prop_map(|(name, credits)| Act::CreateAccount { name, credits });
    let first = (name, 0..40_i64, key_order(model, NOON)).prop_map(|(name, credits, key)| Act::CreateFirstAccount {
        name,
        credits,
        key,
    });
    let amount = prop_oneof![20 => 1..12_i64, 1 => Just(0), 1 => -5..0_i64, 1 => select(vec![i64::MAX, MAX_BALANCE, MAX_BALANCE - 5])];
    let life = prop_oneof![
        3 => Just(None),
        1 => Just(Some(0)),
        4 => select(vec![1, MINUTE, 11 * MINUTE, 24 * 60 * MINUTE]).prop_map(Some),
        4 => (0..11 * MINUTE).prop_map(Some),
    ];
    let grant = (any_account(model), amount.clone(), any::<bool>(), life)
        .prop_map(|(account, amount, note, life)| Act::Grant { account, amount, note, life });
    let take = (any_account(model), amount).prop_map(|(account, amount)| Act::Take { account, amount });
    vec![
        (if few { 20 } else { 1 }, create.boxed()),
        (if model.accounts.is_empty() { 20 } else { 1 }, first.boxed()),
        (7, grant.boxed()),
        (2, take.boxed()),
    ]
}

/// An account, or rarely a missing one.
fn any_account(model: &Model) -> impl Strategy<Value = Option<usize>> + use<> {
    prop_oneof![12 => (0..model.accounts.len().max(1)).prop_map(Some), 1 => Just(None)]
}

fn key_order(model: &Model, now: Timestamp) -> impl Strategy<Value = KeyOrder> + use<> {
    let rate = prop_oneof![Just(None), Just(Some(0)), Just(Some(7))];
    let expires_at = prop_oneof![Just(None), (-MINUTE..20 * MINUTE).prop_map(move |millis| Some(moved(now, millis)))];
    (secret(model), rate.clone(), rate, budget(), expires_at).prop_map(
        |(secret, submit_rate, read_rate, budget, expires_at)| KeyOrder {
            secret,
            submit_rate,
            read_rate,
            budget,
            expires_at,
        },
    )
}

/// A budget of some tasks, or none.
fn budget() -> impl Strategy<Value = Option<Budget>> {
    let some = (1..30_i64, select(Period::ALL.to_vec())).prop_map(|(credits, period)| Some(Budget { credits, period }));
    prop_oneof![1 => Just(None), 2 => some]
}

/// A new secret, or rarely one in use.
fn secret(model: &Model) -> impl Strategy<Value = u8> + use<> {
    let fresh = model.keys.len() as u8;
    prop_oneof![8 => Just(fresh), 1 => 0..=fresh]
}

fn key_acts(model: &Model, by: usize) -> Choices {
    let known = model.keys.len();
    let key = prop_oneof![12 => (known.saturating_sub(2)..known.max(1)).prop_map(Some), 2 => (0..known.max(1)).prop_map(Some), 1 => Just(None)];
    let change = select(vec![
        KeyChange::Enable,
        KeyChange::Lift,
        KeyChange::Disable,
        KeyChange::EnableByOwner,
        KeyChange::FlagLeaked,
        KeyChange::Revoke,
    ]);
    let change = prop_oneof![3 => change, 2 => budget().prop_map(KeyChange::Budget)];
    let overlap = prop_oneof![Just(0), Just(1), 0..20 * MINUTE as u64].prop_map(Duration::from_millis);
    let create = (any_account(model), key_order(model, model.now_of(by)))
        .prop_map(|(account, key)| Act::CreateKey { account, key });
    let changed = (key.clone(), change).prop_map(|(key, change)| Act::ChangeKey { key, change });
    let now = model.now_of(by);
    let use_of = (key.clone(), -11 * MINUTE..=11 * MINUTE).prop_map(move |(key, millis)| (key, moved(now, millis)));
    let touched = proptest::collection::vec(use_of, 0..4).prop_map(|uses| Act::TouchKeys { uses });
    let rotated =
        (key, secret(model), overlap).prop_map(|(key, secret, overlap)| Act::RotateKey { key, secret, overlap });
    let weight = model.taste.keys;
    let changes = if known == 0 { 0 } else { weight };
    let choices = [
        (2 * weight, create.boxed()),
        (6 * changes, changed.boxed()),
        (2 * changes, rotated.boxed()),
        (2 * changes, touched.boxed()),
    ];
    choices.into_iter().filter(|(weight, _)| *weight > 0).collect()
}

/// Steps forward and back, and to the exact milliseconds of deadlines.
fn clock(model: &Model, by: usize) -> BoxedStrategy<Act> {
    let now = model.now_of(by);
    let lead = i64::try_from(MAX_LEAD.as_millis()).expect("a short time");
    let step = prop_oneof![
        3 => 1..5_i64,
        3 => 1..11 * MINUTE,
        1 => -lead..0,
        1 => select(vec![-lead - 1, -lead, 1 - lead]),
        2 => -11 * MINUTE..-lead,
    ];
    let step = step.prop_map(move |millis| moved(now, millis));
    let mut moments: Vec<_> = model.tasks.iter().filter_map(|task| task.lease_until.or(task.ready_at)).collect();
    moments.extend(model.processes[by].last_made_at().map(|made| made.saturating_sub(MAX_LEAD)));
    moments.retain(|moment| moment.since(now).as_millis() < 3_600_000 && now.since(*moment).as_millis() < 3_600_000);
    if moments.is_empty() {
        return step.prop_map(|to| Act::SetClock { to }).boxed();
    }
    let moment = (select(moments), select(vec![0, 0, -1, 1])).prop_map(|(moment, millis)| moved(moment, millis));
    prop_oneof![1 => step, 1 => moment].prop_map(|to| Act::SetClock { to }).boxed()
}

fn surface() -> impl Strategy<Value = Surface> {
    prop_oneof![3 => Just(Surface::Api), 1 => Just(Surface::Web)]
}

fn order() -> impl Strategy<Value = Order> {
    let references = prop_oneof![2 => Just(0), 1 => 1..=4_u8];
    // The first key is more likely than others, so that it gets several strikes.
    let key = prop_oneof![1 => Just(None), 3 => Just(Some(0)), 1 => (0..4_usize).prop_map(Some)];
    (1..=4_u8, 0..9_u8, 0..13_usize, references, key).prop_map(|(n, prompt, ratio, references, key)| Order {
        n,
        prompt,
        ratio,
        references,
        key,
    })
}

fn submits(model: &Model) -> Choices {
    let mut choices = Vec::new();
    for index in 0..model.accounts.len() {
        let full = model.unfinished_of(index);
        let cap = prop_oneof![4 => Just(0), 1 => 1..6_u32, 2 => full.max(1)..=full + 1];
        let submit = (surface(), order(), cap.clone()).prop_map(move |(surface, order, max_unfinished)| Act::Submit {
            account: Some(index),
            surface,
            order,
            max_unfinished,
        });
        let crowd = (surface(), order(), cap, 2..5_usize).prop_map(move |(surface, order, max_unfinished, times)| {
            Act::Crowd { account: index, surface, order, max_unfinished, times }
        });
        choices.push((5, submit.boxed()));
        choices.push((1, crowd.boxed()));
    }
    choices
}

/// A claim that in most cases skips no account.
fn claim(model: &Model) -> BoxedStrategy<Act> {
    let some = proptest::collection::vec(0..model.accounts.len(), 1..3);
    let excluded = prop_oneof![3 => Just(Vec::new()), 1 => some];
    let max_references = prop_oneof![3 => Just(ANY_REFERENCES), 1 => 0..5_u32];
    (1..5_usize, max_references, lease(), excluded)
        .prop_map(|(max, max_references, lease, excluded)| Act::Claim { max, max_references, lease, excluded })
        .boxed()
}

fn lease() -> impl Strategy<Value = Duration> {
    prop_oneof![1 => Just(0), 1 => Just(1), 3 => 1..MINUTE as u64, 3 => Just(MINUTE as u64)]
        .prop_map(Duration::from_millis)
}

/// The leases that are held, and those that were lost.
fn leases(model: &Model) -> (Vec<usize>, Vec<usize>) {
    (0..model.leases.len()).partition(|index| model.held(Held { index: *index, forged: 0 }).is_some())
}

/// Whether a waiting task has a delay that ends now, or an earlier delay that must have no effect any more.
fn is_at_an_edge(task: &Ticket, now: Timestamp) -> bool {
    let waits = !task.status.is_terminal() && task.lease_until.is_none();
    waits && (task.ready_at == Some(now) || (task.ready_at.is_none() && task.delayed_until > Some(now)))
}

/// Releases of tasks that once had a delay.
fn late_releases(model: &Model, current: &[usize]) -> Choices {
    let mut delayed = current.to_vec();
    delayed.retain(|index| {
        let id = model.leases[*index].task_id;
        model.tasks.iter().any(|task| task.id == id && task.delayed_until.is_some())
    });
    if delayed.is_empty() {
        return Vec::new();
    }
    let release = |index| Act::Release { lease: Held { index, forged: 0 }, delay: Duration::ZERO };
    vec![(6, select(delayed).prop_map(release).boxed())]
}

/// Whether the task of a lease has not ended.
fn is_unfinished(model: &Model, lease: usize) -> bool {
    let id = model.leases[lease].task_id;
    model.tasks.iter().any(|task| task.id == id && !task.status.is_terminal())
}

/// The limit and the window of strikes; some windows end at the exact age of a strike.
fn strike_rule(model: &Model, by: usize) -> BoxedStrategy<Option<StrikeRule>> {
    let now = model.now_of(by);
    let ages: Vec<_> = model.keys.iter().flat_map(|key| &key.strikes).map(|at| now.since(*at)).collect();
    let window = prop_oneof![1 => Just(0), 2 => 1..11 * MINUTE as u64, 3 => Just(60 * MINUTE as u64)];
    let mut windows = vec![(1, window.prop_map(Duration::from_millis).boxed())];
    if !ages.is_empty() {
        windows.push((1, select(ages).boxed()));
    }
    let limit = prop_oneof![1 => Just(1_u32), 3 => Just(2), 1 => Just(3)];
    let rule = (limit, Union::new_weighted(windows)).prop_map(|(limit, window)| StrikeRule { limit, window });
    prop_oneof![1 => Just(None), 6 => rule.prop_map(Some)].boxed()
}

fn lease_acts(leases: &[usize], weight: u32, rule: &BoxedStrategy<Option<StrikeRule>>) -> Choices {
    if leases.is_empty() {
        return Vec::new();
    }
    let forged = prop_oneof![20 => Just(0), 1 => -1..=1_i64];
    let held = (select(leases.to_vec()), forged).prop_map(|(index, forged)| Held { index, forged });
    let delay = prop_oneof![3 => Just(0), 1 => Just(1), 2 => 1..3 * MINUTE as u64].prop_map(Duration::from_millis);
    let images = prop_oneof![8 => 1..=4_u8, 1 => Just(0)];
    let error = any::<u8>();
    let renew = (proptest::collection::vec(held.clone(), 1..4), lease())
        .prop_map(|(leases, lease)| Act::Renew { leases, lease });
    let release = (held.clone(), delay.clone()).prop_map(|(lease, delay)| Act::Release { lease, delay });
    let retry = (held.clone(), delay, error).prop_map(|(lease, delay, error)| Act::Retry { lease, delay, error });
    let complete = (held.clone(), images).prop_map(|(lease, images)| Act::Complete { lease, images });
    let fail = (held.clone(), error).prop_map(|(lease, error)| Act::Fail { lease, error });
    let refuse =
        (held.clone(), error, rule.clone()).prop_map(|(lease, error, rule)| Act::Refuse { lease, error, rule });
    vec![
        (2 * weight, renew.boxed()),
        (2 * weight, release.boxed()),
        (4 * weight, retry.boxed()),
        (weight, complete.boxed()),
        (weight, fail.boxed()),
        (6 * weight, refuse.boxed()),
    ]
}

/// Steps of the operator and the sweeper: reclaims, failures, expiry.
fn sweeps(model: &Model) -> Choices {
    let ends = model.taste.ends;
    let error = any::<u8>();
    let which = prop_oneof![3 => Just(Reclaim::Expired), 1 => Just(Reclaim::All)];
    let reclaim = (which, error).prop_map(|(which, error)| Act::Reclaim { which, error });
    let mut choices = vec![(5, reclaim.boxed())];
    if !model.grants.is_empty() {
        choices.push((4, Just(Act::Lapse).boxed()));
    }
    if model.tasks.is_empty() {
        return choices;
    }
    let beyond = (0..5_u32, error).prop_map(|(max_references, error)| Act::FailBeyond { max_references, error });
    choices.push((ends, beyond.boxed()));
    let task = prop_oneof![12 => (0..model.tasks.len()).prop_map(Some), 1 => Just(None)];
    let fail = (task, error).prop_map(|(task, error)| Act::FailUnleased { task, error });
    choices.push((ends, fail.boxed()));
    let mut made: Vec<_> = model.tasks.iter().filter(|task| !task.status.is_terminal()).map(made_at).collect();
    made.sort();
    made.truncate(made.len().div_ceil(2));
    if !made.is_empty() {
        let cutoff = (select(made), -1..=1_i64).prop_map(|(made, millis)| moved(made, millis));
        choices.push((ends, (cutoff, error).prop_map(|(cutoff, error)| Act::Expire { cutoff, error }).boxed()));
    }
    choices
}

fn made_at(task: &Ticket) -> Timestamp {
    task.id.timestamp()
}
