//! Requests to the receivers of webhooks. They follow no redirect, use no proxy and no connection twice, and read no
//! answer beyond its header.
//!
//! The endpoint of an owner is reached at public addresses by HTTPS alone. That of the operator may also be in the networks
//! that the operator has named, and without HTTPS is only reached there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request};
use url::Host;

use super::public::{AllowedAddresses, Lookup, PublicClient, PublicResolver, SystemLookup};
use super::references::TrustedTestHost;
use super::{Proxies, SetupError, asked_wait, client_builder};
use tintype_domain::address::is_public;
use tintype_domain::endpoint::{AddedBy, Endpoint, EndpointUrl, Trouble};

/// Time for one request, from the look-up to the end of the header of its answer.
pub const TIME_LIMIT: Duration = Duration::from_secs(15);
/// Requests at a time, which the caller counts. Each may wait for a name, so that names that are not answered delay no other.
pub const MAX_REQUESTS: usize = 128;

/// The settings of a client.
pub struct ReceiverOptions {
    /// Networks that the operator has named.
    pub networks: Vec<IpNet>,
    /// Time for one request.
    pub time_limit: Duration,
    /// The DNS.
    pub lookup: Arc<dyn Lookup>,
    /// Set by tests only.
    pub trust: Option<TrustedTestHost>,
}

tintype_domain::opaque_debug!(ReceiverOptions);

impl ReceiverOptions {
    /// The options of a server that can reach these networks in addition to public ones.
    pub fn reaching(networks: &[IpNet]) -> Self {
        let (networks, lookup) = (networks.to_vec(), Arc::new(SystemLookup::new().in_threads(MAX_REQUESTS)));
        Self { networks, time_limit: TIME_LIMIT, lookup, trust: None }
    }
}

/// The header of a receiver's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverAnswer {
    /// The status.
    pub status: u16,
    /// The wait that it asks for.
    pub retry_after: Option<Duration>,
}

/// A receiver that did not answer.
#[derive(Debug)]
pub struct NoAnswer {
    /// The reason.
    pub trouble: Trouble,
    /// More about it, for the log of the operator alone. It holds no URL.
    pub cause: String,
}

/// A request, which is signed.
pub struct SignedRequest {
    /// Its signature and other headers of Standard Webhooks.
    pub headers: [(&'static str, String); 3],
    /// JSON.
    pub body: String,
}

tintype_domain::opaque_debug!(SignedRequest);

/// Sends requests to receivers.
#[derive(Debug)]
pub struct Receivers {
    owners: PublicClient,
    operators: PublicClient,
    operators_plain: PublicClient,
    time_limit: Duration,
}

impl Receivers {
    /// Makes the clients, without connecting.
    pub fn new(options: ReceiverOptions) -> Result<Self, SetupError> {
        let ReceiverOptions { networks, time_limit, lookup, trust } = options;
        let networks: Arc<[IpNet]> = networks.into();
        let client = |reach: AllowedAddresses, https_only: bool| -> Result<PublicClient, SetupError> {
            let exception = trust.as_ref().map(|trust| (trust.host.clone(), trust.address));
            let resolver = PublicResolver::new(lookup.clone(), exception).reaching(reach);
            let builder = client_builder(trust.as_ref().map(|trust| trust.ca_pem.as_slice()), Proxies::None)?;
            Ok(PublicClient::new(builder.https_only(https_only), resolver)?)
        };
        Ok(Self {
            owners: client(AllowedAddresses::Public, true)?,
            operators: client(AllowedAddresses::PublicAnd(networks.clone()), true)?,
            operators_plain: client(AllowedAddresses::Only(networks.clone()), false)?,
            time_limit,
        })
    }

    fn client(&self, endpoint: &Endpoint) -> &PublicClient {
        match (endpoint.added_by, endpoint.url.is_https()) {
            (AddedBy::Operator, true) => &self.operators,
            (AddedBy::Operator, false) => &self.operators_plain,
            (AddedBy::Owner, _) => &self.owners,
        }
    }

    /// Sends a request to an endpoint, and reads the header of the answer.
    pub async fn send(&self, endpoint: &Endpoint, signed: SignedRequest) -> Result<ReceiverAnswer, NoAnswer> {
        let mut request = Request::new(Method::POST, endpoint.url.url().clone());
        *request.headers_mut() = headers(&signed.headers)
            .ok_or_else(|| NoAnswer { trouble: Trouble::Unreachable, cause: "a header cannot be sent".into() })?;
        *request.body_mut() = Some(signed.body.into());
        let sent = tokio::time::timeout(self.time_limit, self.client(endpoint).send(request)).await;
        let answer = match sent {
            Err(_) => {
                let cause = format!("no answer within {:?}", self.time_limit);
                return Err(NoAnswer { trouble: Trouble::Timeout, cause });
            }
            Ok(Err(error)) => {
                let trouble = if error.is_of_address() { Trouble::Address } else { Trouble::Unreachable };
                return Err(NoAnswer { trouble, cause: error.to_string() });
            }
            Ok(Ok(answer)) => answer,
        };
        // The answer is dropped, and with it the connection.
        Ok(ReceiverAnswer { status: answer.status().as_u16(), retry_after: asked_wait(answer.headers()) })
    }
}

/// Whether an endpoint of the operator could ever be reached, judging by its URL. `networks` are those that the
/// operator has named.
pub fn is_reachable(url: &EndpointUrl, networks: &[IpNet]) -> bool {
    let named = |address: IpAddr| networks.iter().any(|network| network.contains(&address));
    let at = |address: IpAddr| named(address) || (url.is_https() && is_public(address));
    match url.url().host() {
        Some(Host::Ipv4(address)) => at(address.into()),
        Some(Host::Ipv6(address)) => at(address.into()),
        Some(Host::Domain("localhost")) => named(Ipv4Addr::LOCALHOST.into()) || named(Ipv6Addr::LOCALHOST.into()),
        _ => url.is_https() || !networks.is_empty(),
    }
}

fn headers(signed: &[(&'static str, String)]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in signed {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_reached_in_public_by_https_and_in_named_networks() {
        for (url, without, with) in [
            ("https://example.com/hooks", true, true),
            ("http://example.com/hooks", false, true),
            ("https://93.184.215.14/", true, true),
            ("http://93.184.215.14/", false, false),
            ("https://localhost/", false, true),
            ("https://127.0.0.1:9/", false, true),
            ("http://127.0.0.1:9/", false, true),
            ("https://[::1]/", false, false),
            ("https://10.0.0.1/", false, false),
        ] {
            let url: EndpointUrl = url.parse().expect("a URL");
            let named = ["127.0.0.0/8".parse().expect("a network")];
            assert_eq!((is_reachable(&url, &[]), is_reachable(&url, &named)), (without, with), "{url:?}");
        }
    }
}
