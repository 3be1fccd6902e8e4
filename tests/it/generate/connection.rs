//! Connections of the client that fail, and certificates that the user names.

use std::fs;
use std::path::Path;

use super::{Generate, Host};
use crate::rigs::binary::Server;
use crate::rigs::ports::Port;

/// The files of a certificate as `openssl req -x509` makes it: an authority that names no host.
fn authority(directory: &Path) -> [String; 2] {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let files = [("cert.pem", params.self_signed(&key).unwrap().pem()), ("key.pem", key.serialize_pem())];
    files.map(|(name, text)| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    })
}

#[test]
fn a_certificate_that_the_user_names_is_accepted_and_no_other() {
    let data = tempfile::tempdir().unwrap();
    let [cert, key] = authority(data.path());
    let server = Server::start(data.path(), &["--tls-cert", &cert, "--tls-key", &key]);
    let api_key = server.first_key().unwrap();
    let url = format!("https://{}", server.address);
    Generate::new(&url, &api_key).run(["A fox", "--ca", &cert]).check(0, &[]);
    let said = ["the certificate of https://", "is not accepted", "--ca FILE"];
    Generate::new(&url, &api_key).run(["A fox"]).check(1, &said);
    let other = tempfile::tempdir().unwrap();
    let [other_cert, _] = authority(other.path());
    Generate::new(&url, &api_key).run(["A fox", "--ca", &other_cert]).check(1, &said);
}

#[test]
fn the_cause_of_a_failed_connection_is_named() {
    let closed = Port::take();
    let url = format!("http://{}", closed.address);
    Generate::new(&url, "secret").run(["A fox"]).check(1, &["is `tintype serve` running", &url]);
    let host = Host::start();
    let https = host.server.url().replace("http:", "https:");
    Generate::new(&https, "secret").run(["A fox"]).check(1, &["does not speak HTTPS"]);
    let unknown = Generate::new("https://no-such-host.invalid", "secret").run(["A fox"]);
    unknown.check(1, &["cannot connect to https://no-such-host.invalid"]);
    assert!(!unknown.stderr.contains("tintype serve"), "{}", unknown.stderr);
}
