//! SQL for PostgreSQL keeps to what CockroachDB, YugabyteDB and Citus know too, and to what a pooler lets through.

use super::Fault;
use crate::files::File;

/// What is not said, and why.
const BANNED: [(&str, &str); 14] = [
    ("advisory", "advisory locks are missing elsewhere or belong to one node; lock a row"),
    ("ctid", "where a row lies is PostgreSQL's alone; name the row by its key"),
    ("xmin", "who wrote a row last is PostgreSQL's alone; compare its revision"),
    ("listen ", "a notification needs a session on one node, and is lost with it; look"),
    ("notify ", "a notification needs a session on one node, and is lost with it; look"),
    ("create extension", "an extension must be installed by somebody else; do without it"),
    ("create unlogged", "an unlogged table is empty after a crash"),
    ("create temp", "a temporary table belongs to a session, and a pooler changes those"),
    ("lock table", "a lock of a whole table stops every node; lock a row"),
    ("create rule", "rules rewrite statements behind the reader's back; write the statement"),
    ("declare ", "a cursor keeps a transaction open; read page by page"),
    (" now()", "now() is when the transaction began; use clock_timestamp()"),
    ("current_timestamp", "it is when the transaction began; use clock_timestamp()"),
    ("set session", "a pooler gives the session to somebody else; send settings with the connection"),
];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    files.iter().filter(|file| is_subject(file)).flat_map(of_file).collect()
}

fn is_subject(file: &File) -> bool {
    file.path.starts_with("crates/onlyonce-store/src/migrations/postgres/")
        || (file.path.starts_with("crates/onlyonce-store/src/postgres/") && !file.ends_with("/tests.rs"))
}

fn of_file(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let said = spoken(line).to_lowercase();
        let found = BANNED.iter().filter(|(word, _)| said.contains(word));
        faults.extend(found.map(|(word, why)| {
            Fault::at(file, number, "portable", format!("\"{}\" in SQL: {why}", word.trim()))
        }));
    }
    faults
}

/// A line without its comment, be it Rust's or SQL's.
fn spoken(line: &str) -> &str {
    let line = super::code(line);
    line.split_once("-- ").map_or(line, |(sql, _)| sql)
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    const STATEMENTS: &str = "crates/onlyonce-store/src/postgres/statement.rs";

    #[test]
    fn what_only_postgresql_knows_is_found_in_migrations_and_statements() {
        for (path, text) in [
            (STATEMENTS, "const A: &str = \"SELECT pg_advisory_xact_lock(1)\";\n"),
            (STATEMENTS, "    DELETE FROM onlyonce_record WHERE ctid = ANY ($1)\n"),
            (STATEMENTS, "    SET due_at = now() + interval '1 s'\n"),
            ("crates/onlyonce-store/src/migrations/postgres/0009-x.sql", "CREATE EXTENSION pgcrypto;\n"),
        ] {
            assert_eq!(found(faults, path, text).len(), 1, "{text}");
        }
    }

    #[test]
    fn comments_and_other_engines_may_name_it() {
        let text = "/// Not `now()`, nor an advisory lock.\n-- no ctid here\n";
        assert!(found(faults, STATEMENTS, text).is_empty());
        let other = "crates/onlyonce-store/src/sqlite/row.rs";
        assert!(found(faults, other, "SELECT ctid\n").is_empty());
    }
}
