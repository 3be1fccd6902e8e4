//! The config file, the order of the layers of settings, and `tintype config show`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, data_with, printed, tintype};

fn on(data: &Path, arguments: &[&str]) -> Command {
    let mut command = tintype();
    command.args(arguments).arg("--data").arg(data);
    command
}

fn said(mut command: Command) -> String {
    command.ran().failed()
}

/// The settings that `config show` prints.
fn settings(mut command: Command) -> Value {
    printed(&command.arg("--json").ran())
}

#[track_caller]
fn setting(settings: &Value, name: &str) -> Value {
    let mut all = settings.as_array().expect("settings").iter();
    all.find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{name} in {settings}")).clone()
}

fn refusal(file: &str) -> String {
    said(on(data_with(file).path(), &["account", "list"]))
}

#[test]
fn a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default() {
    let data = data_with("submit-rate = 1\nread-rate = \"2/min\"\nmax-unfinished = 3\n\nproduction = true\n");
    let mut command = on(data.path(), &["config", "show", "--submit-rate", "10"]);
    command.env("TINTYPE_SUBMIT_RATE", "100").env("TINTYPE_READ_RATE", "200").env("TINTYPE_PRODUCTION", "false");
    let settings = settings(command);
    let path = data.path().join("tintype.toml");
    for (name, value, source, origin) in [
        ("submit-rate", json!(["10"]), "flag", Value::Null),
        ("read-rate", json!(["200"]), "environment", json!("TINTYPE_READ_RATE")),
        ("max-unfinished", json!(["3"]), "file", json!(format!("{}:3", path.display()))),
        ("production", json!(["false"]), "environment", json!("TINTYPE_PRODUCTION")),
        ("engine", Value::Null, "default", Value::Null),
        ("policy", Value::Null, "default", Value::Null),
        ("data", json!([data.path()]), "flag", Value::Null),
    ] {
        let expected = json!({ "name": name, "value": value, "source": source, "origin": origin });
        assert_eq!(setting(&settings, name), expected);
    }
}

#[test]
fn the_table_of_settings_names_the_line_of_each() {
    let data = data_with("# comment\nlisten = \"127.0.0.1:9\"\ntrusted-proxy = [\"10.0.0.0/8\", \"::1\"]\n");
    let table = on(data.path(), &["config", "show"]).ran().text();
    let line = |name: &str| {
        let found = table.lines().find(|line| line.split_whitespace().next() == Some(name));
        found.unwrap_or_else(|| panic!("{name} in {table}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let path = data.path().join("tintype.toml").display().to_string();
    assert_eq!(line("listen"), format!("listen 127.0.0.1:9 file {path}:2"));
    assert_eq!(line("trusted-proxy"), format!("trusted-proxy 10.0.0.0/8, ::1 file {path}:3"));
    assert_eq!(line("lease"), "lease 30s default");
}

#[tokio::test]
async fn a_server_obeys_its_file() {
    let file =
        "listen = \"127.0.0.1:0\"\nlog = \"warn\"\npublic-url = \"https://images.example.com\"\nkey = \"unused\"\n";
    let data = data_with(file);
    let path = data.path().join("tintype.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("a file");
    // The commands of the client read the same file, so a server passes over their settings.
    let server = Server::spawn(on(data.path(), &["serve"]));
    assert_ne!(server.address.port(), 8080);
    server.stop();
}

#[test]
fn the_file_that_config_names_replaces_that_of_the_data_directory() {
    let data = data_with("engine = \"not-read\"\n");
    let elsewhere = TempDir::new().expect("a directory");
    let named = elsewhere.path().join("other.toml");
    std::fs::write(&named, format!("data = \"{}\"\nlease = \"10s\"\n", data.path().display())).expect("a file");
    let mut by_flag = tintype();
    by_flag.args(["config", "show", "--config"]).arg(&named);
    let mut by_variable = tintype();
    by_variable.args(["config", "show"]).env("TINTYPE_CONFIG", &named);
    for command in [by_flag, by_variable] {
        let settings = settings(command);
        assert_eq!(setting(&settings, "data")["value"], json!([data.path()]));
        assert_eq!(setting(&settings, "lease")["value"], json!(["10s"]));
        assert_eq!(setting(&settings, "engine")["source"], "default");
    }
    let mut missing = tintype();
    missing.args(["account", "list", "--config"]).arg(elsewhere.path().join("none.toml"));
    assert!(said(missing).contains("none.toml"));
}

#[test]
fn a_value_that_a_flag_cannot_have_is_refused_with_the_reason() {
    let data = TempDir::new().expect("a directory");
    for (arguments, reason) in [
        (&["serve", "--renders", "-1"][..], "--renders"),
        (&["key", "create", "--account", "ada", "--read-rate", "-1"], "is not a number of requests per minute"),
        (&["account", "create", "ada", "--credits", "-1"], "must be a whole number from 0 to"),
        (&["account", "low-balance", "ada", "-1"], "neither a number of credits from 1 to"),
        (&["health", "--timeout", "-1s"], "note: the value of a flag cannot be negative"),
        (&["health", "--timeout", "0s"], "it leaves no time"),
        (&["account", "list", "--database", "mysql://ada:secret@db/images"], "--database: it must be sqlite:PATH or"),
        (&["serve", "--min-free-space", "much"], "512MiB"),
        (&["serve", "--otlp", "collector:4317"], "is not a base URL"),
        (&["serve", "--acme-contact", "ada@example.com"], "--acme-domain"),
        (&["serve", "--acme-domain", "192.0.2.1"], "192.0.2.1"),
        (&["serve", "--acme-domain", "a.example", "--tls-cert", "cert.pem", "--tls-key", "key.pem"], "--tls-cert"),
    ] {
        let said = on(data.path(), arguments).ran().exited(2).errors();
        assert!(said.contains(reason) && !said.contains("secret"), "{arguments:?}: {said}");
    }
    let other_engine = on(data.path(), &["doctor", "--json", "--engine", "sketch", "--engine-steps", "4"]).ran();
    let found = other_engine.check("engine");
    let detail = found["detail"].as_str().expect("text");
    assert!(found["ok"] == true && detail.ends_with("; engine-steps has no effect with it"), "{found}");
}

#[test]
fn a_server_that_cannot_use_a_setting_says_why_without_a_secret_of_it() {
    let data = TempDir::new().expect("a directory");
    for (arguments, reason) in [
        (["--acme-domain", "a.example", "--acme-ca", "/nowhere"], "/nowhere"),
        (["--redis", "rediss://localhost", "--redis-ca", "/nowhere.pem"], "/nowhere.pem"),
        (["--listen", "127.0.0.1:0", "--redis", "http://:secret@127.0.0.1"], "--redis must be redis://"),
        (["--listen", "127.0.0.1:0", "--redis", "redis://:secret@"], "--redis must be redis://"),
        (["--listen", "127.0.0.1:0", "--redis", "redis://:secret@h/x"], "--redis must be redis://"),
        (["--listen", "127.0.0.1:0", "--redis", "secret"], "--redis must be redis://"),
        (["--listen", "127.0.0.1:0", "--redis", "redis+unix:///secret"], "--redis must be redis://"),
        (["--listen", "127.0.0.1:0", "--redis", "redis://secret@127.0.0.1"], "redis://:PASSWORD@HOST"),
    ] {
        let said = on(data.path(), &[&["serve"][..], &arguments].concat()).ran().exited(1).errors();
        assert!(said.contains(reason) && !said.contains("secret"), "{arguments:?}: {said}");
    }
}

#[test]
fn no_message_repeats_the_password_of_a_url() {
    let data = TempDir::new().expect("a directory");
    for (arguments, reason) in [
        (&["serve", "--public-url", "https://ada:hunter2@a.example"][..], "holds a user name or a password"),
        (&["serve", "--public-url", "https://ada:hunter/2@a.example"], "not a base URL"),
        (&["serve", "--file-url", "https://hunter2@a.example/files"], "holds a user name or a password"),
        (&["serve", "--otlp", "http://ada:hunter2@a.example"], "OTEL_EXPORTER_OTLP_HEADERS"),
        (&["serve", "--engine", "openai:http://ada:hunter2@a.example"], "--engine-key-file"),
        (&["serve", "--acme-directory", "https://ada:hunter2@a.example/directory"], "holds a user name or a password"),
        (&["serve", "--acme-directory", "a directory"], "not a URL such as"),
        (&["serve", "--oidc-client-id", "x", "--oidc-issuer", "https://ada:hunter2@a.example"], "holds a user name"),
        (&["serve", "--cors-origin", "https://ada:hunter2@a.example"], "not an origin"),
        (&["serve", "--files", "s3://ada:hunter2@a.example/x"], "--files must be s3://BUCKET"),
        (&["serve", "--redis", "http://ada:hunter2@a.example"], "--redis must be redis://"),
        (&["generate", "a fox", "--url", "ada:hunter2@127.0.0.1:1"], "holds a user name or a password"),
        (&["generate", "a fox", "--url", "hunter2@127.0.0.1:1"], "holds a user name or a password"),
        (&["serve", "https://ada:hunter2@a.example"], "unexpected argument"),
        (&["https://ada:hunter2@a.example"], "unrecognized subcommand"),
        (&["model", "pull", "lcm-dreamshaper-v7", "--endpoint", "http://ada:hunter2@a.example"], "hold no password"),
        (&["webhook", "add", "--account", "ada", "https://ada:hunter2@a.example/"], "no user name"),
    ] {
        let ran = on(data.path(), arguments).ran();
        let said = ran.errors();
        assert!(!ran.status.success() && said.contains(reason) && !said.contains("hunter"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_variable_that_is_no_setting_is_told_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut command = on(file.path(), &["serve", "--listen", "127.0.0.1:0"]);
    command.env("TINTYPE_PUBLIC_URI", "https://images.example.com").env("TINTYPE_NONSENSE", "1");
    // Kubernetes sets these for a service with the name of the program.
    command.env("TINTYPE_SERVICE_HOST", "10.0.0.1").env("TINTYPE_PORT_8080_TCP_ADDR", "10.0.0.1");
    let said = said(command);
    let lines: Vec<_> = said.lines().filter(|line| line.contains("no such setting")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(said.contains("did you mean TINTYPE_PUBLIC_URL?") && said.contains("TINTYPE_NONSENSE is set"), "{said}");
    let data = TempDir::new().expect("a directory");
    for arguments in [["config", "show"].as_slice(), &["doctor"]] {
        let output = on(data.path(), arguments).env("TINTYPE_RETENTON", "30d").output().expect("a program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("did you mean TINTYPE_RETENTION?"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_duration_that_nobody_means_is_refused() {
    let data = TempDir::new().expect("a directory");
    for (flag, value, reason) in [
        ("--render-timeout", "0s", "between 1s and 9m"),
        ("--render-timeout", "10m", "between 1s and 9m"),
        ("--shutdown-delay", "99999d", "at most 1h"),
        ("--drain-timeout", "1M", "write 1m for a minute, or 30d for a month"),
    ] {
        let said = said(on(data.path(), &["serve", flag, value]));
        assert!(said.contains(reason), "{flag} {value}: {said}");
    }
}

/// A path would name another file, and a fresh installation would hide the old one (soliplex#1002, flytekit#1163,
/// moby#46773).
#[test]
fn a_variable_with_more_than_its_value_is_refused() {
    let data = TempDir::new().expect("a directory");
    for (name, value, fault) in [
        ("TINTYPE_DATABASE", "sqlite:other.db\n", "ends with a line break: remove it"),
        ("TINTYPE_LISTEN", "127.0.0.1:0\r\n", "ends with a line break: remove it"),
        ("TINTYPE_DATABASE", "\"sqlite:other.db\"", "has quotes around its value: remove them"),
        ("TINTYPE_DATA", " other", "begins or ends with white space: remove it"),
        ("TINTYPE_DATA", "'other'", "has quotes around its value: remove them"),
    ] {
        let mut command = tintype();
        command.arg("serve").current_dir(&data).env("TINTYPE_DATA", data.path()).env(name, value);
        let said = said(command);
        assert!(said.contains(&format!("{name} {fault}")), "{said}");
    }
    on(data.path(), &["config", "show"]).env("TINTYPE_ENGINE_ARGS", "'--model' 'a model.gguf' ").ran().succeeded();
    assert_eq!(std::fs::read_dir(data.path()).expect("a directory").count(), 0);
}

#[test]
fn an_unknown_name_is_an_error_that_names_the_nearest() {
    for (file, line, nearest) in [
        ("\nlissten = \"127.0.0.1:0\"", "line 2", "did you mean \"listen\"?"),
        ("public_url = \"https://a.example\"", "line 1", "did you mean \"public-url\"?"),
        ("zzz = 1", "line 1", "tintype serve --help"),
        ("[server]\nlisten = \"127.0.0.1:0\"", "line 1", "there is no setting \"server\""),
        ("test-fault = \"x\"", "line 1", "there is no setting"),
    ] {
        let said = refusal(file);
        assert!(said.contains("tintype.toml") && said.contains(line) && said.contains(nearest), "{said}");
    }
}

#[test]
fn a_value_of_the_wrong_type_or_form_is_an_error_with_its_line() {
    for (file, expected) in [
        ("production = \"yes\"", "line 1: production must be true or false"),
        ("\n\nlisten = true", "line 3: listen takes a text in quotes or a number"),
        ("engine = [\"sketch\"]", "line 1: engine takes one value, not a list"),
        ("lease = { seconds = 3 }", "line 1: lease takes a value, not a table"),
        ("lease = \"soon\"", "line 1: lease: \"soon\" is not a duration"),
        ("log = \"info\"\nlog-format = \"xml\"", "line 2: log-format cannot be \"xml\": choose one of text, json"),
        ("trusted-proxy = [\"10.0.0.0/8\", \"everyone\"]", "line 1: trusted-proxy: \"everyone\" is not a network"),
        ("public-url = \"a.example\"", "line 1: public-url: it is not a base URL such as https://"),
        ("renders = 0", "line 1: renders: 0 is not in 1..=1024"),
        ("listen = ", "line 1: "),
        ("lease = \"1s\"\nlease = \"2s\"", "line 2: duplicate key"),
    ] {
        let said = refusal(file);
        assert!(said.contains(expected), "{file}: {said}");
    }
}

#[test]
fn the_file_of_the_data_directory_cannot_move_it() {
    assert!(refusal("data = \"/elsewhere\"").contains("line 1: data cannot be set in this file"));
    assert!(refusal("config = \"/elsewhere\"").contains("line 1: config cannot be set in this file"));
}

#[test]
fn a_pipe_in_the_place_of_the_found_file_is_an_error() {
    let data = TempDir::new().expect("a directory");
    let file = data.path().join("tintype.toml");
    let made = Command::new("mkfifo").arg(&file).status().expect("mkfifo runs");
    assert!(made.success());
    let refused = said(on(data.path(), &["account", "list"]));
    assert!(refused.contains("tintype.toml") && refused.contains("it is not a file"), "{refused}");
}

#[test]
fn rules_between_flags_hold_for_the_file_and_the_error_names_it() {
    let alone = data_with("tls-cert = \"cert.pem\"\n");
    let refused = said(on(alone.path(), &["serve", "--listen", "127.0.0.1:0"]));
    assert!(refused.contains("--tls-key") && refused.contains("tintype.toml:1"), "{refused}");
    let both = data_with("tls-cert = \"cert.pem\"\ntls-key = \"key.pem\"\n");
    let refused = said(on(both.path(), &["serve", "--acme-domain", "a.example"]));
    assert!(refused.contains("cannot be used with") && refused.contains("tintype.toml:1"), "{refused}");
    // A flag from the command line and its partner from the file belong together.
    let refused = said(on(both.path(), &["serve", "--listen", "127.0.0.1:0", "--tls-cert", "/nowhere/cert.pem"]));
    assert!(refused.contains("/nowhere/cert.pem"), "{refused}");
}

#[test]
fn a_secret_that_every_user_can_read_is_refused() {
    for secret in
        ["database = \"postgres://u:pass-71c2@h/d\"", "redis = \"redis://:pass-71c2@h\"", "key = \"pass-71c2\""]
    {
        let data = data_with(&format!("\n{secret}\n"));
        let path = data.path().join("tintype.toml");
        for (mode, refused) in [(0o644, true), (0o640, false), (0o600, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a file");
            let output = on(data.path(), &["config", "show"]).ran();
            let said = output.errors();
            assert_eq!(output.status.code(), Some(if refused { 2 } else { 0 }), "{said}");
            assert_eq!(said.contains("line 2") && said.contains("chmod o-r"), refused, "{said}");
            let both = [output.stdout, output.stderr].concat();
            assert!(!String::from_utf8_lossy(&both).contains("pass-71c2"), "the secret is shown");
        }
    }
}

#[test]
fn a_secret_in_a_file_has_the_rank_of_the_setting_that_names_it() {
    let elsewhere = TempDir::new().expect("a directory");
    let path = |name: &str| elsewhere.path().join(name).display().to_string();
    for name in ["file", "variable", "flag"] {
        // As Notepad writes it.
        std::fs::write(path(name), format!("\u{feff}sqlite:{}\r\n", path(&format!("{name}.db")))).expect("a file");
    }
    let data = data_with(&format!("database-file = \"{}\"\n", path("file")));
    let create = |command: &mut Command| {
        let output = command.args(["account", "create", "ada", "--data"]).arg(data.path()).output();
        assert!(output.expect("the program runs").status.success());
    };
    let exists = || ["file", "variable", "flag"].map(|name| elsewhere.path().join(format!("{name}.db")).exists());
    create(&mut tintype());
    assert_eq!(exists(), [true, false, false]);
    create(tintype().env("TINTYPE_DATABASE", format!("sqlite:{}", path("variable.db"))));
    assert_eq!(exists(), [true, true, false]);
    create(
        tintype()
            .env("TINTYPE_DATABASE", format!("sqlite:{}", path("nowhere.db")))
            .args(["--database-file", &path("flag")]),
    );
    assert_eq!(exists(), [true, true, true]);
    assert!(!elsewhere.path().join("nowhere.db").exists());
    assert!(refusal("database = \"sqlite:x\"\ndatabase-file = \"y\"").contains("exclude each other"));
    let refused = |command: &mut Command, said: &str| {
        let output = command.args(["account", "list", "--data"]).arg(data.path()).output().expect("the program runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(said), "{message}");
    };
    refused(
        tintype().args(["--database", "sqlite:x", "--database-file", "y"]),
        "--database and --database-file exclude",
    );
    let variables = [("TINTYPE_DATABASE", "sqlite:x"), ("TINTYPE_DATABASE_FILE", "y")];
    refused(tintype().envs(variables), "TINTYPE_DATABASE and TINTYPE_DATABASE_FILE exclude each other");
}

#[test]
fn the_tables_of_engines_are_shown_without_their_keys() {
    let file = "renders = 2\n\n[engine.gpu]\nkind = \"openai\"\nurl = \"http://127.0.0.1:8000/v1\"\nkey = \"pass-71c2\"\n\
                devices = [\"0\", 1]\nreferences = 0\n";
    let data = data_with(file);
    let path = data.path().join("tintype.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("a file");
    let shown = settings(on(data.path(), &["config", "show"]));
    for (name, value, line) in [
        ("engine.gpu.kind", json!(["openai"]), 4),
        ("engine.gpu.url", json!(["http://127.0.0.1:8000/v1"]), 5),
        ("engine.gpu.key", json!(["********"]), 6),
        ("engine.gpu.devices", json!(["0", "1"]), 7),
        ("engine.gpu.references", json!(["0"]), 8),
    ] {
        let origin = format!("{}:{line}", path.display());
        let expected = json!({ "name": name, "value": value, "source": "file", "origin": origin });
        assert_eq!(setting(&shown, name), expected);
    }
    assert_eq!(setting(&shown, "engine")["value"], Value::Null);
    // A command that has no engine reads the same file.
    assert!(on(data.path(), &["policy", "--help"]).ran().status.success());
    assert!(said(on(data.path(), &["account", "list"])).contains("there is no database"));
}

#[test]
fn a_table_of_an_engine_that_cannot_be_used_is_an_error_with_its_line() {
    for (file, expected) in [
        ("[engine.gpu]\nmodel = \"m\"", "line 1: [engine.gpu] kind is missing"),
        (
            "[engine.gpu]\nkind = \"dall-e\"",
            "line 2: [engine.gpu] kind cannot be \"dall-e\": choose one of sketch, diffusion, openai",
        ),
        ("[engine.gpu]\nkind = \"openai\"", "line 1: [engine.gpu] openai needs the url of its server"),
        ("[engine.a]\nkind = \"sketch\"\nurl = \"http://h\"", "line 1: [engine.a] the sketch engine is built in"),
        (
            "[engine.a]\nkind = \"openai\"\nurl = \"ftp://h\"",
            "line 3: [engine.a] url: the engine's URL begins with ftp://",
        ),
        (
            "[engine.a]\nkind = \"openai\"\nurl = \"127.0.0.1:8000/v1\"",
            "line 3: [engine.a] url: the engine's URL begins with neither http:// nor https://",
        ),
        (
            "[engine.a]\nkind = \"sketch\"\nmodle = \"m\"",
            "line 3: [engine.a] there is no setting \"modle\": did you mean \"model\"?",
        ),
        (
            "[engine.a]\nkind = \"sketch\"\nengine-model = \"m\"",
            "line 3: [engine.a] there is no setting \"engine-model\"",
        ),
        ("[engine.a]\nkind = \"sketch\"\nslots = 0", "line 3: [engine.a] slots: 0 is not in 1..=1024"),
        ("[engine.a]\nkind = \"sketch\"\nmodel = true", "line 3: [engine.a] model takes a text in quotes or a number"),
        ("[engine.a]\nkind = \"sketch\"\nmodel = [\"m\"]", "line 3: [engine.a] model takes one value, not a list"),
        (
            "[engine.a]\nkind = \"sketch\"\nlora = [\"a.safetensors:0.8\"]",
            "line 1: [engine.a] lora is for the built-in engine",
        ),
        (
            "[engine.a]\nkind = \"diffusion\"\nlora = [\"a.safetensors\", \"b.safetensors:11\"]",
            "line 3: [engine.a] lora: the weight 11 of b.safetensors is not from -10 to 10",
        ),
        (
            "[engine.a]\nkind = \"sketch\"\nembedding = [\"a.safetensors=word\"]",
            "line 1: [engine.a] embedding is for the built-in engine",
        ),
        (
            "[engine.a]\nkind = \"diffusion\"\nembedding = [\"a.safetensors\", \"=word\"]",
            "line 3: [engine.a] embedding: \"=word\" is not a file with a word",
        ),
        (
            "[engine.a]\nkind = \"sketch\"\nprompt = \"weighted\"",
            "line 1: [engine.a] prompt is for the built-in engine",
        ),
        (
            "[engine.a]\nkind = \"diffusion\"\nprompt = \"loud\"",
            "line 3: [engine.a] prompt cannot be \"loud\": choose one of plain, weighted",
        ),
        ("[engine.a]\nkind = \"sketch\"\nvae = \"a.safetensors\"", "line 1: [engine.a] vae is for the built-in engine"),
        ("[engine.a]\nkind = \"sketch\"\n[engine.a.more]\n", "line 3: [engine.a] there is no setting \"more\""),
        ("[engine.\"a b\"]\nkind = \"sketch\"", "line 1: [engine.a b] \"a b\" is not the name of an engine"),
        ("[engine.a]\nkind = \"sketch\"\n[engine.a]\nkind = \"sketch\"", "line 3: duplicate key"),
        ("engine = \"sketch\"\n[engine.a]\nkind = \"sketch\"", "line 2: "),
        ("[engine]\ngpu = 3", "line 2: [engine.gpu] must be a table"),
        ("[engine.a]\nkind = \"sketch\"\nkey = \"k\"\nkey-file = \"f\"", "key and key-file exclude each other"),
    ] {
        let said = refusal(file);
        assert!(said.contains(expected), "{file}: {said}");
    }
    let open = data_with("[engine.a]\nkind = \"sketch\"\nkey = \"pass-71c2\"\n");
    std::fs::set_permissions(open.path().join("tintype.toml"), std::fs::Permissions::from_mode(0o644)).expect("a file");
    let said = said(on(open.path(), &["config", "show"]));
    assert!(said.contains("line 3: key holds a secret") && !said.contains("pass-71c2"), "{said}");
}

#[test]
fn help_and_the_version_need_no_valid_file() {
    let data = data_with("nonsense");
    for flag in ["--help", "--version"] {
        assert!(on(data.path(), &[flag]).ran().status.success());
    }
}

#[test]
fn a_log_filter_that_is_not_a_level_is_refused() {
    let data = data_with("log = \"inof\"\n");
    let mut by_flag = tintype();
    by_flag.args(["account", "list", "--log", "warn,tintype"]);
    let mut by_variable = tintype();
    by_variable.args(["account", "list"]).env("TINTYPE_LOG", "inof");
    let by_file = on(data.path(), &["account", "list"]);
    for (mut command, part) in [(by_flag, "\"tintype\""), (by_variable, "\"inof\""), (by_file, "\"inof\"")] {
        assert_eq!(command.ran().status.code(), Some(2));
        let said = said(command);
        assert!(
            said.contains(&format!("{part} is not a level: write error, warn, info, debug, trace or off")),
            "{said}"
        );
    }
    for filter in ["rmcp=debug", "info, rmcp::service=trace", "tokio_postgres::query=debug"] {
        let output = on(data.path(), &["config", "show", "--log", filter]).ran();
        assert_eq!(output.status.code(), Some(2), "{filter}: {output:?}");
        assert!(output.errors().contains("hold prompts and secrets"), "{filter}: {output:?}");
    }
    for filter in
        ["WARN", "off", "tintype=trace", "warn,tintype::worker=debug", "tokio_postgres=trace", "info,rmcp=off"]
    {
        let output = on(data.path(), &["config", "show", "--log", filter]).ran();
        assert!(output.status.success(), "{filter}: {output:?}");
    }
}

#[test]
fn the_log_has_colours_only_in_terminals_that_want_them() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    // A file is no data directory, so the server ends at once; the warning before it is a line of the log.
    let serve = format!("{TINTYPE} serve --listen 127.0.0.1:0 --data {}", file.path().display());
    for (variables, coloured) in [
        (&[("TERM", "xterm")][..], true),
        (&[("TERM", "xterm"), ("NO_COLOR", "")], true),
        (&[("TERM", "xterm"), ("NO_COLOR", "1")], false),
        (&[("TERM", "dumb")], false),
    ] {
        // `script` comes from bsdutils, which every Debian has. It gives the server a terminal.
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &serve, "/dev/null"]).stdin(std::process::Stdio::null());
        command.env_remove("NO_COLOR").env("TINTYPE_NONSENSE", "1").envs(variables.iter().copied());
        let said = command.ran().text();
        assert!(said.contains("TINTYPE_NONSENSE is set"), "{said}");
        assert_eq!(said.contains("\u{1b}["), coloured, "{variables:?}: {said}");
    }
}

#[test]
fn an_address_that_is_given_twice_is_not_called_taken_by_another_program() {
    let data = data_with("");
    let twice = "127.0.0.1:9";
    for (arguments, flag) in [
        (["--listen", twice, "--listen", twice], "--listen"),
        (["--listen", twice, "--metrics-listen", twice], "--metrics-listen"),
    ] {
        let refused = said(on(data.path(), &[&["serve"][..], &arguments].concat()));
        assert!(refused.contains("127.0.0.1:9 is given twice") && refused.contains(flag), "{refused}");
    }
}
