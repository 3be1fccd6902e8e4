//! Parsers for the values of flags that several commands share.

use std::ffi::OsStr;
use std::ops::RangeInclusive;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

use tintype_domain::person::Role;
use tintype_domain::request::AspectRatio;

pub(super) fn whole_number<N>(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: TryFrom<i64> + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse::<i64>().ok().filter(|number| range.contains(number));
        number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| {
            let (least, most) = range.clone().into_inner();
            format!("must be a whole number from {least} to {most}")
        })
    }
}

/// Parses a number that JSON can hold.
pub(super) fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "must be a number".to_owned())
}

/// A parser of roles, which shells complete.
pub(super) fn role() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(|text: String| text.parse::<Role>())
}

/// A parser for aspect ratios, which shells complete. It accepts any text, because the server reports invalid ones.
#[derive(Debug, Clone)]
pub(super) struct RatioParser;

impl TypedValueParser for RatioParser {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(AspectRatio::ALL.iter().map(|ratio| PossibleValue::new(ratio.as_str()))))
    }
}
