//! Calls of OpenAI's dialect share slots, memory and encoders fairly between accounts.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::rigs::http::GENERATIONS;
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;

pub const BODY: &str = r#"{"prompt": "a boat"}"#;

#[tokio::test]
async fn retries_share_one_slot() {
    let (service, caller) = Service::with_caller(&[], 2).await;
    let repeat = || caller.generations(&[("idempotency-key", "order 66")], BODY);
    let work = async {
        service.waiting(5).await;
        assert_eq!(service.shared.endings.waiters.slots(), 1);
        service.work().await;
    };
    let (first, second, third, fourth, fifth, ()) =
        tokio::join!(repeat(), repeat(), repeat(), repeat(), repeat(), work);
    assert!([&first, &second, &third, &fourth, &fifth].iter().all(|answer| answer.status == 200));
    assert_eq!((first.json(), caller.credits().await), (fifth.json(), 0));
}

/// Sends a call with an idempotency key and reads the beginning of its answer.
async fn begin(caller: &Caller, body: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut stream = socket.connect(caller.service.address).await.expect("the service listens");
    let request = format!(
        "POST {GENERATIONS} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\nidempotency-key: order 66\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        caller.authorization(),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("the service reads");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn slow_readers_of_a_repeated_call_hold_its_seats_and_memory_until_they_go() {
    let (service, [ada, bob]) = Service::with_callers(&[], ["ada", "bob"], 2).await;
    let (memory, waiters) = (service.api.encoder.memory(), &service.shared.endings.waiters);
    let whole = service.worked(ada.generations(&[("idempotency-key", "order 66")], BODY)).await;
    assert_eq!(whole.json()["data"].as_array().expect("pictures").len(), 1);
    until(async || memory.used() == 0).await;
    let mut readers = Vec::new();
    for _ in 0..24 {
        readers.push(begin(&ada, BODY).await);
    }
    assert_eq!((memory.used(), waiters.slots()), (24 * whole.body.len(), 3));
    assert_eq!(service.worked(bob.generations(&[], BODY)).await.status, 200);
    drop(readers);
    until(async || (memory.used(), waiters.slots()) == (0, 0)).await;
}
