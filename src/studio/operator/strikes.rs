//! Keys and people that the content policy has struck or suspended.

use askama::Template;

use super::Operator;
use crate::studio::error::PageResult;
use crate::studio::page::{Frame, html};
use tintype_domain::key::ApiKey;
use tintype_domain::person::Person;
use tintype_store::Struck;

/// Most keys and most people on the page.
const MAX_ROWS: u32 = 200;

#[derive(Template)]
#[template(path = "operator/strikes.html")]
struct StrikesPage<'a> {
    frame: Frame<'a>,
    keys: Vec<Struck<ApiKey>>,
    people: Vec<Struck<Person>>,
}

/// The page.
pub async fn strikes(operator: Operator) -> PageResult {
    let visitor = &operator.0;
    let store = &visitor.studio.shared.store;
    let (keys, people) = (store.struck_keys(MAX_ROWS).await?, store.struck_people(MAX_ROWS).await?);
    html(&StrikesPage { frame: Frame::new("operator-strikes", visitor).await?, keys, people })
}
