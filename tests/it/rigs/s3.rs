//! An S3 server on loopback, which can stop and come back.

use std::net::SocketAddr;
use std::path::Path;

use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tintype_config::S3Settings;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::rigs::ports::Port;

pub const ACCESS_KEY: &str = "AKIATINTYPETESTS0000";
pub const SECRET_KEY: &str = "swallow-the-secret-of-the-bucket-0123456";

/// An S3 server on loopback (s3s-fs). It serves `ROOT/BUCKET/KEY` from disk.
pub struct S3Server {
    pub address: SocketAddr,
    /// Reserves its port while it is down.
    _port: Port,
    service: S3Service,
    tls: Option<TlsAcceptor>,
    serving: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Starts it on a free port with an empty bucket.
    pub async fn start(root: &Path, bucket: &str) -> Self {
        Self::start_over(None, root, bucket).await
    }

    /// The same, over TLS.
    pub async fn start_over(tls: Option<TlsAcceptor>, root: &Path, bucket: &str) -> Self {
        std::fs::create_dir_all(root.join(bucket)).expect("a bucket");
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a file system"));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let port = Port::take();
        let mut server = Self { address: port.address, _port: port, service, tls, serving: None };
        server.come_back().await;
        server
    }

    /// Closes its listener and all its connections.
    pub async fn stop(&mut self) {
        let serving = self.serving.take().expect("it runs");
        serving.abort();
        assert!(serving.await.expect_err("it was aborted").is_cancelled());
    }

    /// Listens on its port again.
    pub async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("its port is free");
        self.serving = Some(tokio::spawn(serve(listener, self.tls.clone(), self.service.clone())));
    }

    /// The environment variables that direct AWS clients to this server.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(self.address, SECRET_KEY)
    }

    /// Settings of a file store in this server.
    pub fn settings(&self, url: &str) -> S3Settings {
        S3Settings::parse(url, self.variables()).expect("an URL")
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

/// The environment variables that direct AWS clients to the server at an address.
pub fn variables(address: SocketAddr, secret: &str) -> Vec<(String, String)> {
    let endpoint = format!("http://{address}");
    let variables = [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &endpoint),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Accepts connections until the future is dropped, which closes the listener and every connection.
async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, service: S3Service) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (tls, service) = (tls.clone(), service.clone());
        let http = hyper::server::conn::http1::Builder::new();
        // A client that goes away is no failure.
        connections.spawn(async move {
            match tls {
                None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                Some(tls) => {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    drop(http.serve_connection(TokioIo::new(stream), service).await);
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
