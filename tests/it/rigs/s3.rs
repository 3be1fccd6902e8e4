//! An S3 server on loopback, which can stop and come back.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tintype_config::S3Settings;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::rigs::ports::Port;
use crate::rigs::wait::listen_again;

pub const ACCESS_KEY: &str = "AKIATINTYPETESTS0000";
pub const SECRET_KEY: &str = "swallow-the-secret-of-the-bucket-0123456";

/// The status and the body that a proxy before the server sends in its place, if it does. It sees each request, with the
/// size of its body, twice: before and after the server, whose status it then sees as well.
pub type Proxy = fn(&Parts, usize, Option<StatusCode>) -> Option<(u16, &'static str)>;

/// An S3 server on loopback (s3s-fs). It serves `ROOT/BUCKET/KEY` from disk.
pub struct S3Server {
    pub address: SocketAddr,
    /// Reserves its port while it is down.
    _port: Port,
    service: S3Service,
    tls: Option<TlsAcceptor>,
    proxy: Proxy,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl S3Server {
    /// Starts it on a free port with an empty bucket.
    pub async fn start(root: &Path, bucket: &str) -> Self {
        Self::start_over(None, root, bucket).await
    }

    pub async fn start_behind(proxy: Proxy, root: &Path, bucket: &str) -> Self {
        Self::start_as(None, proxy, root, bucket).await
    }

    /// Starts it, over TLS if `tls` is given.
    pub async fn start_over(tls: Option<TlsAcceptor>, root: &Path, bucket: &str) -> Self {
        Self::start_as(tls, |_, _, _| None, root, bucket).await
    }

    async fn start_as(tls: Option<TlsAcceptor>, proxy: Proxy, root: &Path, bucket: &str) -> Self {
        std::fs::create_dir_all(root.join(bucket)).expect("a bucket");
        let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a file system"));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let port = Port::take();
        let server = Self { address: port.address, _port: port, service, tls, proxy, serving: Mutex::default() };
        server.come_back().await;
        server
    }

    /// Closes its listener and all its connections.
    pub async fn stop(&self) {
        let serving = self.serving.lock().expect("no panic").take().expect("it runs");
        serving.abort();
        assert!(serving.await.expect_err("it was aborted").is_cancelled());
    }

    /// Listens on its port again.
    pub async fn come_back(&self) {
        let listener = listen_again(self.address).await;
        let serving = tokio::spawn(serve(listener, self.tls.clone(), self.proxy, self.service.clone()));
        *self.serving.lock().expect("no panic") = Some(serving);
    }

    /// The environment variables that direct AWS clients to this server.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(self.address, SECRET_KEY)
    }

    pub fn settings(&self, url: &str) -> S3Settings {
        S3Settings::parse(url, self.variables()).expect("an URL")
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.get_mut().expect("no panic") {
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
async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, proxy: Proxy, server: S3Service) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (tls, server) = (tls.clone(), server.clone());
        let service = service_fn(move |request| answer(request, proxy, server.clone()));
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

/// Answers one request. The proxy reads it to its end first, as nginx does, so that its answer is not lost.
async fn answer(
    request: Request<Incoming>,
    proxy: Proxy,
    server: S3Service,
) -> Result<Response<s3s::Body>, s3s::HttpError> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let instead = |status: Option<StatusCode>| {
        let (status, text) = proxy(&head, body.len(), status)?;
        Response::builder().status(status).body(s3s::Body::from(text.to_owned())).ok()
    };
    if let Some(answer) = instead(None) {
        return Ok(answer);
    }
    let answer = server.call(Request::from_parts(head.clone(), s3s::Body::from(body.clone()))).await?;
    Ok(instead(Some(answer.status())).unwrap_or(answer))
}
