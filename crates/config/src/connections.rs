//! Limits on connections and requests.

use std::time::Duration;

/// Largest request body, in bytes. The longest prompt and four reference URLs fit, even with every character escaped: 32,000
/// times twelve bytes, such as `\ud83e\udd8a`, and 4 x 4,096 times six.
pub const MAX_BODY: usize = 512 * 1024;
/// Largest uploaded picture, in bytes.
pub const MAX_UPLOAD: u64 = 20 * 1024 * 1024;
/// Largest body of an edit with pictures, in bytes: four of the largest pictures in base64, where a slash can take two
/// bytes, plus the usual limit for the rest. A mask counts as one of the pictures.
pub const MAX_EDIT_BODY: u64 = 4 * MAX_UPLOAD * 3 / 2 + 2 * MAX_BODY as u64;
/// Slowest average rate of an upload, in bytes per second, not counting [`UPLOAD_GRACE`]. A slower sender would keep
/// others from uploading.
pub const MIN_UPLOAD_RATE: u64 = 64 * 1024;
/// How long an upload can be slower.
pub const UPLOAD_GRACE: Duration = Duration::from_secs(15);
/// Most uploads per account.
pub const MAX_UPLOADS: u32 = 200;
/// Most boards per account.
pub const MAX_BOARDS: u32 = 100;
/// Most shared links per account.
pub const MAX_SHARED_LINKS: u32 = 1_000;
/// Most characters in a board name.
pub const MAX_BOARD_NAME: usize = 60;
/// Most studio tasks in one form or download.
pub const MAX_CHOSEN: usize = 200;
/// Largest request header, in bytes.
pub const MAX_HEADER: usize = 64 * 1024;
/// Most fields in a request header.
pub const MAX_HEADER_FIELDS: usize = 100;
/// Bytes that a slow reader must accept within [`ConnectionLimits::write_stall`].
pub const MIN_WRITE_PROGRESS: usize = 16 * 1024;
/// Send buffer of a connection, in bytes. The kernel doubles it to account for its own structures. It limits the data
/// that a peer hasn't acknowledged.
pub const SEND_BUFFER: usize = 256 * 1024;
/// Bytes of a connection that can wait in the kernel for the peer; beyond that, writes stall.
pub const MAX_UNSENT: u32 = 64 * 1024;
/// Connections beyond the limits that still get an answer: the server's health, or 503.
pub const RESERVED_CONNECTIONS: usize = 64;
/// Most reserved connections from one IPv4 address or IPv6 /64 network.
pub const RESERVE_PER_SOURCE: usize = 16;
/// File descriptors reserved for the database, result files and downloads.
pub const RESERVED_FILE_DESCRIPTORS: usize = 256;

/// Limits on each connection and on all connections. A connection that exceeds one is closed, without a response unless
/// a complete request has arrived.
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
    /// How quickly a slow reader must accept [`MIN_WRITE_PROGRESS`] bytes or all remaining ones, and close the
    /// connection after the last response.
    pub write_stall: Duration,
    /// Heartbeat interval of a quiet API stream. Proxies close connections that are idle for a minute or more.
    pub heartbeat: Duration,
    /// Most open connections.
    pub max_connections: usize,
    /// Most open connections from one IPv4 address or one IPv6 /64 network; 0 means unlimited.
    pub max_per_address: usize,
}

impl ConnectionLimits {
    /// The defaults. The proxy must be the side that closes an idle connection; otherwise it could send a request just
    /// then. nginx and cloud load balancers close after 60 s, Traefik after 90 s, Caddy after 120 s; `keep_alive` is
    /// longer.
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
