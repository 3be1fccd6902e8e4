//! Lists a bucket, page by page. A server that lists forever, because of its own or a proxy's fault, is an error: each
//! page must lead to another one.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use futures::stream::{self, BoxStream, StreamExt as _};
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::{Error, ListResult};

/// Most pages of one listing, of up to 1,000 names each.
const MAX_PAGES: usize = 100_000;
/// Most pages in a row without a name: servers send some for objects that were removed.
const MAX_EMPTY_PAGES: usize = 1_000;

#[derive(Default)]
struct Progress {
    token: Option<String>,
    /// Hashes of all tokens seen.
    seen: HashSet<u64>,
    empty_pages: usize,
    /// There are no more pages.
    over: bool,
}

impl Progress {
    /// Notes a page and the token of the next one. A token that came before would begin the same pages again.
    fn note(&mut self, page: &ListResult, token: Option<String>) -> Result<(), &'static str> {
        self.token = token.filter(|token| !token.is_empty());
        let is_empty = page.objects.is_empty() && page.common_prefixes.is_empty();
        self.empty_pages = if is_empty { self.empty_pages + 1 } else { 0 };
        let Some(token) = &self.token else {
            self.over = true;
            return Ok(());
        };
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return Err("the bucket repeats a continuation token, so its listing would never end");
        }
        if self.empty_pages > MAX_EMPTY_PAGES || self.seen.len() > MAX_PAGES {
            return Err("the listing of the bucket does not end");
        }
        Ok(())
    }
}

/// Lists the names that start with `prefix`. With `folders`, names are cut behind the next slash.
pub(super) fn pages(objects: AmazonS3, prefix: String, folders: bool) -> BoxStream<'static, Result<ListResult, Error>> {
    let next = move |mut progress: Progress| {
        let (objects, prefix) = (objects.clone(), prefix.clone());
        async move {
            if progress.over {
                return Ok(None);
            }
            let delimiter = folders.then_some("/".into());
            let page_token = progress.token.take();
            let options = PaginatedListOptions { delimiter, page_token, ..PaginatedListOptions::default() };
            let page = objects.list_paginated(Some(&prefix), options).await?;
            let end = |message: &str| Error::Generic { store: "S3", source: message.into() };
            progress.note(&page.result, page.page_token).map_err(end)?;
            Ok(Some((page.result, progress)))
        }
    };
    stream::try_unfold(Progress::default(), next).boxed()
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    /// Lists endlessly with these tokens; returns how many pages were taken.
    fn pages_of(tokens: impl Iterator<Item = String>, is_empty: bool) -> usize {
        let names = if is_empty { Vec::new() } else { vec![Path::from("2026-11-21")] };
        let page = ListResult { common_prefixes: names, objects: Vec::new(), extensions: Default::default() };
        let mut progress = Progress::default();
        tokens.take_while(|token| progress.note(&page, Some(token.clone())).is_ok()).count()
    }

    #[test]
    fn a_listing_without_progress_ends() {
        assert_eq!(pages_of(std::iter::repeat("same".to_owned()), false), 1);
        assert_eq!(pages_of((0..).map(|page| (page % 3).to_string()), false), 3);
        assert_eq!(pages_of((0..).map(|page| page.to_string()), true), MAX_EMPTY_PAGES);
        assert_eq!(pages_of((0..).map(|page| page.to_string()), false), MAX_PAGES);
        assert_eq!(pages_of(std::iter::once(String::new()), false), 1);
    }
}
