//! An OpenID Connect provider: `oidc-provider` from npm.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use url::Url;

use super::http::{Answer, exchange};
use super::packages::javascript;
use crate::rigs::binary::Killed;

const SECRET: &str = "a secret of tintype at its provider";

/// A running provider, which ends with this value.
pub struct Provider {
    process: Killed,
    folder: TempDir,
    pub issuer: String,
}

impl Provider {
    pub fn start(person: &str) -> Self {
        Self::start_with(person, &[])
    }

    /// Starts one that keeps claims out of the ID token, and signs them elsewhere.
    pub fn start_strict(person: &str) -> Self {
        Self::start_with(person, &["strict"])
    }

    fn start_with(person: &str, arguments: &[&str]) -> Self {
        let (mut command, folder) = javascript("oidc_provider.mjs", &[]);
        std::fs::write(folder.path().join("person"), person).expect("a file");
        std::fs::write(folder.path().join("secret"), SECRET).expect("a file");
        command.arg(folder.path().join("person")).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Killed(command.spawn().expect("node"));
        let mut issuer = String::new();
        let said = process.stdout.as_mut().expect("a pipe");
        BufReader::new(said).read_line(&mut issuer).expect("the URL of the provider");
        Self { process, folder, issuer: issuer.trim().to_owned() }
    }

    /// From now on it signs in this person in browsers that it does not know.
    pub fn signs_in(&self, person: &str) {
        std::fs::write(self.folder.path().join("person"), person).expect("a file");
    }

    /// From now on it makes these claims about everybody, instead of its own.
    pub fn claims(&self, claims: &serde_json::Value) {
        std::fs::write(self.folder.path().join("claims"), claims.to_string()).expect("a file");
    }

    /// From now on it answers nothing, until [`Provider::resume`].
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// It answers again, also what it was asked in the meantime.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    pub fn flags(&self) -> Vec<String> {
        self.flags_with(SECRET)
    }

    /// The flags of a server with this secret, which may be wrong.
    pub fn flags_with(&self, secret: &str) -> Vec<String> {
        let file = self.folder.path().join("secret");
        std::fs::write(&file, secret).expect("a file");
        let pairs = [
            ("--oidc-issuer", self.issuer.clone()),
            ("--oidc-client-id", "tintype".to_owned()),
            ("--oidc-client-secret-file", file.display().to_string()),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// The answer to a browser without cookies.
    pub async fn get(&self, url: &str) -> Answer {
        ask(&Url::parse(url).expect("a URL"), &BTreeMap::new()).await
    }

    /// Goes where a browser without cookies would go, until it leaves the provider.
    pub async fn visit(&self, url: &str) -> Url {
        let mut cookies = BTreeMap::new();
        let mut url = Url::parse(url).expect("a URL");
        for _ in 0..10 {
            if !url.as_str().starts_with(&self.issuer) {
                return url;
            }
            let answer = ask(&url, &cookies).await;
            assert!(answer.status.is_redirection(), "{url}: {answer:?}");
            for set in answer.headers.get_all("set-cookie") {
                let pair = set.to_str().expect("text").split(';').next().expect("a pair");
                let (name, value) = pair.split_once('=').expect("a pair");
                cookies.insert(name.to_owned(), value.to_owned());
            }
            url = url.join(answer.header("location")).expect("a URL");
        }
        panic!("the provider leads nowhere: {url}");
    }
}

async fn ask(url: &Url, cookies: &BTreeMap<String, String>) -> Answer {
    let host = url.authority();
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let cookies: Vec<_> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let request = Request::builder().uri(path).header("host", host).header("cookie", cookies.join("; "));
    let stream = TcpStream::connect(host).await.expect("the provider listens");
    exchange(stream, request.body(Full::new(Bytes::new())).expect("a request")).await
}
