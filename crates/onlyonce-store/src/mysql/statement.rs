//! The statements of the hot path, and what all statements share.
//!
//! 1. The clock is the server's: `{now}` is the start of the statement in microseconds since 1970, in UTC, and the same on a
//!    replica that replays the statement. A record's stamp never decreases, even if the clock of a new primary is behind.
//! 2. A stamp comes back as `LAST_INSERT_ID`, in the answer to the write itself: no second trip, and no `RETURNING`, which
//!    MySQL does not have.
//! 3. In an UPDATE of one table, columns are assigned from left to right, and later ones see the new values: `written_at` is
//!    assigned last.
//! 4. An insert is `ON DUPLICATE KEY UPDATE id = id`, which changes no row where there is one. Never `IGNORE`, which turns
//!    truncated values into warnings; and never for an update: it would insert what is gone.

use std::sync::LazyLock;

use crate::audit::table;
use crate::sql::COLUMNS;

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The last moment.
const LAST: &str = "9223372036854775807";

/// Relies on the primary key. The time is the last column.
///
/// id
pub(super) static LOAD: LazyLock<String> =
    LazyLock::new(|| filled("SELECT {all}, {seen at} FROM onlyonce_record AS record WHERE id = ?"));

/// Relies on the primary key. One row is changed where it was inserted, none where there is one. It waits for a transaction
/// that holds the row.
///
/// the values of a record
pub(super) static INSERT: LazyLock<String> = LazyLock::new(|| inserts(1));

/// Relies on the primary key and the row lock: it writes the row it compared. One row is changed, or none.
///
/// the values of a record without those of [`FIXED`], id, expected revision
pub(super) static UPDATE: LazyLock<String> = LazyLock::new(|| {
    let stamp = "GREATEST(written_at, {now})";
    let sets = changed().map(|column| format!("{} = {}", quoted(column), value(column, stamp)));
    let sets = sets.collect::<Vec<_>>().join(", ");
    filled(&format!(
        "UPDATE onlyonce_record SET {sets}, written_at = LAST_INSERT_ID({stamp}) WHERE id = ? AND revision = ?"
    ))
});

/// The columns that an update does not assign: what the id stands for, and the stamp, which comes last.
const FIXED: [&str; 4] = ["id", "scope", "key", "written_at"];

/// A statement that inserts this many records. All have one stamp.
pub(super) fn inserts(rows: usize) -> String {
    format!("{} ON DUPLICATE KEY UPDATE id = id", insert_into(rows))
}

/// An insert for a session of the user's, in which rows may be counted that were found and not changed: a record that is there
/// is a duplicate (1062).
pub(super) fn plain_insert() -> String {
    insert_into(1)
}

fn insert_into(rows: usize) -> String {
    let values = columns().map(|column| match column {
        "written_at" => "LAST_INSERT_ID({now})".to_owned(),
        column => value(column, "{now}"),
    });
    let row = format!("({})", values.collect::<Vec<_>>().join(", "));
    let rows = vec![row; rows].join(", ");
    filled(&format!("INSERT INTO onlyonce_record ({{all}}) VALUES {rows}"))
}

/// A statement that updates up to this many records, each in the row that it compared. All have one stamp: rows whose stamp
/// is ahead of the clock are left out. The ids are named by themselves for the planner, which searches the primary key for
/// each.
///
/// for each value of [`changed_values`]: id and value of each row; id and expected revision of each row; the ids
pub(super) fn updates(rows: usize) -> String {
    let case = format!("CASE id {} END", vec!["WHEN ? THEN ?"; rows].join(" "));
    let sets = changed()
        .map(|column| format!("{} = {}", quoted(column), value(column, "{now}").replace('?', &case)))
        .collect::<Vec<_>>()
        .join(", ");
    let expected = vec!["(?, ?)"; rows].join(", ");
    let ids = marks(rows);
    filled(&format!(
        "UPDATE onlyonce_record SET {sets}, written_at = LAST_INSERT_ID({{now}})
         WHERE (id, revision) IN ({expected}) AND id IN ({ids}) AND written_at <= {{now}}"
    ))
}

/// Every column, in the order of [`COLUMNS`].
fn columns() -> impl Iterator<Item = &'static str> {
    COLUMNS.split(", ")
}

/// The columns that an update assigns before the stamp.
fn changed() -> impl Iterator<Item = &'static str> {
    columns().filter(|column| !FIXED.contains(column))
}

/// Which of the values of a record are those of the columns that an update assigns, a range for each column.
pub(super) fn changed_values() -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut end = 0;
    let ranges = columns().map(move |column| {
        let start = end;
        end += places(column);
        (column, start..end)
    });
    ranges.filter(|(column, _)| !FIXED.contains(column)).map(|(_, range)| range)
}

/// How many values a column has: a moment that the server computes has two.
fn places(column: &str) -> usize {
    value(column, "").matches('?').count()
}

/// The SQL of a column's values, where `stamp` is when the record is written.
fn value(column: &str, stamp: &str) -> String {
    match column {
        "written_at" => String::new(),
        "created_at" | "began_at" => format!("COALESCE(?, {stamp})"),
        // `LEAST` of anything with null is null: the first is null where there is no moment. A null without a type would turn
        // the others into floating point, which is not exact for moments after 2255.
        "due_at" | "lapses_at" | "expires_at" | "unknown_since" => {
            format!("LEAST(CAST(? AS SIGNED), COALESCE({stamp} + CAST(? AS SIGNED), {LAST}))")
        }
        _ => "?".to_owned(),
    }
}

/// A text with names of columns and the clock filled in. Records are read from a table that is called `record`.
pub(super) fn filled(sql: &str) -> String {
    let all = columns().map(quoted).collect::<Vec<_>>().join(", ");
    let entry = table::COLUMNS.split(", ").map(quoted).collect::<Vec<_>>().join(", ");
    sql.replace("{all}", &all)
        .replace("{audit}", &entry)
        .replace("{seen at}", "GREATEST(record.written_at, {now})")
        .replace("{now}", NOW)
}

/// Some columns have names that are words of the language.
fn quoted(column: &str) -> String {
    format!("`{column}`")
}

/// `?, ?, …`
pub(super) fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}
