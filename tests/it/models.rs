//! `tintype model`: models are fetched whole or not at all, from a hub that may fail or lie.

mod hostile;
mod installed;
mod interrupted;
mod running_server;

use std::path::Path;

use serde_json::Value;

use crate::rigs::binary::{Ran as _, Run as _, data, printed, run, tintype};
use crate::rigs::hub::{COMMIT, Fault, Hub, LIST, NAME, REPOSITORY, WEIGHTS};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a file")
}

#[test]
fn a_pull_installs_the_model_with_the_checksum_of_every_file() {
    let (hub, data) = (Hub::start(), data());
    let output = hub.pull(data.path(), &["--json"]);
    let printed = printed(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!((&printed["name"], &printed["commit"]), (&NAME.into(), &COMMIT.into()));
    // The hub's files hold no weights: the engine has tried to open them.
    assert_eq!((&printed["usable"], &printed["licence"]["name"]), (&false.into(), &"mit".into()));
    assert!(printed["unusable"].as_str().is_some_and(|reason| reason.contains("tiny-model")), "{printed}");
    let folder = hub.assert_whole(data.path());
    let manifest: Value = serde_json::from_str(&text(&folder.join("manifest.json"))).expect("JSON");
    let files = manifest["files"].as_array().expect("files");
    assert!(files.iter().all(|file| file["sha256"].as_str().is_some_and(|hash| hash.len() == 64)), "{manifest}");
    assert_eq!(manifest["source"]["repository"], REPOSITORY);
    // Another pull asks nobody.
    let asked = hub.asked().len();
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.asked().len(), asked);
    // Without a terminal there is a line for every tenth and every file.
    let (hub, data) = (Hub::start(), crate::models::data());
    let said = hub.pull(data.path(), &[]).errors();
    assert!(said.starts_with(&format!("connecting to http://{}\n", hub.address)), "{said}");
    assert!(said.contains(&format!("{WEIGHTS} is complete")) && said.contains("licence  mit"), "{said}");
    assert!(said.contains("297.93 KiB of 297.93 KiB"), "{said}");
}

#[test]
fn the_list_says_what_a_decoder_is_for() {
    let data = data();
    let said = run(data.path(), ["model", "list"]).text();
    let line = said.lines().find(|line| line.starts_with("taesd ")).expect("a line");
    assert!(line.ends_with("not a complete model; for --engine-vae") && !said.contains("not with"), "{said}");
}

#[test]
fn a_licence_that_nobody_accepted_stops_the_pull() {
    let (hub, data) = (Hub::start(), data());
    let said = hub.run(data.path(), &["pull", REPOSITORY]).failed();
    assert!(said.contains("accept it with --accept-licence"), "{said}");
    // The index says whether this release can render with it.
    let is_small = |path: &str| path.starts_with("/api/") || path.ends_with("/model_index.json");
    assert!(hub.asked().iter().all(|asked| is_small(&asked.path)), "{:?}", hub.asked());
}

#[test]
fn a_pipeline_that_is_not_known_is_refused_before_anything_else_is_fetched() {
    for (class, reason) in [
        (r#""StableDiffusion3Pipeline""#, "this release renders with StableDiffusionPipeline, "),
        (r#"["pipeline", "MyPipe"]"#, "code of its own as the pipeline, which is never run"),
    ] {
        let (hub, data) = (Hub::start(), data());
        hub.put("model_index.json", Some(format!(r#"{{"_class_name": {class}}}"#).into_bytes()));
        // Not even the licence is asked for.
        let said = hub.run(data.path(), &["pull", REPOSITORY]).failed();
        assert!(said.contains(reason), "{said}");
        assert_eq!(hub.asked().len(), 2, "{:?}", hub.asked());
        assert!(!data.path().join("models/.tiny-model.part").exists());
    }
}

#[test]
fn an_accepted_licence_is_remembered() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Status(404, Vec::new()));
    hub.refused(data.path(), &[]);
    hub.run(data.path(), &["pull", REPOSITORY]).succeeded();
    assert!(text(&hub.assert_whole(data.path()).join("manifest.json")).contains("\"accepted_at\": \"20"));
}

#[test]
fn names_of_the_catalogue_lead_to_their_repositories() {
    let (hub, data) = (Hub::start(), data());
    let output = hub.run(data.path(), &["pull", "sd-turbo", "--accept-licence"]);
    assert!(!output.status.success());
    let asked = &hub.asked()[0].path;
    assert!(asked.starts_with("/api/models/stabilityai/sd-turbo/revision/b261bac6"), "{asked}");
    // The hub's model has no text encoder.
    let said = output.errors();
    assert!(said.contains("the repository holds nothing of the part \"text_encoder\""), "{said}");
    let said = hub.run(data.path(), &["pull", "no-such-model"]).errors();
    assert!(said.contains("choose lcm-dreamshaper-v7, klein-4b"), "{said}");
}

#[test]
fn the_address_of_a_page_names_its_repository() {
    let hub = Hub::start();
    for host in [format!("http://{}", hub.address), "https://huggingface.co".into()] {
        for page in ["", "/", "/tree/main"] {
            let (data, address) = (data(), format!("{host}/{REPOSITORY}{page}"));
            hub.run(data.path(), &["pull", &address, "--accept-licence"]).succeeded();
            hub.assert_whole(data.path());
        }
    }
    let said = hub.refused(data().path(), &["--endpoint", "hf-mirror.com"]);
    assert!(said.contains("HF_ENDPOINT is not a URL that begins with https://"), "{said}");
    let quoted = data();
    std::fs::write(quoted.path().join("token"), "\"hf_secret\"").expect("written");
    let said = hub.refused(quoted.path(), &["--token-file", quoted.path().join("token").to_str().expect("text")]);
    assert!(said.contains("characters that no token has, such as spaces or quotes"), "{said}");
}

#[test]
fn a_gated_repository_says_where_to_accept_its_licence() {
    let (hub, data) = (Hub::start(), data());
    hub.gate("hf_secret");
    let said = hub.refused(data.path(), &[]);
    let page = format!("http://{}/{REPOSITORY}", hub.address);
    assert!(said.contains(&format!("accept the licence at {page}")) && said.contains("--token-file"), "{said}");
    let token = data.path().join("token");
    std::fs::write(&token, "hf_secret\n").expect("written");
    let flags = ["--token-file", token.to_str().expect("text")];
    assert!(!hub.pull(data.path(), &flags).stderr.windows(9).any(|part| part == b"hf_secret"));
    assert!(!text(&hub.assert_whole(data.path()).join("manifest.json")).contains("hf_secret"));
}

#[test]
fn a_mistyped_name_and_a_wrong_token_are_told_from_a_licence() {
    let (hub, data) = (Hub::start(), data());
    let header = |name, value: &str| vec![(name, value.to_owned())];
    let page = format!("http://{}/{REPOSITORY}", hub.address);
    for status in [401, 404] {
        hub.plan(LIST, Fault::Status(status, header("x-error-code", "RepoNotFound")));
        let said = hub.refused(data.path(), &[]);
        assert!(said.contains(&format!("knows no repository at {page}: check the name")), "{said}");
        assert!(said.contains("--token-file") && !said.contains("licence at"), "{said}");
    }
    let wrong = header("x-error-message", "Invalid credentials in Authorization header");
    hub.plan(LIST, Fault::Status(401, wrong));
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains("does not know the token: make a new one"), "{said}");
    hub.plan(LIST, Fault::Status(403, header("x-error-code", "GatedRepo")));
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains(&format!("accept the licence at {page}")), "{said}");
    hub.plan(LIST, Fault::Status(403, header("x-error-message", "Access to this resource is disabled.")));
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains(&format!("has disabled the repository at {page}: choose another")), "{said}");
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_store_of_files() {
    let (hub, store, data) = (Hub::start(), Hub::start(), data());
    hub.gate("hf_secret");
    hub.redirect_to(&store);
    let token = data.path().join("token");
    std::fs::write(&token, "hf_secret").expect("written");
    hub.pulled(data.path(), &["--token-file", token.to_str().expect("text")]);
    assert!(hub.asked().iter().all(|asked| asked.headers.contains_key("authorization")));
    assert!(store.asked().len() > 5);
    assert!(store.asked().iter().all(|asked| !asked.headers.contains_key("authorization")));
}

#[test]
fn a_hub_is_reached_through_the_proxy_of_the_environment() {
    let (hub, data) = (Hub::start(), data());
    let mut command = tintype();
    command.args(["model", "pull", REPOSITORY, "--accept-licence", "--data"]).arg(data.path());
    command.env("HF_ENDPOINT", "http://hub.example").env("HTTP_PROXY", format!("http://{}", hub.address));
    command.ran().succeeded();
    hub.assert_whole(data.path());
    assert!(hub.asked().iter().all(|asked| asked.headers["host"] == "hub.example"));
}

#[test]
fn a_token_is_not_sent_in_the_clear() {
    let (hub, data) = (Hub::start(), data());
    let token = data.path().join("token");
    std::fs::write(&token, "hf_secret").expect("written");
    let token = token.to_str().expect("text");
    let said = hub.refused(data.path(), &["--endpoint", "http://hub.example", "--token-file", token]);
    assert!(said.contains("plain HTTP"), "{said}");
}

#[test]
fn a_hub_that_is_overloaded_is_asked_again_and_one_that_stays_so_ends_the_pull() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Status(429, vec![("retry-after", "0".into())]));
    hub.plan(WEIGHTS, Fault::Status(503, Vec::new()));
    hub.plan(WEIGHTS, Fault::Status(500, Vec::new()));
    hub.pulled(data.path(), &[]);
    hub.plan(LIST, Fault::Status(429, vec![("ratelimit", "\"api\";r=0;t=250".into())]));
    let said = hub.refused(crate::models::data().path(), &[]);
    assert!(said.contains("asks to wait for 250 s: try again then, or give a token of your account"), "{said}");
    let (hub, data) = (Hub::start(), crate::models::data());
    hub.plan(WEIGHTS, Fault::Status(429, vec![("retry-after", "3600".into())]));
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains("asks to wait for 3600 s"), "{said}");
    for _ in 0..6 {
        hub.plan(WEIGHTS, Fault::Status(502, Vec::new()));
    }
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains("6 times in a row"), "{said}");
}

#[test]
fn a_file_that_the_hub_does_not_have_ends_the_pull() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Status(404, Vec::new()));
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains(WEIGHTS) && said.contains("is not there at this revision"), "{said}");
}
