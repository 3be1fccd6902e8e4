//! Models that are installed: added folders, lists, checks and removals.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{data, text};
use crate::rigs::binary::{Ran as _, Server, json, refused, run};
use crate::rigs::hub::{Hub, NAME, WEIGHTS, content};

#[path = "../../../crates/diffusion/tests/parity/whole_file.rs"]
mod whole_file;

/// The user of the service: nobody, who has an entry in /etc/passwd everywhere.
const SERVICE: u32 = 65_534;

fn folder() -> (TempDir, PathBuf) {
    let directory = data();
    let folder = directory.path().join("My Model");
    fs::create_dir_all(folder.join("unet")).expect("a folder");
    fs::write(folder.join("model_index.json"), r#"{"_class_name": "UnheardOfPipeline"}"#).expect("written");
    fs::write(folder.join(WEIGHTS), content(1_000)).expect("written");
    fs::write(folder.join("notes.txt"), "mine").expect("written");
    (directory, folder)
}

fn name_of<'a>(list: &'a Value, kind: &str, at: usize) -> &'a str {
    list[kind][at]["name"].as_str().unwrap_or_default()
}

#[test]
fn an_added_folder_is_used_where_it_lies_and_stays_when_it_is_removed() {
    let (data, (_directory, folder)) = (data(), folder());
    let path = folder.to_str().expect("text");
    let added = run(data.path(), ["model", "add", path, "--hash", "--json"]).exited(1).json();
    assert_eq!((added["name"].as_str(), added["usable"].as_bool()), (Some("my-model"), Some(false)));
    assert_eq!(added["folder"], path);
    let said = refused(data.path(), &["model", "add", path]);
    assert!(said.contains("give another name as --name"), "{said}");
    run(data.path(), ["model", "add", path, "--name", "twin"]).exited(1);
    let verified = json(data.path(), &["model", "verify"]);
    assert_eq!((&verified[0]["ok"], &verified[0]["without_checksum"]), (&true.into(), &0.into()));
    assert_eq!((&verified[1]["ok"], &verified[1]["without_checksum"]), (&true.into(), &2.into()));
    json(data.path(), &["model", "remove", "my-model", "--yes"]);
    assert_eq!(text(&folder.join("notes.txt")), "mine");
    assert_eq!(fs::read(folder.join(WEIGHTS)).expect("a file"), content(1_000));
    let list = json(data.path(), &["model", "list"]);
    assert_eq!((name_of(&list, "installed", 0), name_of(&list, "installed", 1)), ("twin", ""));
}

#[test]
fn a_single_file_is_added_checked_and_listed() {
    let (data, links) = (data(), data());
    // As the cache of a hub has it: a link to a file without an ending.
    let blob = links.path().join("0123abcd");
    let recorded = crate::tidy::root().join("crates/diffusion/tests/parity");
    whole_file::write_whole_file(&recorded, "sdxl", &blob);
    let link = links.path().join("Some Model (v6) XL.safetensors");
    symlink(&blob, &link).expect("a link");
    let path = link.to_str().expect("text");
    let added = json(data.path(), &["model", "add", path, "--hash"]);
    assert_eq!(
        (&added["name"], &added["pipeline"]),
        (&"some-model--v6--xl".into(), &"StableDiffusionXLPipeline".into())
    );
    assert_eq!((&added["file"], &added["usable"]), (&"Some Model (v6) XL.safetensors".into(), &true.into()), "{added}");
    let checked = json(data.path(), &["engine", "check", "diffusion", "--model", path]);
    assert_eq!(checked[0]["ok"], true, "{checked}");
    assert_eq!(json(data.path(), &["model", "verify"])[0]["ok"], true);
    fs::write(&blob, "PK").expect("written");
    assert!(!run(data.path(), ["model", "verify"]).status.success());
    json(data.path(), &["model", "remove", "some-model--v6--xl", "--yes"]);
    assert!(blob.exists());
    for (name, content, reason) in
        [("a.ckpt", &b"\x80\x02}q\x00."[..], "safetensors"), ("b.safetensors", b"PK\x03\x04", "is")]
    {
        let path = links.path().join(name);
        fs::write(&path, content).expect("written");
        let said = refused(data.path(), &["model", "add", path.to_str().expect("text")]);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn a_model_that_the_engine_cannot_open_is_listed_with_the_reason_and_is_no_default() {
    let (data, copy) = (data(), data());
    let folder = copy.path().join("broken");
    let from = crate::tidy::root().join("crates/diffusion/tests/parity/sd15");
    let copied = std::process::Command::new("cp").arg("-r").args([&from, &folder]).status().expect("cp runs");
    assert!(copied.success());
    let config = folder.join("unet/config.json");
    fs::write(&config, text(&config).replace("\"silu\"", "\"mish\"")).expect("written");
    let added = run(data.path(), ["model", "add", folder.to_str().expect("text"), "--json"]).exited(1).json();
    let reason = added["unusable"].as_str().unwrap_or_default().to_owned();
    assert!(added["usable"] == false && reason.contains("act_fn"), "{added}");
    let list = json(data.path(), &["model", "list"]);
    assert_eq!(list["installed"][0]["unusable"], reason);
    let said = run(data.path(), ["model", "list"]).text();
    assert!(said.contains("unusable: "), "{said}");
    let engines = json(data.path(), &["engine", "list"]);
    assert_eq!(engines["configured"][0]["engine"], "sketch", "{engines}");
    fs::copy(from.join("unet/config.json"), &config).expect("copied");
    // The file has another length than the one that was added.
    json(data.path(), &["model", "remove", "broken", "--yes"]);
    let added = json(data.path(), &["model", "add", folder.to_str().expect("text")]);
    assert_eq!(added["usable"], true, "{added}");
    assert_eq!(json(data.path(), &["engine", "list"])["configured"][0]["engine"], "diffusion");
}

#[test]
fn a_folder_that_is_no_model_is_not_added() {
    let (data, (directory, folder)) = (data(), folder());
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).expect("a folder");
    for (folder, reason) in [(empty.as_path(), "model_index.json"), (Path::new("/no/such"), "is not on this machine")] {
        let said = refused(data.path(), &["model", "add", folder.to_str().expect("text")]);
        assert!(said.contains(reason), "{said}");
    }
    fs::write(folder.join("model_index.json"), r#"{"_class_name": "rm -rf"}"#).expect("written");
    let said = refused(data.path(), &["model", "add", folder.to_str().expect("text")]);
    assert!(said.contains("names no class"), "{said}");
    for name in ["../x", "", ".x", "A", "a/b"] {
        let said = refused(data.path(), &["model", "add", folder.to_str().expect("text"), "--name", name]);
        assert!(said.contains("cannot be the name of a model"), "{said}");
    }
}

#[test]
fn damage_is_found_by_verify_and_by_the_doctor() {
    let (hub, data) = (Hub::start(), data());
    let folder = hub.pulled(data.path(), &[]);
    let doctor = || run(data.path(), ["doctor", "--json"]).check("models");
    assert_eq!(doctor()["ok"], true, "{}", doctor());
    assert!(doctor()["detail"].as_str().is_some_and(|detail| detail.contains(NAME)), "{}", doctor());
    let weights = folder.join(WEIGHTS);
    let mut bytes = fs::read(&weights).expect("a file");
    bytes[150_000] ^= 1;
    fs::write(&weights, &bytes).expect("written");
    let said = run(data.path(), ["model", "verify"]).exited(1).text();
    assert!(said.contains(&format!("{WEIGHTS}: its content differs")), "{said}");
    fs::write(&weights, &bytes[1..]).expect("written");
    fs::remove_file(folder.join("unet/config.json")).expect("a file");
    let said = run(data.path(), ["model", "verify", NAME]).text();
    assert!(said.contains("299999 bytes instead of 300000") && said.contains("unet/config.json: No such"), "{said}");
    assert_eq!(doctor()["ok"], false, "{}", doctor());
    // It can be fetched again once it is removed.
    let said = hub.pull(data.path(), &[]).errors();
    assert!(said.contains("tintype model remove tiny-model"), "{said}");
    json(data.path(), &["model", "remove", NAME, "--yes"]);
    hub.pulled(data.path(), &[]);
}

#[test]
fn the_weights_in_8_bits_of_an_added_model_are_made_and_verified() {
    let data = data();
    let folder = crate::tidy::root().join("crates/diffusion/tests/parity/klein");
    let output = run(data.path(), ["model", "add", folder.to_str().expect("text"), "--hash"]);
    let said = output.errors();
    assert!(output.status.success() && said.contains("making the 8-bit weights of transformer"), "{said}");
    let cache = data.path().join("models/klein/cache");
    let made: Vec<_> = fs::read_dir(&cache).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    let transformer = made.iter().find(|path| path.ends_with("transformer.w8a8")).expect("the transformer");
    assert_eq!(json(data.path(), &["model", "verify"])[0]["ok"], true);
    let mut bytes = fs::read(transformer).expect("a file");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(transformer, bytes).expect("written");
    let output = run(data.path(), ["model", "verify"]);
    let said = output.text();
    assert!(!output.status.success() && said.contains("transformer.w8a8 is damaged"), "{said}");
}

#[test]
fn the_list_names_licences_and_what_this_release_cannot_use() {
    let data = data();
    let list = json(data.path(), &["model", "list"]);
    let offers = list["available"].as_array().expect("a list");
    let offer = |name: &str| offers.iter().find(|offer| offer["name"] == name).expect("an offer").clone();
    assert_eq!(offer("klein-4b")["licence"], "Apache-2.0");
    assert_eq!((&offer("klein-4b")["max_references"], &offer("klein-4b")["steps"]), (&4.into(), &4.into()));
    assert_eq!(offer("sd-turbo")["commercial"], false);
    let text = run(data.path(), ["model", "list"]).text();
    let turbo = text.lines().find(|line| line.starts_with("sd-turbo")).expect("a line");
    assert!(turbo.contains("no commercial use"), "{turbo}");
}

#[test]
fn nothing_is_removed_without_a_yes() {
    let (hub, data) = (Hub::start(), data());
    hub.pulled(data.path(), &[]);
    let said = refused(data.path(), &["model", "remove", NAME]);
    assert!(said.contains("pass --yes"), "{said}");
    hub.assert_whole(data.path());
    for without_a_question in [&["--yes"][..], &["--json"], &[]] {
        let said = refused(data.path(), &[&["model", "remove", "other"], without_a_question].concat());
        assert!(said.contains("no model \"other\" is installed"), "{said}");
    }
    for name in ["..", "../..", ".", "/", "a/../.."] {
        let said = refused(data.path(), &["model", "remove", name, "--yes"]);
        assert!(said.contains("is not a model name"), "{said}");
    }
}

#[test]
fn root_removes_a_link_of_the_service_user_and_nothing_that_it_leads_to() {
    assert!(rustix::process::geteuid().is_root(), "this test needs a second user: run the tests as root");
    let (directory, precious) = (data(), data());
    let data = directory.path().join("data");
    fs::create_dir_all(data.join("models")).expect("a folder");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    fs::write(precious.path().join("manifest.json"), "{}").expect("written");
    for path in [data.clone(), data.join("models")] {
        chown(path, Some(SERVICE), Some(SERVICE)).expect("root may give files away");
    }
    for link in ["linked", ".half.part", ".old.gone"] {
        symlink(precious.path(), data.join("models").join(link)).expect("a link");
    }
    for name in ["linked", "half", "old"] {
        json(&data, &["model", "remove", name, "--yes"]);
    }
    assert_eq!(text(&precious.path().join("manifest.json")), "{}");
    assert_eq!(fs::read_dir(data.join("models")).expect("a folder").count(), 0);
    // A pull into a folder that is a link of the service user writes nothing there either.
    let hub = Hub::start();
    symlink(precious.path(), data.join("models/.tiny-model.part")).expect("a link");
    let said = hub.refused(&data, &[]);
    assert!(said.contains("symbolic link"), "{said}");
    assert_eq!(fs::read_dir(precious.path()).expect("a folder").count(), 1);
    // All of a model that root fetches belongs to the service user.
    fs::remove_file(data.join("models/.tiny-model.part")).expect("a link");
    let folder = hub.pulled(&data, &[]);
    for path in [folder.clone(), folder.join("manifest.json"), folder.join(WEIGHTS)] {
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(&path).expect("a file")), SERVICE);
    }
}

#[test]
fn a_backup_holds_no_models_and_a_restore_leaves_them_alone() {
    let (hub, data, other) = (Hub::start(), data(), data());
    hub.pulled(data.path(), &[]);
    json(data.path(), &["account", "create", "ada"]);
    let backup = other.path().join("backup");
    let said = run(data.path(), ["backup", backup.to_str().expect("text")]).text();
    assert!(said.contains("Models are not in a backup: fetch or add tiny-model again"), "{said}");
    assert!(!backup.join("models").exists());
    let target = other.path().join("data");
    hub.pulled(&target, &[]);
    json(&target, &["restore", backup.to_str().expect("text")]);
    hub.assert_whole(&target);
}

#[test]
fn a_server_that_draws_sketches_says_how_to_get_real_pictures() {
    let (hub, data) = (Hub::start(), data());
    let said = || {
        let server = Server::start(data.path(), &["--engine", "sketch"]);
        let said = server.said.clone();
        server.stop();
        said
    };
    let first = said();
    let lines: Vec<_> = first.lines().skip_while(|line| !line.contains("These are sketches")).take(3).collect();
    assert!(lines[0].contains("model pull lcm-dreamshaper-v7 --data "), "{first}");
    assert!(lines[1].contains("4.0 GiB of disk and 4.7 GiB of memory, about "), "{first}");
    assert!(lines[1].ends_with("Then start the server without an engine."), "it would not take up the model: {first}");
    assert!(lines[2].ends_with(": docs/operate/real-pictures.md"), "{first}");
    hub.pulled(data.path(), &[]);
    assert!(!said().contains("These are sketches"));
}
