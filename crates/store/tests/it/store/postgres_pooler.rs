//! PostgreSQL as people buy it: behind poolers, with several hosts, and in other encodings.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use tintype_store::postgres;
use tintype_store::{OpenError, Store};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use tintype_rigs::database::NOON;
use tintype_rigs::pgbouncer::PgBouncer;
use tintype_rigs::postgres::{Cluster, Database, Durability, cluster, path};

async fn open(url: &str) -> Result<Store, OpenError> {
    postgres::open(url, None, Clock::manual(NOON), Faults::default()).await
}

/// Whether the database has no table of ours.
async fn is_empty(database: &Database) -> bool {
    postgres::open_current(&database.direct(), None).await.expect("a database").is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_is_refused_before_anything_is_written() {
    for (source, lines) in [
        ("rust-postgres#1054, river#238: a transaction pooler", &["pool_mode = transaction"][..]),
        ("its documentation: autocommit alone", &["pool_mode = statement"]),
        ("intervyu#25: a free plan with few connections", &["pool_mode = transaction", "default_pool_size = 1"]),
        ("pgbouncer#1067: the oldest connection first", &["pool_mode = transaction", "server_round_robin = 1"]),
        ("sqlx#67: as advised there", &["pool_mode = transaction", "server_reset_query_always = 1"]),
        ("pgbouncer#1118: no reset at all", &["pool_mode = transaction", "server_reset_query ="]),
    ] {
        let (database, pooler) = (Database::create(""), PgBouncer::start(cluster(), lines));
        let url = pooler.url(database.name());
        let error = open(&url).await.expect_err("a shared session").to_string();
        assert!(error.contains("`pool_mode = session`") && error.contains(database.name()), "{source}: {error}");
        assert!(is_empty(&database).await, "{source}");
        // An installation that the pooler came before later: commands and `doctor` refuse it too.
        open(&database.direct()).await.expect("the server itself").create_account("ada", 5).await.expect("an account");
        let error = postgres::open_current(&url, None).await.expect_err("a shared session").to_string();
        assert!(error.contains("`pool_mode = session`"), "{source}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_with_sessions_works() {
    let (database, pooler) = (Database::create(""), PgBouncer::start(cluster(), &["pool_mode = session"]));
    for times in 1..=3 {
        let store = open(&pooler.url(database.name())).await.expect("a session of its own");
        store.create_account(&format!("ada-{times}"), 5).await.expect("an account");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_in_a_url_holds_behind_a_pooler_that_drops_it() {
    let lines = ["pool_mode = session", "ignore_startup_parameters = options"];
    let (database, pooler) = (Database::create(""), PgBouncer::start(cluster(), &lines));
    let config: tokio_postgres::Config = database.direct().parse().expect("a URL");
    let (session, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
    let driving = tokio::spawn(connection);
    for (schema, options) in
        [("tenant", "-csearch_path%3Dtenant"), ("ten'a nt", "-c%20search_path%3D%22ten'a%5C%20nt%22")]
    {
        session.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await.expect("a schema");
        let open = async |url: String| open(&format!("{url}?options={options}")).await.expect("the schema");
        open(pooler.url(database.name())).await.create_account("ada", 5).await.expect("an account");
        assert!(is_empty(&database).await, "{schema}: the tables are elsewhere");
        let accounts = open(database.direct()).await.list_accounts().await.expect("no store error");
        assert_eq!(accounts.len(), 1, "{schema}");
    }
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_begins_to_share_sessions_makes_a_running_server_unready() {
    let (database, mut pooler) = (Database::create(""), PgBouncer::start(cluster(), &["pool_mode = session"]));
    let store = open(&pooler.url(database.name())).await.expect("a session of its own");
    store.ping().await.expect("ready");
    pooler.restart(cluster(), &["pool_mode = transaction"]);
    // The first one may find the connections broken, and replace them.
    drop(store.ping().await);
    let error = store.ping().await.expect_err("a shared session").to_string();
    assert!(error.contains("`pool_mode = session`"), "{error}");
    pooler.restart(cluster(), &["pool_mode = session"]);
    drop(store.ping().await);
    store.ping().await.expect("ready again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_hold_every_prompt_is_refused_before_the_first_table() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let database = Database::create(&format!("ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"));
        let error = open(&database.direct()).await.expect_err("an encoding").to_string();
        assert!(error.contains(encoding) && error.contains("ENCODING 'UTF8'"), "{error}");
        let doctor = postgres::open_current(&database.direct(), None).await.expect_err("an encoding").to_string();
        assert_eq!(doctor, error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_older_or_another_is_refused_by_its_name() {
    let database = Database::create("");
    let config: tokio_postgres::Config = database.direct().parse().expect("a URL");
    let (session, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
    let driving = tokio::spawn(connection);
    // As CockroachDB answers.
    let other = "CREATE SCHEMA other;
        CREATE FUNCTION other.version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v23.1.11' $$;
        CREATE FUNCTION other.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '130000' $$";
    session.batch_execute(other).await.expect("two functions");
    let error = open(&format!("{}?options=-csearch_path%3Dother,pg_catalog", database.direct())).await;
    let error = error.expect_err("a refusal").to_string();
    assert!(error.contains("PostgreSQL 14 or later") && error.contains("CockroachDB CCL"), "{error}");
    assert!(is_empty(&database).await);
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_hosts_the_primary_is_used() {
    let primary = Cluster::start(Durability::Nothing);
    let standby = primary.standby();
    let host = |cluster: &Cluster| path(&cluster.directory).replace('/', "%2F");
    for attributes in ["", "?target_session_attrs=read-write", "?target_session_attrs=any"] {
        let url = format!("postgres://tintype@{}:5432,{}:5432/postgres{attributes}", host(&standby), host(&primary));
        let store = open(&url).await.expect("the primary");
        store.create_account(&format!("ada{}", attributes.len()), 5).await.expect("an account");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_accepts_connections_and_is_silent_is_passed_over() {
    let (database, silent) = (Database::create(""), TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    let (frozen, live) = (silent.local_addr().expect("an address"), path(&cluster().directory).replace('/', "%2F"));
    let url = |hosts: &str| format!("postgres://tintype@{hosts}/{}?connect_timeout=1&sslmode=disable", database.name());
    let store = open(&url(&format!("{frozen},{live}:5432"))).await.expect("the other host");
    store.create_account("ada", 5).await.expect("an account");
    for odd in ["127.0.0.1/x?port=6432", "127.0.0.1:1,127.0.0.1:2/x?hostaddr=127.0.0.1"] {
        let error = open(&format!("postgres://tintype@{odd}")).await.expect_err("a port too many").to_string();
        assert!(error.contains("one port, and one hostaddr, for each host"), "{odd}: {error}");
    }
    let error = open(&url(&frozen.to_string())).await.expect_err("no server").to_string();
    assert!(error.contains(&format!("at {frozen} did not respond for 10 s")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_postgresql_is_refused_with_advice() {
    for (server, answer, parameters, advice) in [
        ("a proxy without a server, PGlite in use", &b""[..], "", "is PostgreSQL running at this host and port"),
        (
            "HTTP",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "?sslmode=disable",
            "is PostgreSQL running at this host and port",
        ),
        ("MySQL", b"\x4a\0\0\0\n8.0.36\0", "?sslmode=disable", "is PostgreSQL running at this host and port"),
        ("PostgreSQL without TLS", b"N", "?sslmode=require", "`?sslmode=disable`"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 1024]).and_then(|_| stream.write_all(answer));
            }
        });
        let error = open(&format!("postgres://tintype@{address}/x{parameters}")).await.expect_err("no database");
        assert!(error.to_string().contains(advice), "{server}: {error}");
    }
}
