//! Charts of bars over time, drawn on the server, with the same numbers as a table.

use std::time::Duration;

use askama::Template;
use jiff::civil::Weekday;

use super::page::{day_of_month, minute, month, utc};
use super::texts::Texts;
use tintype_domain::timestamp::Timestamp;

/// Most bars with space between them.
const MOST_APART: usize = 31;
/// The least height of a bar above zero, in percent.
const LEAST_HEIGHT: f64 = 1.5;
/// Labels closer to an edge than this, in percent, would stand beyond it.
const EDGE: f64 = 4.0;

/// The time that one bar covers, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Hour,
    Day,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// Numbers of something.
    Count,
    /// Times in milliseconds.
    Millis,
}

/// A bar. Its place and size are percentages of the drawing, which keeps its text as it is at every width.
struct Bar {
    /// The time that it covers.
    label: String,
    value: String,
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// A label of the time axis, in the middle below its bar.
struct Tick {
    x: f64,
    label: String,
    /// The day that it names.
    day: Option<String>,
}

/// A chart of one series over time.
#[derive(Template)]
#[template(path = "chart.html")]
pub(super) struct Chart {
    t: &'static Texts,
    /// The key of the chart's title.
    title: &'static str,
    bars: Vec<Bar>,
    /// The highest value, in words.
    most: String,
    /// The labels of the value axis, from its top.
    scale: [String; 3],
    ticks: Vec<Tick>,
}

impl Chart {
    /// A chart of values, each with the start of its step. A value below zero is drawn as none.
    pub(super) fn new(
        t: &'static Texts,
        title: &'static str,
        (step, measure): (Step, Measure),
        series: &[(Timestamp, i64)],
    ) -> Self {
        let most = series.iter().map(|(_, value)| *value).max().unwrap_or(0);
        let top = round_top(most, measure);
        let slot = 100.0 / series.len().max(1) as f64;
        let gap = if series.len() > MOST_APART { 0.0 } else { slot / 5.0 };
        let bar = |(index, (at, value)): (usize, &(Timestamp, i64))| {
            let share = (*value).max(0) as f64 / top as f64 * 100.0;
            let height = if *value > 0 { share.max(LEAST_HEIGHT) } else { 0.0 };
            let label = step.label(*at);
            let x = slot * index as f64 + gap / 2.0;
            Bar { label, value: measure.words(t, *value), x, y: 100.0 - height, width: slot - gap, height }
        };
        let tick = |(index, (at, _)): (usize, &(Timestamp, i64))| {
            let x = slot * (index as f64 + 0.5);
            let (label, is_day) = tick(t, step, series.len(), *at).filter(|_| x > EDGE && x < 100.0 - EDGE)?;
            Some(Tick { x, label, day: is_day.then(|| at.day()) })
        };
        Self {
            t,
            title,
            bars: series.iter().enumerate().map(bar).collect(),
            most: measure.words(t, most),
            scale: [top, top / 2, 0].map(|value| measure.short(t, value)),
            ticks: series.iter().enumerate().filter_map(tick).collect(),
        }
    }

    /// Whether any value is above zero.
    fn has_any(&self) -> bool {
        self.bars.iter().any(|bar| bar.height > 0.0)
    }
}

impl Step {
    fn label(self, at: Timestamp) -> String {
        match self {
            Self::Hour => format!("{} UTC", minute(at)),
            Self::Day => at.day(),
        }
    }
}

impl Measure {
    /// A value in words.
    fn words(self, t: &Texts, value: i64) -> String {
        match self {
            Self::Count => t.number(value),
            Self::Millis => t.seconds(Duration::from_millis(value.unsigned_abs())),
        }
    }

    fn short(self, t: &Texts, value: i64) -> String {
        match self {
            Self::Millis if value % 1_000 == 0 => format!("{} s", t.number(value / 1_000)),
            _ => self.words(t, value),
        }
    }
}

/// The lowest round value that reaches `most` and has a round half.
fn round_top(most: i64, measure: Measure) -> i64 {
    let unit = if measure == Measure::Millis { 100 } else { 1 };
    let powers = (0..18).filter_map(|power| 10_i64.checked_pow(power)?.checked_mul(unit));
    let rounds = powers.flat_map(|power| [2, 3, 4, 5, 6, 8, 10].map(|digit| power.saturating_mul(digit)));
    let mut tops = rounds.filter(|top| *top >= most && top % (2 * unit) == 0);
    tops.next().unwrap_or(i64::MAX)
}

/// The label below a bar, if it has one, and whether that is a day: every six hours; each Monday of a month, each month of
/// a quarter, and each quarter of a year.
fn tick(t: &Texts, step: Step, bars: usize, at: Timestamp) -> Option<(String, bool)> {
    let utc = utc(at)?;
    let day = || Some((day_of_month(t, at)?, true));
    let other = |label| (label, false);
    match (step, bars) {
        (Step::Hour, _) if utc.hour() == 0 => day(),
        (Step::Hour, _) => (utc.hour() % 6 == 0).then(|| other(format!("{:02}:00", utc.hour()))),
        (Step::Day, ..=45) => day().filter(|_| utc.weekday() == Weekday::Monday),
        (Step::Day, _) if utc.day() != 1 => None,
        (Step::Day, ..=120) => day(),
        (Step::Day, _) if utc.month() == 1 => Some(other(utc.year().to_string())),
        (Step::Day, _) => month(t, utc).filter(|_| utc.month() % 3 == 1).map(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 60 * 60 * 1_000;

    /// A chart until 28 November 2026, 12:00.
    fn chart(language: &str, (step, measure): (Step, Measure), values: &[i64]) -> Chart {
        let length = if step == Step::Hour { HOUR } else { 24 * HOUR };
        let last = Timestamp::of_day("2026-11-28").expect("a day").as_millis()
            + if step == Step::Hour { 12 * HOUR } else { 0 };
        let begin = |index: usize| Timestamp::from_millis(last - (values.len() - 1 - index) as i64 * length);
        let series: Vec<_> = values.iter().enumerate().map(|(index, value)| (begin(index), *value)).collect();
        Chart::new(Texts::named(language).expect("a language"), "credits-use", (step, measure), &series)
    }

    fn labels(chart: &Chart) -> Vec<&str> {
        chart.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn bars_fill_the_drawing_and_never_leave_it() {
        for values in [&[][..], &[0], &[-5, 0, 1], &[1; 90], &[7; 365], &[i64::MAX, 1, i64::MIN]] {
            let chart = chart("en", (Step::Day, Measure::Count), values);
            assert_eq!(chart.bars.len(), values.len());
            for (bar, value) in chart.bars.iter().zip(values) {
                assert!(bar.x >= 0.0 && bar.x + bar.width <= 100.001 && bar.width > 0.0);
                assert!((bar.y + bar.height - 100.0).abs() < 0.001 && bar.y >= 0.0);
                assert_eq!(bar.height >= LEAST_HEIGHT, *value > 0);
            }
        }
        let heights: Vec<_> =
            chart("en", (Step::Day, Measure::Count), &[5, 10]).bars.iter().map(|bar| bar.height).collect();
        assert_eq!(heights, [50.0, 100.0]);
    }

    #[test]
    fn the_value_axis_has_round_labels() {
        for (most, scale) in [
            (0, ["2", "1", "0"]),
            (1, ["2", "1", "0"]),
            (7, ["8", "4", "0"]),
            (21, ["30", "15", "0"]),
            (1_999, ["2.000", "1.000", "0"]),
            (4_100_000, ["5.000.000", "2.500.000", "0"]),
        ] {
            assert_eq!(chart("de", (Step::Day, Measure::Count), &[most]).scale, scale, "{most}");
        }
        for (most, scale) in
            [(3, ["0,2 s", "0,1 s", "0 s"]), (2_900, ["3 s", "1,5 s", "0 s"]), (31_000, ["40 s", "20 s", "0 s"])]
        {
            assert_eq!(chart("de", (Step::Hour, Measure::Millis), &[most]).scale, scale, "{most}");
        }
    }

    #[test]
    fn the_time_axis_has_labels_for_hours_days_and_months() {
        let of = |language, step, bars| chart(language, (step, Measure::Count), &vec![1; bars]);
        for (language, step, bars, expected) in [
            ("en", Step::Hour, 24, &["18:00", "28 Nov", "06:00"][..]),
            ("de", Step::Hour, 24, &["18:00", "28. Nov.", "06:00"]),
            ("en", Step::Day, 30, &["2 Nov", "9 Nov", "16 Nov", "23 Nov"]),
            ("en", Step::Day, 90, &["1 Oct", "1 Nov"]),
            ("en", Step::Day, 365, &["2026", "Apr", "Jul", "Oct"]),
        ] {
            assert_eq!(labels(&of(language, step, bars)), expected, "{language} {step:?} {bars}");
        }
    }

    #[test]
    fn a_chart_has_its_numbers_as_a_table() {
        let drawn = chart("en", (Step::Day, Measure::Count), &[5, 1_000]).render().expect("a chart");
        for part in ["<svg", "role=\"img\"", "2026-11-28", "<td class=\"number\">1,000</td>"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
    }
}
