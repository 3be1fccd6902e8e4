//! Why a task failed and why a form was rejected, in the person's language. The API has its own messages, which name
//! its fields.

use std::ops::RangeInclusive;

use tintype_domain::model::{FailureCause, ReferenceProblem, TaskFailure};
use tintype_domain::reference_url::UrlFault;
use tintype_domain::request::{InvalidRequest, PromptFault};
use tintype_engine::Setting;

use super::texts::Texts;
use crate::service::endings::STOPPED;
use tintype_store::StrikeRule;

/// Why a task failed, in a message. It does not say that the credits were refunded, except with the words of an operator
/// or of another release.
pub(super) fn failure(t: &Texts, failure: &TaskFailure) -> String {
    let text = match failure.cause {
        FailureCause::Policy => "failure-policy",
        FailureCause::Reference(index, problem) => {
            let text = match problem {
                ReferenceProblem::Unknown => "reference-unusable".to_owned(),
                known => format!("reference-{}", known.as_str()),
            };
            return t.count(&text, index as u64 + 1);
        }
        FailureCause::TooManyReferences(most) => return t.count("failure-references", most),
        FailureCause::NoEngine => "failure-no-engine",
        FailureCause::Engine => "failure-engine",
        FailureCause::Lost => "failure-lost",
        FailureCause::Expired => "failure-expired",
        FailureCause::Cancelled => "failure-cancelled",
        FailureCause::Operator if failure.message == STOPPED => "failure-operator",
        FailureCause::Operator => return t.word("failure-operator-said", &failure.message),
        FailureCause::Unknown => return failure.message.clone(),
    };
    t.get(text)
}

/// Why a key or a person is suspended. A reason that this version cannot read is shown as it is.
pub(super) fn suspension(t: &Texts, reason: &str) -> String {
    let Some(rule) = StrikeRule::read(reason) else { return reason.to_owned() };
    let mut left = rule.window.as_secs();
    let mut parts = Vec::new();
    for (seconds, name) in
        [(86_400, "within-days"), (3_600, "within-hours"), (60, "within-minutes"), (1, "within-seconds")]
    {
        if left >= seconds {
            parts.push(t.count(name, left / seconds));
        }
        left %= seconds;
    }
    t.count_of("suspended-for", rule.limit, &parts.join(" "))
}

/// Why the form of a task was refused.
pub(super) fn refusal(t: &Texts, invalid: &InvalidRequest) -> String {
    let text = match invalid {
        InvalidRequest::Prompt(PromptFault::Missing | PromptFault::Empty) => "prompt-empty",
        InvalidRequest::Prompt(PromptFault::Nul) => "prompt-character",
        InvalidRequest::Prompt(PromptFault::Length) => "prompt-long",
        InvalidRequest::AspectRatio(_) => "shape-unknown",
        InvalidRequest::Count => "number-unknown",
        InvalidRequest::TooManyReferences => "upload-four",
        InvalidRequest::Reference { index, fault } => {
            return t.count(link_text(*fault), *index as u64 + 1);
        }
        // No form of the studio sends such a body.
        InvalidRequest::Body(_)
        | InvalidRequest::Prompt(PromptFault::Type)
        | InvalidRequest::References
        | InvalidRequest::ReferenceType(_) => "error-request",
    };
    t.get(text)
}

/// The name of the text for a link that cannot be a reference.
fn link_text(fault: UrlFault) -> &'static str {
    match fault {
        UrlFault::Scheme => "link-scheme",
        UrlFault::Length => "link-long",
        UrlFault::Userinfo => "link-password",
        UrlFault::Port => "link-port",
        UrlFault::NotPublic => "link-private",
        UrlFault::Characters | UrlFault::Backslash | UrlFault::NoHost | UrlFault::Malformed | UrlFault::Disguised => {
            "link-malformed"
        }
    }
}

/// Why a setting was rejected. `bounds` are the preset's; without them the preset doesn't support the setting.
pub(super) fn setting_refusal(
    t: &Texts,
    setting: Setting,
    bounds: Option<&RangeInclusive<f64>>,
    is_too_long: bool,
) -> String {
    let name = t.of_word("setting", setting.as_str());
    match (setting, bounds) {
        (_, None) => t.word("setting-not-taken", &name),
        (Setting::NegativePrompt, Some(bounds)) if is_too_long => {
            t.range("setting-long", &name, *bounds.start(), *bounds.end())
        }
        (Setting::NegativePrompt, Some(_)) => t.get("prompt-character"),
        (Setting::Seed | Setting::Steps, Some(bounds)) => {
            t.range("setting-whole", &name, *bounds.start(), *bounds.end())
        }
        (Setting::GuidanceScale | Setting::Strength, Some(bounds)) => {
            t.range("setting-range", &name, *bounds.start(), *bounds.end())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The English words of a message that no German one has, and the names of the API.
    const OF_API: [&str; 10] = [" the ", " and ", "must", "image", "prompt", "_", "[", "{", "$", "-unknown"];

    #[test]
    fn every_text_about_a_setting_names_it_and_its_bounds_in_german() {
        let t = Texts::named("de").expect("a language");
        for setting in Setting::ALL {
            let bounds = setting.bounds();
            let most = bounds.end().to_string();
            let name = t.of_word("setting", setting.as_str());
            for (bounds, is_too_long) in [(None, false), (Some(&bounds), false), (Some(&bounds), true)] {
                let message = setting_refusal(t, setting, bounds, is_too_long);
                let is_of_characters = setting == Setting::NegativePrompt && bounds.is_some() && !is_too_long;
                assert!(message.contains(&name) || is_of_characters, "{message}");
                assert!(message.contains(&most) || bounds.is_none() || is_of_characters, "{message}");
                assert!(!OF_API.iter().any(|word| message.contains(word)), "{message}");
            }
        }
    }

    #[test]
    fn every_refusal_has_german_words() {
        let t = Texts::named("de").expect("a language");
        let prompts =
            [PromptFault::Missing, PromptFault::Empty, PromptFault::Nul, PromptFault::Length, PromptFault::Type];
        let links = [
            UrlFault::Scheme,
            UrlFault::Length,
            UrlFault::Characters,
            UrlFault::Backslash,
            UrlFault::Userinfo,
            UrlFault::NoHost,
            UrlFault::Malformed,
            UrlFault::Port,
            UrlFault::NotPublic,
            UrlFault::Disguised,
        ];
        let others = [
            InvalidRequest::Body("The body is not JSON.".into()),
            InvalidRequest::AspectRatio("must be a string".into()),
            InvalidRequest::Count,
            InvalidRequest::References,
            InvalidRequest::TooManyReferences,
            InvalidRequest::ReferenceType(0),
        ];
        let prompts = prompts.map(InvalidRequest::Prompt).into_iter();
        let links = links.map(|fault| InvalidRequest::Reference { index: 1, fault }).into_iter();
        for invalid in prompts.chain(links).chain(others) {
            let message = refusal(t, &invalid);
            assert!(message.ends_with('.') && !OF_API.iter().any(|word| message.contains(word)), "{message}");
            let is_numbered = matches!(invalid, InvalidRequest::Reference { .. });
            assert_eq!(message.contains("Vorlage 2"), is_numbered, "{message}");
        }
    }
}
