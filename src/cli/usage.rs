//! `tintype usage` adds up the use of credits by key, person, day or account. Its figures come from the ledger.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::printing::{JsonArgs, misused};
use super::values::whole_number;
use super::{Outcome, find_account, open_store, or_dash, say, show, table};
use crate::service::usage::{self, UsageLine};
use tintype_config::DataSettings;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{UsageBy, UsageFilter};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// Group rows by
    #[arg(long, default_value_t = UsageBy::Account, value_parser = grouping())]
    by: UsageBy,
    /// Count only this account
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// Days to count, up to today in UTC
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = whole_number::<u32>(1..=36_500), conflicts_with_all = ["since", "until"])]
    days: u32,
    /// First day to count, such as 2026-11-01 [default with --until: the first day in the ledger]
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<Timestamp>,
    /// Last day to count, such as 2026-11-30 [default: today]
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<Timestamp>,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    json: JsonArgs,
}

fn grouping() -> impl TypedValueParser<Value = UsageBy> {
    PossibleValuesParser::new(UsageBy::ALL.map(UsageBy::as_str)).try_map(|text: String| text.parse::<UsageBy>())
}

fn day(text: &str) -> Result<Timestamp, String> {
    Timestamp::of_day(text).ok_or_else(|| format!("{text:?} is not a day such as 2026-11-21"))
}

pub(super) async fn run(args: UsageArgs, data: &DataSettings) -> Outcome {
    if args.since.zip(args.until).is_some_and(|(since, until)| since > until) {
        return misused("--since must not be after --until");
    }
    let store = open_store(data).await?;
    let account_id = match &args.account {
        Some(name) => Some(find_account(&store, name).await?.id),
        None => None,
    };
    let today = Timestamp::of_day(&store.now().day()).ok_or("the clock is beyond the years of the calendar")?;
    let from = match (args.since, args.until) {
        (None, None) => Some(today.saturating_sub(DAY * (args.days - 1))),
        (since, _) => since,
    };
    let until = args.until.map(|day| day.saturating_add(DAY));
    let by = args.by;
    let lines = usage::lines(&store, by, UsageFilter { account_id, from, until }).await?;
    if args.csv {
        say(usage::csv(by, &lines).trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    show(args.json, &lines, || plain(by, &lines))
}

fn plain(by: UsageBy, lines: &[UsageLine]) -> String {
    let dash = |name: &Option<String>| or_dash(name.as_deref().filter(|name| !name.is_empty()));
    let total = UsageLine::total(lines);
    if let UsageBy::Key | UsageBy::Person = by {
        let row = |line: &UsageLine, account: String, id: String, name: String| {
            let [tasks, images, charged, refunded, credits] = figures(line);
            [account, id, name, tasks, images, charged, refunded, credits]
        };
        let last = row(&total, "TOTAL".into(), "-".into(), "-".into());
        let (id, name) = if by == UsageBy::Key { ("KEY ID", "KEY") } else { ("PERSON ID", "PERSON") };
        let rows = lines.iter().map(|line| match by {
            UsageBy::Key => row(line, dash(&line.account), or_dash(line.key_id), dash(&line.key)),
            _ => row(line, dash(&line.account), or_dash(line.person_id), dash(&line.person)),
        });
        let headings = ["ACCOUNT", id, name, "TASKS", "IMAGES", "CHARGED", "REFUNDED", "CREDITS"];
        return table(headings, rows.chain([last]));
    }
    let row = |line: &UsageLine, name: String| {
        let [tasks, images, charged, refunded, credits] = figures(line);
        [name, tasks, images, charged, refunded, credits]
    };
    let is_by_day = by == UsageBy::Day;
    let rows = lines.iter().map(|line| row(line, dash(if is_by_day { &line.day } else { &line.account })));
    let heading = if is_by_day { "DAY" } else { "ACCOUNT" };
    let last = row(&total, "TOTAL".into());
    table([heading, "TASKS", "IMAGES", "CHARGED", "REFUNDED", "CREDITS"], rows.chain([last]))
}

fn figures(line: &UsageLine) -> [String; 5] {
    let UsageLine { tasks, images, charged, refunded, credits, .. } = line;
    [tasks.to_string(), images.to_string(), charged.to_string(), refunded.to_string(), credits.to_string()]
}
