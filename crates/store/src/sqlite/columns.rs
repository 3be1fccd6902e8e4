//! Conversions between columns and domain types.

use std::str::FromStr;

use rusqlite::types::ValueRef;
use rusqlite::{Row, RowIndex};

use super::accounts::suspension;
use tintype_domain::model::Id;
use tintype_domain::person::Person;

/// Reads a column with the word of an enum variant.
pub(super) fn word<T>(row: &Row<'_>, index: impl RowIndex) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    parse(row.get_ref(index)?, |text| text.parse())
}

/// Reads a column with JSON.
pub(super) fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, index: impl RowIndex) -> rusqlite::Result<T> {
    parse(row.get_ref(index)?, |text| serde_json::from_str(text))
}

fn parse<T, E>(value: ValueRef<'_>, read: impl FnOnce(&str) -> Result<T, E>) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let text = value.as_str()?;
    read(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error)))
}

/// Converts a value to JSON for a column; the counterpart of [`json`].
pub(super) fn to_json(strings: &[String]) -> String {
    serde_json::to_string(strings).expect("strings are always JSON")
}

/// The condition that keeps the rows of the account ?1, or of all. One that held for both would read all rows for one
/// account.
pub(super) fn of_account(account_id: Option<Id>) -> &'static str {
    if account_id.is_some() { "account_id = ?1" } else { "?1 IS NULL" }
}

pub(super) fn person(row: &Row<'_>) -> rusqlite::Result<Person> {
    let id: Id = row.get("id")?;
    let password: Option<String> = row.get("password")?;
    let factor: Option<i64> = row.get("factor_step")?;
    Ok(Person {
        id,
        account_id: row.get("account_id")?,
        name: row.get("name")?,
        role: word(row, "role")?,
        has_password: password.is_some(),
        has_second_factor: factor.is_some(),
        suspension: suspension(row)?,
        created_at: id.timestamp(),
    })
}
