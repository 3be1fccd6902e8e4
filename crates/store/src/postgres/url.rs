//! Reads `postgres://` URLs: the parameters of libpq, and those that managed services and other clients add.

use std::path::PathBuf;

use tokio_postgres::Config;

/// The certificates that a URL trusts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Trust {
    /// Only the authorities in this file (`sslrootcert`).
    pub authorities: Option<PathBuf>,
    /// The name in the certificate does not matter (`sslmode=verify-ca`).
    pub is_any_name: bool,
}

/// Parameters that say nothing to this client: those of Prisma, Vercel, node-postgres, Rails, pgx and asyncpg, and those of
/// libpq for GSSAPI, compression, versions and names. The server's name is always sent to it, and the encoding is UTF8.
const WITHOUT_MEANING: &str = "
    connection_limit encoding pgbouncer pool pool_max_conns pool_timeout prepared_statement_cache_size prepared_statements
    sslaccept statement_cache_size supa uselibpqcompat workaround
    client_encoding fallback_application_name gssdelegation gssencmode gsslib krbsrvname load_balance_hosts
    max_protocol_version min_protocol_version ssl_max_protocol_version ssl_min_protocol_version sslcertmode
    sslcompression sslsni";

/// Parameters that would protect or select something, and that this client does not have.
const UNSUPPORTED: [(&str, &str); 9] = [
    ("sslcert", "client certificates are not supported"),
    ("sslkey", "client certificates are not supported"),
    ("sslcrl", "lists of revoked certificates are not supported"),
    ("sslcrldir", "lists of revoked certificates are not supported"),
    ("require_auth", "the method of authentication cannot be chosen"),
    ("service", "service files are not supported"),
    ("servicefile", "service files are not supported"),
    ("passfile", "write the URL to a file for --database-file instead"),
    ("schema", "write options=-csearch_path%3DSCHEMA instead"),
];

/// Reads a URL. An error is a message for the operator that shows nothing of the user name and the password.
pub(super) fn read(url: &str) -> Result<(Config, Trust), String> {
    check_signs(url)?;
    // A user name and a password may contain question marks.
    let address = url.find('@').unwrap_or_default();
    let query = url[address..].find('?').map(|at| address + at);
    let (address, query) = query.map_or((url, ""), |at| (&url[..at], &url[at + 1..]));
    let mut trust = Trust::default();
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or("--database has a parameter without a value")?;
        kept.extend(parameter(name, value, &mut trust)?);
    }
    let config = format!("{address}?{}", kept.join("&")).parse().map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("--database is not a valid postgres:// URL{cause}")
    })?;
    Ok((config, trust))
}

/// Rejects a URL whose user name or password would be parsed as part of the host.
fn check_signs(url: &str) -> Result<(), String> {
    let is_query = |before: &str| {
        let path = before.split_once("://").map_or(before, |(_, rest)| rest);
        path.split_once('?').is_some_and(|(path, query)| path.contains('/') && query.contains('='))
    };
    match url.split_once('@') {
        Some((_, after)) if after.contains('@') => {
            Err("--database has more than one @: write %40 for each @ in the user name, the password or a parameter"
                .into())
        }
        Some((before, _)) if is_query(before) => Err("--database has an @ in a parameter: write %40 for it".into()),
        _ => Ok(()),
    }
}

/// The parameter as the library takes it, if it does; the others change `trust` or nothing.
fn parameter(name: &str, value: &str, trust: &mut Trust) -> Result<Option<String>, String> {
    let same = || Ok(Some(format!("{name}={value}")));
    match (name, value) {
        ("sslmode", "disable" | "prefer" | "require") => same(),
        ("sslmode", "allow") => Ok(Some("sslmode=prefer".into())),
        ("sslmode", "verify-full") | ("ssl", "true") => Ok(Some("sslmode=require".into())),
        ("sslmode", "verify-ca") => {
            trust.is_any_name = true;
            Ok(Some("sslmode=require".into()))
        }
        ("sslmode", _) => {
            Err("sslmode in --database must be disable, allow, prefer, require, verify-ca or verify-full".into())
        }
        ("sslrootcert", "system") => Ok(None),
        ("sslrootcert", path) => {
            trust.authorities = Some(decoded(path).into());
            Ok(None)
        }
        // The library has another name for it.
        ("keepalives_count", _) => Ok(Some(format!("keepalives_retries={value}"))),
        ("target_session_attrs", "any" | "read-write" | "primary") => Ok(None),
        ("target_session_attrs", _) => {
            Err("target_session_attrs in --database must be read-write: tasks are written".into())
        }
        _ if WITHOUT_MEANING.split_whitespace().any(|known| known == name) => Ok(None),
        _ => match UNSUPPORTED.iter().find(|(known, _)| *known == name) {
            Some((name, why)) => Err(format!("{name} in --database: {why}")),
            None => same(),
        },
    }
}

/// A value without percent signs.
fn decoded(value: &str) -> String {
    let query = format!("v={}", value.replace('+', "%2B"));
    url::form_urlencoded::parse(query.as_bytes()).map(|(_, value)| value.into_owned()).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    /// URLs as services print them: the service, the URL, and the host, port, database and TLS that it names.
    const PRINTED: &str = "
        Heroku postgres://u:p@ec2-1.compute-1.amazonaws.com:5432/d1
            ec2-1.compute-1.amazonaws.com 5432 d1 Prefer
        Neon postgresql://u:p@ep-a-b-1.eu.aws.neon.tech/neondb?sslmode=require&channel_binding=require
            ep-a-b-1.eu.aws.neon.tech 5432 neondb Require
        Supabase postgresql://postgres.ref:p@aws-0.pooler.supabase.com:5432/postgres?pgbouncer=true&connection_limit=1
            aws-0.pooler.supabase.com 5432 postgres Prefer
        Vercel postgres://u:p@db.example.com:6543/postgres?sslmode=require&supa=base-pooler.x
            db.example.com 6543 postgres Require
        DigitalOcean postgresql://doadmin:p@db-1.db.ondigitalocean.com:25060/defaultdb?sslmode=require
            db-1.db.ondigitalocean.com 25060 defaultdb Require
        Aiven postgres://avnadmin:p@pg-1.aivencloud.com:12345/defaultdb?sslmode=require
            pg-1.aivencloud.com 12345 defaultdb Require
        RDS postgres://u:p@db.rds.amazonaws.com/d?sslmode=verify-full&sslrootcert=%2Fetc%2Fglobal-bundle.pem
            db.rds.amazonaws.com 5432 d Require
        Azure postgres://u%40srv:p@srv.postgres.database.azure.com/postgres?sslmode=require
            srv.postgres.database.azure.com 5432 postgres Require
        Cloud-SQL postgres://u:p@/d?host=%2Fcloudsql%2Fproject:region:instance
            /cloudsql/project:region:instance 5432 d Prefer
        Fly postgres://u:p@app.flycast:5432/d?sslmode=disable
            app.flycast 5432 d Disable
        node-postgres postgres://u:p@db.example.com/d?uselibpqcompat=true&sslmode=require
            db.example.com 5432 d Require
        psycopg postgresql://u:p@db.example.com/d?client_encoding=utf8&gssencmode=disable
            db.example.com 5432 d Prefer
        libpq postgres://u:p@db.example.com/d?keepalives_idle=30&keepalives_interval=10&keepalives_count=3&sslcertmode=allow
            db.example.com 5432 d Prefer
        Rails postgres://u:p@db.example.com/d?pool=5&encoding=unicode&prepared_statements=false
            db.example.com 5432 d Prefer
        (question-mark-in-password) postgres://u:p?/#w@db.example.com/d?sslmode=require
            db.example.com 5432 d Require";

    #[test]
    fn urls_of_services_are_read() {
        let words: Vec<&str> = PRINTED.split_whitespace().collect();
        for case in words.chunks(6) {
            let (url, named) = (case[1], case[2..].join(" "));
            let (config, _) = read(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            let host = match &config.get_hosts()[0] {
                Host::Tcp(name) => name.clone(),
                Host::Unix(path) => path.display().to_string(),
            };
            let port = config.get_ports().first().unwrap_or(&5432);
            let database = config.get_dbname().unwrap_or_default();
            assert_eq!(format!("{host} {port} {database} {:?}", config.get_ssl_mode()), named, "{url}");
        }
    }

    #[test]
    fn a_misread_url_shows_nothing_of_the_password() {
        for (url, wanted) in [
            ("postgres://ada:se@cret@host/db", "%40"),
            ("postgres://ada:se@cr/et@host/db", "%40"),
            ("postgres://ada:se@cr?et=1@host/db", "%40"),
            ("postgres://host/db?user=ada&password=se@cret", "%40"),
            ("postgres://host/db?user=ada&password=se&cret", "without a value"),
            ("postgres://ada:secret/db", "port"),
            ("postgres://ada:secret@host/db?sslmode=secret", "sslmode"),
            // As Heroku says for Node.js.
            ("postgres://ada:secret@host/db?sslmode=no-verify", "verify-ca"),
            ("postgres://ada:secret@host/db?target_session_attrs=standby", "read-write"),
            ("postgres://ada:secret@host/db?sslcert=secret", "sslcert"),
            ("postgres://ada:secret@host/db?schema=secret", "search_path"),
            ("postgres://ada:secret@host/db?nonsense=secret", "nonsense"),
        ] {
            let error = read(url).expect_err(url);
            assert!(error.contains(wanted) && !error.contains("cret") && !error.contains("et="), "{url}: {error}");
        }
    }

    #[test]
    fn a_url_says_whom_it_trusts() {
        let trust = |query: &str| read(&format!("postgres://u@h/d?{query}")).expect("a URL").1;
        let authorities = Some(PathBuf::from("/etc/ca+1.pem"));
        assert_eq!(trust("sslmode=verify-full&sslrootcert=system"), Trust::default());
        assert_eq!(trust("sslrootcert=%2Fetc/ca+1.pem"), Trust { authorities, is_any_name: false });
        assert!(trust("sslmode=verify-ca").is_any_name);
        let (config, _) = read("postgres://u@one:1,two:2/d?target_session_attrs=primary").expect("several hosts");
        assert_eq!((config.get_hosts().len(), config.get_ports()), (2, &[1, 2][..]));
    }
}
