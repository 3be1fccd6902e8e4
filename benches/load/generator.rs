//! The load generator: each connection sends its next request as soon as it has the response to the last one.
//!
//! A few epoll threads drive the connections. They share the machine with the service under test, so they do as little
//! as possible: they send prepared requests and parse only the status and the length of a response.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// Largest response, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// A service that sends nothing for this long has failed.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Load before the measurement starts.
const WARM_UP: Duration = Duration::from_millis(200);

/// Requests and their destination. Connection `i` repeats request `i` modulo the number of requests.
#[derive(Debug, Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub requests: Vec<Bytes>,
}

/// Result of a measurement.
pub struct Window {
    /// Responses within the measured time.
    pub answers: u64,
    /// All responses, including those before and after the measured time.
    pub total: u64,
    /// Responses with a status other than 200.
    pub errors: u64,
    /// The measured time.
    pub length: Duration,
    /// CPU time of this process in the measured time, for the service and the load generator together.
    pub cpu: Duration,
    /// Nanoseconds from request to response.
    pub latencies: Histogram<u64>,
}

impl Window {
    fn new(length: Duration) -> Self {
        Self { answers: 0, total: 0, errors: 0, length, cpu: Duration::ZERO, latencies: histogram() }
    }

    fn add(&mut self, share: Self) {
        self.answers += share.answers;
        self.total += share.total;
        self.errors += share.errors;
        self.latencies += share.latencies;
    }

    /// Responses per second.
    pub fn rate(&self) -> f64 {
        self.answers as f64 / self.length.as_secs_f64()
    }

    /// CPU time per response, in microseconds.
    pub fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.answers as f64
    }
}

/// The monotonic time.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

impl Load {
    /// Sends over `connections` connections for `length` after a warm-up, then waits for the last responses.
    ///
    /// # Errors
    /// The service closed a connection, stopped sending or sent an invalid response.
    pub fn run(&self, connections: usize, length: Duration) -> io::Result<Window> {
        let from = now() + WARM_UP;
        let until = from + length;
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(connections);
        thread::scope(|scope| {
            let share = |thread| (thread..connections).step_by(threads);
            let shares: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || self.run_share(share(thread), from, until))).collect();
            sleep_until(from);
            let cpu_at_start = cpu_time();
            sleep_until(until);
            let mut window = Window::new(length);
            window.cpu = cpu_time().saturating_sub(cpu_at_start);
            for share in shares {
                window.add(share.join().map_err(|_| io::Error::other("a generator panicked"))??);
            }
            Ok(window)
        })
    }

    /// Drives some of the connections on one thread.
    fn run_share(&self, connections: impl Iterator<Item = usize>, from: Instant, until: Instant) -> io::Result<Window> {
        let mut poll = Poll::new()?;
        let mut open = Vec::new();
        for (token, index) in connections.enumerate() {
            open.push(self.connect(&poll, token, index)?);
        }
        let mut events = Events::with_capacity(open.len());
        let mut window = Window::new(until - from);
        let mut outstanding = open.len();
        while outstanding > 0 {
            wait(&mut poll, &mut events)?;
            for event in &events {
                let Token(token) = event.token();
                let connection = &mut open[token];
                let Some(answer) = connection.receive()? else { continue };
                let arrived = now();
                window.total += 1;
                window.errors += u64::from(answer.status != *b"200");
                if arrived >= until {
                    outstanding -= 1;
                    continue;
                }
                if arrived >= from {
                    window.answers += 1;
                    window.latencies.saturating_record((arrived - connection.sent).as_nanos() as u64);
                }
                connection.send(arrived)?;
            }
        }
        Ok(window)
    }

    fn connect(&self, poll: &Poll, token: usize, index: usize) -> io::Result<Connection> {
        let stream = std::net::TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(token), Interest::READABLE)?;
        let request = self.requests[index % self.requests.len()].clone();
        let mut connection = Connection { stream, request, sent: now(), buffer: vec![0; MAX_ANSWER], filled: 0 };
        connection.send(now())?;
        Ok(connection)
    }

    /// Sends the first request once and returns the head and the body of the response.
    ///
    /// # Errors
    /// As [`Load::run`], or the status is not 200.
    pub fn once(&self) -> io::Result<(Bytes, Bytes)> {
        let mut poll = Poll::new()?;
        let mut connection = self.connect(&poll, 0, 0)?;
        let mut events = Events::with_capacity(1);
        loop {
            wait(&mut poll, &mut events)?;
            if let Some(answer) = connection.receive()? {
                let bytes = Bytes::copy_from_slice(&connection.buffer[..answer.length]);
                let (head, body) = (bytes.slice(..answer.head), bytes.slice(answer.head..));
                if answer.status != *b"200" {
                    return Err(io::Error::other(String::from_utf8_lossy(&bytes).into_owned()));
                }
                return Ok((head, body));
            }
        }
    }
}

/// CPU time of all threads of this process. On a shared machine it is more telling than elapsed time.
fn cpu_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Sleeps until `moment`, unless it has passed.
pub fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(now()));
}

fn wait(poll: &mut Poll, events: &mut Events) -> io::Result<()> {
    match poll.poll(events, Some(SILENCE)) {
        Ok(()) if events.is_empty() => Err(io::Error::new(io::ErrorKind::TimedOut, "the service stopped responding")),
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Creates a histogram of nanoseconds, up to a minute.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

struct Connection {
    stream: TcpStream,
    request: Bytes,
    sent: Instant,
    buffer: Vec<u8>,
    filled: usize,
}

/// Status and layout of a complete response.
#[derive(Clone, Copy)]
pub struct Answer {
    pub status: [u8; 3],
    pub head: usize,
    pub length: usize,
}

impl Connection {
    fn send(&mut self, at: Instant) -> io::Result<()> {
        self.filled = 0;
        self.sent = at;
        // The response to the previous request has arrived, so the socket buffer has room for this one.
        if self.stream.write(&self.request)? == self.request.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Reads available bytes; returns `None` until the response is complete.
    fn receive(&mut self) -> io::Result<Option<Answer>> {
        loop {
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(answer) = Answer::parse(&self.buffer[..self.filled])? {
                return Ok(Some(answer));
            }
        }
    }
}

impl Answer {
    /// Parses a response; returns `None` until it is complete.
    ///
    /// # Errors
    /// The bytes are not an HTTP response.
    pub fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        const LENGTH: &[u8] = b"content-length: ";
        let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let head = end + 4;
        let status = bytes[..head].get(9..12).and_then(|status| status.try_into().ok());
        let digits = find(&bytes[..head], LENGTH).map(|at| &bytes[at + LENGTH.len()..]);
        let body = digits.map(|digits| {
            let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
        });
        let (Some(status), Some(body)) = (status, body) else { return Err(io::ErrorKind::InvalidData.into()) };
        let length = head + body;
        Ok((bytes.len() >= length).then_some(Self { status, head, length }))
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
