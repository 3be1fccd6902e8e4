//! Headers for the trace collector, such as a hosted collector's key, from the environment variables in the
//! OpenTelemetry specification. They are secrets.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::environment::variable;

/// The first one that is set counts.
const VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];

/// The headers from the environment.
///
/// # Errors
/// A message for the operator, which contains no values.
pub fn collector_headers() -> Result<HeaderMap, String> {
    for name in VARIABLES {
        if let Some(text) = variable(name)? {
            return parse(&text).map_err(|why| format!("{name} is not a list such as api-key=SECRET,team=blue: {why}"));
        }
    }
    Ok(HeaderMap::new())
}

/// Parses `NAME=VALUE,NAME=VALUE`. Values can be percent-encoded, and surrounding white space is ignored.
fn parse(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (number, pair) in text.split(',').enumerate().filter(|(_, pair)| !pair.trim().is_empty()) {
        let wrong = |why: &str| format!("{why} in entry {}", number + 1);
        let (name, value) = pair.split_once('=').ok_or_else(|| wrong("there is no ="))?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong("the name is not one of a header"))?;
        // The format allows properties after a semicolon, but they have no meaning here.
        let value = decoded(value.trim()).ok_or_else(|| wrong("a % is not followed by two hexadecimal digits"))?;
        let mut value =
            HeaderValue::from_bytes(&value).map_err(|_| wrong("the value has a character that headers do not have"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Decodes `%20` and the like.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let valid = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| valid)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_field_are_read() {
        // Each as documented by a hosted collector.
        type Headers = &'static [(&'static str, &'static str)];
        let cases: [(&str, &str, Headers); 8] = [
            ("Honeycomb", "x-honeycomb-team=abc", &[("x-honeycomb-team", "abc")]),
            ("Grafana Cloud", "Authorization=Basic%20MTIzOmdsYw==", &[("authorization", "Basic MTIzOmdsYw==")]),
            ("Grafana Cloud without the encoding", "Authorization=Basic MTI=", &[("authorization", "Basic MTI=")]),
            ("New Relic", "api-key=0123NRAL", &[("api-key", "0123NRAL")]),
            ("two, with spaces", " a=1 , b = 2%2C3 ", &[("a", "1"), ("b", "2,3")]),
            ("a comma at the end", "a=1,", &[("a", "1")]),
            ("the same twice", "a=1,A=2", &[("a", "2")]),
            ("no value", "a=", &[("a", "")]),
        ];
        for (source, text, wanted) in cases {
            let headers = parse(text).expect(source);
            assert_eq!(headers.len(), wanted.len(), "{source}");
            for (name, value) in wanted {
                assert!(
                    headers[*name].is_sensitive() && headers[*name] == *value,
                    "{source}: {:?}",
                    headers[*name].to_str()
                );
            }
        }
    }

    #[test]
    fn anything_else_is_refused_without_its_value() {
        for text in
            ["hidden", "a=1,hidden", "a b=hidden", "a=hidden%", "a=hidden%2", "a=hidden%zz", "a=hidden%0a", "=hidden"]
        {
            let error = parse(text).expect_err(text);
            assert!(error.contains("entry") && !error.contains("hidden"), "{text}: {error}");
        }
    }
}
