//! A pull that is cut short continues where it was.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use super::data;
use crate::rigs::binary::{Ran as _, signal};
use crate::rigs::disk::{Disk, Faults, inside};
use crate::rigs::hub::{Fault, Hub, NAME, REPOSITORY, WEIGHT_BYTES, WEIGHTS};

#[test]
fn a_download_continues_after_a_cut_at_any_byte() {
    let cuts = [0, 1, 2, 511, 512, 16_383, 16_384, 16_385, 65_536, 299_998, 299_999];
    let expected = |bytes: usize| if bytes == 0 { String::new() } else { format!("bytes={bytes}-") };
    for cut in cuts {
        let (hub, data) = (Hub::start(), data());
        hub.plan(WEIGHTS, Fault::Cut(cut));
        hub.plan(WEIGHTS, Fault::Status(404, Vec::new()));
        hub.refused(data.path(), &[]);
        hub.pulled(data.path(), &[]);
        assert_eq!(hub.ranges(WEIGHTS), [String::new(), expected(cut), expected(cut)]);
    }
    // Two cuts, one after the other.
    for (first, second) in cuts.iter().zip(cuts.iter().rev()) {
        let (hub, data) = (Hub::start(), data());
        for cut in [first, second] {
            hub.plan(WEIGHTS, Fault::Cut(*cut));
            hub.plan("vae/diffusion_pytorch_model.safetensors", Fault::Cut(*cut));
        }
        hub.pulled(data.path(), &[]);
        let after_both = (first + second).min(WEIGHT_BYTES);
        let mut ranges = vec![String::new(), expected(*first)];
        if after_both < WEIGHT_BYTES {
            ranges.push(expected(after_both));
        }
        assert_eq!(hub.ranges(WEIGHTS), ranges);
    }
}

#[test]
fn a_killed_pull_continues() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Hold(200_000));
    let mut pull = hub.begin(data.path());
    hub.until_held();
    let part = data.path().join("models/.tiny-model.part").join(format!("{WEIGHTS}.part"));
    while std::fs::metadata(&part).map_or(0, |part| part.len()) < 200_000 {
        assert!(pull.try_wait().expect("a child").is_none(), "the pull ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A second pull of the same model would write the same files.
    let said = hub.pull(data.path(), &[]).errors();
    assert!(said.contains("another command is fetching tiny-model"), "{said}");
    let output = hub.run(data.path(), &["remove", NAME, "--yes"]);
    assert!(!output.status.success(), "{output:?}");
    pull.kill().expect("it runs");
    assert_eq!(pull.wait().expect("a child").signal(), Some(9));
    let listed = hub.run(data.path(), &["list"]);
    assert!(listed.text().contains("unfinished"), "{listed:?}");
    let lists = || hub.asked().iter().filter(|asked| asked.path.starts_with("/api/")).count();
    assert_eq!(lists(), 1);
    hub.pulled(data.path(), &[]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=200000-"]);
    // The commit was chosen at the first start.
    assert_eq!(lists(), 1);
}

#[test]
fn a_pull_that_is_interrupted_says_how_to_go_on() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Hold(10));
    let mut command = crate::rigs::binary::tintype();
    command.args(["model", "pull", REPOSITORY, "--accept-licence", "--data"]).arg(data.path());
    command.env("HF_ENDPOINT", format!("http://{}", hub.address)).stderr(std::process::Stdio::piped());
    let pull = command.spawn().expect("the program starts");
    hub.until_held();
    signal(pull.id(), "INT");
    let said = pull.wait_with_output().expect("a child").failed();
    assert!(said.contains("interrupted; run the same command to continue"), "{said}");
    hub.pulled(data.path(), &[]);
}

#[test]
fn a_disk_that_fills_up_keeps_the_parts() {
    if !inside("models::interrupted::a_disk_that_fills_up_keeps_the_parts") {
        return;
    }
    let (hub, disk) = (Hub::start(), Disk::new());
    disk.set(Faults { full_for: Some(|name| name.ends_with("model.safetensors.part")), ..Faults::default() });
    let said = hub.refused(&disk.data(), &[]);
    assert!(said.contains("the disk is full") && said.contains("run the command again"), "{said}");
    disk.heal();
    hub.pulled(&disk.data(), &[]);
}

#[test]
fn a_pull_of_a_branch_continues_while_the_branch_stays() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Cut(1_000));
    hub.plan(WEIGHTS, Fault::Status(404, Vec::new()));
    hub.refused(data.path(), &["--revision", "v2"]);
    hub.pulled(data.path(), &["--revision", "v2"]);
    assert_eq!(hub.ranges(WEIGHTS), ["", "bytes=1000-", "bytes=1000-"]);
}

#[test]
fn other_files_at_the_hub_begin_the_pull_anew() {
    let (hub, data) = (Hub::start(), data());
    hub.plan(WEIGHTS, Fault::Status(404, Vec::new()));
    hub.refused(data.path(), &[]);
    // The hub lists another file now, which an explicit revision asks for.
    hub.put("unet/config.json", Some(b"{\"other\": true}".to_vec()));
    hub.pulled(data.path(), &["--revision", "v2"]);
    assert!(hub.asked().iter().any(|asked| asked.path.contains("/revision/v2?")));
}
