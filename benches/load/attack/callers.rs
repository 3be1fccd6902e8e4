//! Legitimate callers whose latency is measured. They send at fixed times, with or without an attack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::generator::{Answer, SILENCE, histogram, now, sleep_until};
use crate::subjects::{TASKS, get, post};

/// Connections of the callers.
const CONNECTIONS: u32 = 8;
/// Interval between requests on each connection: 400 per second in total.
const EVERY: Duration = Duration::from_millis(20);
/// The worker fails this task at once, so that rendering takes no CPU time from the measurement.
const SUBMIT: &str = r#"{"prompt":"[[fail]]"}"#;
/// Longest expected response, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// Callers with valid keys. Each submits a task, polls until it has ended, lists its tasks and starts over.
#[derive(Debug, Clone)]
pub struct Callers {
    pub address: SocketAddr,
    pub keys: Vec<String>,
    /// TLS settings if the server uses HTTPS.
    pub tls: Option<Arc<ClientConfig>>,
}

/// Results of the callers.
#[derive(Debug)]
pub struct Calls {
    /// Nanoseconds from request to response.
    pub latencies: Histogram<u64>,
    /// Tasks that ended according to a poll.
    pub ended: u64,
}

impl Calls {
    /// Creates empty results.
    pub fn none() -> Self {
        Self { latencies: histogram(), ended: 0 }
    }

    /// Adds other results.
    pub fn add(&mut self, other: &Self) {
        self.latencies += &other.latencies;
        self.ended += other.ended;
    }
}

/// Next step of a caller.
enum Step {
    Submit,
    Poll(String),
    List,
}

impl Callers {
    /// Calls for `length` over new connections.
    ///
    /// # Errors
    /// A response with a status other than 200, or no response.
    pub fn run(&self, length: Duration) -> io::Result<Calls> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS).map(|index| scope.spawn(move || self.call(index, length))).collect();
            let mut all = Calls::none();
            for thread in threads {
                all.add(&thread.join().map_err(|_| io::Error::other("a caller panicked"))??);
            }
            Ok(all)
        })
    }

    /// Sends over one connection. The latency of a request that was delayed by the response before it counts from the
    /// time at which it was due.
    fn call(&self, index: u32, length: Duration) -> io::Result<Calls> {
        let key = &self.keys[index as usize % self.keys.len()];
        let mut calls = Calls::none();
        let mut stream = self.connect()?;
        let mut step = Step::Submit;
        let start = now() + EVERY * index / CONNECTIONS;
        let due = (0_u32..).map(|turn| start + EVERY * turn).take_while(|due| *due < start + length);
        for due in due {
            let from = wait_for(due);
            let request = match &step {
                Step::Submit => post(key, SUBMIT),
                Step::Poll(task) => get(&format!("{TASKS}/{task}"), key),
                Step::List => get(TASKS, key),
            };
            let answer = exchange(&mut stream, &request)?;
            calls.latencies.saturating_record((now() - from).as_nanos() as u64);
            step = match step {
                Step::Submit => Step::Poll(task_id(&answer).ok_or(io::ErrorKind::InvalidData)?.to_owned()),
                Step::Poll(task) if answer.contains(r#""status":"processing""#) => Step::Poll(task),
                Step::Poll(_) => {
                    calls.ended += 1;
                    Step::List
                }
                Step::List => Step::Submit,
            };
        }
        Ok(calls)
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let session = ClientConnection::new(tls.clone(), name).map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Waits until a request is due; returns the time from which its latency counts. A late wake-up of this thread does not
/// count against the service.
fn wait_for(due: Instant) -> Instant {
    if now() >= due {
        return due;
    }
    sleep_until(due);
    now()
}

/// Sends a request and reads the whole response.
fn exchange(stream: &mut Box<dyn Stream>, request: &[u8]) -> io::Result<String> {
    stream.write_all(request)?;
    let (mut buffer, mut filled) = (vec![0; MAX_ANSWER], 0);
    loop {
        match stream.read(&mut buffer[filled..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
        let Some(answer) = Answer::parse(&buffer[..filled])? else { continue };
        let text = String::from_utf8_lossy(&buffer[..filled]).into_owned();
        return if answer.status == *b"200" { Ok(text) } else { Err(io::Error::other(text)) };
    }
}

fn task_id(answer: &str) -> Option<&str> {
    answer.split_once(r#""task_id":""#)?.1.split('"').next()
}
