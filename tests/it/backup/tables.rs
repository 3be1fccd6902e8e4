//! A backup and a restore keep every row of every table.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tintype_domain::model::{Status, Surface};
use tintype_domain::person::Role;
use tintype_store::sqlite;
use tintype_store::{
    BoardWrite, GalleryFilter, NewInvitation, NewSession, NewSharedLink, NewUpload, Target, UploadedPicture,
};
use tintype_system::clock::Clock;

use super::{binary, png, text};
use crate::migrate::{file_name, installation};

/// Tables whose rows a restore ends: nobody is signed in on the copy, or invited.
const ENDED: [&str; 3] = ["invitations", "sessions", "sign_in_links"];
/// Tables that this test leaves empty: work under way, the marks of sweeps, and the search index, which the gallery
/// fills from the tasks.
const EMPTY: [&str; 8] =
    ["calls", "previews", "progress", "prompt_words", "prompt_words_docsize", "prompt_words_idx", "prompts", "sweeps"];

type Tables = BTreeMap<String, Vec<String>>;

/// The rows of every table of a database.
fn tables(database: &Path) -> Tables {
    let connection = Connection::open(database).expect("a database");
    let sql =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'words%'";
    let mut names = connection.prepare(sql).expect("SQL");
    let names = names.query_map([], |row| row.get::<_, String>(0)).expect("a query");
    let rows = |name: &str| {
        let mut select = connection.prepare(&format!("SELECT * FROM {name}")).expect("SQL");
        // A restore ends authentication requests to a provider by this time.
        let columns: Vec<_> =
            (0..select.column_count()).filter(|at| select.column_name(*at) != Ok("sessions_ended_at")).collect();
        let shown = |row: &rusqlite::Row<'_>| {
            let values = columns.iter().map(|at| row.get_ref(*at).map(|value| format!("{value:?}")));
            values.collect::<Result<Vec<_>, _>>().map(|values| values.join(" | "))
        };
        let mut rows: Vec<_> = select.query_map([], shown).expect("a query").map(|row| row.expect("a row")).collect();
        rows.sort_unstable();
        rows
    };
    names.map(|name| name.expect("a name")).map(|name| (name.clone(), rows(&name))).collect()
}

/// Adds what an installation keeps besides what the migration moves.
async fn fill(data: &Path) {
    let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store");
    let person = store.find_person("ada").await.expect("a store").expect("a person").person;
    let (account, expires_at) = (person.account_id, store.now().saturating_add(Duration::from_secs(3_600)));
    store.create_link(person.id, [1; 32], expires_at).await.expect("a store");
    let (account_id, person_id, hash, role) = (account, person.id, [3; 32], Role::Member);
    let invitation = NewInvitation { account_id, person_id, hash, role, places: 2, expires_at };
    store.create_invitation(invitation, 10).await.expect("a store").expect("an invitation");
    let session = NewSession { hash: [2; 32], expires_at, agent: "a browser".into() };
    store.begin_session(person.id, None, session).await.expect("a store").expect("a session");
    let BoardWrite::Done(board) = store.create_board(account, None, "Ships", 10).await.expect("a store") else {
        panic!("a new name")
    };
    let shown = store.gallery(account, &GalleryFilter::default(), None, 10).await.expect("a store");
    let tasks: Vec<_> = shown.records.iter().map(|record| record.task.id).collect();
    store.star_tasks(account, person.id, &tasks, true).await.expect("a store");
    store.put_on_board(account, account, board, &tasks, true).await.expect("a store");
    let target = Target::Board(board);
    let link =
        NewSharedLink { account_id: account, person_id: person.id, target, with_prompts: true, expires_at: None };
    store.create_shared_link(link, 10).await.expect("a store");
    let last = tasks.last().copied().expect("a task");
    store.delete_tasks(account, &[last], None).await.expect("a store");
    let new = NewUpload { person_id: Some(person.id), is_mask: true, ..NewUpload::of(account, Surface::Web) };
    let upload = store.begin_upload(new, 10).await.expect("a store").expect("room");
    let picture = UploadedPicture { name: file_name(upload, 0), width: 64, height: 48 };
    assert!(store.finish_upload(upload, picture).await.expect("a store"));
    std::fs::create_dir_all(data.join("files/2026-11-21")).expect("a directory");
    let mut names = vec![file_name(upload, 0)];
    for task in store.recent_tasks(None, 10).await.expect("a store") {
        if let Status::Completed(images) = task.status {
            names.extend(images);
        }
    }
    assert_eq!(names.len(), 3);
    for name in names {
        std::fs::write(data.join("files").join(name), png()).expect("a file");
    }
}

#[tokio::test]
async fn every_row_of_every_table_is_restored() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("data")).expect("a directory");
    installation(&path("data")).await;
    fill(&path("data")).await;
    let original = tables(&path("data").join("tintype.db"));
    let empty: Vec<_> = original.iter().filter(|(_, rows)| rows.is_empty()).map(|(name, _)| name).collect();
    assert_eq!(empty, EMPTY, "give the table a row here, so that its restore is checked");
    binary::json(&path("data"), &["backup", text(&path("copy"))]);
    binary::json(&path("again"), &["restore", text(&path("copy"))]);
    let restored = tables(&path("again").join("tintype.db"));
    for (name, rows) in original {
        let rows = if ENDED.contains(&name.as_str()) { Vec::new() } else { rows };
        assert_eq!(restored[&name], rows, "{name}");
    }
}
