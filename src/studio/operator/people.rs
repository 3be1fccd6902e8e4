//! The people of all accounts, or of one, to look someone up.

use askama::Template;
use axum::extract::Query;

use super::Operator;
use super::accounts::find;
use crate::studio::error::PageResult;
use crate::studio::page::{Frame, html};
use crate::studio::search::{PAGE, Search};
use tintype_domain::model::Account;
use tintype_store::FoundPerson;

#[derive(Template)]
#[template(path = "operator/people.html")]
struct PeoplePage<'a> {
    frame: Frame<'a>,
    people: Vec<FoundPerson>,
    q: String,
    /// The account whose people these are; `None` for all.
    account: Option<Account>,
    /// The query of the next page.
    next: Option<String>,
}

/// The page.
pub async fn people(operator: Operator, Query(search): Query<Search>) -> PageResult {
    let visitor = &operator.0;
    let account = match search.account.as_str() {
        "" => None,
        id => Some(find(visitor, id).await?),
    };
    let (store, q) = (&visitor.studio.shared.store, search.text());
    let of = account.as_ref().map(|account| account.id);
    let mut people = store.find_people(of, &q, &search.after, PAGE + 1).await?;
    let next = search.next(&mut people, |found| &found.person.name);
    let frame = Frame::new("operator-people", visitor).await?;
    html(&PeoplePage { frame, people, q, account, next })
}
