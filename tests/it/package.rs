//! The Debian package is made, installed, used, upgraded, removed and purged, on a copy of this machine's root.
//! `deploy/debian/test` does that on a clean Debian under systemd, which takes a minute. The files for systemd,
//! Kubernetes and containers are checked without running them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, TINTYPE, printed};
use crate::rigs::{debian, packages};
use crate::tidy::root;

fn package(out: &Path, version: &str) -> PathBuf {
    let mut command = Command::new(root().join("deploy/debian/package"));
    // To compress a program for debugging would take a minute.
    command.arg(TINTYPE).arg(out).arg(version).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    PathBuf::from(command.ran().succeeded().trim())
}

/// Runs a script as root in a root that starts as a copy of this machine's, with these packages in it, and returns its
/// output. The changes are in memory and go with the script.
fn on_a_copy_of_this_machine(script: &str, old: &Path, new: &Path) -> String {
    let enter = "mount -t tmpfs tmpfs $SPACE
        mkdir $SPACE/upper $SPACE/work $SPACE/root
        mount -t overlay overlay -o lowerdir=/,upperdir=$SPACE/upper,workdir=$SPACE/work $SPACE/root
        mount -t proc proc $SPACE/root/proc
        mount --rbind /dev $SPACE/root/dev
        rm -rf $SPACE/root/run/systemd
        cp $OLD $SPACE/root/old.deb
        cp $NEW $SPACE/root/new.deb
        exec chroot $SPACE/root sh -exc \"$SCRIPT\"";
    let space = TempDir::new().expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", enter]);
    command.env("SPACE", space.path()).env("OLD", old).env("NEW", new).env("SCRIPT", script);
    let output = command.env("DEBIAN_FRONTEND", "noninteractive").output().expect("unshare, from util-linux, runs");
    let printed = output.text();
    assert!(output.status.success(), "{printed}\n{}", output.errors());
    printed
}

#[test]
fn the_package_installs_runs_as_its_user_and_leaves_the_data_when_purged() {
    debian::needs("adduser", "adduser");
    let out = TempDir::new().expect("a directory");
    let (old, new) = (package(out.path(), "1.0"), package(out.path(), "1.1"));
    let script = "
        data=/var/lib/tintype
        dpkg --install /old.deb
        test $(stat -c %a:%U /etc/tintype.env) = 600:root
        test -s /usr/share/man/man1/tintype.1.gz
        test -s /usr/share/man/man1/tintype-serve.1.gz
        test -s /usr/share/bash-completion/completions/tintype
        test -s /usr/share/doc/tintype/deploy/kubernetes.yaml
        install -d -o tintype -m 0700 $data
        setpriv --reuid=tintype --regid=tintype --init-groups tintype serve --data $data > /serve.log &
        server=$!
        timeout 60 sh -c 'until grep Ready. /serve.log; do sleep 0.1; done'
        kill $server
        wait $server
        test -s $data/first-key
        echo TINTYPE_LISTEN=127.0.0.1:9999 >> /etc/tintype.env
        printf '# gr\\374n\\n' >> /etc/tintype.env
        dpkg --install /new.deb
        grep -q 9999 /etc/tintype.env
        tintype account list --data $data
        echo 'TINTYPE_PUBLIC_URL=\"https://images.example.com\"' >> /etc/tintype.env
        cd /tmp
        tintype account link default | grep https://images.example.com/
        if setpriv --reuid=tintype --regid=tintype --init-groups tintype account list --data $data; then exit 1; fi
        install -d -o tintype /backups
        tintype backup /backups/today
        rm -r $data
        install -d -o tintype -m 0700 $data
        tintype restore /backups/today
        test ! -e tintype-data
        dpkg --remove tintype
        test ! -e /usr/bin/tintype
        grep -q 9999 /etc/tintype.env
        dpkg --purge tintype
        test ! -e /etc/tintype.env
        test ! -e /usr/lib/systemd/system/tintype.service.d
        test $(stat -c %U $data/tintype.db) = tintype";
    let printed = on_a_copy_of_this_machine(script, &old, &new);
    assert!(printed.contains("systemctl enable --now tintype"), "{printed}");
    assert!(printed.contains("Ready.") && printed.contains("default"), "{printed}");
    assert!(printed.contains("the data in /var/lib/tintype is kept"), "{printed}");
}

#[test]
fn systemd_finds_no_fault_in_the_units_and_little_exposure() {
    debian::needs("systemd-analyze", "systemd");
    for unit in ["tintype", "tintype-api", "tintype-worker"] {
        let path = root().join(format!("deploy/{unit}.service"));
        let mut command = Command::new("systemd-analyze");
        // In tenths of a point. The rest is that the service uses the network, and port 443 where it serves callers.
        command.args(["security", "--offline=true", "--no-pager", "--threshold=19"]).arg(&path);
        let judged = command.ran();
        assert!(judged.status.success(), "{unit}: {judged:?}");
        // The program is not installed here, so the copy names another.
        let folder = TempDir::new().expect("a directory");
        let copy = folder.path().join(format!("{unit}.service"));
        let text = std::fs::read_to_string(path).expect("a unit").replace("ExecStart=tintype ", "ExecStart=/bin/true ");
        std::fs::write(&copy, text).expect("a file");
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).ran();
        // Other units of the machine may have faults of their own.
        let words = verified.errors();
        assert!(verified.status.success() && !words.contains("tintype"), "{unit}: {verified:?}");
    }
}

#[test]
fn the_manifests_for_kubernetes_are_valid() {
    let manifests = root().join("deploy/kubernetes.yaml");
    let mut validate = Command::new(packages::python().join("kubernetes-validate"));
    validate.args(["--strict", "--version", "1.33"]).arg(manifests).ran().succeeded();
}

/// A compose file, with its anchors and merges resolved.
fn compose(file: &str) -> Value {
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let mut read = Command::new(packages::python().join("python"));
    printed(&read.args(["-c", script]).arg(root().join("deploy").join(file)).ran())
}

#[test]
fn a_service_that_another_waits_for_has_a_health_check_in_the_compose_file() {
    let mut waits = 0;
    for file in ["compose.yaml", "compose-sqlite.yaml"] {
        let composed = compose(file);
        for (name, service) in composed["services"].as_object().expect("services") {
            for (other, wait) in service["depends_on"].as_object().into_iter().flatten() {
                assert_eq!(wait["condition"], "service_healthy", "{file}: {name}");
                // Podman drops that of an image.
                let check = &composed["services"][other.as_str()]["healthcheck"]["test"];
                assert!(check.is_array(), "{file}: {name} waits for {other}");
                waits += 1;
            }
        }
    }
    assert_eq!(waits, 3);
}

#[test]
fn images_of_others_are_named_with_their_registry() {
    let dockerfile = std::fs::read_to_string(root().join("deploy/Dockerfile")).expect("a Dockerfile");
    let mut images: Vec<String> =
        dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")).map(Into::into).collect();
    for service in compose("compose.yaml")["services"].as_object().expect("services").values() {
        if service["build"].is_null() {
            images.push(service["image"].as_str().expect("an image").into());
        }
    }
    assert_eq!(images.len(), 4);
    // Podman does not know which registry a short name is in.
    for image in images {
        assert!(image.starts_with("docker.io/library/"), "{image}");
    }
}

#[test]
fn the_compose_files_trust_their_own_network_alone_and_have_an_init() {
    for file in ["compose.yaml", "compose-sqlite.yaml"] {
        let composed = compose(file);
        let subnet = &composed["networks"]["default"]["ipam"]["config"][0]["subnet"];
        assert!(subnet.is_string(), "{file}");
        let services = composed["services"].as_object().expect("services").values();
        for service in services.filter(|service| service["image"] == "tintype") {
            assert_eq!(service["environment"]["TINTYPE_TRUSTED_PROXY"], *subnet, "{file}");
            assert_eq!(service["init"], true, "{file}");
        }
    }
}
