//! SQL statements as they stand in files, and which tables each of them modifies.

use crate::files::File;

/// A statement, and the line its text begins on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Every statement of a `.sql` file, or in the strings of a Rust file.
pub(super) fn statements(file: &File) -> Vec<Statement> {
    let texts = if file.ends_with(".rs") { strings(&file.text) } else { vec![whole(file)] };
    texts.iter().flat_map(split).collect()
}

/// The table that a statement modifies more than once. Keywords are in capitals, as everywhere in our SQL; prose is not.
pub(super) fn modified_twice(statement: &str) -> Option<String> {
    let ends = |char: char| char.is_whitespace() || matches!(char, '(' | ')' | ',' | ';');
    let words: Vec<&str> = statement.split(ends).filter(|word| !word.is_empty()).collect();
    let mut modified: Vec<String> = Vec::new();
    for at in 0..words.len() {
        let Some(table) = table(&words, at) else { continue };
        if modified.contains(&table) {
            return Some(table);
        }
        modified.push(table);
    }
    None
}

/// The table that is modified by the keyword at this place, where it is one.
fn table(words: &[&str], at: usize) -> Option<String> {
    let word = |place: usize| words.get(place).copied().unwrap_or_default();
    let before = at.checked_sub(1).map_or("", word);
    let mut place = match (word(at), word(at + 1)) {
        ("INSERT" | "MERGE", "INTO") | ("DELETE", "FROM") => at + 2,
        // Not the lock of a row, nor an upsert, nor what a trigger or a foreign key is about.
        ("UPDATE", _) if !["FOR", "KEY", "DO", "ON", "OR", "AFTER", "BEFORE"].contains(&before) => at + 1,
        _ => return None,
    };
    if word(place) == "ONLY" {
        place += 1;
    }
    let name = word(place).rsplit('.').next()?.trim_matches('"');
    (!name.is_empty()).then(|| name.to_owned())
}

fn whole(file: &File) -> Statement {
    let lines: Vec<&str> = file.text.lines().map(super::without_comment).collect();
    Statement { line: 1, text: lines.join("\n") }
}

/// What stands between semicolons.
fn split(text: &Statement) -> Vec<Statement> {
    let mut line = text.line;
    let mut statements = Vec::new();
    for part in text.text.split(';') {
        let begins = part.len() - part.trim_start().len();
        let first = line + part[..begins].matches('\n').count();
        if !part.trim().is_empty() {
            statements.push(Statement { line: first, text: part.trim().to_owned() });
        }
        line += part.matches('\n').count();
    }
    statements
}

/// The strings of a Rust file, with `{NAME}` replaced by the constant of that name.
fn strings(source: &str) -> Vec<Statement> {
    let found = literals(source);
    let mut statements = Vec::new();
    for literal in &found {
        // From its quote on, where an excuse can stand on the line above.
        let mut text = literal.text.trim_start().to_owned();
        for constant in &found {
            if let Some(name) = &constant.constant {
                text = text.replace(&format!("{{{name}}}"), constant.text.trim());
            }
        }
        statements.push(Statement { line: literal.line, text });
    }
    statements
}

/// A string literal.
struct Literal {
    line: usize,
    /// The constant that it is the value of.
    constant: Option<String>,
    text: String,
}

/// The literals of a Rust file. Comments have quotes of their own, and so have characters: both are passed over.
fn literals(source: &str) -> Vec<Literal> {
    let mut literals = Vec::new();
    let mut at = 0;
    while let Some(found) = source[at..].find(['"', '/', '\'']) {
        let start = at + found;
        let rest = &source[start..];
        at = start
            + match rest.as_bytes() {
                [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
                [b'\'', b'"', b'\'', ..] => 3,
                [b'\'', b'\\', b'"', b'\'', ..] => 4,
                [b'"', ..] => {
                    let (text, length) = literal(source, start);
                    let line = source[..start].matches('\n').count() + 1;
                    literals.push(Literal {
                        line,
                        constant: constant(&source[..start]),
                        text: text.to_owned(),
                    });
                    length
                }
                _ => 1,
            };
    }
    literals
}

/// The text of the literal whose first quote is at `start`, and its length with both quotes.
fn literal(source: &str, start: usize) -> (&str, usize) {
    let before = &source[..start];
    let hashes = before.len() - before.trim_end_matches('#').len();
    let is_raw = before.trim_end_matches('#').ends_with('r');
    let inner = &source[start + 1..];
    let end = if is_raw {
        inner.find(&format!("\"{}", "#".repeat(hashes)))
    } else {
        let mut is_escaped = false;
        inner.find(|char| {
            let is_end = char == '"' && !is_escaped;
            is_escaped = char == '\\' && !is_escaped;
            is_end
        })
    };
    let end = end.unwrap_or(inner.len());
    (&inner[..end], (end + 2).min(source.len() - start))
}

/// `NAME`, where `const NAME: &str =` stands before a literal.
fn constant(before: &str) -> Option<String> {
    let before = before.trim_end_matches('#').trim_end_matches('r').trim_end().strip_suffix('=')?;
    let (_, declared) = before.rsplit_once("const ")?;
    let (name, kind) = declared.split_once(':')?;
    kind.trim().ends_with("str").then(|| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::file;
    use super::*;

    #[test]
    fn a_table_that_is_modified_twice_is_named() {
        for statement in [
            "WITH a AS (INSERT INTO {schema}.onlyonce_record (id) VALUES ($1)) UPDATE onlyonce_record SET id = $1",
            "WITH a AS (DELETE FROM ONLY onlyonce_record) INSERT INTO\n  \"onlyonce_record\"(id) SELECT 1",
            "WITH a AS (UPDATE s.onlyonce_record AS b SET c = 1) UPDATE s.onlyonce_record SET c = 2",
            "WITH a AS (MERGE INTO onlyonce_record USING b ON true) DELETE FROM {{schema}}.onlyonce_record",
        ] {
            assert_eq!(modified_twice(statement).as_deref(), Some("onlyonce_record"), "{statement}");
        }
    }

    #[test]
    fn locks_upserts_triggers_and_other_tables_are_no_second_modification() {
        for statement in [
            "WITH a AS (SELECT id FROM onlyonce_record FOR UPDATE SKIP LOCKED) DELETE FROM onlyonce_record USING a",
            "INSERT INTO onlyonce_record (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET a = 1",
            "WITH a AS (DELETE FROM onlyonce_record RETURNING *) INSERT INTO onlyonce_archive SELECT * FROM a",
            "CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON onlyonce_record",
            "UPDATE onlyonce_record SET a = (SELECT 1 FROM onlyonce_record FOR NO KEY UPDATE)",
            "update the one, then update the other",
        ] {
            assert_eq!(modified_twice(statement), None, "{statement}");
        }
    }

    #[test]
    fn a_file_of_sql_is_split_at_semicolons() {
        let sql = "-- DELETE FROM a; not this\nDELETE FROM a;\n\nDELETE FROM a\n  WHERE b;\n";
        let found = statements(&file("0001.sql", sql));
        let expected = [(2, "DELETE FROM a"), (4, "DELETE FROM a\n  WHERE b")];
        let found: Vec<_> = found.iter().map(|found| (found.line, found.text.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn strings_of_rust_are_read_with_the_constants_they_name() {
        let source = concat!(
            "// \"a comment\" isn't one\n",
            "const TAKEN: &str = \"\n    DELETE FROM a\";\n",
            "const RAW: &str = r#\"INSERT INTO \"a\" \"#;\n",
            "fn f<'a>(x: &'a str) -> String { let q = '\"'; format!(\"{TAKEN}, {RAW} \\\"q\\\"\") }\n",
        );
        let found = statements(&file("a.rs", source));
        let found: Vec<_> = found.iter().map(|found| (found.line, found.text.as_str())).collect();
        let both = "DELETE FROM a, INSERT INTO \"a\" \\\"q\\\"";
        assert_eq!(found, [(2, "DELETE FROM a"), (4, "INSERT INTO \"a\""), (5, both)]);
        assert_eq!(modified_twice(both).as_deref(), Some("a"));
    }
}
