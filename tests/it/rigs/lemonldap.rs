//! An OpenID Connect provider: LemonLDAP::NG, which is written in Perl and tells most claims at its userinfo endpoint.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use url::Url;

use super::debian;
use super::http::exchange;
use super::ports::Port;
use super::wait::until;
use crate::rigs::binary::{Ran as _, Run as _};

/// The program, from Debian's package.
const PORTAL: &str = "/usr/share/lemonldap-ng/portal/htdocs/index.psgi";
/// The portal, the server that runs it, and modules that it recommends and does not start without.
const PACKAGES: &str = "liblemonldap-ng-portal-perl libplack-perl libstring-random-perl libio-string-perl";
const SECRET: &str = "a-secret-of-tintype-at-its-provider";
/// Somebody whom its demonstration mode knows, with this password, too.
const PERSON: &str = "dwho";

/// LemonLDAP::NG, which ends with this value.
pub struct Lemonldap {
    process: Option<Child>,
    folder: TempDir,
    port: Port,
    key: [String; 2],
    redirect: String,
}

impl Lemonldap {
    /// Starts one where [`PERSON`] is in the group `artists`.
    pub async fn start() -> Self {
        debian::install(PACKAGES, || {
            Path::new(PORTAL).exists() && Path::new("/usr/share/perl5/String/Random.pm").exists()
        });
        debian::needs("openssl", "openssl");
        let folder = TempDir::new().expect("a directory");
        let make = |name: &str| {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder.path().join(name))
                .expect("a directory");
        };
        ["conf", "sessions/lock", "people/lock", "cache"].into_iter().for_each(make);
        std::fs::write(folder.path().join("secret"), SECRET).expect("a file");
        let mut provider =
            Self { process: None, key: key(folder.path()), folder, port: Port::take(), redirect: String::new() };
        provider.run("$uid", "1").await;
        provider
    }

    /// It ends with a slash, as the provider wants.
    pub fn issuer(&self) -> String {
        format!("http://{}/", self.port.address)
    }

    /// The flags of a server that knows this provider.
    pub fn flags(&self) -> Vec<String> {
        let (issuer, file) = (self.issuer(), self.folder.path().join("secret").display().to_string());
        ["--oidc-issuer", &issuer, "--oidc-client-id", "tintype", "--oidc-client-secret-file", &file]
            .map(str::to_owned)
            .into()
    }

    /// Registers this service, which has this redirect URI.
    pub async fn register(&mut self, redirect: &str) {
        redirect.clone_into(&mut self.redirect);
        self.run("$uid", "1").await;
    }

    pub async fn empty_the_group(&mut self) {
        self.run("0", "1").await;
    }

    /// From now on nobody may sign in at this service.
    pub async fn disable(&mut self) {
        self.run("0", "0").await;
    }

    /// Signs the person in, and returns where the browser is sent then, if that person may sign in at this service.
    pub async fn visit(&self, target: &str) -> Option<Url> {
        let path = target.strip_prefix(&format!("http://{}", self.port.address)).expect("a URL of the provider");
        let request = Request::builder().method("POST").uri(path).header("host", self.port.address.to_string());
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let body = Full::new(Bytes::from(format!("user={PERSON}&password={PERSON}")));
        let stream = TcpStream::connect(self.port.address).await.expect("the provider listens");
        let answer = exchange(stream, request.body(body).expect("a request")).await;
        let location = answer.headers.get("location")?.to_str().expect("text");
        Some(Url::parse(location).expect("a URL"))
    }

    /// Runs it with the rule of the group, and that of this service.
    async fn run(&mut self, artists: &str, service: &str) {
        self.end();
        let folder = self.folder.path().to_str().expect("text");
        let conf = self.configuration(folder, artists, service).to_string();
        std::fs::write(self.folder.path().join("conf/lmConf-1.json"), conf).expect("a file");
        let cache = format!(
            "localStorage=Cache::FileCache\nlocalStorageOptions={{'namespace'=>'{}','cache_root'=>'{folder}/cache','cache_depth'=>1}}",
            rand::random::<u32>()
        );
        let main = format!(
            "[all]\nlogLevel=error\n[configuration]\ntype=File\ndirName={folder}/conf\n{cache}\n[portal]\nstaticPrefix=/static\n\
             templateDir=/usr/share/lemonldap-ng/portal/templates\n"
        );
        let file = self.folder.path().join("lemonldap-ng.ini");
        std::fs::write(&file, main).expect("a file");
        let mut command = Command::new("plackup");
        command.args(["-s", "HTTP::Server::PSGI", "-E", "deployment", "--host", "127.0.0.1", "--port"]);
        command.arg(self.port.address.port().to_string()).arg(PORTAL).env("LLNG_DEFAULTCONFFILE", file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("plackup runs"));
        let address = self.port.address;
        until(async || std::net::TcpStream::connect(address).is_ok()).await;
    }

    fn configuration(&self, folder: &str, artists: &str, service: &str) -> Value {
        let [private, public] = &self.key;
        let store = |name: &str| {
            json!({"Directory": format!("{folder}/{name}"), "LockDirectory": format!("{folder}/{name}/lock"),
                "generateModule": "Lemonldap::NG::Common::Apache::Session::Generate::SHA256"})
        };
        let portal = json!({
            "cfgNum": 1, "cfgVersion": "2.16.1", "cfgAuthor": "a test", "cfgDate": 1,
            "portal": self.issuer(), "domain": "127.0.0.1", "cookieName": "lemonldap", "securedCookie": 0,
            "key": "a key of a test.", "requireToken": 0, "whatToTrace": "$uid",
            "authentication": "Demo", "userDB": "Same", "passwordDB": "Demo",
            "demoExportedVars": {"cn": "cn", "mail": "mail", "uid": "uid"}, "exportedVars": {}, "macros": {},
            "groups": {"artists": artists}, "locationRules": {}, "exportedHeaders": {}, "applicationList": {},
            "globalStorage": "Apache::Session::File", "globalStorageOptions": store("sessions"),
            "persistentStorage": "Apache::Session::File", "persistentStorageOptions": store("people"),
            "localSessionStorage": "Cache::FileCache",
            "localSessionStorageOptions": {"cache_root": format!("{folder}/cache"), "cache_depth": 1},
            // It loads a module for captchas even without any, and that one needs ImageMagick. This one does nothing.
            "captcha": "::Plugins::CheckState", "checkState": 0, "checkStateSecret": "a secret of a test",
        });
        let connect = json!({
            "issuerDBOpenIDConnectActivation": 1, "oidcServiceAllowAuthorizationCodeFlow": 1,
            "oidcServiceMetaDataIssuer": self.issuer(), "oidcServiceIgnoreScopeForClaims": 1,
            "oidcServicePrivateKeySig": private, "oidcServicePublicKeySig": public, "oidcServiceKeyIdSig": "one",
            "oidcRPMetaDataOptions": {"tintype": {
                "oidcRPMetaDataOptionsClientID": "tintype", "oidcRPMetaDataOptionsClientSecret": SECRET,
                "oidcRPMetaDataOptionsRedirectUris": self.redirect, "oidcRPMetaDataOptionsBypassConsent": 1,
                "oidcRPMetaDataOptionsIDTokenSignAlg": "RS256", "oidcRPMetaDataOptionsRule": service,
            }},
            "oidcRPMetaDataExportedVars": {"tintype": {
                "email": "mail", "name": "cn", "preferred_username": "uid", "groups": "groups",
            }},
        });
        let parts = [portal, connect].into_iter().flat_map(|part| part.as_object().cloned().expect("an object"));
        Value::Object(parts.collect())
    }

    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Drop for Lemonldap {
    fn drop(&mut self) {
        self.end();
    }
}

/// A private and a public RSA key in PEM.
fn key(folder: &Path) -> [String; 2] {
    let file = folder.join("key");
    let openssl =
        |arguments: &[&str]| Command::new("openssl").args(arguments).arg(&file).stderr(Stdio::null()).ran().succeeded();
    openssl(&["genrsa", "-out"]);
    [std::fs::read_to_string(&file).expect("a key"), openssl(&["rsa", "-pubout", "-in"])]
}
