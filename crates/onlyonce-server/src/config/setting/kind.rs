//! What a setting takes: what the reference calls it, and how it is read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use onlyonce::fingerprint;

use crate::config::secret::{self, Environment};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Required};
use crate::config::{Pattern, Secret, pattern};
use crate::store;

/// What a setting takes.
pub(super) trait Takes {
    type Value;
    /// For the reference.
    fn described(&self) -> String;
    fn read(&self, node: &Node, environment: &Environment<'_>) -> Read<Self::Value>;
}

/// A description and a function that reads, and refuses what is wrong in itself.
pub(super) struct Kind<T>(pub(super) &'static str, pub(super) fn(&Node, &Environment<'_>) -> Read<T>);

impl<T> Takes for Kind<T> {
    type Value = T;

    fn described(&self) -> String {
        self.0.to_owned()
    }

    fn read(&self, node: &Node, environment: &Environment<'_>) -> Read<T> {
        (self.1)(node, environment)
    }
}

/// A list: of what, how one would write it, and how one of its elements is read.
pub(super) struct List<T>(pub(super) &'static str, pub(super) &'static str, pub(super) fn(&Node) -> Read<T>);

impl<T> Takes for List<T> {
    type Value = Vec<T>;

    fn described(&self) -> String {
        format!("list of {}", self.0)
    }

    fn read(&self, node: &Node, _: &Environment<'_>) -> Read<Vec<T>> {
        value::list(node, self.1, self.2)
    }
}

/// One of a few words, each with what it stands for.
pub(in crate::config) struct Words<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy> Takes for Words<T> {
    type Value = T;

    fn described(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|(word, _)| format!("`{word}`")).collect();
        words.join(", ")
    }

    fn read(&self, node: &Node, _: &Environment<'_>) -> Read<T> {
        value::word(node, self.0)
    }
}

impl<T: Copy + PartialEq> Words<T> {
    /// As it is written in TOML.
    pub(in crate::config) fn written(&self, value: T) -> String {
        let word = self.0.iter().find(|(_, other)| *other == value).map_or("", |(word, _)| *word);
        format!("\"{word}\"")
    }
}

pub(super) const FLAG: Kind<bool> = Kind("`true`, `false`", |node, _| value::flag(node));
pub(super) const TEXT: Kind<String> = Kind("text", |node, _| value::text(node));
pub(super) const COUNT: Kind<u64> = Kind("number", |node, _| value::count(node));
pub(super) const SPAN: Kind<Duration> = Kind("duration", |node, _| value::span(node));
pub(super) const BYTES: Kind<u64> = Kind("bytes", |node, _| value::bytes(node));
pub(super) const ADDRESS: Kind<SocketAddr> = Kind("address and port", |node, _| value::address(node));
pub(super) const URL: Kind<Uri> = Kind("URL", |node, _| value::url(node));
pub(super) const SERVICE: Kind<Uri> = Kind("URL", |node, _| value::service(node));
pub(super) const STORE: Kind<store::Url> = Kind("URL of a store", |node, _| value::parsed(node));
pub(super) const CACHE: Kind<store::Cache> = Kind("URL of a Redis", |node, _| value::parsed(node));
pub(super) const CERTIFICATE: Kind<PathBuf> =
    Kind("path of a file", |node, _| value::pem(node, "CERTIFICATE"));
pub(super) const PRIVATE_KEY: Kind<PathBuf> =
    Kind("path of a file", |node, _| value::pem(node, "PRIVATE KEY"));
pub(super) const SECRET: Kind<Secret> = Kind("secret", secret::read);
pub(super) const SECRETS: Kind<Vec<Secret>> = Kind("list of secrets", secret::list);
pub(super) const HEADER: Kind<HeaderName> = Kind("name of a header", |node, _| value::header(node));
pub(super) const POINTER: Kind<fingerprint::Pointer> = Kind("JSON Pointer", |node, _| value::parsed(node));
pub(super) const PATTERN: Kind<Pattern> = Kind("method and path", |node, _| pattern::read(node));
pub(super) const REQUIRED: Kind<Required> =
    Kind("`true`, `false`, list of methods", |node, _| value::required(node));
