//! An OpenID Connect provider: glewlwyd, which is written in C with libraries of its own.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use url::Url;

use super::debian;
use super::http::{Answer, exchange};
use super::ports::Port;
use super::wait::until;
use crate::rigs::binary::Killed;

/// The tables and the first administrator, from Debian's package.
const TABLES: &str = "/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3";
const SECRET: &str = "a-secret-of-tintype-at-its-provider";
/// The password of everybody there; that of the administrator comes with the package.
const PASSWORD: &str = "password";

/// A running glewlwyd, which ends with this value.
pub struct Glewlwyd {
    _process: Killed,
    /// It must not be closed: glewlwyd writes its log there.
    _log: BufReader<ChildStdout>,
    folder: TempDir,
    port: Port,
    administrator: String,
}

impl Glewlwyd {
    pub async fn start(person: &str) -> Self {
        debian::needs("glewlwyd", "glewlwyd");
        let (folder, port) = (TempDir::new().expect("a directory"), Port::take());
        let database = rusqlite::Connection::open(folder.path().join("database")).expect("a database");
        database.execute_batch(&std::fs::read_to_string(TABLES).expect("the tables")).expect("a database");
        drop(database);
        let file = folder.path().join("configuration");
        std::fs::write(&file, configuration(folder.path().to_str().expect("text"), port.address.port()))
            .expect("a file");
        let mut command = Command::new("glewlwyd");
        command.arg(format!("--config-file={}", file.display())).stdin(Stdio::null());
        let mut process = Killed(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("glewlwyd runs"));
        let mut log = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("Glewlwyd started") {
            assert_ne!(log.read_line(&mut said).expect("its log"), 0, "glewlwyd ended: {said}");
        }
        // It says so before it listens.
        until(async || std::net::TcpStream::connect(port.address).is_ok()).await;
        let mut provider = Self { _process: process, _log: log, folder, port, administrator: String::new() };
        provider.administrator = provider.sign_in("admin").await.expect("the administrator");
        provider.change("POST", "/api/mod/plugin/", &plugin(&provider.issuer())).await;
        let person = json!({"username": person, "name": person, "email": format!("{person}@example.com"),
            "password": PASSWORD, "scope": ["openid"], "enabled": true});
        provider.change("POST", "/api/user/", &person).await;
        provider
    }

    pub fn issuer(&self) -> String {
        format!("http://{}/api/oidc", self.port.address)
    }

    /// The flags of a server that knows this provider.
    pub fn flags(&self) -> Vec<String> {
        let file = self.folder.path().join("secret");
        std::fs::write(&file, SECRET).expect("a file");
        let issuer = self.issuer();
        let file = file.display().to_string();
        ["--oidc-issuer", &issuer, "--oidc-client-id", "tintype", "--oidc-client-secret-file", &file]
            .map(str::to_owned)
            .into()
    }

    /// Registers this service, which has this redirect URI.
    pub async fn register(&self, redirect: &str) {
        let client = json!({"client_id": "tintype", "name": "tintype", "confidential": true, "password": SECRET,
            "client_secret": SECRET, "enabled": true, "redirect_uri": [redirect], "authorization_type": ["code"],
            "token_endpoint_auth_method": ["client_secret_basic"], "scope": []});
        self.change("POST", "/api/client/", &client).await;
    }

    /// From now on the person is in these groups. Those of glewlwyd are its scopes.
    pub async fn set_groups(&self, person: &str, groups: &[&str]) {
        self.change_person(person, &json!({"scope": groups, "enabled": true})).await;
    }

    /// From now on the person cannot sign in there.
    pub async fn disable(&self, person: &str) {
        self.change_person(person, &json!({"scope": ["openid"], "enabled": false})).await;
    }

    async fn change_person(&self, person: &str, change: &Value) {
        self.change("PUT", &format!("/api/user/{person}"), change).await;
    }

    /// Signs the person in, who agrees, and returns where the browser is sent then, if the person can sign in.
    pub async fn visit(&self, person: &str, target: &str) -> Option<Url> {
        let cookie = self.sign_in(person).await?;
        let agreed = self.ask("PUT", "/api/auth/grant/tintype/", &cookie, &json!({"scope": "openid"})).await;
        assert_eq!(agreed.status, 200, "{agreed:?}");
        let path = format!("{target}&g_continue").split_off(format!("http://{}", self.port.address).len());
        let answer = self.ask("GET", &path, &cookie, &Value::Null).await;
        Some(Url::parse(answer.header("location")).expect("a URL"))
    }

    /// Signs in, and returns the cookie.
    async fn sign_in(&self, name: &str) -> Option<String> {
        let answer = self.ask("POST", "/api/auth/", "", &json!({"username": name, "password": PASSWORD})).await;
        let is_in = answer.status == 200;
        is_in.then(|| answer.header("set-cookie").split(';').next().expect("a cookie").to_owned())
    }

    async fn change(&self, method: &str, path: &str, body: &Value) {
        let answer = self.ask(method, path, &self.administrator, body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }

    async fn ask(&self, method: &str, path: &str, cookie: &str, body: &Value) -> Answer {
        let request = Request::builder().method(method).uri(path).header("host", self.port.address.to_string());
        let request = request.header("cookie", cookie).header("content-type", "application/json");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let stream = TcpStream::connect(self.port.address).await.expect("glewlwyd listens");
        exchange(stream, request.body(Full::new(Bytes::from(body))).expect("a request")).await
    }
}

fn configuration(folder: &str, port: u16) -> String {
    let mut lines = format!(
        "port={port}\nbind_address=\"127.0.0.1\"\nexternal_url=\"http://127.0.0.1:{port}\"\ncookie_secure=0\n\
         session_expiration=3600\nlogin_api_enabled=true\ndatabase={{type=\"sqlite3\"; path=\"{folder}/database\";}};\n\
         user_middleware_module_path=\"{folder}/none\"\n"
    );
    std::fs::create_dir(format!("{folder}/none")).expect("a directory");
    for (name, value) in [
        ("login_url", "login.html"),
        ("api_prefix", "api"),
        ("log_mode", "console"),
        ("log_level", "INFO"),
        ("session_key", "GLEWLWYD2_SESSION_ID"),
        ("admin_session_authentication", "cookie"),
        ("profile_session_authentication", "cookie"),
        ("admin_scope", "g_admin"),
        ("profile_scope", "g_profile"),
        ("user_module_path", "/usr/lib/glewlwyd/user"),
        ("client_module_path", "/usr/lib/glewlwyd/client"),
        ("user_auth_scheme_module_path", "/usr/lib/glewlwyd/scheme"),
        ("plugin_module_path", "/usr/lib/glewlwyd/plugin"),
        ("hash_algorithm", "SHA512"),
    ] {
        lines += &format!("{name}=\"{value}\"\n");
    }
    lines
}

/// The part of glewlwyd that speaks OpenID Connect. Its key begins with a zero, which glewlwyd leaves out of `x`.
fn plugin(issuer: &str) -> Value {
    let mut keys = std::iter::repeat_with(|| rcgen::KeyPair::generate().expect("a key"));
    let key = keys.find(|key| key.public_key_raw()[1] == 0).expect("one key in 256");
    json!({"module": "oidc", "name": "oidc", "display_name": "oidc", "enabled": true, "parameters": {
        "iss": issuer, "jwt-type": "ecdsa", "jwt-key-size": "256",
        "key": key.serialize_pem(), "cert": key.public_key_pem(),
        "access-token-duration": 3600, "refresh-token-duration": 3600, "code-duration": 600,
        "refresh-token-rolling": true, "allow-non-oidc": false, "auth-type-code-enabled": true,
        "auth-type-token-enabled": false, "auth-type-id-token-enabled": true, "auth-type-none-enabled": false,
        "auth-type-password-enabled": false, "auth-type-client-enabled": false, "auth-type-refresh-enabled": false,
        "pkce-allowed": true, "pkce-method-plain-allowed": false, "jwks-show": true, "scope": [],
        "claims": [{"name": "groups", "user-property": "scope", "type": "string", "mandatory": true}],
        "name-claim": "mandatory", "email-claim": "mandatory", "subject-type": "public", "secret-type": "pairwise",
        "service-documentation": "", "op-policy-uri": "", "op-tos-uri": "", "request-parameter-allow": false,
        "session-management-allowed": true, "session-cookie-name": "GLOIDC", "session-cookie-expiration": 3600,
        "auth-type-code-revoke-replayed": false, "allowed-scope": ["openid"]
    }})
}
