//! A backup or restore that is killed or runs out of space leaves nothing behind that could be used, and the next one
//! works.

use std::io::Write as _;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::rigs::binary::Killed;
use crate::rigs::wait::until;

/// Bytes that a pipe holds on Linux.
const PIPE_CAPACITY: usize = 65_536;

#[tokio::test]
async fn a_killed_backup_leaves_no_backup_and_the_next_one_works() {
    let installation = Installation::with_tasks(5).await;
    let (data, copy) = (installation.data(), installation.path("copy"));
    // The backup logs that a file is missing, and a full pipe that nobody reads blocks it there.
    let missing = installation.result(2);
    fs::remove_file(&missing).expect("a file");
    let (_unread, mut log) = std::io::pipe().expect("a pipe");
    log.write_all(&[b' '; PIPE_CAPACITY]).expect("an empty pipe");
    let mut backup = tintype();
    backup.args(["backup", text(&copy), "--data"]).arg(&data).stderr(log);
    let mut backup = Killed(backup.spawn().expect("a backup"));
    let partial = installation.path("copy.partial");
    until(async || {
        assert!(backup.try_wait().expect("a child").is_none(), "the backup ended");
        partial.join("files").exists()
    })
    .await;
    let said = refused(&data, &["backup", text(&copy)]);
    assert!(said.contains("another backup is writing"), "{said}");
    let files = Files::on_disk(&data.join("files")).expect("files").guarded_by(backup_lock(&data));
    assert!(files.try_removal().expect("a lock").is_none(), "it needs all of them");
    drop(backup);
    assert!(files.try_removal().expect("a lock").is_some());
    assert!(partial.exists() && !copy.exists());
    fs::write(&missing, png()).expect("a file");
    installation.back_up("copy");
    assert_eq!(names_in(installation.directory.path()), ["copy", "data"]);
    assert_eq!(names_in(&copy), ["files", "tintype.db"]);
}

#[tokio::test]
async fn a_server_refuses_an_unfinished_restore_and_names_the_files_to_remove() {
    let installation = Installation::with_tasks(300).await;
    let copy = installation.back_up("copy");
    let mut hits = 0;
    for number in 0..5 {
        let target = installation.path(&format!("restored {number}"));
        let staged = target.join("tintype.db.restoring");
        let mut restore = tintype();
        restore.args(["restore", text(&copy), "--data"]).arg(&target).stdout(Stdio::null());
        let mut restore = restore.spawn().expect("a restore");
        while !staged.exists() && restore.try_wait().expect("a child").is_none() {
            std::hint::spin_loop();
        }
        restore.kill().expect("a child");
        restore.wait().expect("a child");
        if target.join("tintype.db").exists() {
            assert_eq!(assert_sound(&target), 300, "it was faster than the signal");
            continue;
        }
        hits += 1;
        for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["account", "create", "bob"], &["account", "list"]]
        {
            let said = refused(&target, command);
            assert!(said.contains("a restore of") && said.contains(text(&staged)), "{said}");
        }
        let database = run(&target, ["doctor", "--json"]).check("database");
        assert!(database["ok"] == false && database["detail"].to_string().contains("a restore of"), "{database}");
        let said = refused(&target, &["restore", text(&copy)]);
        assert!(said.contains("did not finish") && said.contains(text(&staged)), "{said}");
        assert!(said.contains(text(&target.join("files"))), "{said}");
        // The step that the message asks for.
        let advice = format!("rm -rf '{0}'* '{1}'/*", staged.display(), target.join("files").display());
        assert!(Command::new("sh").args(["-c", &advice]).status().expect("a shell").success());
        binary::json(&target, &["restore", text(&copy)]);
        assert_eq!(assert_sound(&target), 300);
    }
    assert!(hits > 0, "no restore was killed in the middle");
}

/// Starts a command, sends it a signal as soon as a path exists, and returns its exit code and what it said.
fn stopped(mut command: Command, begun: &Path, signal: Signal) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a command");
    while !begun.exists() && child.try_wait().expect("a child").is_none() {
        std::hint::spin_loop();
    }
    // It may have ended.
    _ = kill_process(Pid::from_child(&child), signal);
    let output = child.wait_with_output().expect("a child");
    (output.status.code(), output.errors())
}

#[tokio::test]
async fn a_backup_or_restore_that_a_signal_stops_leaves_nothing_behind() {
    let installation = Installation::with_tasks(300).await;
    let copy = installation.back_up("copy");
    let (mut backups, mut restores) = (0, 0);
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().cycle().take(6).enumerate() {
        let next = installation.path(&format!("copy {number}"));
        let partial = installation.path(&format!("copy {number}.partial"));
        let mut backup = tintype();
        backup.args(["backup", text(&next), "--data"]).arg(installation.data());
        let (code, said) = stopped(backup, &partial, signal);
        assert!(!partial.exists(), "{code:?}: {said}");
        if !next.exists() {
            backups += 1;
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("stopped by a signal; no backup was made"), "{said}");
        }
        let target = installation.path(&format!("restored {number}"));
        let mut restore = tintype();
        restore.args(["restore", text(&copy), "--data"]).arg(&target);
        let (code, said) = stopped(restore, &target.join("tintype.db.restoring"), signal);
        if !target.join("tintype.db").exists() {
            restores += 1;
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("stopped by a signal; nothing was restored"), "{said}");
            binary::json(&target, &["restore", text(&copy)]);
        }
        assert_eq!(assert_sound(&target), 300);
    }
    assert!(backups > 0 && restores > 0, "{backups} backups and {restores} restores were stopped in the middle");
}

#[tokio::test]
async fn a_full_disk_leaves_no_backup() {
    let mut image = vec![0; 3 * 1024 * 1024];
    image[..8].copy_from_slice(b"\x89PNG\r\n\x1a\n");
    image.extend_from_slice(b"\0\0\0\0IEND\xae\x42\x60\x82");
    let installation = Installation::with_images(2, image.into()).await;
    let disk = installation.path("disk");
    fs::create_dir(&disk).expect("a directory");
    let (data, disk) = (installation.data().display().to_string(), disk.display().to_string());
    // Too small for the database, too small for the files, and large enough.
    for (size, fits) in [("64k", false), ("2m", false), ("9m", true)] {
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs {disk}; code=0; \
             {TINTYPE} backup {disk}/copy --data {data} >&2 || code=$?; ls {disk}; exit $code"
        );
        let output = in_mount_namespace(&script).ran();
        let (left, said) = (output.text(), output.errors());
        if fits {
            assert_eq!((output.status.code(), &*left), (Some(0), "copy\n"), "{said}");
        } else {
            assert_eq!((output.status.code(), &*left), (Some(1), ""), "{said}");
            assert!(said.contains("no backup was made") && said.contains(&disk), "{size}: {said}");
            assert!(said.contains("is full") || said.contains("No space left"), "{size}: {said}");
        }
    }
}

#[tokio::test]
async fn a_restore_to_a_full_disk_leaves_nothing() {
    let mut image = vec![0; 3 * 1024 * 1024];
    image[..8].copy_from_slice(b"\x89PNG\r\n\x1a\n");
    image.extend_from_slice(b"\0\0\0\0IEND\xae\x42\x60\x82");
    let installation = Installation::with_images(2, image.into()).await;
    let copy = installation.back_up("copy");
    let disk = installation.path("disk");
    fs::create_dir(&disk).expect("a directory");
    let (copy, disk) = (copy.display().to_string(), disk.display().to_string());
    for size in ["64k", "2m"] {
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs {disk}; code=0; \
             {TINTYPE} restore {copy} --data {disk} >&2 || code=$?; ls -A {disk} {disk}/files; exit $code"
        );
        let output = in_mount_namespace(&script).ran();
        let (left, said) = (output.text(), output.errors());
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("nothing was restored") && said.contains(&disk), "{size}: {said}");
        let locks = format!("{disk}:\nfiles\ntintype.db.lock\ntintype.lock\n\n{disk}/files:\n");
        assert_eq!(left, locks, "{size}: {said}");
    }
}
