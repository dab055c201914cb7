//! Every setting there is, in one table: its name, what it takes, its default, what it means.
//!
//! The reference in `docs/settings.md`, `onlyonce.example.toml`, the help of `serve` and the hints for misspelt names are
//! made from it. What a value means is read in `policy.rs` and its neighbours; a test sees to it that every setting of
//! this table is read, and that its default is the one that holds.

mod table;

use std::collections::BTreeMap;

use super::tree::Node;
use super::value::Read;

pub(super) use table::{SETTINGS, TABLES};

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// With the tables around it; `*` is a name that the user chooses: `policy.lease`, `webhooks.*.secrets`.
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    /// In TOML; none where nothing holds unless it is set.
    pub(super) default: Option<&'static str>,
    /// In TOML, where there is no default to show.
    pub(super) example: &'static str,
    /// One or two sentences.
    pub(super) meaning: &'static str,
    pub(super) standing: Standing,
}

/// Whether anything goes by a setting yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Standing {
    Used,
    /// Its shape is checked, and nothing uses it yet; nothing is promised that does not hold.
    Unused(Check),
    /// It would promise something that this release does not do: refused.
    Refused,
}

/// Whether a value has the shape that its setting takes.
pub(super) type Check = fn(&Node, &BTreeMap<&str, &str>) -> Read<()>;

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

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Count,
    Span,
    Bytes,
    Words(&'static [&'static str]),
    WordList(&'static [&'static str]),
    Address,
    Networks,
    Url,
    Service,
    Store,
    File,
    Secret,
    Secrets,
    Header,
    Headers,
    Methods,
    Required,
    Statuses,
    Sources,
    Pointers,
    Pointer,
    Pattern,
    Filter,
}

impl Setting {
    /// The table it is in, and its own name.
    pub(super) fn split(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
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

impl Kind {
    /// What it takes, for the reference.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Text => "text".into(),
            Self::Count => "number".into(),
            Self::Span => "span".into(),
            Self::Bytes => "bytes".into(),
            Self::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            Self::WordList(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                format!("list of {}", words.join(", "))
            }
            Self::Address => "address and port".into(),
            Self::Networks => "list of addresses and networks".into(),
            Self::Url | Self::Service => "URL".into(),
            Self::Store => "URL of a store".into(),
            Self::File => "path of a file".into(),
            Self::Secret => "secret".into(),
            Self::Secrets => "list of secrets".into(),
            Self::Header => "name of a header".into(),
            Self::Headers => "list of headers".into(),
            Self::Methods => "list of methods".into(),
            Self::Required => "`true`, `false`, list of methods".into(),
            Self::Statuses => "list of HTTP statuses".into(),
            Self::Sources => {
                "list of `header:NAME`, `trusted:NAME`, `jwt:CLAIM`, `certificate`, `route`".into()
            }
            Self::Pointers => "list of JSON Pointers".into(),
            Self::Pointer => "JSON Pointer".into(),
            Self::Pattern => "method and path".into(),
            Self::Filter => "directives".into(),
        }
    }
}
