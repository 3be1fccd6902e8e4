//! The report that the benchmark prints.

use std::fmt::Write as _;

use serde::Serialize;

use crate::attack::AttackRow;
use crate::neighbours::NeighbourRow;

/// Results for one kind of request.
#[derive(Debug, Serialize)]
pub struct HttpRow {
    pub name: String,
    pub requests_per_second: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    /// CPU time per request, for the service and the load generator together.
    pub cpu_micros: f64,
    /// Ratio of the rate to that of the bare handler with the response to a poll.
    pub ratio: Option<f64>,
    /// Ratio of the rate to that of a bare handler with the same response.
    pub ratio_same_bytes: Option<f64>,
    /// Target: the lowest acceptable `ratio`.
    pub aim: Option<f64>,
}

/// Target for a number.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

/// A single measured number.
#[derive(Debug, Serialize)]
pub struct Fact {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    pub aim: Option<Aim>,
}

/// All results.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub http: Vec<HttpRow>,
    pub attacks: Vec<AttackRow>,
    pub neighbours: Vec<NeighbourRow>,
    pub facts: Vec<Fact>,
    pub file_system: String,
}

impl Report {
    /// Adds one number.
    pub fn fact(&mut self, name: impl Into<String>, value: f64, unit: &'static str, aim: Option<Aim>) {
        self.facts.push(Fact { name: name.into(), value, unit, aim });
    }

    /// Formats the report as aligned text.
    pub fn text(&self) -> String {
        let mut text = [requests(&self.http), attacks(&self.attacks), neighbours(&self.neighbours)].concat();
        for fact in &self.facts {
            let aim = fact.aim.map_or_else(String::new, |aim| verdict(aim, fact.value));
            let value = if fact.value < 100.0 { format!("{:.1}", fact.value) } else { format!("{:.0}", fact.value) };
            let line = format!("{:<46}{value:>11} {:<8} {aim}", fact.name, fact.unit);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let _ = writeln!(text, "{:<46}{:>11}", "file system", self.file_system);
        text
    }
}

fn requests(rows: &[HttpRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:<28}{:>11}{:>10}{:>10}{:>10}{:>8}{:>12}   {}\n",
        "request", "requests/s", "p50 µs", "p99 µs", "CPU µs", "ratio", "same bytes", "aim"
    );
    for row in rows {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let _ = writeln!(
            text,
            "{:<28}{:>11.0}{:>10.0}{:>10.0}{:>10.1}{:>8}{:>12}   {}",
            row.name,
            row.requests_per_second,
            row.p50_micros,
            row.p99_micros,
            row.cpu_micros,
            ratio(row.ratio),
            ratio(row.ratio_same_bytes),
            row.aim.zip(row.ratio).map_or_else(String::new, |(aim, ratio)| verdict(Aim::AtLeast(aim), ratio))
        );
    }
    text + "\n"
}

fn attacks(rows: &[AttackRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:<26}{:>8}{:>8}{:>10}{:>10}{:>7}{:>7}{:>9}{:>9}{:>7}{:>9}{:>6}\n",
        "legitimate callers under",
        "p50 µs",
        "p99 µs",
        "calm p50",
        "calm p99",
        "ratio",
        "ratio",
        "tasks/s",
        "calm",
        "held",
        "tries/s",
        "MiB"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:<26}{:>8.0}{:>8.0}{:>10.0}{:>10.0}{:>7.2}{:>7.2}{:>9.0}{:>9.0}{:>7}{:>9.0}{:>6.0}",
            row.name,
            row.p50_micros,
            row.p99_micros,
            row.calm_p50_micros,
            row.calm_p99_micros,
            row.p50_micros / row.calm_p50_micros,
            row.p99_micros / row.calm_p99_micros,
            row.tasks_per_second,
            row.calm_tasks_per_second,
            row.held,
            row.tries_per_second,
            row.memory_mib
        );
    }
    text + "\n"
}

fn neighbours(rows: &[NeighbourRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:<22}{:<28}{:>10}{:>10}{:>7}{:>8}{:>9}   {}\n",
        "resource", "a neighbour", "calm p99", "p99 ms", "ratio", "failed", "tries/s", "aim"
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:<22}{:<28}{:>10.1}{:>10.1}{:>7.2}{:>8}{:>9.0}   {}",
            row.resource,
            row.neighbour,
            row.calm_p99_millis,
            row.p99_millis,
            row.ratio,
            row.failed,
            row.tries_per_second,
            verdict(Aim::AtMost(2.0), row.ratio)
        );
    }
    text + "\n"
}

fn verdict(aim: Aim, value: f64) -> String {
    let (sign, aim, met) = match aim {
        Aim::AtLeast(aim) => ("≥", aim, value >= aim),
        Aim::AtMost(aim) => ("≤", aim, value <= aim),
    };
    format!("{sign} {aim} {}", if met { "met" } else { "MISSED" })
}
