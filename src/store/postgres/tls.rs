//! TLS to the server.

use std::path::Path;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::outbound::trust;

/// Creates the TLS connector for servers whose URL asks for TLS. It trusts the public authorities and those in the file
/// `ca`.
///
/// # Errors
/// A sentence for the operator.
pub(super) fn connector(config: &Config, ca: Option<&Path>) -> Result<Option<MakeRustlsConnect>, String> {
    if config.get_ssl_mode() == SslMode::Disable {
        return Ok(None);
    }
    let unusable = |path: &Path, error: &dyn std::fmt::Display| format!("--database-ca {}: {error}", path.display());
    let roots = match ca {
        None => trust::roots(None)?,
        Some(path) => {
            let pem = std::fs::read(path).map_err(|error| unusable(path, &error))?;
            trust::roots(Some(&pem)).map_err(|error| unusable(path, &error))?
        }
    };
    Ok(Some(MakeRustlsConnect::new(trust::tls(roots).map_err(|error| error.to_string())?)))
}
