//! Conversions between columns and domain types.

use std::str::FromStr;

use tokio_postgres::Row;

use crate::{Result, StoreError};
use tintype_domain::budget::Budget;
use tintype_domain::key::{ApiKey, Suspension};
use tintype_domain::model::{Account, FailureCause, Id, Status, Task, TaskFailure};
use tintype_domain::person::Person;
use tintype_domain::request::{GenerateRequest, TaskSettings};

/// The error for a column with a value that this code never writes.
fn odd(column: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Other(format!("the column {column} contains an invalid value: {error}").into())
}

/// Reads a column with the name of an enum variant.
pub(super) fn word<T: FromStr<Err: std::fmt::Display>>(row: &Row, column: &str) -> Result<T> {
    row.try_get::<_, &str>(column)?.parse().map_err(|error| odd(column, error))
}

/// Reads a column with JSON.
pub(super) fn json<T: serde::de::DeserializeOwned>(row: &Row, column: &str) -> Result<T> {
    serde_json::from_str(row.try_get(column)?).map_err(|error| odd(column, error))
}

/// Converts a value to JSON for a column; the counterpart of [`json`].
pub(super) fn to_json(strings: &[String]) -> String {
    serde_json::to_string(strings).expect("strings are always JSON")
}

/// Reads a number whose width differs from that of the domain type.
pub(super) fn number<T: TryFrom<i64, Error: std::fmt::Display>>(row: &Row, column: &str) -> Result<T> {
    row.try_get::<_, i64>(column)?.try_into().map_err(|error| odd(column, error))
}

/// The columns of a [`Task`].
pub(super) const TASK: &str = "id, account_id, surface, image_to_image, status, updated_at, images, cause, error";

pub(super) fn task(row: &Row) -> Result<Task> {
    let status = match row.try_get("status")? {
        "completed" => Status::Completed(json(row, "images")?),
        "failed" => Status::Failed(TaskFailure { cause: cause(row)?, sentence: row.try_get("error")? }),
        _ => Status::Processing,
    };
    Ok(Task {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        surface: word(row, "surface")?,
        image_to_image: row.try_get("image_to_image")?,
        status,
        updated_at: row.try_get("updated_at")?,
    })
}

/// Tasks that failed under a release without causes have none; the migration names those that the policy refused.
pub(super) fn cause(row: &Row) -> Result<FailureCause> {
    let cause: Option<&str> = row.try_get("cause")?;
    Ok(FailureCause::named(cause.unwrap_or_default()))
}

/// The columns of a [`GenerateRequest`].
pub(super) const REQUEST: &str = "prompt, aspect_ratio, n, reference_images, settings, request_id";

/// Tasks of which nothing was chosen have none.
fn settings(row: &Row) -> Result<TaskSettings> {
    match row.try_get::<_, Option<&str>>("settings")? {
        None => Ok(TaskSettings::default()),
        Some(_) => json(row, "settings"),
    }
}

pub(super) fn request(row: &Row) -> Result<GenerateRequest> {
    let n: i16 = row.try_get("n")?;
    Ok(GenerateRequest {
        prompt: row.try_get("prompt")?,
        aspect_ratio: word(row, "aspect_ratio")?,
        n: n.try_into().map_err(|error| odd("n", error))?,
        reference_images: json(row, "reference_images")?,
        settings: settings(row)?,
        request_id: row.try_get("request_id")?,
    })
}

pub(super) fn account(row: &Row) -> Result<Account> {
    Ok(Account {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        credits: row.try_get("balance")?,
        low_balance: row.try_get("low_balance")?,
        admin: row.try_get("admin")?,
        disabled_at: row.try_get("disabled_at")?,
        deleted_at: row.try_get("deleted_at")?,
    })
}

/// The columns of a key, listed by name. After a later release adds a column, a prepared `SELECT *` would fail once on
/// every connection.
pub(super) const KEY: &str = "id, first_id, operator_budget, account_id, name, hint, submit_rate, read_rate, budget, \
    budget_period, expires_at, disabled, revoked_at, leaked_at, last_used_at, suspended_at, suspended_for, \
    EXISTS (SELECT 1 FROM accounts a WHERE a.id = account_id AND a.disabled_at IS NOT NULL) AS account_disabled";

/// The suspension of a key or a person.
pub(super) fn suspension(row: &Row) -> Result<Option<Suspension>> {
    let Some(at) = row.try_get("suspended_at")? else { return Ok(None) };
    Ok(Some(Suspension { at, reason: row.try_get("suspended_for")? }))
}

pub(super) fn api_key(row: &Row) -> Result<ApiKey> {
    let id: Id = row.try_get("id")?;
    let rate = |column| -> Result<Option<u32>> {
        let stored: Option<i64> = row.try_get(column)?;
        stored.map(u32::try_from).transpose().map_err(|error| odd(column, error))
    };
    Ok(ApiKey {
        id,
        first_id: row.try_get("first_id")?,
        account_id: row.try_get("account_id")?,
        name: row.try_get("name")?,
        hint: row.try_get("hint")?,
        submit_rate: rate("submit_rate")?,
        read_rate: rate("read_rate")?,
        budget: budget(row)?,
        operator_budget: row.try_get("operator_budget")?,
        created_at: id.timestamp(),
        expires_at: row.try_get("expires_at")?,
        disabled: row.try_get("disabled")?,
        account_disabled: row.try_get("account_disabled")?,
        revoked_at: row.try_get("revoked_at")?,
        leaked_at: row.try_get("leaked_at")?,
        last_used_at: row.try_get("last_used_at")?,
        suspension: suspension(row)?,
    })
}

/// The budget of a key, if it has one.
fn budget(row: &Row) -> Result<Option<Budget>> {
    let Some(credits) = row.try_get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: word(row, "budget_period")? }))
}

/// All columns of people.
pub(super) const PERSON: &str =
    "p.id, p.account_id, p.name, p.role, p.password, p.factor_step, p.suspended_at, p.suspended_for";

pub(super) fn person(row: &Row) -> Result<Person> {
    let id: Id = row.try_get("id")?;
    let password: Option<&str> = row.try_get("password")?;
    let factor: Option<i64> = row.try_get("factor_step")?;
    Ok(Person {
        id,
        account_id: row.try_get("account_id")?,
        name: row.try_get("name")?,
        role: word(row, "role")?,
        has_password: password.is_some(),
        has_second_factor: factor.is_some(),
        suspension: suspension(row)?,
        created_at: id.timestamp(),
    })
}

/// The condition that keeps the rows of the account $1, or of all. One that held for both would read all rows for one
/// account.
pub(super) fn of_account(account_id: Option<Id>) -> &'static str {
    if account_id.is_some() { "account_id = $1" } else { "$1::text IS NULL" }
}
