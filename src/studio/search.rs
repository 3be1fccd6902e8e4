//! Searches for a part of a name, whose results stand on several pages.

use serde::Deserialize;

use super::page::{last_of_page, query};

pub(super) const PAGE: u32 = 50;
const MAX_CHARS: usize = 100;

/// A search, and the position in its results.
#[derive(Debug, Default, Deserialize)]
pub struct Search {
    #[serde(default)]
    q: String,
    /// The name after which the page begins.
    #[serde(default)]
    pub(super) after: String,
    /// The id of the account to search in, or nothing for all.
    #[serde(default)]
    pub(super) account: String,
}

impl Search {
    pub(super) fn text(&self) -> String {
        self.q.trim().chars().take(MAX_CHARS).collect()
    }

    /// The query of the next page, if more than one page was found. Keeps the results of this one.
    pub(super) fn next<T>(&self, found: &mut Vec<T>, name: impl Fn(&T) -> &str) -> Option<String> {
        let last = last_of_page(found, PAGE)?;
        Some(query([("q", self.text().as_str()), ("account", &self.account), ("after", name(last))]))
    }
}
