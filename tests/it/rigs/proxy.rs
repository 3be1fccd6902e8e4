//! The proxies that people put in front of the service, from Debian's packages, with the files of `deploy/`.

use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::debian;
use super::ports::Port;
use super::wait::until;
use crate::rigs::binary::Killed;
use crate::tidy::root;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Caddy,
    Haproxy,
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    _process: Killed,
    _port: Port,
    _directory: TempDir,
}

impl Kind {
    /// The file that an operator gets.
    pub fn shipped(self) -> String {
        let name = match self {
            Self::Nginx => "nginx.conf",
            Self::Caddy => "Caddyfile",
            Self::Haproxy => "haproxy.cfg",
        };
        std::fs::read_to_string(root().join("deploy").join(name)).expect("a file of deploy/")
    }

    /// The places in it that name the addresses of an installation, and their values here.
    fn places(self, own: SocketAddr, upstream: SocketAddr) -> Vec<(&'static str, String)> {
        match self {
            // Debian's nginx is older than `resolve`, and there is no name here to resolve.
            Self::Nginx => vec![
                ("resolver 127.0.0.11 valid=5s;", String::new()),
                ("server api:8080 resolve;", format!("server {upstream};")),
                ("listen 80;", format!("listen {own};")),
            ],
            Self::Caddy => vec![
                ("images.example.com {", format!("http://:{} {{", own.port())),
                ("reverse_proxy 127.0.0.1:8080", format!("reverse_proxy {upstream}")),
            ],
            Self::Haproxy => vec![
                ("bind :80", format!("bind {own}")),
                ("server api1 127.0.0.1:8080", format!("server api1 {upstream}")),
            ],
        }
    }
}

impl Proxy {
    /// Starts one with the shipped file, in which the addresses and `changes` are replaced.
    pub async fn start(kind: Kind, upstream: SocketAddr, changes: &[(&'static str, String)]) -> Self {
        let (port, directory) = (Port::take(), TempDir::new().expect("a directory"));
        let mut text = kind.shipped();
        for (place, here) in kind.places(port.address, upstream).iter().chain(changes) {
            assert!(text.contains(place), "{kind:?} has no {place}");
            text = text.replace(place, here);
        }
        Self::run(kind, port, directory, text).await
    }

    /// HAProxy as a balancer of TCP connections, with an option such as `send-proxy` for its server.
    pub async fn balance(upstream: SocketAddr, option: &str) -> Self {
        let (port, directory) = (Port::take(), TempDir::new().expect("a directory"));
        let text = format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
             listen callers\n bind {}\n server api {upstream} {option}\n",
            port.address
        );
        Self::run(Kind::Haproxy, port, directory, text).await
    }

    async fn run(kind: Kind, port: Port, directory: TempDir, text: String) -> Self {
        let path = directory.path().join("shipped");
        std::fs::write(&path, text).expect("a file");
        let mut command = match kind {
            Kind::Nginx => {
                debian::needs("nginx", "nginx-light");
                let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let here = directory.path().display();
                let temporary = temporary.map(|name| format!("{name}_temp_path {here}/{name};")).concat();
                let main = format!(
                    "daemon off; master_process off; pid {here}/pid; error_log stderr crit; events {{}}
                    http {{ access_log off; {temporary} include {}; }}",
                    path.display()
                );
                let file = directory.path().join("main");
                std::fs::write(&file, main).expect("a file");
                let mut command = Command::new("nginx");
                command.args(["-e", "stderr", "-c"]).arg(file);
                command
            }
            Kind::Caddy => {
                debian::needs("caddy", "caddy");
                // No administration, whose port is the same for all of them.
                let global = format!("{{\n\tadmin off\n}}\n{}", std::fs::read_to_string(&path).expect("a file"));
                std::fs::write(&path, global).expect("a file");
                let mut command = Command::new("caddy");
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&path);
                command.stderr(Stdio::null());
                command
            }
            Kind::Haproxy => {
                debian::needs("haproxy", "haproxy");
                let mut command = Command::new("haproxy");
                command.args(["-db", "-q", "-f"]).arg(&path).stderr(Stdio::null());
                command
            }
        };
        for variable in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(variable, directory.path());
        }
        let mut process = Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a proxy starts"));
        let address = port.address;
        until(async || {
            assert_eq!(process.try_wait().expect("a child"), None, "{kind:?} does not start");
            TcpStream::connect(address).is_ok()
        })
        .await;
        Self { address, _process: process, _port: port, _directory: directory }
    }
}
