//! What only a stand-in for the DNS can show. `tests/it` downloads from a real server.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use futures::FutureExt as _;

use super::resolver::{Lookup, MAX_LOOKUPS, PublicResolver, ResolveError, SystemLookup};
use super::slots::{MAX_PER_ACCOUNT, MAX_PER_HOST, Slots};
use super::{FaultKind, MAX_ALL_DOWNLOADS, ReferenceFault, ReferenceOptions, References};
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::domain::reference_url::ReferenceUrl;

const PUBLIC_V4: &str = "93.184.215.14";
const PUBLIC_V6: &str = "2606:2800:21f:cb07:6820:80da:af6b:8b2c";

/// Gives prepared answers, one per look-up, and then fails.
struct Script {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
}

impl Script {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        Arc::new(Self { answers: Mutex::new(answers.iter().map(parse).collect()) })
    }

    fn answers_left(&self) -> usize {
        self.answers.lock().unwrap().len()
    }
}

#[async_trait]
impl Lookup for Script {
    async fn lookup(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        self.answers.lock().unwrap().pop_front().ok_or_else(|| io::Error::other("no such name"))
    }
}

/// A listener that nobody may connect to.
struct Trap {
    listener: TcpListener,
}

impl Trap {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// The kernel completes connections to a listener by itself, so one that was made is waiting here.
    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(self.listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "somebody connected");
    }
}

async fn fetch_from_trap(answers: &[&[&str]]) {
    let trap = Trap::new();
    let script = Script::new(answers);
    let options = ReferenceOptions { ports: vec![trap.port()], ..ReferenceOptions::default() };
    let url = ReferenceUrl::parse(&format!("https://rebind.example:{}/a.png", trap.port()), &options.ports).unwrap();
    let references = References::with_lookup(options, script.clone()).unwrap();

    let fault = references.fetch(&[url]).await.unwrap_err();

    assert_eq!(fault, ReferenceFault { index: 0, kind: FaultKind::Unreachable });
    assert_eq!(script.answers_left(), 0, "looked up once");
    trap.assert_untouched();
}

#[tokio::test]
async fn a_name_with_a_loopback_address_is_not_dialled() {
    fetch_from_trap(&[&["127.0.0.1"]]).await;
    fetch_from_trap(&[&["::ffff:127.0.0.1"]]).await;
    fetch_from_trap(&[&["0.0.0.0"]]).await;
}

#[tokio::test]
async fn one_bad_address_among_good_ones_is_enough() {
    fetch_from_trap(&[&["127.0.0.1", PUBLIC_V4]]).await;
    fetch_from_trap(&[&[PUBLIC_V4, "127.0.0.1"]]).await;
    fetch_from_trap(&[&[PUBLIC_V6, "127.0.0.1"]]).await;
    fetch_from_trap(&[&[PUBLIC_V4, "::1"]]).await;
}

#[tokio::test]
async fn names_without_addresses_are_refused() {
    fetch_from_trap(&[]).await;
    fetch_from_trap(&[&[]]).await;
}

#[tokio::test]
async fn the_log_gets_the_reason_but_not_the_query() {
    let url = ReferenceUrl::parse("https://rebind.example/a.png?signature=secret", &[443]).unwrap();
    let references = References::with_lookup(ReferenceOptions::default(), Script::new(&[&["10.1.2.3"]])).unwrap();
    let slot = references.hosts.take(url.host()).await;
    let error = references.download(&url, slot).await.unwrap_err().to_string();
    assert!(error.contains("10.1.2.3, which is not public"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[tokio::test]
async fn what_was_checked_is_what_is_dialled() {
    let script = Script::new(&[&[PUBLIC_V4, PUBLIC_V6], &["127.0.0.1"]]);
    let resolver = PublicResolver::new(script.clone(), None);

    let addresses = resolver.addresses("rebind.example").await.unwrap();
    let expected: Vec<SocketAddr> =
        [PUBLIC_V4, PUBLIC_V6].map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).into_iter().collect();
    assert_eq!(addresses, expected);
    assert_eq!(script.answers_left(), 1, "the second answer was not asked for");

    // The next connection asks again, and the name has moved inside.
    let moved = resolver.addresses("rebind.example").await.unwrap_err();
    assert!(matches!(moved, ResolveError::NotPublic(ip) if ip.is_loopback()), "{moved}");
}

#[test]
fn a_peer_that_is_not_public_is_refused() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let resolver = PublicResolver::new(Script::new(&[]), Some(("test.example".into(), address("127.0.0.1:4433"))));
    assert!(resolver.may_reach("x.example", address("93.184.215.14:443")));
    assert!(resolver.may_reach("TEST.example", address("127.0.0.1:4433")));
    assert!(!resolver.may_reach("test.example", address("127.0.0.1:22")));
    assert!(!resolver.may_reach("x.example", address("127.0.0.1:4433")));
    assert!(!resolver.may_reach("x.example", address("[::ffff:93.184.215.14]:443")));
}

#[tokio::test]
async fn this_machine_is_not_dialled_by_any_of_its_addresses() {
    let own: fn() -> io::Result<Vec<IpAddr>> = || Ok(vec![PUBLIC_V4.parse().unwrap(), PUBLIC_V6.parse().unwrap()]);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let resolver = PublicResolver::new(Script::new(&[&[PUBLIC_V4], &["8.8.8.8", PUBLIC_V6]]), None).on_machine(own);
    for found in ["93.184.215.14", "2606:2800"] {
        let error = resolver.addresses("x.example").await.unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
    }
    assert!(!resolver.may_reach("x.example", address("93.184.215.14:443")));
    assert!(resolver.may_reach("x.example", address("93.184.215.15:443")));

    // When they cannot be told, nothing is dialled.
    let blind = resolver.clone().on_machine(|| Err(io::Error::other("no list")));
    assert!(!blind.may_dial("8.8.8.8".parse().unwrap()));

    // A literal goes past the resolver.
    let mut references = References::with_lookup(ReferenceOptions::default(), Script::new(&[])).unwrap();
    references.resolver = resolver;
    for host in [PUBLIC_V4, &format!("[{PUBLIC_V6}]")] {
        let url = ReferenceUrl::parse(&format!("https://{host}/a.png"), &[443]).unwrap();
        assert!(matches!(references.ask(&url).await, Err(super::FetchError::Literal(_))), "{host}");
    }
}

#[test]
fn the_interfaces_of_this_machine_are_listed() {
    let resolver = PublicResolver::new(Script::new(&[]), None);
    assert!(resolver.may_dial("8.8.8.8".parse().unwrap()), "a list, without an address that is not here");
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
    // Giving up on them frees no thread, so it lets nobody in either.
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
async fn a_host_has_few_slots_and_is_forgotten_afterwards() {
    let hosts = Slots::<String>::new(MAX_PER_HOST);
    let mut held = Vec::new();
    for _ in 0..MAX_PER_HOST {
        held.push(hosts.take("a.example").await);
    }
    assert!(hosts.take("a.example").now_or_never().is_none(), "all taken");
    let other = hosts.take("b.example").now_or_never().expect("another host has its own");
    held.pop();
    held.push(hosts.take("a.example").now_or_never().expect("one given back"));
    assert_eq!(hosts.len(), 2);
    drop((held, other));
    drop(hosts.take("c.example").await);
    assert_eq!(hosts.len(), 1, "only who was asked for last");
}

#[tokio::test]
async fn an_account_that_has_its_part_of_the_downloads_waits_and_others_do_not() {
    let script = Script::new(&[&["10.1.2.3"], &["10.1.2.3"]]);
    let references = References::with_lookup(ReferenceOptions::default(), script.clone()).unwrap();
    let urls = [ReferenceUrl::parse("https://rebind.example/a.png", &[443]).unwrap()];
    let [busy, other] = [1, 2].map(|millis| Id::floor(Timestamp::from_millis(millis)));
    let mut held = Vec::new();
    for _ in 0..MAX_PER_ACCOUNT {
        held.push(references.accounts.take(busy).await);
    }
    let mut waiting = std::pin::pin!(references.fetch_for(busy, &urls));
    assert!(futures::future::poll_immediate(&mut waiting).await.is_none());
    assert_eq!((references.hosts.len(), references.downloads.available_permits()), (0, MAX_ALL_DOWNLOADS));

    references.fetch_for(other, &urls).await.unwrap_err();
    assert_eq!(script.answers_left(), 1, "the other's name was looked up");
    held.pop();
    waiting.await.unwrap_err();
    assert_eq!(script.answers_left(), 0);
}

#[test]
fn faults_are_sentences() {
    let sentence = |index, kind| ReferenceFault { index, kind }.to_string();
    assert_eq!(sentence(1, FaultKind::Unreachable), "reference_images[1] could not be downloaded.");
    assert_eq!(sentence(0, FaultKind::TooLarge), "reference_images[0] is too large.");
    assert_eq!(sentence(3, FaultKind::NotAnImage), "reference_images[3] is not a PNG, JPEG or WebP image.");
    assert_eq!(sentence(2, FaultKind::Unexamined), "reference_images[2] could not be examined.");
}
