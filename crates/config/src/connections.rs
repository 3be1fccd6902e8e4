//! Limits on connections and requests.

use std::time::Duration;

/// Largest request body, in bytes. The longest prompt and four reference URLs fit, even with every character escaped: 32,000
/// times twelve bytes, such as `\ud83e\udd8a`, and 4 x 4,096 times six.
pub const MAX_BODY: usize = 512 * 1024;
/// Largest picture that a person uploads, in bytes.
pub const MAX_UPLOAD: u64 = 20 * 1024 * 1024;
/// Largest body of an edit with pictures, in bytes: four of the largest pictures in base64, in which a slash may take two
/// bytes, and as much again as any other body. A mask counts among the pictures here.
pub const MAX_EDIT_BODY: u64 = 4 * MAX_UPLOAD * 3 / 2 + 2 * MAX_BODY as u64;
/// Fewest bytes of an upload that arrive in a second, on average since its begin and apart from [`UPLOAD_GRACE`]: a slower
/// sender would keep others from uploading.
pub const MIN_UPLOAD_RATE: u64 = 64 * 1024;
/// Time for which an upload may be slower.
pub const UPLOAD_GRACE: Duration = Duration::from_secs(15);
/// Most uploads of one account.
pub const MAX_UPLOADS: u32 = 200;
/// Most boards of an account.
pub const MAX_BOARDS: u32 = 100;
/// Most shared links of an account.
pub const MAX_SHARED_LINKS: u32 = 1_000;
/// Most characters of the name of a board.
pub const MAX_BOARD_NAME: usize = 60;
/// Most tasks of the studio that one form changes, or one download has.
pub const MAX_CHOSEN: usize = 200;
/// Largest request header, in bytes.
pub const MAX_HEADER: usize = 64 * 1024;
/// Most fields in a request header.
pub const MAX_HEADER_FIELDS: usize = 100;
/// Bytes that a slow reader must accept within [`ConnectionLimits::write_stall`].
pub const MIN_WRITE_PROGRESS: usize = 16 * 1024;
/// Size of the send buffer of a connection, in bytes. The kernel doubles it to account for its own structures. It bounds
/// the data that a peer has not acknowledged.
pub const SEND_BUFFER: usize = 256 * 1024;
/// Bytes of a connection that wait in the kernel until the peer makes room, beyond which a write stalls.
pub const MAX_UNSENT: u32 = 64 * 1024;
/// Connections beyond the limits that are answered all the same: with the health of the server, or with 503.
pub const RESERVED_CONNECTIONS: usize = 64;
/// Most of these for one IPv4 address or one IPv6 /64 network.
pub const RESERVE_PER_SOURCE: usize = 16;
/// File descriptors that connections leave free for the database, result files and downloads.
pub const RESERVED_FILE_DESCRIPTORS: usize = 256;

/// Limits on each connection and on all of them together. A connection that exceeds one is closed, without a response
/// if no complete request has arrived.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Longest wait for the first byte of a new connection.
    pub first_byte: Duration,
    /// Longest wait for a TLS handshake, including its first byte.
    pub handshake: Duration,
    /// Longest time from the first byte of a request to the end of its header.
    pub header: Duration,
    /// Longest pause within a request body.
    pub body_idle: Duration,
    /// Longest time for a whole request body.
    pub body_total: Duration,
    /// Longest wait for the next request after a response.
    pub keep_alive: Duration,
    /// Time within which a slow reader must accept [`MIN_WRITE_PROGRESS`] bytes, or all that remain. Time, too, after the
    /// last response within which it must close.
    pub write_stall: Duration,
    /// Interval at which a quiet stream of the API sends a sign of life. Proxies close a connection on which nothing happens
    /// for a minute or more.
    pub heartbeat: Duration,
    /// Most open connections.
    pub max_connections: usize,
    /// Most open connections from one IPv4 address or one IPv6 /64 network; 0 means unlimited.
    pub max_per_address: usize,
}

impl ConnectionLimits {
    /// The defaults. A proxy must be the side that closes an idle connection, or else it may send a request just then. nginx
    /// and balancers of clouds close after 60 s, Traefik after 90 s, Caddy after 120 s; `keep_alive` is longer.
    pub const DEFAULT: Self = Self {
        first_byte: Duration::from_secs(10),
        handshake: Duration::from_secs(10),
        header: Duration::from_secs(15),
        body_idle: Duration::from_secs(10),
        body_total: Duration::from_secs(30),
        keep_alive: Duration::from_secs(130),
        write_stall: Duration::from_secs(30),
        heartbeat: Duration::from_secs(10),
        max_connections: 8_192,
        max_per_address: 512,
    };
}
