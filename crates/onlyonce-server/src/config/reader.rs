//! Reads settings one by one and collects what is wrong with them, so that nobody is told one fault at a time.

use std::collections::BTreeMap;

use super::Secret;
use super::fault::{Fault, Place, Warning};
use super::secret;
use super::tree::{Node, Table, Value};
use super::value::{self, Read};

/// What has been found so far.
pub(super) struct Reader<'a> {
    pub(super) environment: BTreeMap<&'a str, &'a str>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<Warning>,
}

/// A table of settings, which may not have been written at all.
#[derive(Clone, Debug)]
pub(super) struct Section<'a> {
    /// `policy`, `route[2]`; empty outside any table.
    pub(super) path: String,
    /// The `match` of the route it is in.
    pub(super) route: Option<String>,
    table: Option<&'a Table>,
    /// Where the table begins.
    begins: Place,
}

impl<'a> Section<'a> {
    /// The settings outside any table.
    pub(super) fn top(table: &'a Table) -> Self {
        Self { path: String::new(), route: None, table: Some(table), begins: Place::Default }
    }

    /// The table of that name in this one. What is no table is told by `names`.
    pub(super) fn inner(&self, name: &str) -> Self {
        let node = self.node(name);
        Section {
            path: self.path_of(name),
            route: self.route.clone(),
            table: node.and_then(Node::table),
            begins: node.map_or(Place::Default, |node| node.place.clone()),
        }
    }

    /// The tables of the list of that name; what is none among them is told by `names`.
    pub(super) fn tables(&self, name: &str) -> Vec<Self> {
        self.list(name).into_iter().filter(|section| section.table.is_some()).collect()
    }

    /// Whatever stands in the list of that name.
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        let Some(Value::List(nodes)) = self.node(name).map(|node| &node.value) else { return Vec::new() };
        let section = |(index, node): (usize, &'a Node)| Section {
            path: format!("{}[{index}]", self.path_of(name)),
            route: None,
            table: node.table(),
            begins: node.place.clone(),
        };
        nodes.iter().enumerate().map(section).collect()
    }

    pub(super) fn node(&self, name: &str) -> Option<&'a Node> {
        self.table.and_then(|table| table.get(name))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.node(name).is_some()
    }

    /// Whether anything stands in it.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_none_or(Table::is_empty)
    }

    /// The path of that setting; of the table itself, where it has no name.
    pub(super) fn path_of(&self, name: &str) -> String {
        match (&*self.path, name) {
            ("", name) | (name, "") => name.to_owned(),
            (path, name) => format!("{path}.{name}"),
        }
    }

    /// Where that setting was written; where the table begins, if it was not.
    pub(super) fn place_of(&self, name: &str) -> Place {
        self.node(name).map_or_else(|| self.begins.clone(), |node| node.place.clone())
    }
}

impl Reader<'_> {
    /// The setting, where it is set and right.
    pub(super) fn read<T>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        read: impl Fn(&Node) -> Read<T>,
    ) -> Option<T> {
        match read(section.node(name)?) {
            Ok(value) => Some(value),
            Err(wrongs) => {
                for wrong in wrongs {
                    self.fault(section, name, wrong.value, wrong.remedy);
                }
                None
            }
        }
    }

    pub(super) fn list<T>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        expected: &str,
        read: impl Fn(&Node) -> Read<T>,
    ) -> Option<Vec<T>> {
        self.read(section, name, |node| value::list(node, expected, &read))
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        self.read(section, name, |node| value::word(node, &names)).map(|at| words[at].1)
    }

    pub(super) fn secrets(&mut self, section: &Section<'_>, name: &str) -> Option<Vec<Secret>> {
        let environment = self.environment.clone();
        self.list(section, name, "[\"env:NAME\", \"file:PATH\"]", |node| secret::read(node, &environment))
    }

    /// `value` is none where it is nobody's business.
    pub(super) fn fault(
        &mut self,
        section: &Section<'_>,
        name: &str,
        value: impl Into<Option<String>>,
        remedy: impl Into<String>,
    ) {
        self.faults.push(Fault {
            path: section.path_of(name),
            route: section.route.clone(),
            value: value.into(),
            remedy: remedy.into(),
            place: section.place_of(name),
        });
    }

    pub(super) fn warn(
        &mut self,
        section: &Section<'_>,
        name: &str,
        value: impl Into<Option<String>>,
        remedy: impl Into<String>,
    ) {
        self.warnings.push(Warning {
            path: section.path_of(name),
            route: section.route.clone(),
            value: value.into(),
            remedy: remedy.into(),
            place: section.place_of(name),
        });
    }
}
