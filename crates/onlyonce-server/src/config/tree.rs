//! Settings as they were written, before anybody knows what they mean: values, each with the place it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Place};

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
    /// What stood there, where no TOML file but a variable or `--set` had it: `42` may be meant as a text.
    pub(super) text: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    /// What no setting takes: a date, a fraction, a number beyond all bounds.
    Odd(String),
}

pub(super) type Table = BTreeMap<String, Node>;

impl Node {
    /// A text that was given as such.
    pub(super) fn text(text: &str, place: Place) -> Self {
        Self { value: Value::Text(text.to_owned()), place, text: None }
    }

    /// A value of a variable or of `--set`: TOML, and what is none is a text.
    pub(super) fn bare(text: &str, place: &Place) -> Self {
        let value = match DeValue::parse(text) {
            Ok(value) => value_of(value.get_ref(), &|_| place.clone()),
            Err(_) => Value::Text(text.to_owned()),
        };
        Self { value, place: place.clone(), text: Some(text.to_owned()) }
    }

    pub(super) fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::List(_) | Value::Odd(_) => None,
        }
    }
}

impl fmt::Display for Value {
    /// As one would write it, texts without their quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Odd(text) => f.write_str(text),
            Self::Integer(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::List(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(|node| node.value.to_string()).collect();
                write!(f, "[{}]", nodes.join(", "))
            }
            Self::Table(_) => f.write_str("{…}"),
        }
    }
}

/// The settings of a file.
pub(super) fn file(path: &Path, text: &str) -> Result<Table, Vec<Fault>> {
    let name: Arc<str> = path.display().to_string().into();
    let lines = Lines::of(text);
    let place = |at: usize| Place::File { name: name.clone(), line: lines.position(at).0 };
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table_of(table.get_ref(), &place));
    }
    let fault = |error: &toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let (line, column) = lines.position(at);
        let told = error.message().replace('\n', ", ");
        let remedy = format!("is not valid TOML: {told}; fix line {line}, column {column}");
        Fault {
            path: super::source::FILE.into(),
            route: None,
            value: Some(name.to_string()),
            remedy,
            place: place(at),
        }
    };
    let mut faults: Vec<_> = errors.iter().map(fault).collect();
    // What follows on a line is mostly the same slip again.
    faults.dedup_by(|next, one| next.place == one.place);
    Err(faults)
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after).collect() }
    }

    /// Line and column, counted from one, the column in characters.
    fn position(&self, at: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line - 1];
        let before = self.text.get(start..at).map_or(0, |before| before.chars().count());
        (line, before + 1)
    }
}

fn table_of(table: &DeTable<'_>, place: &dyn Fn(usize) -> Place) -> Table {
    table
        .iter()
        .map(|(name, value)| (name.get_ref().to_string(), node_of(name.span().start, value, place)))
        .collect()
}

/// A value is where its name stands.
fn node_of(at: usize, value: &Spanned<DeValue<'_>>, place: &dyn Fn(usize) -> Place) -> Node {
    Node { value: value_of(value.get_ref(), place), place: place(at), text: None }
}

fn value_of(value: &DeValue<'_>, place: &dyn Fn(usize) -> Place) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
            .map_or_else(|_| Value::Odd(number.to_string()), Value::Integer),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Float(number) => Value::Odd(number.to_string()),
        DeValue::Datetime(date) => Value::Odd(date.to_string()),
        DeValue::Array(values) => {
            Value::List(values.iter().map(|value| node_of(value.span().start, value, place)).collect())
        }
        DeValue::Table(table) => Value::Table(table_of(table, place)),
    }
}
