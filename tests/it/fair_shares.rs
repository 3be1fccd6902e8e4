//! Fair shares of everything that callers share: the table "Fair shares" of `docs/evidence/security.md` and one case for
//! each of its rows. In a case, an attacker takes all it can and is refused as the row says; then a victim does the same
//! and is served.
//!
//! A case is a test in a module below with the name of its row: `memory_of_v1_answers` for "Memory of `/v1` answers".

use std::collections::BTreeSet;

use crate::documents::own_tests;
use crate::tidy::root;

mod answers;
mod people;
mod requests;
mod work;

/// The rows of the table, each with its cells.
fn rows() -> Vec<Vec<String>> {
    let document = std::fs::read_to_string(root().join("docs/evidence/security.md")).expect("a readable document");
    let (_, section) = document.split_once("\n## Fair shares\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let lines = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = |line: &str| line.split(" | ").map(|cell| cell.trim().to_owned()).collect();
    lines.skip(1).map(cells).collect()
}

fn case_of(resource: &str) -> String {
    let words = resource.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_ascii_lowercase()
}

#[test]
fn each_row_of_the_table_has_a_case_and_each_case_a_row() {
    let rows = rows();
    let cases: BTreeSet<_> = own_tests()
        .iter()
        .filter_map(|test| test.strip_prefix("fair_shares::")?.split_once("::").map(|(_, case)| case.to_owned()))
        .collect();
    let without: Vec<_> =
        rows.iter().filter(|row| !cases.contains(&case_of(&row[0]))).map(|row| (&row[0], case_of(&row[0]))).collect();
    assert!(without.is_empty(), "rows without a case, and the names of the tests to write: {without:?}");
    let named: BTreeSet<_> = rows.iter().map(|row| case_of(&row[0])).collect();
    let unknown: Vec<_> = cases.difference(&named).collect();
    assert!(unknown.is_empty(), "cases without a row: {unknown:?}");
    assert_eq!((named.len(), cases.len()), (rows.len(), rows.len()), "each row has a name of its own");
    for row in &rows {
        assert!(row.len() == 5 && row.iter().all(|cell| !cell.is_empty()), "a row with an empty cell: {row:?}");
    }
}
