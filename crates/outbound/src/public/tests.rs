use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use reqwest::{Method, Request};

use super::{
    AllowedAddresses, Lookup, MAX_LOOKUPS, PublicClient, PublicResolver, ResolveError, SendError, SystemLookup,
};
use crate::{Proxies, client_builder};

pub(crate) const PUBLIC_V4: &str = "93.184.215.14";
pub(crate) const PUBLIC_V6: &str = "2606:2800:21f:cb07:6820:80da:af6b:8b2c";

/// Gives prepared answers, one per look-up, and then fails.
pub(crate) struct ScriptedDns {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
}

impl ScriptedDns {
    pub(crate) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        Arc::new(Self { answers: Mutex::new(answers.iter().map(parse).collect()) })
    }

    pub(crate) fn answers_left(&self) -> usize {
        self.answers.lock().unwrap().len()
    }
}

#[async_trait]
impl Lookup for ScriptedDns {
    async fn lookup(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        self.answers.lock().unwrap().pop_front().ok_or_else(|| io::Error::other("no such name"))
    }
}

#[tokio::test]
async fn the_checked_addresses_are_the_dialled_ones() {
    let script = ScriptedDns::new(&[&[PUBLIC_V4, PUBLIC_V6], &["127.0.0.1"]]);
    let resolver = PublicResolver::new(script.clone(), None);

    let addresses = resolver.addresses("rebind.example").await.unwrap();
    let expected: Vec<SocketAddr> =
        [PUBLIC_V4, PUBLIC_V6].map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).into_iter().collect();
    assert_eq!(addresses, expected);
    assert_eq!(script.answers_left(), 1, "one look-up");

    // The next connection resolves again, and the name has moved to a loopback address.
    let moved = resolver.addresses("rebind.example").await.unwrap_err();
    assert!(matches!(moved, ResolveError::NotPublic(ip) if ip.is_loopback()), "{moved}");
}

#[tokio::test]
async fn names_of_the_hosts_file_are_known_where_the_operator_names_networks() {
    let lookup = Arc::new(SystemLookup::with(|name| match name {
        "receiver.lan" => Ok(vec!["10.0.0.7".parse().unwrap()]),
        _ => Err(io::Error::other("no such name")),
    }));
    let resolver = PublicResolver::new(lookup, None);
    let error = resolver.addresses("receiver.lan").await.unwrap_err();
    assert!(matches!(error, ResolveError::Lookup(_)), "{error}");
    let networks = |network: &str| Arc::from(vec![network.parse().unwrap()]);
    let named = resolver.clone().reaching(AllowedAddresses::PublicAnd(networks("10.0.0.0/8")));
    assert_eq!(named.addresses("receiver.lan").await.unwrap(), ["10.0.0.7:0".parse().unwrap()]);
    let other = resolver.reaching(AllowedAddresses::Only(networks("192.168.0.0/16")));
    let error = other.addresses("receiver.lan").await.unwrap_err();
    assert!(matches!(error, ResolveError::NotPublic(_)), "{error}");
}

#[test]
fn a_peer_that_is_not_public_is_refused() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let resolver = PublicResolver::new(ScriptedDns::new(&[]), Some(("test.example".into(), address("127.0.0.1:4433"))));
    assert!(resolver.may_reach("x.example", address("93.184.215.14:443")));
    assert!(resolver.may_reach("TEST.example", address("127.0.0.1:4433")));
    assert!(!resolver.may_reach("test.example", address("127.0.0.1:22")));
    assert!(!resolver.may_reach("x.example", address("127.0.0.1:4433")));
    assert!(!resolver.may_reach("x.example", address("[::ffff:93.184.215.14]:443")));
}

#[tokio::test]
async fn no_address_of_this_machine_is_dialled() {
    let own: fn() -> io::Result<Vec<IpAddr>> = || Ok(vec![PUBLIC_V4.parse().unwrap(), PUBLIC_V6.parse().unwrap()]);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let resolver =
        PublicResolver::new(ScriptedDns::new(&[&[PUBLIC_V4], &["8.8.8.8", PUBLIC_V6]]), None).on_machine(own);
    for found in ["93.184.215.14", "2606:2800"] {
        let error = resolver.addresses("x.example").await.unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
    }
    assert!(!resolver.may_reach("x.example", address("93.184.215.14:443")));
    assert!(resolver.may_reach("x.example", address("93.184.215.15:443")));

    // Without a list of interfaces nothing is dialled.
    let blind = resolver.clone().on_machine(|| Err(io::Error::other("no list")));
    assert!(!blind.may_dial("8.8.8.8".parse().unwrap()));
}

#[test]
fn the_interfaces_of_this_machine_are_listed() {
    let resolver = PublicResolver::new(ScriptedDns::new(&[]), None);
    assert!(resolver.may_dial("8.8.8.8".parse().unwrap()), "the list exists and holds only own addresses");
}

#[tokio::test]
async fn look_ups_that_hang_are_bounded() {
    static ANSWERED: OnceLock<()> = OnceLock::new();
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let lookup = Arc::new(SystemLookup::with(|_| {
        ASKED.fetch_add(1, Ordering::SeqCst);
        ANSWERED.wait();
        Ok(vec![])
    }));
    let mut waiting = Vec::new();
    for _ in 0..3 * MAX_LOOKUPS {
        let lookup = lookup.clone();
        waiting.push(tokio::spawn(async move { lookup.lookup("x.example").await.map(drop) }));
    }
    while ASKED.load(Ordering::SeqCst) < MAX_LOOKUPS {
        tokio::task::yield_now().await;
    }
    // Cancelled look-ups keep their threads, so no further look-up begins.
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let late = tokio::spawn(async move { lookup.lookup("x.example").await.map(drop) });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ASKED.load(Ordering::SeqCst), MAX_LOOKUPS);
    ANSWERED.set(()).unwrap();
    late.await.unwrap().unwrap();
    assert_eq!(ASKED.load(Ordering::SeqCst), MAX_LOOKUPS + 1);
}

#[tokio::test]
async fn a_literal_address_of_this_machine_is_not_dialled() {
    let own: fn() -> io::Result<Vec<IpAddr>> = || Ok(vec![PUBLIC_V4.parse().unwrap(), PUBLIC_V6.parse().unwrap()]);
    let resolver = PublicResolver::new(ScriptedDns::new(&[]), None).on_machine(own);
    let client = PublicClient::new(client_builder(None, Proxies::None).unwrap(), resolver).unwrap();
    for host in [PUBLIC_V4, &format!("[{PUBLIC_V6}]")] {
        let request = Request::new(Method::GET, format!("https://{host}/a.png").parse().unwrap());
        assert!(matches!(client.send(request).await, Err(SendError::Literal(_))), "{host}");
    }
}
