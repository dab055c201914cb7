//! A table of settings as it was written, and a collector of all that is wrong, so that nobody is told one fault at a time.

use std::cell::RefCell;

use super::fault::{Fault, Place, Warning};
use super::secret::Environment;
use super::setting::Setting;
use super::tree::{Node, Table, Value};

/// What was found while settings were read. It is shared by all sections, so it collects behind a [`RefCell`].
pub(super) struct Reader<'a> {
    pub(super) environment: Environment<'a>,
    faults: RefCell<Vec<Fault>>,
    warnings: RefCell<Vec<Warning>>,
    /// Some while the table of settings is only listed: for the reference, and to know every name.
    pub(super) listed: Option<RefCell<Vec<Setting>>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(environment: Environment<'a>, faults: Vec<Fault>) -> Self {
        Self { environment, faults: RefCell::new(faults), warnings: RefCell::default(), listed: None }
    }

    /// One that reads nothing and lists every setting that is asked for.
    pub(super) fn listing() -> Self {
        Self { listed: Some(RefCell::default()), ..Self::new(Environment::new(), Vec::new()) }
    }

    pub(super) fn finish(self) -> (Vec<Fault>, Vec<Warning>) {
        (self.faults.into_inner(), self.warnings.into_inner())
    }
}

/// A table of settings, which may not have been written at all.
#[derive(Clone)]
pub(super) struct Section<'a> {
    /// `policy`, `route[2]`; empty outside any table.
    pub(super) path: String,
    /// The same as the reference has it: `policy`, `route`, `webhooks.*`.
    pub(super) known: String,
    /// The `match` of the route it is in.
    pub(super) route: Option<String>,
    table: Option<&'a Table>,
    /// Where the table begins.
    begins: Place,
    pub(super) reader: &'a Reader<'a>,
}

impl<'a> Section<'a> {
    /// The settings outside any table.
    pub(super) fn top(table: &'a Table, reader: &'a Reader<'a>) -> Self {
        let (path, known) = (String::new(), String::new());
        Self { path, known, route: None, table: Some(table), begins: Place::Default, reader }
    }

    /// The table of that name in this one. `names` reports what is not a table.
    pub(super) fn inner(&self, name: &str) -> Self {
        let node = self.node(name);
        Self {
            path: self.path_of(name),
            known: joined(&self.known, name),
            route: self.route.clone(),
            table: node.and_then(Node::table),
            begins: node.map_or(Place::Default, |node| node.place.clone()),
            reader: self.reader,
        }
    }

    /// The tables of the list of that name, `[[name]]`; what is none among them is told by `names`.
    pub(super) fn tables(&self, name: &str) -> Vec<Self> {
        match self.reader.listed {
            Some(_) => vec![self.inner(name)],
            None => self.list(name).into_iter().filter(|section| section.table.is_some()).collect(),
        }
    }

    /// The tables `[name.NAME]`, each of which has a name that the user chose; what is none among them is told by `names`.
    pub(super) fn named_tables(&self, name: &str) -> Vec<Self> {
        let outer = self.inner(name);
        let names: Vec<_> = match self.reader.listed {
            Some(_) => vec!["*"],
            None => {
                let tables = outer.members().filter(|(_, node)| node.table().is_some());
                tables.map(|(name, _)| &**name).collect()
            }
        };
        names.into_iter().map(|name| Self { known: joined(&outer.known, "*"), ..outer.inner(name) }).collect()
    }

    /// A route, for the settings of `[policy]` that it may have too.
    pub(super) fn as_policy(&self) -> Self {
        Self { known: "policy".to_owned(), ..self.clone() }
    }

    /// Whatever stands in the list of that name.
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        let Some(Value::List(nodes)) = self.node(name).map(|node| &node.value) else { return Vec::new() };
        let section = |(index, node): (usize, &'a Node)| Self {
            path: format!("{}[{index}]", self.path_of(name)),
            known: joined(&self.known, name),
            route: if name == "route" { match_of(node) } else { None },
            table: node.table(),
            begins: node.place.clone(),
            reader: self.reader,
        };
        nodes.iter().enumerate().map(section).collect()
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (&'a String, &'a Node)> + use<'a> {
        self.table.into_iter().flatten()
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
        joined(&self.path, name)
    }

    /// The same as the reference has it.
    pub(super) fn known_path_of(&self, name: &str) -> String {
        joined(&self.known, name)
    }

    /// Where that setting was written. If it was not: where its table begins in the file, and nowhere if the table is made of
    /// settings that were given one by one.
    pub(super) fn place_of(&self, name: &str) -> Place {
        match (self.node(name), &self.begins) {
            (Some(node), _) => node.place.clone(),
            (None, Place::File { .. }) => self.begins.clone(),
            (None, Place::Default | Place::Variable(_) | Place::Set | Place::Flag(_)) => Place::Default,
        }
    }

    /// `value` is none where it is nobody's business.
    pub(super) fn fault(&self, name: &str, value: impl Into<Option<String>>, remedy: impl Into<String>) {
        self.reader.faults.borrow_mut().push(Fault {
            path: self.path_of(name),
            route: self.route.clone(),
            value: value.into(),
            remedy: remedy.into(),
            place: self.place_of(name),
        });
    }

    /// As [`Section::fault`].
    pub(super) fn warn(&self, name: &str, value: impl Into<Option<String>>, remedy: impl Into<String>) {
        self.warn_of(name, value, remedy, self.place_of(name));
    }

    /// The same about a setting that was written elsewhere and holds here too.
    pub(super) fn warn_of(
        &self,
        name: &str,
        value: impl Into<Option<String>>,
        remedy: impl Into<String>,
        place: Place,
    ) {
        self.reader.warnings.borrow_mut().push(Warning {
            path: self.path_of(name),
            route: self.route.clone(),
            value: value.into(),
            remedy: remedy.into(),
            place,
        });
    }
}

/// A route is told by its `match`.
fn match_of(route: &Node) -> Option<String> {
    match &route.table()?.get("match")?.value {
        Value::Text(text) => Some(text.clone()),
        Value::Integer(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => None,
    }
}

fn joined(path: &str, name: &str) -> String {
    match (path, name) {
        ("", name) | (name, "") => name.to_owned(),
        (path, name) => format!("{path}.{name}"),
    }
}
