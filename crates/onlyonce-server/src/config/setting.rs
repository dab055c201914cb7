//! Every setting there is: its name, what it takes, its default, what it means, and the field that it fills.
//!
//! `table.rs` has an entry for each, written where its field is filled. The entries are run in two ways: to read settings,
//! and once without any, to list them. The reference in `docs/settings.md`, `onlyonce.example.toml`, the schema for editors, the
//! help of `serve` and the hints for misspelt names are made from that list.

mod entry;
mod form;
mod kind;
pub(super) mod table;

use std::cell::RefCell;
use std::sync::LazyLock;

use super::reader::{Reader, Section};
use super::tree::Table;

pub(super) use table::TABLES;

/// All entries of the table, in the order of the reference.
pub(super) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let (reader, nothing) = (Reader::listing(), Table::new());
    let _ = table::config(&Section::top(&nothing, &reader));
    let mut settings = reader.listed.map(RefCell::into_inner).unwrap_or_default();
    // In each table they stay in the order of their entries.
    let table_at = |table: &str| TABLES.iter().position(|known| known.path == table.trim_end_matches(".*"));
    settings.sort_by_key(|setting| table_at(setting.split().0));
    settings
});

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// With the tables around it; `*` is a name that the user chooses: `policy.lease`, `webhooks.*.secrets`.
    pub(super) path: String,
    /// What it takes, for the reference.
    pub(super) takes: String,
    /// The same as JSON Schema, for editors.
    pub(super) schema: serde_json::Value,
    /// In TOML; none where nothing holds unless it is set.
    pub(super) default: Option<&'static str>,
    /// In TOML, where there is no default to show.
    pub(super) example: &'static str,
    pub(super) need: Need,
    /// One or two sentences.
    pub(super) meaning: &'static str,
}

/// Whether its table can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    Optional,
}

/// A table of settings.
#[derive(Debug)]
pub(super) struct TableOf {
    /// As in [`Setting::path`]; empty for the settings outside any table.
    pub(super) path: &'static str,
    pub(super) shape: Shape,
    pub(super) meaning: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `[policy]`
    One,
    /// `[[route]]`
    List,
    /// `[webhooks.NAME]`
    Named,
}

impl Setting {
    /// The table it is in, and its own name.
    pub(super) fn split(&self) -> (&str, &str) {
        self.path.rsplit_once('.').unwrap_or(("", &self.path))
    }
}

/// The setting of that path.
pub(super) fn of(path: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.path == path)
}

/// The table of that path.
pub(super) fn table_of(path: &str) -> Option<&'static TableOf> {
    TABLES.iter().find(|table| table.path == path)
}

/// Whether `path` is written as `[[…]]`.
pub(super) fn is_list(path: &str) -> bool {
    table_of(path).is_some_and(|table| table.shape == Shape::List)
}

/// The settings of a table, in their order. A route's are its own and those of a policy.
pub(super) fn members(table: &str) -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(move |setting| setting.split().0 == table)
}

/// What `path` of a route is called in `[policy]`, where it has it from there.
pub(super) fn in_policy(path: &str) -> Option<String> {
    path.strip_prefix("route.").filter(|_| of(path).is_none()).map(|name| format!("policy.{name}"))
}
