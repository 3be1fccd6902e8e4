//! A hub that lies: about lengths, ranges, contents and names.

use serde_json::{Value, json};

use super::data;
use crate::rigs::hub::{COMMIT, Fault, Hub, WEIGHT_BYTES, WEIGHTS, content, entry};

#[test]
fn wrong_bytes_are_fetched_once_more_and_never_installed() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Wrong);
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.ranges(WEIGHTS), ["", ""]);
    for path in [WEIGHTS, "unet/config.json"] {
        let (hub, data) = (Hub::start(), super::data());
        hub.plan(path, Fault::Wrong);
        hub.plan(path, Fault::Wrong);
        let said = hub.refused(data.path(), &[]);
        assert!(said.contains(&format!("{path} is not the file that the hub promised")), "{said}");
        // The wrong bytes are gone.
        hub.pulled(data.path(), &[]);
        assert_eq!(hub.ranges(path), ["", "", ""]);
    }
}

#[test]
fn another_length_than_the_promised_is_refused() {
    for fault in [Fault::Longer, Fault::Shorter, Fault::Endless] {
        let (hub, data) = (Hub::start(), data());
        hub.plan(WEIGHTS, fault.clone());
        hub.pulled(data.path(), &[]);
        let (hub, data) = (Hub::start(), super::data());
        (0..6).for_each(|_| hub.plan(WEIGHTS, fault.clone()));
        let said = hub.refused(data.path(), &[]);
        assert!(said.contains("6 times in a row"), "{fault:?}: {said}");
        let left = data.path().join("models/.tiny-model.part").join(format!("{WEIGHTS}.part"));
        assert!(std::fs::metadata(left).expect("a part").len() <= WEIGHT_BYTES as u64, "{fault:?}");
    }
}

#[test]
fn an_answer_with_another_range_begins_the_file_anew() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Cut(1_000));
    hub.plan(WEIGHTS, Fault::Elsewhere);
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=1000-", ""]);
}

#[test]
fn a_hub_that_cannot_continue_sends_the_whole_file() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Cut(1_000));
    hub.plan(WEIGHTS, Fault::Whole);
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=1000-"]);
    let (hub, data) = (Hub::start(), super::data());
    hub.plan(WEIGHTS, Fault::Cut(1_000));
    hub.plan(WEIGHTS, Fault::Status(416, Vec::new()));
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=1000-", ""]);
}

#[test]
fn a_hub_that_stops_sending_is_asked_again() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Hold(100_000));
    hub.plan(WEIGHTS, Fault::Silence);
    hub.pulled(data.path(), &["--test-stall", "1s"]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=100000-", "bytes=100000-"]);
}

#[test]
fn names_that_lead_elsewhere_are_not_fetched() {
    let (hub, data) = (Hub::start(), data());
    let outside = data.path().join("outside.json");
    let names = [
        "../outside.json",
        "../../outside.json",
        "unet/../../../outside.json",
        outside.to_str().expect("text"),
        "unet/config.json\0",
        "unet//config.json",
        "unet/./model.safetensors",
        "unet\\config.json",
        "manifest.json",
        "pull.json",
        "cache/x.safetensors",
        "models/x/model.safetensors",
    ];
    hub.list_more(names.iter().map(|name| entry(name, b"{}")).collect());
    hub.pulled(data.path(), &[]);
    assert!(!outside.exists());
    let asked = hub.asked();
    assert!(!asked.iter().any(|asked| asked.path.contains("..") || asked.path.contains("outside")), "{asked:?}");
}

#[test]
fn a_list_that_cannot_be_trusted_is_refused() {
    let list = |siblings: Value| json!({ "sha": COMMIT, "siblings": siblings }).to_string().into_bytes();
    let index = entry("model_index.json", b"{}");
    let weights = entry(WEIGHTS, &content(10));
    let with = |field: &str, value: Value| {
        let mut changed = weights.clone();
        changed["lfs"][field] = value;
        list(json!([index, changed]))
    };
    let many: Vec<_> = (0..100_000).map(|at| json!({ "rfilename": format!("unet/{at}.json"), "size": 1 })).collect();
    let shards = (0..1_100).map(|at| entry(&format!("tokenizer/{at}.json"), b"{}"));
    let shards: Vec<_> = shards.chain([index.clone(), weights.clone()]).collect();
    for (name, list, reason) in [
        ("nothing", Vec::new(), "gave no list of files"),
        ("no JSON", b"<html>".to_vec(), "gave no list of files: it sent a web page, perhaps of a proxy"),
        ("deep", b"[".repeat(100_000), "gave no list of files"),
        ("no commit", json!({ "sha": "main", "siblings": [] }).to_string().into_bytes(), "names no commit"),
        ("no files", list(json!([])), "holds no model_index.json"),
        ("no weights", list(json!([index])), "holds no weights"),
        ("twice", list(json!([index, weights, weights])), "twice"),
        ("no length", with("size", 0.into()), "gives 0 as the length"),
        ("huge", with("size", u64::MAX.into()), "gives 18446744073709551615 as the length"),
        ("negative", with("size", (-1).into()), "gave no list of files"),
        ("no checksum", with("sha256", "ABC".into()), "gives no checksum"),
        ("100,000 files", list(many.into()), "holds no model_index.json"),
        ("too many to fetch", list(shards.into()), "at most 1000 are allowed"),
        ("endless", vec![b' '; 9 << 20], "is larger than 8 MiB"),
    ] {
        let (hub, data) = (Hub::start(), data());
        hub.send_list(list);
        let said = hub.refused(data.path(), &[]);
        assert!(said.contains(reason), "{name}: {said}");
        assert_eq!(hub.asked().len(), 1, "{name}");
    }
}

#[test]
fn an_index_that_is_too_large_is_not_fetched() {
    let (hub, data) = (Hub::start(), data());
    let mut index = entry("model_index.json", b"{}");
    index["size"] = (1_u64 << 30).into();
    let list = json!({ "sha": COMMIT, "siblings": [index, entry(WEIGHTS, &content(10))] });
    hub.send_list(list.to_string().into_bytes());
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains("model_index.json is larger than 1 MiB"), "{said}");
    assert_eq!(hub.asked().len(), 1);
}

#[test]
fn a_model_larger_than_the_disk_is_not_begun() {
    let (hub, data) = (Hub::start(), data());
    let mut weights = entry(WEIGHTS, &content(10));
    weights["lfs"]["size"] = (1_u64 << 39).into();
    let index = entry("model_index.json", br#"{"_class_name": "StableDiffusionPipeline"}"#);
    let list = json!({ "sha": COMMIT, "siblings": [index, weights] });
    hub.send_list(list.to_string().into_bytes());
    let said = hub.refused(data.path(), &[]);
    assert!(said.contains("the model needs 512.1 GiB of free disk"), "{said}");
    assert!(hub.ranges(WEIGHTS).is_empty());
}
