//! Receivers that answer slowly, never, or with a trap, and addresses that nobody may reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tintype::service::webhooks::Deliverer;
use tintype_domain::endpoint::{AddedBy, DeliveryState, EndpointState, Trouble};
use tintype_domain::model::Id;
use tintype_outbound::public::Lookup;
use tintype_outbound::receivers::{ReceiverOptions, Receivers};
use tintype_outbound::references::TrustedTestHost;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::delivery::told;
use super::{NETWORK, add, deliveries, found};
use crate::rigs::certificates::certificate;
use crate::rigs::ports::Port;
use crate::rigs::receiver::{Receiver, Reply};
use crate::rigs::service::Service;

fn options() -> ReceiverOptions {
    ReceiverOptions::reaching(&["127.0.0.0/8".parse().expect("a network")])
}

/// Clients with another time limit.
pub fn receivers(time_limit: Duration) -> Receivers {
    Receivers::new(ReceiverOptions { time_limit, ..options() }).expect("clients")
}

#[derive(Default)]
struct Dns(Mutex<Vec<IpAddr>>);

#[async_trait]
impl Lookup for Dns {
    async fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(self.0.lock().expect("no panic").clone())
    }
}

impl Dns {
    fn answer(&self, addresses: &[&str]) {
        *self.0.lock().expect("no panic") = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
    }
}

/// Sends a test to a new endpoint of the account, by this deliverer. Returns the trouble, or the status.
async fn attempt(
    service: &Service,
    account: Id,
    deliverer: &Arc<Deliverer>,
    url: &str,
    added_by: AddedBy,
) -> Result<u16, Trouble> {
    let (endpoint, _) = add(&service.shared.store, account, url, added_by).await.expect("a store");
    service.shared.store.test_endpoint(endpoint.id).await.expect("a store").expect("a delivery");
    assert_eq!(deliverer.step().await.expect("a store"), 1);
    let [delivery] = &deliveries(service, endpoint.id).await[..] else { panic!("one delivery") };
    service.shared.store.remove_endpoint(endpoint.id).await.expect("a store");
    delivery.trouble.map_or_else(|| Ok(delivery.status.expect("an answer")), Err)
}

#[tokio::test]
async fn networks_are_judged_at_each_delivery() {
    let (service, receiver) = (Service::start().await, Receiver::start().await);
    let ada = service.caller("ada", 100).await.account.id;
    let port = receiver.address.port();
    let url = receiver.url();
    let (any, owner, operator) = (service.deliverer.clone(), AddedBy::Owner, AddedBy::Operator);
    let named = Deliverer::new(service.shared.clone(), receivers(Duration::from_secs(15)));
    // Nobody reaches a network that the operator has not named, and an owner none that is not public. An owner does not
    // learn that this is why.
    for (deliverer, added_by, expected) in [
        (&any, operator, Err(Trouble::Address)),
        (&any, owner, Err(Trouble::Unreachable)),
        (&named, owner, Err(Trouble::Unreachable)),
        (&named, operator, Ok(204)),
    ] {
        assert_eq!(attempt(&service, ada, deliverer, &url, added_by).await, expected, "{added_by:?}");
    }
    assert_eq!(receiver.asked().len(), 1);
    for (url, added_by, expected) in [
        (format!("https://127.0.0.1:{port}/"), owner, Trouble::Unreachable),
        ("https://10.0.0.1/".into(), operator, Trouble::Address),
        ("https://[::1]/".into(), operator, Trouble::Address),
        (format!("http://[::1]:{port}/"), operator, Trouble::Address),
        (format!("http://2130706433:{port}/"), owner, Trouble::Unreachable),
        (format!("http://localhost:{port}/"), owner, Trouble::Unreachable),
        ("http://169.254.169.254/latest/meta-data".into(), operator, Trouble::Address),
        // Plain HTTP stays in the networks that the operator has named.
        ("http://93.184.215.14/".into(), operator, Trouble::Address),
        ("http://93.184.215.14/".into(), owner, Trouble::Unreachable),
        ("http://[::ffff:10.0.0.1]/".into(), operator, Trouble::Address),
    ] {
        assert_eq!(attempt(&service, ada, &named, &url, added_by).await, Err(expected), "{url}");
    }
    assert_eq!(receiver.asked().len(), 1);
}

#[tokio::test]
async fn a_name_that_moves_to_another_network_is_not_followed() {
    let (service, receiver) = (Service::start().await, Receiver::start().await);
    let ada = service.caller("ada", 100).await.account.id;
    let dns = Arc::new(Dns::default());
    let networks = vec!["127.0.0.1/32".parse().expect("a network")];
    let options = ReceiverOptions { networks, lookup: dns.clone(), ..options() };
    let deliverer = Deliverer::new(service.shared.clone(), Receivers::new(options).expect("clients"));
    let url = format!("http://hooks.example.com:{}/", receiver.address.port());
    for (answer, expected) in [
        (&["127.0.0.1"][..], Ok(204)),
        // Every address of 127.0.0.0/8 would reach the receiver.
        (&["127.0.0.2"], Err(Trouble::Address)),
        (&["127.0.0.1", "10.0.0.1"], Err(Trouble::Address)),
        (&["93.184.215.14"], Err(Trouble::Address)),
        (&[], Err(Trouble::Unreachable)),
        (&["127.0.0.1"], Ok(204)),
    ] {
        dns.answer(answer);
        assert_eq!(attempt(&service, ada, &deliverer, &url, AddedBy::Operator).await, expected, "{answer:?}");
    }
    assert_eq!(receiver.asked().len(), 2);
    // The endpoint of an owner, too.
    dns.answer(&["10.0.0.1"]);
    let url = "https://hooks.example.com/";
    assert_eq!(attempt(&service, ada, &deliverer, url, AddedBy::Owner).await, Err(Trouble::Unreachable));
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_not_followed() {
    let (service, receiver, ada, endpoint, _) = told(Service::start_with(&NETWORK).await).await;
    let trap = Receiver::start().await;
    ada.submit_prompt("a boat").await;
    service.work().await;
    for code in [301, 302, 303, 307, 308, 304] {
        receiver.reply([Reply::Whole(code, vec![("location", trap.url())], Vec::new())]);
        service.deliver().await;
        let delivery = deliveries(&service, endpoint.id).await.remove(0);
        assert_eq!((delivery.state(), delivery.status), (DeliveryState::Waiting, Some(code)));
        service.clock.set(delivery.next_attempt_at.expect("another attempt"));
    }
    assert_eq!((receiver.asked().len(), trap.asked().len()), (6, 0));
    service.deliver().await;
    assert_eq!(found(&service, endpoint.id).await.state(), EndpointState::Active);
}

#[tokio::test]
async fn answers_that_never_come_or_never_end_take_one_attempt() {
    let (service, receiver) = (Service::start_with(&NETWORK).await, Receiver::start().await);
    let ada = service.caller("ada", 100).await.account.id;
    let quick = Deliverer::new(service.shared.clone(), receivers(Duration::from_millis(200)));
    let usual = &service.deliverer;
    for (reply, deliverer, expected) in [
        (Reply::Silence, &quick, Err(Trouble::Timeout)),
        (Reply::HangUp, usual, Err(Trouble::Unreachable)),
        // The body of an answer is not read.
        (Reply::Endless, usual, Ok(200)),
        (Reply::Drip, usual, Ok(200)),
        (Reply::Truncated(b"{".to_vec()), usual, Ok(200)),
        (Reply::status(199), usual, Err(Trouble::Unreachable)),
        (Reply::Whole(500, vec![("retry-after", "x".repeat(100_000))], Vec::new()), usual, Ok(500)),
    ] {
        let shown = format!("{reply:.60?}");
        receiver.reply([reply]);
        let outcome = attempt(&service, ada, deliverer, &receiver.url(), AddedBy::Operator).await;
        assert_eq!(outcome, expected, "{shown}");
    }
    let unused = Port::take();
    let gone = format!("http://{}/", unused.address);
    assert_eq!(attempt(&service, ada, usual, &gone, AddedBy::Operator).await, Err(Trouble::Unreachable));
}

#[tokio::test]
async fn the_endpoint_of_an_owner_is_reached_by_https_whose_certificate_is_checked() {
    let service = Service::start().await;
    let ada = service.caller("ada", 100).await.account.id;
    let (tls, ca) = certificate("hooks.example.com");
    let (_, of_another) = certificate("hooks.example.com");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let mut head = vec![0; 4_096];
            let length = stream.read(&mut head).await.expect("a request");
            assert!(head[..length].starts_with(b"POST /hooks HTTP/1.1\r\n"));
            stream.write_all(b"HTTP/1.1 204 Done\r\n\r\n").await.expect("an answer");
        }
    });
    let deliverer = |ca_pem: String| {
        let host = "hooks.example.com".to_owned();
        let trust = Some(TrustedTestHost { host, address, ca_pem: ca_pem.into_bytes() });
        let receivers = Receivers::new(ReceiverOptions { trust, ..options() }).expect("clients");
        Deliverer::new(service.shared.clone(), receivers)
    };
    let (right, wrong) = (deliverer(ca), deliverer(of_another));
    let url = "https://hooks.example.com/hooks";
    assert_eq!(attempt(&service, ada, &right, url, AddedBy::Owner).await, Ok(204));
    assert_eq!(attempt(&service, ada, &wrong, url, AddedBy::Owner).await, Err(Trouble::Unreachable));
    let plain = "http://hooks.example.com/hooks";
    assert_eq!(attempt(&service, ada, &right, plain, AddedBy::Owner).await, Err(Trouble::Unreachable));
}
