//! Details of the audit log in the language of the reader. They are stored in English; words of people, names and ids stay.

use crate::studio::failures::suspension;
use crate::studio::page::minute;
use crate::studio::texts::Texts;
use tintype_domain::budget::Budget;
use tintype_domain::endpoint::DisabledFor;
use tintype_domain::person::Role;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{Action, AuditedChange};

/// The detail of a change. One that this version cannot read is shown as it is stored, with its times to the minute.
pub(super) fn detail(t: &Texts, audited: &AuditedChange) -> Option<String> {
    let detail = audited.detail.as_deref()?;
    let known = match audited.action {
        Action::SuspendKey | Action::SuspendPerson => Some(suspension(t, detail)),
        Action::AddPerson | Action::ChangeRole | Action::Invite => role(t, detail),
        Action::CreateAccount | Action::SignUp | Action::Grant | Action::Take => amount(t, detail),
        Action::SetLowBalance | Action::ChangeBudget => limit(t, detail),
        Action::DisableEndpoint => disabled_for(t, detail),
        _ => None,
    };
    Some(known.unwrap_or_else(|| in_minutes(detail)))
}

/// The name of a change's actor. The server's own names are in English.
pub(super) fn actor(t: &Texts, name: &str) -> String {
    if name == "content policy" { t.get("audit-policy") } else { name.to_owned() }
}

/// A detail with its times as the page shows others, to the minute.
fn in_minutes(detail: &str) -> String {
    let shown = |word: &str| {
        let (time, rest) = word.split_at_checked(word.find('Z').map_or(0, |end| end + 1)).unwrap_or_default();
        let at = time.parse::<jiff::Timestamp>().map(|at| Timestamp::from_millis(at.as_millisecond()));
        at.map_or_else(|_| word.to_owned(), |at| format!("{}{rest}", minute(at)))
    };
    detail.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

/// The first word, and the rest.
fn apart(detail: &str) -> (&str, &str) {
    detail.split_once(' ').unwrap_or((detail, ""))
}

/// Such as `member`, `member by invitation`, `member https://id.example.com` or `member, 5 places`.
fn role(t: &Texts, detail: &str) -> Option<String> {
    let (role, rest) = apart(detail);
    let (role, comma) = role.strip_suffix(',').map_or((role, ""), |role| (role, ","));
    let role = t.of_word("role", role.parse::<Role>().ok()?);
    let places =
        rest.strip_suffix(" places").or(rest.strip_suffix(" place")).and_then(|places| places.parse::<i64>().ok());
    let rest = match (rest, places) {
        ("by invitation", _) => t.get("audit-by-invitation"),
        (_, Some(places)) => t.count("audit-places", places),
        (rest, None) => rest.into(),
    };
    Some(format!("{role}{comma} {rest}").trim_end().to_owned())
}

/// Such as `+90 for posters`, `+90 (until 2026-11-24T12:00:00.000Z) for posters` or `+90 (admin)`.
fn amount(t: &Texts, detail: &str) -> Option<String> {
    let (amount, rest) = apart(detail);
    let number = t.number(amount.parse::<i64>().ok()?);
    let sign = if amount.starts_with('+') { "+" } else { "" };
    let rest = match rest.strip_prefix("(until ").and_then(|rest| rest.split_once(')')) {
        Some((end, note)) => format!("({}){note}", t.word("audit-until", &in_minutes(end))),
        None if rest == "(admin)" => format!("({})", t.get("account-admin")),
        None => rest.to_owned(),
    };
    Some(format!("{sign}{number} {rest}").trim_end().to_owned())
}

/// Such as `none`, `40` or `8/month`.
fn limit(t: &Texts, detail: &str) -> Option<String> {
    if detail == "none" {
        return Some(t.get("key-budget-none"));
    }
    if let Ok(number) = detail.parse::<i64>() {
        return Some(t.number(number));
    }
    let budget: Budget = detail.parse().ok()?;
    Some(format!("{} {}", t.number(budget.credits), t.of_word("key-per", budget.period)))
}

/// Why the server disabled an endpoint. One that someone disabled has its address as the detail.
fn disabled_for(t: &Texts, detail: &str) -> Option<String> {
    let text = match detail.parse().ok()? {
        DisabledFor::Gone => "audit-gone",
        DisabledFor::Failing => "audit-failing",
        DisabledFor::Request => return None,
    };
    Some(t.get(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_told_in_german() {
        let t = Texts::named("de").expect("a language");
        for (action, stored, shown) in [
            (
                Action::SuspendKey,
                "3 violations of the content policy within 1 day",
                "3 Verstöße gegen die Inhaltsrichtlinie innerhalb von 1 Tag",
            ),
            (
                Action::SuspendPerson,
                "20 violations of the content policy within 2 days 1 hour",
                "20 Verstöße gegen die Inhaltsrichtlinie innerhalb von 2 Tagen 1 Stunde",
            ),
            (Action::SuspendKey, "a reason of a newer version", "a reason of a newer version"),
            (Action::ChangeRole, "viewer", "Betrachter"),
            (Action::AddPerson, "member by invitation", "Mitglied durch Einladung"),
            (Action::AddPerson, "owner https://id.example.com", "Inhaber https://id.example.com"),
            (Action::Invite, "member, 5 places", "Mitglied, 5 Plätze"),
            (Action::Invite, "member, 1 place", "Mitglied, 1 Platz"),
            (Action::CreateAccount, "+12345 (admin)", "+12.345 (Betreiber)"),
            (Action::SignUp, "+0 https://id.example.com", "+0 https://id.example.com"),
            (Action::Grant, "+9 (until 2026-11-24T12:00:00.000Z) a trial", "+9 (bis 2026-11-24 12:00) a trial"),
            (Action::Grant, "+9000 until June", "+9.000 until June"),
            (Action::Take, "-5000 a mistake", "-5.000 a mistake"),
            (Action::SetLowBalance, "none", "Keins"),
            (Action::SetLowBalance, "4000", "4.000"),
            (Action::ChangeBudget, "8000/month", "8.000 im Monat"),
            (Action::DisableEndpoint, "gone", "der Empfänger antwortete mit 410 Gone"),
            (Action::DisableEndpoint, "https://example.com", "https://example.com"),
            (Action::Share, "2026-11-24T12:00:00.000Z", "2026-11-24 12:00"),
            (Action::CreateKey, "none 5 places", "none 5 places"),
        ] {
            let detail = Some(stored.to_owned());
            let audited = AuditedChange { action, account_id: None, subject: None, detail };
            assert_eq!(super::detail(t, &audited).as_deref(), Some(shown), "{action}");
        }
    }
}
