//! What a setting takes: how it is written, and how it is read.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use onlyonce::fingerprint;

use super::form::{self, Form};
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
    /// For editors: see `form.rs`.
    fn schema(&self) -> serde_json::Value;
    fn read(&self, node: &Node, environment: &Environment<'_>) -> Read<Self::Value>;
}

/// A form and a function that reads, and refuses what is wrong in itself.
pub(super) struct Kind<T>(pub(super) Form, pub(super) fn(&Node, &Environment<'_>) -> Read<T>);

impl<T> Takes for Kind<T> {
    type Value = T;

    fn described(&self) -> String {
        self.0.0.to_owned()
    }

    fn schema(&self) -> serde_json::Value {
        self.0.1()
    }

    fn read(&self, node: &Node, environment: &Environment<'_>) -> Read<T> {
        (self.1)(node, environment)
    }
}

/// A list: of what, how one would write it, and how one of its elements is read.
pub(super) struct List<T>(pub(super) Form, pub(super) &'static str, pub(super) fn(&Node) -> Read<T>);

impl<T> Takes for List<T> {
    type Value = Vec<T>;

    fn described(&self) -> String {
        format!("list of {}", self.0.0)
    }

    fn schema(&self) -> serde_json::Value {
        form::list(&self.0.1())
    }

    fn read(&self, node: &Node, _: &Environment<'_>) -> Read<Vec<T>> {
        value::list(node, self.1, self.2)
    }
}

/// A whole number within bounds, and one that is usual.
pub(super) struct Whole<T> {
    least: u64,
    most: u64,
    usual: u64,
    read_as: PhantomData<T>,
}

impl<T> Whole<T> {
    pub(super) const fn new(least: u64, most: u64, usual: u64) -> Self {
        Self { least, most, usual, read_as: PhantomData }
    }
}

impl<T: TryFrom<u64>> Takes for Whole<T> {
    type Value = T;

    fn described(&self) -> String {
        form::COUNT.0.to_owned()
    }

    fn schema(&self) -> serde_json::Value {
        serde_json::json!({"type": "integer", "minimum": self.least, "maximum": self.most})
    }

    fn read(&self, node: &Node, _: &Environment<'_>) -> Read<T> {
        let Self { least, most, usual, .. } = self;
        let count = value::count(node)?;
        match T::try_from(count) {
            Ok(number) if (*least..=*most).contains(&count) => Ok(number),
            Ok(_) | Err(_) => value::wrong(count, format!("is not from {least} to {most}; {usual} is usual")),
        }
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

    fn schema(&self) -> serde_json::Value {
        form::words(self.0.iter().map(|(word, _)| *word))
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

pub(super) const FLAG: Kind<bool> = Kind(form::FLAG, |node, _| value::flag(node));
pub(super) const TEXT: Kind<String> = Kind(form::TEXT, |node, _| value::text(node));
pub(super) const COUNT: Kind<u64> = Kind(form::COUNT, |node, _| value::count(node));
pub(super) const SPAN: Kind<Duration> = Kind(form::SPAN, |node, _| value::span(node));
pub(super) const BYTES: Kind<u64> = Kind(form::BYTES, |node, _| value::bytes(node));
pub(super) const ADDRESS: Kind<SocketAddr> = Kind(form::ADDRESS, |node, _| value::address(node));
pub(super) const URL: Kind<Uri> = Kind(form::URL, |node, _| value::url(node));
pub(super) const SERVICE: Kind<Uri> = Kind(form::URL, |node, _| value::service(node));
pub(super) const STORE: Kind<store::Url> = Kind(form::STORE, |node, _| value::parsed(node));
pub(super) const CACHE: Kind<store::Cache> = Kind(form::CACHE, |node, _| value::parsed(node));
pub(super) const CERTIFICATE: Kind<PathBuf> = Kind(form::FILE, |node, _| value::pem(node, "CERTIFICATE"));
pub(super) const PRIVATE_KEY: Kind<PathBuf> = Kind(form::FILE, |node, _| value::pem(node, "PRIVATE KEY"));
pub(super) const SECRET: Kind<Secret> = Kind(form::SECRET, secret::read);
pub(super) const SECRETS: Kind<Vec<Secret>> = Kind(form::SECRETS, secret::list);
pub(super) const HEADER: Kind<HeaderName> = Kind(form::HEADER, |node, _| value::header(node));
pub(super) const POINTER: Kind<fingerprint::Pointer> = Kind(form::POINTER, |node, _| value::parsed(node));
pub(super) const PATTERN: Kind<Pattern> = Kind(form::PATTERN, |node, _| pattern::read(node));
pub(super) const REQUIRED: Kind<Required> = Kind(form::REQUIRED, |node, _| value::required(node));
