//! Certificates for servers of the tests, each signed by an authority of its own.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto};

/// A certificate for `host`, and the PEM of the authority that signed it.
pub fn certificate(host: &str) -> (TlsAcceptor, String) {
    certificate_with(CertificateParams::new([host.to_owned()]).unwrap())
}

/// The same, with other parameters of the certificate.
pub fn certificate_with(leaf: CertificateParams) -> (TlsAcceptor, String) {
    let mut ca_params = CertificateParams::default();
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca_params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &ca).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca.pem())
}
