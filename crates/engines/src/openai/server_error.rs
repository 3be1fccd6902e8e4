//! Servers' errors, in all their formats.

use serde_json::Value;

use super::super::endpoint::ServerMessage;

/// Error codes and types for briefs rejected because of their content.
const REFUSALS: [&str; 5] = [
    "content_policy_violation",
    "moderation_blocked",
    "content_filter",
    "contentFilter",
    "ResponsibleAIPolicyViolation",
];
/// Beginnings of messages that mean the same, from proxies that don't pass on codes.
const REFUSAL_MESSAGES: [&str; 3] = [
    "Your request was rejected as a result of our safety system",
    "Your request was rejected by the safety system",
    "Your request was rejected by our safety system",
];
/// Error codes and types that no prompt causes, and what the operator can do.
const OF_THE_OPERATOR: [(&str, &str); 14] = [
    ("billing_hard_limit_reached", PAY),
    ("billing_not_active", PAY),
    ("insufficient_quota", PAY),
    ("account_deactivated", PAY),
    ("model_not_found", OTHER_MODEL),
    ("model_deprecated", OTHER_MODEL),
    ("model_not_available", OTHER_MODEL),
    ("deployment_not_found", OTHER_MODEL),
    ("DeploymentNotFound", OTHER_MODEL),
    ("unknown_parameter", OTHER_PROFILE),
    ("unsupported_parameter", OTHER_PROFILE),
    ("unknownParameter", OTHER_PROFILE),
    ("extra_forbidden", OTHER_PROFILE),
    ("missing", OTHER_PROFILE),
];
/// Beginnings of messages from servers without codes for this.
const OPERATOR_MESSAGES: [(&str, &str); 7] = [
    ("Billing hard limit", PAY),
    ("Unknown parameter: ", OTHER_PROFILE),
    ("Unrecognized request argument", OTHER_PROFILE),
    ("Additional properties are not allowed", OTHER_PROFILE),
    ("Argument not supported", OTHER_PROFILE),
    // From LiteLLM, for a name that it has no server for.
    ("You passed in model", OTHER_MODEL),
    ("Invalid model name passed in model", OTHER_MODEL),
];
const PAY: &str = "see to the bill and the limits of the account at the provider";
const OTHER_MODEL: &str = "check --model, and whether the key may use it";
const OTHER_PROFILE: &str = "check --engine-profile and --model";

/// Longest error that is parsed, in bytes. Parsed, it takes up many times as much.
const MAX_ERROR: usize = 64 * 1024;

/// A server's error, and whether it rejects the brief because of its content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerError {
    pub(super) words: ServerMessage,
    pub(super) is_refusal: bool,
}

impl ServerError {
    /// The error in a body, if there is one: `{"error": {…}}` from OpenAI, `{"error": "…"}` from sd-server,
    /// `{"detail": …}` from FastAPI, or an error's fields without any of these around them.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        if body.len() > MAX_ERROR {
            return None;
        }
        let body: Value = serde_json::from_slice(body).ok()?;
        let found = [&body["error"], &body["detail"], &body["message"]].into_iter().find(|value| !value.is_null())?;
        Some(match found {
            Value::Object(_) if found["error"].is_object() => Self::of(&found["error"]),
            Value::Object(_) => Self::of(found),
            Value::Array(faults) => Self::of(faults.first()?),
            Value::String(message) if body["error"].is_string() => Self::new(Vec::new(), Some(message.clone()), false),
            _ => Self::of(&body),
        })
    }

    fn of(error: &Value) -> Self {
        let names = [&error["code"], &error["type"], &error["inner_error"]["code"], &error["innererror"]["code"]];
        let names = names.into_iter().filter_map(text).collect();
        let message = ["message", "msg", "detail"].into_iter().find_map(|name| text(&error[name]));
        Self::new(names, message, error["param"] == "model")
    }

    fn new(names: Vec<String>, message: Option<String>, is_of_model: bool) -> Self {
        let by_name = OF_THE_OPERATOR.iter().find(|(name, _)| names.iter().any(|found| found == name));
        let (class, text) = unwrapped(message.as_deref().unwrap_or_default());
        let is_refusal = class == "ContentPolicyViolationError"
            || names.iter().any(|name| REFUSALS.contains(&name.as_str()))
            || REFUSAL_MESSAGES.iter().any(|begin| text.starts_with(begin));
        let by_message = OPERATOR_MESSAGES.iter().find(|(begin, _)| text.starts_with(begin));
        let by_class = (class == "UnsupportedParamsError").then_some(OTHER_PROFILE);
        let advice = by_name.or(by_message).map(|(_, advice)| *advice).or(by_class);
        let advice = advice.or(is_of_model.then_some(OTHER_MODEL));
        Self { words: ServerMessage { code: names.into_iter().next(), message, advice }, is_refusal }
    }
}

/// Splits LiteLLM's errors into the class and the text of the server behind it:
/// `litellm.BadRequestError: OpenAIException - …`, or `/images/generations: …` for its own errors.
fn unwrapped(message: &str) -> (&str, &str) {
    if message.starts_with('/') {
        return ("", message.split_once(": ").map_or(message, |(_, text)| text));
    }
    let Some(mut text) = message.strip_prefix("litellm.") else { return ("", message) };
    let class = text.split_once(": ").map_or("", |(class, _)| class);
    let is_name = |word: &str| word.ends_with("Error") || word.ends_with("Exception");
    while let Some((word, rest)) = text.split_once(' ')
        && is_name(word.trim_end_matches(':'))
    {
        text = rest.strip_prefix("- ").unwrap_or(rest);
    }
    (class, text)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
