//! Charts of bars, drawn on the server, with the same numbers as a table.

use askama::Template;

use super::texts::Texts;

/// Size of the drawing, in its own units.
const WIDTH: i64 = 720;
const HEIGHT: i64 = 160;
/// Space between two bars.
const GAP: i64 = 2;

/// A bar.
pub(super) struct Bar {
    /// The time that it stands for.
    pub(super) label: String,
    /// Its value, in words.
    pub(super) value: String,
    x: i64,
    y: i64,
    width: i64,
    height: i64,
}

/// A chart of one series over time.
#[derive(Template)]
#[template(path = "chart.html")]
pub(super) struct Chart {
    t: &'static Texts,
    /// The name of the text that says what it shows.
    title: &'static str,
    bars: Vec<Bar>,
    /// The highest value, in words.
    top: String,
}

impl Chart {
    /// A chart of values with their labels; `words` says a value. A value below zero is drawn as none.
    pub(super) fn new(
        t: &'static Texts,
        title: &'static str,
        series: Vec<(String, i64)>,
        words: impl Fn(i64) -> String,
    ) -> Self {
        let most = series.iter().map(|(_, value)| *value).max().unwrap_or(0).max(1);
        let count = i64::try_from(series.len()).unwrap_or(i64::MAX).max(1);
        let place = |index: usize| WIDTH * i64::try_from(index).unwrap_or(0) / count;
        let bar = |(index, (label, value)): (usize, (String, i64))| {
            // In 128 bits, because a balance may be large.
            let share = i128::from(value.max(0)) * i128::from(HEIGHT) / i128::from(most);
            let height = i64::try_from(share).unwrap_or(HEIGHT).max(i64::from(value > 0) * 2);
            let width = (place(index + 1) - place(index) - GAP).max(1);
            Bar { label, value: words(value), x: place(index), y: HEIGHT - height, width, height }
        };
        let top = words(most);
        Self { t, title, bars: series.into_iter().enumerate().map(bar).collect(), top }
    }

    fn first(&self) -> &str {
        self.bars.first().map_or("", |bar| &bar.label)
    }

    fn last(&self) -> &str {
        self.bars.last().map_or("", |bar| &bar.label)
    }

    /// Whether any value is above zero.
    fn has_any(&self) -> bool {
        self.bars.iter().any(|bar| bar.height > 0)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    fn chart(values: &[i64]) -> Chart {
        let series = values.iter().map(|value| (format!("at {value}"), *value)).collect();
        Chart::new(Texts::of(&HeaderMap::new()), "credits-use", series, |value| value.to_string())
    }

    #[test]
    fn bars_fill_the_drawing_and_never_leave_it() {
        for values in [&[][..], &[0], &[-5, 0, 1], &[1; 90], &[i64::MAX, 1, i64::MIN]] {
            let chart = chart(values);
            assert_eq!(chart.bars.len(), values.len());
            for bar in &chart.bars {
                assert!(bar.x >= 0 && bar.x + bar.width <= WIDTH && bar.width > 0);
                assert!(bar.y >= 0 && bar.height >= 0 && bar.y + bar.height == HEIGHT);
            }
        }
        assert_eq!(chart(&[5, 10]).bars.iter().map(|bar| bar.height).collect::<Vec<_>>(), [80, 160]);
    }

    #[test]
    fn a_chart_has_its_numbers_as_a_table() {
        let drawn = chart(&[5, 10]).render().expect("a chart");
        for part in ["<svg", "role=\"img\"", "at 5", "<td class=\"number\">10</td>"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
    }
}
