//! `tintype engine list | check | try`.

use std::path::Path;
use std::process::Output;

use futures::future::join_all;
use serde_json::Value;
use tempfile::TempDir;
use tintype_engine::Picture;

use crate::rigs::binary::{Ran as _, Run as _, json, printed, refused, run, tintype};
use crate::rigs::certificates::certificate;
use crate::rigs::faulty_http::Double;
use crate::rigs::images_api::{Dialect, ImagesServer, Reply, painted};
use crate::rigs::s3::S3Server;

/// Runs a command while servers of this test answer.
async fn running(data: &Path, arguments: &[&str]) -> Output {
    let (data, arguments) = (data.to_owned(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
    tokio::task::spawn_blocking(move || run(&data, arguments)).await.expect("no panic")
}

#[test]
fn the_list_shows_the_engine_of_the_settings_and_the_known_kinds() {
    let data = TempDir::new().unwrap();
    let listed = json(data.path(), &["engine", "list"]);
    assert_eq!(listed["configured"][0]["engine"], "sketch");
    assert_eq!(
        listed["known"],
        serde_json::json!(["sketch", "diffusion", "openai:URL", "sd-server:URL", "sd-server", "comfyui:URL"])
    );
    let settings = ["engine", "list", "--engine", "openai:https://api.openai.com/v1", "--engine-references", "2"];
    let listed = json(data.path(), &settings);
    assert_eq!(listed["configured"][0]["sizes"], serde_json::json!(["1024x1024", "1536x1024", "1024x1536"]));
    assert_eq!(listed["configured"][0]["max_references"], 2);
    assert!(refused(data.path(), &["engine", "list", "--engine", "dall-e"]).contains("there is no engine"));
}

#[tokio::test]
async fn a_check_says_whether_the_engine_takes_work() {
    let data = TempDir::new().unwrap();
    assert_eq!(json(data.path(), &["engine", "check"])[0]["ok"], true);
    let server = ImagesServer::start(Dialect::Sglang).await;
    let output = running(data.path(), &["engine", "check", &server.engine(), "--json"]).await;
    assert_eq!(printed(&output)[0]["ok"], true);
    assert!(server.asked().is_empty(), "it renders nothing");
    let output = running(data.path(), &["engine", "check", "openai:http://127.0.0.1:1/v1", "--json"]).await;
    assert!(!output.status.success() && output.stderr.is_empty(), "{output:?}");
    let checked = output.json();
    let error = checked[0]["error"].as_str().expect("a message");
    assert!(error.contains("http://127.0.0.1:1/v1") && !error.starts_with("not available"), "{error}");
    let server = ImagesServer::with_key(Dialect::Sglang, "sk-right").await;
    let wrong = ["engine", "check", &server.engine(), "--engine-key", "sk-wrong", "--json"];
    let checked = running(data.path(), &wrong).await.json();
    let error = checked[0]["error"].as_str().expect("a message");
    assert!(error.ends_with("Incorrect API key: check --engine-key and what it may do"), "{error}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_not_called_ready() {
    let (data, server) = (TempDir::new().unwrap(), Double::start(|_| Reply::Silence).await);
    let urls = ["openai:http://ADDRESS/v1", "sd-server:http://ADDRESS", "comfyui:http://ADDRESS"];
    let [openai, sd_server, comfyui] = urls.map(|url| url.replace("ADDRESS", &server.address.to_string()));
    let workflow = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/comfyui/sdxl.json");
    let commands = [
        &["engine", "check", &openai][..],
        &["engine", "check", &sd_server],
        &["engine", "check", &comfyui, "--engine-workflow", workflow],
        &["doctor", "--engine", &openai],
    ];
    for output in join_all(commands.map(|command| running(data.path(), command))).await {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let maybe = "gave no answer within 4 s: it may be loading a model, or not be the engine";
        assert!(said.contains(maybe), "{said}");
    }
}

#[tokio::test]
async fn a_check_names_the_setting_that_trusts_a_certificate() {
    let data = TempDir::new().unwrap();
    let (tls, _) = certificate("localhost");
    // Any server over TLS: nothing is asked of it.
    let server = S3Server::start_over(Some(tls), data.path(), "engine").await;
    let engine = format!("sd-server:https://localhost:{}", server.address.port());
    let checked = running(data.path(), &["engine", "check", &engine, "--json"]).await.json();
    assert!(checked[0]["error"].as_str().is_some_and(|error| error.contains("in --engine-ca")), "{checked}");
}

#[tokio::test]
async fn a_try_saves_one_picture_of_the_exact_size_and_never_overwrites_a_file() {
    let data = TempDir::new().unwrap();
    let out = data.path().join("boat.png");
    let out = out.to_str().expect("text");
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([Reply::file(&painted(320, 200, 7))]);
    let engine = server.engine();
    let arguments = ["engine", "try", &engine, "a boat", "--aspect", "16:9", "--seed", "5", "--out", out, "--json"];
    let tried = printed(&running(data.path(), &arguments).await);
    assert_eq!((tried["rendered"].as_str(), tried["size"].as_str()), (Some("320x200"), Some("1280x720")));
    let asked = server.asked()[0].json();
    assert_eq!((asked["seed"].as_u64(), asked["prompt"].as_str()), (Some(5), Some("a boat")));
    let file = std::fs::read(out).expect("a file");
    assert_eq!(file[16..24], [1_280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat());
    assert_eq!(Picture::decode(&file).expect("a PNG").as_rgb()[0], 200);

    let output = running(data.path(), &arguments).await;
    assert!(!output.status.success());
    assert_eq!(server.asked().len(), 1, "nothing is rendered for a file that exists");
    std::fs::remove_file(out).expect("a file");
    server.reply([Reply::json(400, &serde_json::json!({ "detail": "too boaty" }))]);
    let said = running(data.path(), &arguments).await.failed();
    assert!(said.contains("answered 400: too boaty"), "{said}");
    assert!(!Path::new(out).exists(), "no empty file is left");
}

#[test]
fn a_try_without_a_file_takes_the_first_free_name() {
    let folder = TempDir::new().unwrap();
    for name in ["try.png", "try-2.png", "try-3.png"] {
        let mut command = tintype();
        command.args(["engine", "try", "sketch", "a boat", "--json", "--data"]).arg(folder.path());
        let tried = printed(&command.current_dir(folder.path()).ran());
        assert_eq!(tried["file"], name);
        assert!(Picture::decode(&std::fs::read(folder.path().join(name)).expect("a file")).is_ok(), "{name}");
    }
    let blank = tintype().args(["engine", "try", "sketch", " "]).current_dir(folder.path()).ran();
    assert!(blank.exited(2).errors().contains("a prompt must not be empty"), "{blank:?}");
    assert!(!folder.path().join("try-4.png").exists());
    let piped = tintype().args(["engine", "try", "sketch", "a boat", "--out", "-"]).current_dir(folder.path()).ran();
    assert!(piped.failed().contains("--out takes a file") && !folder.path().join("-").exists(), "{piped:?}");
}

#[tokio::test]
async fn the_commands_take_the_names_of_tables_in_the_config_file() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    let data = TempDir::new().unwrap();
    let file = format!(
        "[engine.gpu]\nkind = \"openai\"\nurl = \"http://{}/v1\"\nprofile = \"sglang\"\nslots = 3\n
         [engine.off]\nkind = \"openai\"\nurl = [\"http://127.0.0.1:1/v1\", \"http://127.0.0.1:2/v1\"]\n
         [engine.sketch]\nkind = \"sketch\"\nreferences = 1\n",
        server.address
    );
    std::fs::write(data.path().join("tintype.toml"), file).expect("a file");
    let listed = json(data.path(), &["engine", "list"]);
    let listed = listed["configured"].as_array().expect("a list");
    let line = |shown: &Value| (shown["engine"].clone(), shown["max_references"].clone(), shown["slots"].clone());
    let expected = [("gpu", 4, 3), ("off", 0, 4), ("sketch", 1, 8)];
    assert_eq!(
        listed.iter().map(line).collect::<Vec<_>>(),
        expected.map(|(name, references, slots)| (name.into(), references.into(), slots.into()))
    );
    let listed = json(data.path(), &["engine", "list", "--engine", "gpu"]);
    assert_eq!(listed["configured"].as_array().map(Vec::len), Some(1));

    let output = running(data.path(), &["engine", "check", "--json"]).await;
    assert!(!output.status.success());
    let checked = output.json();
    assert_eq!([0, 1, 2].map(|engine| checked[engine]["ok"] == true), [true, false, true]);
    assert_eq!(printed(&running(data.path(), &["engine", "check", "gpu", "--json"]).await)[0]["engine"], "gpu");

    let out = data.path().join("boat.png");
    let out = out.to_str().expect("text");
    server.reply([Reply::file(&painted(64, 64, 7))]);
    let tried = printed(&running(data.path(), &["engine", "try", "gpu", "a boat", "--out", out, "--json"]).await);
    assert_eq!(tried["engine"], "gpu");
    assert_eq!(server.asked().len(), 1);

    for (arguments, reason) in [
        (&["engine", "check", "cpu"][..], "the config file has no table [engine.cpu]"),
        (&["engine", "check", "openai"], "openai needs the URL of its server"),
        (&["engine", "list", "--engine", "g p u"], "is not the name of an engine"),
        (&["engine", "list", "--engine", "gpu", "--engine-model", "m"], "model has no effect on the tables"),
        (&["engine", "list", "--engine-args", "m"], "set args in the table"),
    ] {
        let said = refused(data.path(), arguments);
        assert!(said.contains(reason), "{said}");
    }
    // A kind with a URL is none of the tables, and takes the flags.
    let flags = ["engine", "list", "--engine", "openai:http://127.0.0.1:1/v1", "--engine-references", "2"];
    assert_eq!(json(data.path(), &flags)["configured"][0]["max_references"], 2);
}
