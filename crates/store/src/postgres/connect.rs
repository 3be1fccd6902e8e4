//! The configuration of connections to the server: URL, TLS, and the settings of a session.

use std::path::Path;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::url::{self, Trust};
use tintype_outbound::trust;

/// Longest wait for an address of the server to accept a connection and to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Silence after which the network counts as broken.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(15);
/// The server cancels a statement that takes longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of each session: the URL's, which poolers drop, and ours. An acknowledged write is on disk, whatever the
/// server's default, and waiting statements time out. A pooler that doesn't reset sessions could hand over a previous
/// process's session, which has statements with the same names.
pub(super) fn session(config: &Config) -> String {
    let options = config.get_options().map(options).unwrap_or_default();
    let options: String = options.iter().map(|(name, value)| setting(name, value)).collect();
    let statement_ms = STATEMENT_TIMEOUT.as_millis();
    format!(
        "DEALLOCATE ALL;
         {options}
         SET statement_timeout = {statement_ms};
         SET lock_timeout = 5000;
         SET idle_in_transaction_session_timeout = 15000;
         SET idle_session_timeout = 0;
         SET default_transaction_isolation = 'read committed';
         SET client_min_messages = warning;
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
}

/// The schema that the URL names, for display; `None` if that is left to the server.
pub(super) fn schema(config: &Config) -> Option<String> {
    let named = options(config.get_options()?).into_iter().find(|(name, _)| name == "search_path");
    named.map(|(_, schema)| schema)
}

/// The settings in `options`, which the server reads like its command line: `-c NAME=VALUE` or `--NAME=VALUE`, with a
/// backslash before a space that belongs to a value.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => words.last_mut().into_iter().for_each(|word| word.extend(signs.next())),
            sign if sign.is_whitespace() => words.push(String::new()),
            sign => words.last_mut().into_iter().for_each(|word| word.push(sign)),
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let assignment = match word.strip_prefix("-c").or(word.strip_prefix("--")) {
            Some("") => words.next().unwrap_or_default(),
            Some(assignment) => assignment.to_owned(),
            None => continue,
        };
        if let Some((name, value)) = assignment.split_once('=') {
            settings.push((name.replace('-', "_"), value.to_owned()));
        }
    }
    settings
}

/// A statement that makes a setting, unless it is made: some can be made only as a session begins.
fn setting(name: &str, value: &str) -> String {
    let quoted = |text: &str| format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let (name, value) = (quoted(name), quoted(value));
    format!("SELECT set_config({name}, {value}, false) WHERE current_setting({name}, true) IS DISTINCT FROM {value};\n")
}

/// Session settings that make statements use the indexes that they were written for, regardless of statistics: the
/// queue's statistics are always outdated, and a plan made while it was empty would read all of it when it is full. The
/// server keeps one plan per statement and connection.
pub(super) const BY_INDEX: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// A configuration's host and database, for display.
pub(super) fn describe(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let port = config.get_ports().get(index).or(config.get_ports().first());
        match (host, port) {
            (Host::Tcp(name), Some(port)) if *port != 5_432 => format!("{name}:{port}"),
            (Host::Tcp(name), _) => name.clone(),
            (Host::Unix(path), _) => path.display().to_string(),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("PostgreSQL database {database:?} at {}", hosts.join(", "))
}

/// Reads a `postgres://` URL and adds defaults. An error is a message for the operator, without the password.
pub(super) fn configuration(url: &str) -> Result<(Config, Trust), String> {
    let (mut config, trust) = url::read(url)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("--database names no host: write postgres://USER:PASSWORD@HOST/DATABASE".into());
    }
    // The library would only reject these when it connects to the first of them.
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    if (hosts > 0 && addresses > 0 && hosts != addresses)
        || ![0, 1, hosts.max(addresses)].contains(&config.get_ports().len())
    {
        return Err("--database must name one port, and one hostaddr, for each host, or a single port: write \
                    postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE"
            .into());
    }
    if config.get_application_name().is_none() {
        config.application_name("tintype");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // Of several hosts, use the current primary.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.tcp_user_timeout(NETWORK_TIMEOUT).keepalives_idle(NETWORK_TIMEOUT);
    config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
    // The mode "prefer" of libpq does not verify certificates, so a man in the middle could read everything.
    if config.get_ssl_mode() == SslMode::Prefer {
        config.ssl_mode(if is_local(&config) { SslMode::Disable } else { SslMode::Require });
    }
    Ok((config, trust))
}

fn is_local(config: &Config) -> bool {
    let loopback = |name: &str| name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let of_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => loopback(name),
    };
    config.get_hosts().iter().all(of_host) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

/// TLS that trusts the public authorities and those in the file `ca`, or only those that the URL names. The connector
/// is not used where the URL asks for no TLS. An error is a message for the operator.
pub(super) fn tls(config: &Config, trust: &Trust, ca: Option<&Path>) -> Result<MakeRustlsConnect, String> {
    let is_used = config.get_ssl_mode() != SslMode::Disable;
    let (flag, file) = match (&trust.authorities, ca) {
        (Some(path), _) => ("sslrootcert in --database", Some(path.as_path())),
        (None, ca) => ("--database-ca", ca),
    };
    let place = file.map(|path| format!("{flag} {}", path.display())).unwrap_or_default();
    let named = |error: String| format!("{place}: {error}");
    let pem = file.filter(|_| is_used).map(std::fs::read).transpose().map_err(|error| named(error.to_string()))?;
    let pem = pem.as_deref();
    let config = match (pem, trust.is_any_name) {
        // Everyone can have a certificate of a public authority for some name.
        (None, true) if is_used => {
            return Err("sslmode=verify-ca in --database needs sslrootcert or --database-ca".into());
        }
        (Some(pem), true) => trust::tls_for_any_name(trust::only(pem).map_err(named)?),
        (Some(pem), false) if trust.authorities.is_some() => trust::tls(trust::only(pem).map_err(named)?),
        (pem, _) => trust::tls(trust::public_and(pem).map_err(named)?),
    };
    Ok(MakeRustlsConnect::new(config.map_err(|error| error.to_string())?))
}
