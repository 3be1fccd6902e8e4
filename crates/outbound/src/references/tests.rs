//! Cases that need a scripted DNS. `tests/it` downloads from a real server.

use std::io;
use std::net::TcpListener;

use futures::FutureExt as _;

use super::slots::{MAX_PER_ACCOUNT, MAX_PER_HOST, Slots};
use super::{FaultKind, FetchError, MAX_ALL_DOWNLOADS, ReferenceFault, ReferenceOptions, References};
use crate::public::tests::{PUBLIC_V4, PUBLIC_V6, ScriptedDns};
use tintype_domain::model::Id;
use tintype_domain::reference_url::ReferenceUrl;
use tintype_system::clock::Timestamp;
use tintype_system::sandbox::DecodeError;

/// A listener that must not get any connection.
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

    /// The kernel completes connections on its own, so any connection made waits in the listener's queue.
    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(self.listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "somebody connected");
    }
}

async fn fetch_from_trap(answers: &[&[&str]]) {
    let trap = Trap::new();
    let script = ScriptedDns::new(answers);
    let options = ReferenceOptions { ports: vec![trap.port()], ..ReferenceOptions::default() };
    let url = ReferenceUrl::parse(&format!("https://rebind.example:{}/a.png", trap.port()), &options.ports).unwrap();
    let references = References::with_lookup(options, script.clone()).unwrap();

    let fault = references.fetch(&[url]).await.unwrap_err();

    assert_eq!(fault, ReferenceFault { index: 0, kind: FaultKind::Unreachable });
    assert_eq!(script.answers_left(), 0, "looked up once");
    trap.assert_untouched();
}

#[tokio::test]
async fn only_a_name_with_addresses_that_are_all_public_is_dialled() {
    fetch_from_trap(&[]).await;
    for addresses in [
        &[][..],
        &["127.0.0.1"],
        &["::ffff:127.0.0.1"],
        &["0.0.0.0"],
        &["127.0.0.1", PUBLIC_V4],
        &[PUBLIC_V4, "127.0.0.1"],
        &[PUBLIC_V6, "127.0.0.1"],
        &[PUBLIC_V4, "::1"],
    ] {
        fetch_from_trap(&[addresses]).await;
    }
}

#[tokio::test]
async fn the_logged_error_holds_the_cause_and_not_the_query() {
    let url = ReferenceUrl::parse("https://rebind.example/a.png?signature=secret", &[443]).unwrap();
    let references = References::with_lookup(ReferenceOptions::default(), ScriptedDns::new(&[&["10.1.2.3"]])).unwrap();
    let slot = references.hosts.take(url.host()).await;
    let error = references.download(&url, slot).await.unwrap_err().to_string();
    assert!(error.contains("10.1.2.3, which is not public"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_host_has_few_slots_and_is_forgotten_when_they_are_free() {
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
    assert_eq!(hosts.len(), 1, "only the last host");
}

#[tokio::test]
async fn an_account_with_all_its_downloads_waits_while_other_accounts_go_on() {
    let script = ScriptedDns::new(&[&["10.1.2.3"], &["10.1.2.3"]]);
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
fn a_decoder_that_was_killed_says_nothing_about_the_picture() {
    assert!(matches!(FetchError::from(DecodeError::Killed).kind(), FaultKind::Unexamined));
}

#[test]
fn a_reference_fault_names_the_entry_in_a_message() {
    let message = |index, kind| ReferenceFault { index, kind }.to_string();
    assert_eq!(message(1, FaultKind::Unreachable), "reference_images[1] could not be downloaded.");
    assert_eq!(message(0, FaultKind::TooLarge), "reference_images[0] is too large.");
    assert_eq!(message(3, FaultKind::NotAnImage), "reference_images[3] is not a PNG, JPEG or WebP image.");
    assert_eq!(message(1, FaultKind::Damaged), "reference_images[1] is a damaged image.");
    assert_eq!(message(2, FaultKind::Unexamined), "reference_images[2] could not be examined.");
}
