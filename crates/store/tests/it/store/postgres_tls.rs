//! Encrypted connections to a PostgreSQL server on the network.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tempfile::TempDir;
use tintype_store::OpenError;
use tintype_store::Store;
use tintype_store::postgres;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use tintype_rigs::database::NOON;
use tintype_rigs::ports::Port;
use tintype_rigs::postgres::{Cluster, Durability};

/// A cluster with a self-signed certificate for `name`.
struct Server {
    cluster: Cluster,
    port: Port,
    /// The certificate itself, because it is self-signed.
    ca: PathBuf,
    _directory: TempDir,
}

impl Server {
    fn start(name: &str) -> Self {
        Self::with_certificate(name, IsCa::NoCa)
    }

    fn with_certificate(name: &str, is_ca: IsCa) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut certificate = CertificateParams::new([name.to_owned()]).expect("a name");
        certificate.is_ca = is_ca;
        let cert = certificate.self_signed(&key).expect("a certificate");
        let directory = TempDir::new().expect("a directory");
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, cert.pem()).expect("a file");
        let port = Port::take();
        let cluster = Cluster::start(Durability::Nothing);
        cluster.encrypt(port.address.port(), &cert.pem(), &key.serialize_pem());
        Self { cluster, port, ca, _directory: directory }
    }

    async fn open(&self, parameters: &str, ca: Option<&Path>) -> Result<Store, OpenError> {
        let url = format!("postgres://tintype@{}/postgres{parameters}", self.port.address);
        postgres::open(&url, ca, Clock::manual(NOON), Faults::default()).await
    }

    /// The numbers of encrypted and of plain connections of stores.
    async fn connections(&self) -> (i64, i64) {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.cluster.directory).port(self.port.address.port()).user("tintype").dbname("postgres");
        let (session, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
        let driving = tokio::spawn(connection);
        let count = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl)
            FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tintype'";
        let row = session.query_one(count, &[]).await.expect("an answer");
        driving.abort();
        (row.get(0), row.get(1))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_across_a_network_is_encrypted() {
    let server = Server::start("127.0.0.1");
    let store = server.open("?sslmode=require", Some(&server.ca)).await.expect("its certificate is trusted");
    store.create_account("ada", 5).await.expect("no store error");
    let (encrypted, plain) = server.connections().await;
    assert!(encrypted > 0 && plain == 0, "{encrypted} encrypted, {plain} not");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_untrusted_certificate_is_refused() {
    let server = Server::start("127.0.0.1");
    let error = server.open("?sslmode=require", None).await.expect_err("an unknown authority").to_string();
    assert!(error.contains("UnknownIssuer") && error.contains("--database-ca"), "{error}");
    // A certificate for another name: a different machine may answer at this address.
    let elsewhere = Server::start("db.example.com");
    let error = elsewhere.open("?sslmode=require", Some(&elsewhere.ca)).await.expect_err("another name").to_string();
    assert!(error.contains("not valid for name"), "{error}");
    assert_eq!(server.connections().await, (0, 0));
    assert_eq!(elsewhere.connections().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_url_says_how_the_certificate_is_verified() {
    let elsewhere = Server::start("db.example.com");
    let root = format!("sslrootcert={}", elsewhere.ca.display());
    elsewhere.open(&format!("?sslmode=verify-ca&{root}"), None).await.expect("the name does not matter");
    elsewhere.open("?sslmode=verify-ca", Some(&elsewhere.ca)).await.expect("the same authority");
    for (parameters, wanted) in [
        (format!("?sslmode=verify-full&{root}"), "not valid for name"),
        (format!("?sslmode=require&{root}"), "not valid for name"),
        ("?sslmode=verify-full&sslrootcert=system".into(), "UnknownIssuer"),
        ("?sslmode=verify-ca".into(), "sslrootcert"),
        ("?sslmode=require&sslrootcert=/nowhere.pem".into(), "/nowhere.pem"),
    ] {
        let error = elsewhere.open(&parameters, None).await.expect_err("not trusted").to_string();
        assert!(error.contains(wanted), "{parameters}: {error}");
    }
    let other = Server::start("db.example.com");
    let parameters = format!("?sslmode=verify-ca&{root}");
    let error = other.open(&parameters, None).await.expect_err("another authority").to_string();
    assert!(error.contains("certificate"), "{error}");
    let server = Server::start("127.0.0.1");
    let parameters = format!("?sslmode=verify-full&sslrootcert={}", server.ca.display());
    server.open(&parameters, None).await.expect("its name and its authority");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_may_be_an_authority_as_openssl_makes_it() {
    let authority = IsCa::Ca(BasicConstraints::Unconstrained);
    let server = Server::with_certificate("127.0.0.1", authority);
    let root = format!("sslrootcert={}", server.ca.display());
    server.open("?sslmode=require", Some(&server.ca)).await.expect("it is named");
    server.open(&format!("?sslmode=verify-full&{root}"), None).await.expect("it is named");
    let elsewhere = Server::with_certificate("db.example.com", authority);
    elsewhere.open("?sslmode=verify-ca", Some(&elsewhere.ca)).await.expect("the name does not matter");
    let error = elsewhere.open("?sslmode=require", Some(&elsewhere.ca)).await.expect_err("another name").to_string();
    assert!(error.contains("not valid for name"), "{error}");
    let error = server.open("?sslmode=require", Some(&elsewhere.ca)).await.expect_err("another one").to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_local_server_may_be_unencrypted() {
    let server = Server::start("127.0.0.1");
    let _store = server.open("", None).await.expect("a local server needs no TLS");
    let (encrypted, plain) = server.connections().await;
    assert!(encrypted == 0 && plain > 0, "{encrypted} encrypted, {plain} not");
}
