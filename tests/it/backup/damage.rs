//! Damage to the ledger and the files is found, in an installation and in a backup.

use super::refusals::restore_refused;
use super::*;

/// The drifts that `credits audit --files` reports.
fn drifts(data: &Path) -> Vec<Value> {
    let found = run(data, ["credits", "audit", "--files", "--json"]).exited(1).json();
    found["drifts"].as_array().expect("drifts").clone()
}

/// A way to damage a file, and the message about it.
type Harm = (&'static str, fn(&Path));

/// Ways to damage a PNG.
const HARMS: [Harm; 7] = [
    ("is missing", |path| fs::remove_file(path).expect("a file")),
    ("is empty", |path| fs::write(path, "").expect("a file")),
    ("has only 3 bytes", |path| fs::write(path, "abc").expect("a file")),
    ("is truncated", |path| {
        let whole = fs::read(path).expect("a file");
        fs::write(path, &whole[..whole.len() - 1]).expect("a file");
    }),
    ("does not start like a PNG", |path| {
        let mut bytes = fs::read(path).expect("a file");
        bytes[0] ^= 1;
        fs::write(path, bytes).expect("a file");
    }),
    // Root must not copy a file that a user has linked to.
    ("cannot be read", |path| {
        let moved = path.with_extension("moved");
        fs::rename(path, &moved).expect("a file");
        std::os::unix::fs::symlink(moved, path).expect("a free name");
    }),
    ("is not a file", |path| {
        fs::remove_file(path).expect("a file");
        fs::create_dir(path).expect("a directory");
    }),
];

#[tokio::test]
async fn every_damaged_image_is_found() {
    let installation = Installation::with_tasks(HARMS.len() + 1).await;
    let copy = installation.back_up("copy");
    for (number, (_, harm)) in HARMS.iter().enumerate() {
        harm(&installation.result(number));
    }
    let found = drifts(&installation.data());
    assert_eq!(found.len(), HARMS.len(), "{found:?}");
    let account = binary::json(&installation.data(), &["account", "list"])[0]["id"].clone();
    for (number, (words, _)) in HARMS.iter().enumerate() {
        let (task_id, name) = &installation.results[number];
        assert_eq!((&found[number]["account_id"], &found[number]["task_id"]), (&account, &json!(task_id.to_string())));
        let fault = found[number]["fault"].as_str().expect("a fault");
        assert!(fault.contains(words) && fault.contains(name), "{fault}");
    }
    let said = run(&installation.data(), ["credits", "audit", "--files"]).text();
    assert!(said.contains(&format!("task {}", installation.results[0].0)) && said.contains("7 drifts"), "{said}");
    assert_eq!(binary::json(&installation.data(), &["credits", "audit"])["drifts"], json!([]), "the books are sound");

    for (number, (words, harm)) in HARMS.iter().enumerate() {
        let harmed = copy.join("files").join(&installation.results[number].1);
        let sound = fs::read(&harmed).expect("a file");
        harm(&harmed);
        let said = restore_refused(&copy, &installation);
        assert!(said.contains("is damaged: 1 drift,") && said.contains(words), "{said}");
        drop(fs::remove_dir(&harmed).or_else(|_| fs::remove_file(&harmed)));
        fs::write(&harmed, sound).expect("a file");
    }
    binary::json(&installation.path("restored"), &["restore", text(&copy)]);
}

#[tokio::test]
async fn a_backup_with_a_missing_file_is_kept_and_names_it() {
    let installation = Installation::with_tasks(3).await;
    fs::remove_file(installation.result(1)).expect("a file");
    let copy = installation.path("copy");
    let taken = run(&installation.data(), ["backup", text(&copy), "--json"]).exited(1).json();
    let missing = &taken["drifts"][0];
    assert_eq!((taken["drifts"].as_array().map(Vec::len), &taken["files"]), (Some(1), &json!(3)));
    assert_eq!(missing["task_id"], json!(installation.results[1].0.to_string()));
    assert!(missing["fault"].as_str().expect("a fault").contains("is missing"), "{missing}");
    let said = restore_refused(&copy, &installation);
    assert!(said.contains("is missing") && said.contains("--despite-drifts"), "{said}");
    let restored = binary::json(&installation.path("restored"), &["restore", text(&copy), "--despite-drifts"]);
    assert_eq!((&restored["tasks"], &restored["drifts"]), (&json!(3), &taken["drifts"]));
    assert_eq!(drifts(&installation.path("restored")), std::slice::from_ref(missing));
}

#[tokio::test]
async fn a_file_name_that_leaves_its_directory_is_neither_read_nor_written() {
    let installation = Installation::with_tasks(2).await;
    let secret = installation.path("data/files/../../secret.png");
    fs::write(&secret, png()).expect("a file");
    let database = rusqlite::Connection::open(installation.data().join("tintype.db")).expect("a database");
    let rename = |id: &TaskId, images: &str| {
        let changed = database.execute("UPDATE tasks SET images = ?1 WHERE id = ?2", [images, id.0.as_str()]);
        assert_eq!(changed, Ok(1));
    };
    rename(&installation.results[0].0, r#"["../../secret.png"]"#);
    rename(&installation.results[1].0, &json!([installation.results[0].1]).to_string());
    let found = drifts(&installation.data());
    assert!(found[0]["fault"].as_str().expect("a fault").contains("has an invalid name"), "{found:?}");
    assert!(found[1]["fault"].as_str().expect("a fault").contains("belongs to another task"), "{found:?}");
    let output = run(&installation.data(), ["backup", text(&installation.path("deep/copy"))]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(names_in(&installation.path("deep")), ["copy"]);
}

#[tokio::test]
async fn an_audit_names_the_directory_of_missing_files() {
    let installation = Installation::with_tasks(1).await;
    let elsewhere = format!("--files=file:{}", installation.path("elsewhere").display());
    let said = refused(&installation.data(), &["credits", "audit", &elsewhere]);
    assert!(said.contains("elsewhere") && said.contains("no directory of result files"), "{said}");
    assert!(!installation.path("elsewhere").exists());
    let said = refused(&installation.data(), &["credits", "audit", "--files=ftp://bucket"]);
    assert!(said.contains("file:PATH"), "{said}");
    let said = refused(&installation.data(), &["credits", "audit", "--files=s3://bucket"]);
    assert!(said.contains("AWS_ACCESS_KEY_ID"), "{said}");
}

#[tokio::test]
async fn a_backup_whose_ledger_does_not_balance_is_not_restored() {
    let installation = Installation::with_tasks(2).await;
    let copy = installation.back_up("copy");
    let database = rusqlite::Connection::open(copy.join("tintype.db")).expect("a database");
    let charge = installation.results[1].0;
    assert_eq!(database.execute("DELETE FROM ledger WHERE task_id = ?1", [charge.0.as_str()]), Ok(1));
    drop(database);
    let said = restore_refused(&copy, &installation);
    assert!(said.contains("never charged") || said.contains("add up"), "{said}");
    let source = rusqlite::Connection::open(installation.data().join("tintype.db")).expect("a database");
    assert_eq!(source.execute("UPDATE ledger SET balance = balance + 1 WHERE kind = 'grant'", []), Ok(1));
    let output = run(&installation.data(), ["backup", text(&installation.path("another")), "--json"]);
    let taken = output.json();
    assert_eq!((output.status.code(), taken["drifts"].as_array().map(Vec::len)), (Some(1), Some(1)), "{taken}");
}

/// The numbers of the first pages of all tables and indexes but the first, counted from 1.
fn roots(database: &Path) -> Vec<usize> {
    let database = rusqlite::Connection::open(database).expect("a database");
    let mut pages =
        database.prepare("SELECT rootpage FROM sqlite_schema WHERE rootpage > 1 ORDER BY rootpage").expect("SQL");
    pages.query_map([], |row| row.get(0)).expect("rows").map(|page| page.expect("a number")).collect()
}

#[tokio::test]
async fn a_damaged_database_is_neither_restored_nor_backed_up() {
    let installation = Installation::with_tasks(50).await;
    let copy = installation.back_up("copy");
    let database = copy.join("tintype.db");
    let sound = fs::read(&database).expect("a database");
    let roots = roots(&database);
    // Such a page begins with its type and the number of its cells. A free page could hold anything.
    let harmed = |page: usize| {
        let mut harmed = sound.clone();
        harmed[(page - 1) * 4096..][..5].fill(0xFF);
        harmed
    };
    for page in roots.iter().step_by(7) {
        fs::write(&database, harmed(*page)).expect("a database");
        let said = restore_refused(&copy, &installation);
        assert!(said.contains("copy") && (said.contains("damaged") || said.contains("cannot restore")), "{said}");
    }
    fs::write(&database, &sound[..sound.len() - 4096]).expect("a database");
    restore_refused(&copy, &installation);
    fs::write(installation.data().join("tintype.db"), harmed(roots[roots.len() / 2])).expect("a database");
    refused(&installation.data(), &["backup", text(&installation.path("another"))]);
    assert_eq!(names_in(installation.directory.path()), ["copy", "data"]);
}
