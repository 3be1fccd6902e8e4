//! The origins of web pages that may call the API from a browser.

use clap::Args;

const ANY: &str = "*";

/// The flag for allowed origins.
#[derive(Debug, Clone, Default, Args)]
pub struct OriginSettings {
    /// Origins of web pages that may call the API from a browser with a key, such as `https://app.example.com`, or `*` for
    /// all [default: none]
    #[arg(long, env = "TINTYPE_CORS_ORIGIN", value_name = "ORIGIN", num_args = 1.., value_delimiter = ',', value_parser = origin)]
    pub cors_origin: Vec<String>,
}

/// The origins of web pages that may call the API.
#[derive(Debug, Clone, Default)]
pub struct AllowedOrigins {
    any: bool,
    listed: Vec<String>,
}

impl OriginSettings {
    /// The allowed origins.
    pub fn allowed(&self) -> Result<AllowedOrigins, String> {
        let any = self.cors_origin.iter().any(|origin| origin == ANY);
        if any && self.cors_origin.len() > 1 {
            return Err("--cors-origin * allows every origin: remove the others, or remove the *".into());
        }
        let listed = if any { Vec::new() } else { self.cors_origin.clone() };
        Ok(AllowedOrigins { any, listed })
    }
}

impl AllowedOrigins {
    /// Whether no page can call the API.
    pub fn are_none(&self) -> bool {
        !self.any && self.listed.is_empty()
    }

    /// Whether only pages from some origins can call the API.
    pub fn are_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Whether an `Origin` header's value is in the list.
    pub fn contain(&self, origin: &[u8]) -> bool {
        self.listed.iter().any(|listed| listed.as_bytes() == origin)
    }
}

/// Parses an origin and normalises it as browsers do: in lower case, with international names in ASCII, without the
/// default port.
fn origin(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text == ANY {
        return Ok(text.to_owned());
    }
    let invalid = || {
        "it is not an origin such as https://app.example.com or http://localhost:5173: give scheme, host and port, \
         without a path"
            .to_owned()
    };
    let url = url::Url::parse(text).map_err(|_| invalid())?;
    // The parser repairs much that a browser would never send, so only expected differences are accepted.
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let anonymous = url.username().is_empty() && url.password().is_none() && !text.contains(['@', '*', '\\']);
    if !matches!(url.scheme(), "http" | "https") || !bare || !anonymous {
        return Err(invalid());
    }
    Ok(url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_send_it() {
        for (text, origin) in [
            ("https://app.example.com", "https://app.example.com"),
            ("https://app.example.com/", "https://app.example.com"),
            ("HTTPS://App.Example.com:443", "https://app.example.com"),
            (" http://localhost:5173 ", "http://localhost:5173"),
            ("http://127.0.0.1:80", "http://127.0.0.1"),
            ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
            ("https://bücher.example", "https://xn--bcher-kva.example"),
            ("*", "*"),
        ] {
            assert_eq!(super::origin(text).as_deref(), Ok(origin));
        }
    }

    #[test]
    fn other_values_are_refused_with_an_example() {
        for text in [
            "",
            "null",
            "app.example.com",
            "app.example.com:8080",
            "https://",
            "https://app.example.com/path",
            "https://app.example.com?x",
            "https://app.example.com/#x",
            "https://ada@app.example.com",
            "https://@app.example.com",
            "https://*.example.com",
            "https:\\\\app.example.com",
            "file:///index.html",
            "data:text/html,x",
            "ws://app.example.com",
        ] {
            let refused = origin(text).expect_err(text);
            assert!(refused.contains("such as https://app.example.com"), "{refused}");
        }
    }

    #[test]
    fn every_origin_or_some() {
        let settings = |origins: &[&str]| OriginSettings { cors_origin: origins.iter().map(|o| (*o).into()).collect() };
        let none = settings(&[]).allowed().expect("valid");
        assert!(none.are_none() && !none.contain(b"https://a.example"));
        let any = settings(&["*"]).allowed().expect("valid");
        assert!(!any.are_none() && !any.are_listed());
        let some = settings(&["https://a.example"]).allowed().expect("valid");
        assert!(some.are_listed() && some.contain(b"https://a.example") && !some.contain(b"https://a.example.evil"));
        assert!(settings(&["*", "https://a.example"]).allowed().expect_err("both").contains("remove"));
    }
}
