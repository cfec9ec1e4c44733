//! docs/seed-coverage.md cannot drift: every row is there once, every test that it names exists, its sums are right.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The rows of each seed.
const ROWS: [(char, usize); 4] = [('D', 93), ('F', 46), ('P', 15), ('U', 81)];

struct Row {
    id: String,
    shown_by: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text() -> String {
    fs::read_to_string(root().join("docs/seed-coverage.md")).unwrap()
}

fn rows(text: &str) -> Vec<Row> {
    let cells =
        text.lines().filter(|line| line.starts_with("| ")).map(|line| line.trim_matches('|').split(" | "));
    let rows = cells.map(|mut cells| {
        let id = cells.next().unwrap_or_default().trim().to_owned();
        Row { id, shown_by: cells.last().unwrap_or_default().trim().to_owned() }
    });
    rows.filter(|row| row.id != "row").collect()
}

#[test]
fn every_row_is_there_once() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows(&text()) {
        *counts.entry(row.id).or_default() += 1;
    }
    for (seed, count) in ROWS {
        for number in 1..=count {
            let id = format!("{seed}{number}");
            assert_eq!(counts.remove(&id), Some(1), "row {id}");
        }
    }
    assert!(counts.is_empty(), "rows that nobody asked for: {counts:?}");
}

#[test]
fn every_test_that_is_named_exists() {
    for row in rows(&text()) {
        for test in row.shown_by.split('`').filter(|part| part.contains("::")) {
            let (file, name) = test.split_once("::").unwrap();
            let source = fs::read_to_string(root().join(file))
                .unwrap_or_else(|problem| panic!("{}: {file}: {problem}", row.id));
            assert!(is_test(&source, name), "{}: {file} has no test {name}", row.id);
        }
    }
}

/// Whether `source` has a function of this name right after the mark of a test.
fn is_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let declares = |line: &str| line.contains(&format!("fn {name}("));
    let is_mark = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let marked = |position: usize| {
        let before = lines[..position].iter().rev();
        before.take_while(|line| line.starts_with("#[")).any(is_mark)
    };
    lines.iter().enumerate().any(|(position, line)| declares(line) && marked(position))
}

#[test]
fn the_sums_are_right() {
    let text = text();
    let rows = rows(&text);
    let count = |is: &dyn Fn(&str) -> bool| rows.iter().filter(|row| is(&row.shown_by)).count();
    let shown = count(&|cell| cell.starts_with('`'));
    let open = count(&|cell| cell == "open");
    let elsewhere = count(&|cell| cell.starts_with("elsewhere: "));
    let not_done = count(&|cell| cell.starts_with("not done: "));
    assert_eq!(
        shown + open + elsewhere + not_done,
        rows.len(),
        "a row says neither by what it is shown nor that it is not"
    );
    let line = format!("Shown: {shown}. Open: {open}. Elsewhere: {elsewhere}. Not done: {not_done}.");
    assert!(text.lines().any(|found| found == line), "the sums should read: {line}");
}
