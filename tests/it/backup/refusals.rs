//! Backups and restores that are refused, and that a refusal writes nothing.

use super::*;

#[tokio::test]
async fn a_backup_overwrites_nothing() {
    let installation = Installation::with_tasks(1).await;
    let data = installation.data();
    let full = installation.path("full");
    fs::create_dir(&full).expect("a directory");
    fs::write(full.join("letter"), "dear grandmother").expect("a file");
    let said = refused(&data, &["backup", text(&full)]);
    assert!(said.contains("is not empty") && said.contains(text(&full)), "{said}");
    let said = refused(&data, &["backup", text(&full.join("letter"))]);
    assert!(said.contains("cannot back up to"), "{said}");
    for unnamed in ["/", "..", "."] {
        let said = refused(&data, &["backup", unnamed]);
        assert!(said.contains("not a name for a new directory"), "{said}");
    }
    let in_the_way = installation.path("copy.partial");
    fs::create_dir(&in_the_way).expect("a directory");
    fs::write(in_the_way.join("letter"), "dear grandfather").expect("a file");
    let said = refused(&data, &["backup", text(&installation.path("copy"))]);
    assert!(said.contains("is not an unfinished backup") && said.contains("copy.partial"), "{said}");
    assert_eq!((names_in(&full), names_in(&in_the_way)), (vec!["letter".into()], vec!["letter".into()]));
    let said = refused(&installation.path("elsewhere"), &["backup", text(&installation.path("second"))]);
    assert!(said.contains("there is no database"), "{said}");
    assert_eq!(names_in(installation.directory.path()), ["copy.partial", "data", "full"]);

    let empty = installation.path("empty");
    fs::create_dir(&empty).expect("a directory");
    installation.back_up("empty");
    assert_eq!(names_in(&empty), ["files", "tintype.db"]);
    installation.back_up("missing/parents/copy");
    assert_eq!(names_in(&installation.path("missing/parents/copy")), ["files", "tintype.db"]);
}

#[tokio::test]
async fn two_backups_never_share_a_name() {
    let installation = Installation::with_tasks(1).await;
    let partial = installation.path("copy.partial");
    fs::create_dir(&partial).expect("a directory");
    let other = File::open(&partial).expect("a directory");
    other.lock().expect("a lock");
    let said = refused(&installation.data(), &["backup", text(&installation.path("copy"))]);
    assert!(said.contains("another backup is writing"), "{said}");
    drop(other);
    installation.back_up("copy");
}

#[tokio::test]
async fn a_backup_to_a_mount_point_is_refused() {
    let installation = Installation::with_tasks(1).await;
    let disk = installation.path("disk");
    fs::create_dir(&disk).expect("a directory");
    let (data, disk) = (installation.data().display().to_string(), disk.display().to_string());
    let script = format!(
        "mount -t tmpfs -o size=9m tmpfs {disk}; {TINTYPE} backup {disk} --data {data} && exit 9; \
         {TINTYPE} backup {disk}/copy --data {data}; ls {disk}"
    );
    let output = in_mount_namespace(&script).ran();
    let (out, said) = (output.text(), output.errors());
    assert!(output.status.success() && said.contains("mount point"), "{output:?}");
    assert_eq!(out.lines().last(), Some("copy"), "{out}");
}

/// Asserts that a restore from `from` is refused and creates nothing, and returns the reason.
#[track_caller]
pub fn restore_refused(from: &Path, installation: &Installation) -> String {
    let target = installation.path("restored");
    let said = refused(&target, &["restore", text(from)]);
    assert!(!target.exists(), "{said}");
    said
}

#[tokio::test]
async fn a_directory_that_is_no_backup_is_not_restored() {
    let installation = Installation::with_tasks(1).await;
    let copy = installation.back_up("copy");
    for nothing in ["nowhere", "."] {
        let said = restore_refused(&installation.path(nothing), &installation);
        assert!(said.contains("is not a backup"), "{said}");
    }
    let database = copy.join("tintype.db");
    let sound = fs::read(&database).expect("a database");
    fs::write(&database, "a letter to grandmother").expect("a file");
    assert!(restore_refused(&copy, &installation).contains("not a database"));
    fs::remove_file(&database).expect("a file");
    rusqlite::Connection::open(&database).and_then(|other| other.execute_batch("CREATE TABLE t (x)")).expect("SQL");
    assert!(restore_refused(&copy, &installation).contains("a database of another program"));
    fs::write(&database, &sound).expect("a file");
    let newer = rusqlite::Connection::open(&database).expect("a database");
    newer.pragma_update(None, "user_version", 999).expect("a version");
    drop(newer);
    let said = restore_refused(&copy, &installation);
    assert!(said.contains("newer") && said.contains("999"), "{said}");
    assert_eq!(names_in(&copy), ["files", "tintype.db"], "a look at a backup leaves nothing in it");

    let server = Server::start(&installation.data(), &[]);
    let said = restore_refused(&installation.data(), &installation);
    assert!(said.contains("data of a server") && said.contains("tintype backup"), "{said}");
    server.stop();
}

#[tokio::test]
async fn a_newer_or_unreleased_database_is_not_backed_up() {
    let installation = Installation::with_tasks(1).await;
    let database = rusqlite::Connection::open(installation.data().join("tintype.db")).expect("a database");
    for (version, word) in [(999, "newer"), (38, "tools/bring-over")] {
        database.pragma_update(None, "user_version", version).expect("a version");
        let said = refused(&installation.data(), &["backup", text(&installation.path("copy"))]);
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(names_in(installation.directory.path()), ["data"]);
}

#[tokio::test]
async fn a_restore_overwrites_nothing() {
    let installation = Installation::with_tasks(2).await;
    let copy = installation.back_up("copy");
    let data = installation.data();
    let before = books_of_ada(&data);
    let said = refused(&data, &["restore", text(&copy)]);
    assert!(said.contains("there is a database") && said.contains("--data"), "{said}");
    let server = Server::start(&data, &[]);
    let said = refused(&data, &["restore", text(&copy)]);
    assert!(said.contains("a server is running"), "{said}");
    let elsewhere = installation.path("elsewhere");
    let database = format!("sqlite:{}", data.join("tintype.db").display());
    let said = refused(&elsewhere, &["restore", text(&copy), "--database", &database]);
    assert!(said.contains("there is a database"), "{said}");
    server.stop();
    let files = format!("file:{}", data.join("files").display());
    let said = refused(&elsewhere, &["restore", text(&copy), "--files", &files]);
    assert!(said.contains("there are files in") && said.contains("--files"), "{said}");
    assert!(!elsewhere.exists());
    assert_eq!((books_of_ada(&data), assert_sound(&data)), (before, 2));

    fs::create_dir(&elsewhere).expect("a directory");
    fs::write(elsewhere.join("tintype.db-wal"), "the log of another database").expect("a file");
    let said = refused(&elsewhere, &["restore", text(&copy)]);
    assert!(said.contains("tintype.db-wal belongs to another database"), "{said}");
}

fn books_of_ada(data: &Path) -> Value {
    binary::json(data, &["credits", "history", "ada"])
}
