//! SQL for PostgreSQL keeps to what CockroachDB, YugabyteDB and Citus know too, and to what a pooler lets through.
//!
//! 1. Some words are not used: each is listed with the reason.
//! 2. No statement modifies one table twice: CockroachDB refuses that, and PostgreSQL does not say which of the two wins. A
//!    statement is what stands between semicolons in a `.sql` file or in a string of Rust, with `{NAME}` replaced by the
//!    constant of that name in the same file. Statements that are put together in another way are not seen.

mod statement;

use self::statement::{modified_twice, statements};
use super::Fault;
use crate::files::File;

/// Words that are not used, and why.
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

/// Where a word is used all the same. The index by scope is made beside the schema, and only sometimes: where the lock means
/// nothing, two nodes try to make it, and one of them logs why it could not.
const ALLOWED: [(&str, &str); 1] = [("crates/onlyonce-store/src/postgres/index.rs", "advisory")];

/// The engine, and what it shares with the other SQL engines.
const SUBJECTS: [&str; 5] = [
    "crates/onlyonce-store/src/migrations/postgres/",
    "crates/onlyonce-store/src/postgres.rs",
    "crates/onlyonce-store/src/postgres/",
    "crates/onlyonce-store/src/sql.rs",
    "crates/onlyonce-store/src/sql/",
];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    files.iter().filter(|file| is_subject(file)).flat_map(of_file).collect()
}

fn is_subject(file: &File) -> bool {
    let is_engine = SUBJECTS.iter().any(|subject| file.path.starts_with(subject));
    is_engine && !file.path.contains("/tests")
}

fn of_file(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let code = without_comment(line).to_lowercase();
        let is_allowed = |word: &str| ALLOWED.contains(&(&file.path, word));
        let found = BANNED.iter().filter(|(word, _)| code.contains(word) && !is_allowed(word));
        faults.extend(found.map(|(word, why)| {
            Fault::at(file, number, "portable", format!("\"{}\" in SQL: {why}", word.trim()))
        }));
    }
    faults.extend(statements(file).into_iter().filter_map(|statement| {
        let table = modified_twice(&statement.text)?;
        let message = format!(
            "one statement modifies \"{table}\" twice, which CockroachDB refuses; make two statements of it"
        );
        Some(Fault::at(file, statement.line, "portable", message))
    }));
    faults
}

/// A line without its comment, be it Rust's or SQL's.
fn without_comment(line: &str) -> &str {
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
    fn a_statement_that_modifies_one_table_twice_is_found_where_it_begins() {
        let text = "/// Two writes.\nconst A: &str = \"\n    WITH a AS (DELETE FROM {schema}.b)\n    INSERT INTO {schema}.b SELECT 1\";\n";
        let one_rule = found(faults, STATEMENTS, text);
        assert_eq!(one_rule.len(), 1, "{one_rule:?}");
        assert!(one_rule[0].starts_with("2: one statement modifies \"b\" twice"), "{one_rule:?}");
        let migration = "crates/onlyonce-store/src/migrations/postgres/0009-x.sql";
        assert_eq!(found(faults, migration, "UPDATE b SET c = 1;\nUPDATE b SET c = 2;\n"), [""; 0]);
        let put_together = "const A: &str = \"DELETE FROM b\";\nlet c = format!(\"{A} INSERT INTO b\");\n";
        assert_eq!(found(faults, STATEMENTS, put_together).len(), 1);
    }

    #[test]
    fn comments_and_other_engines_may_name_it() {
        let text = "/// Not `now()`, nor an advisory lock.\n-- no ctid here\n";
        assert!(found(faults, STATEMENTS, text).is_empty());
        let other = "crates/onlyonce-store/src/sqlite/row.rs";
        assert!(found(faults, other, "SELECT ctid\n").is_empty());
    }
}
