//! File, environment, `--set` and flags, laid over each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::fault::{Fault, Place, Warning};
use super::setting;
use super::tree::{self, Node, Table, Value};

/// Where settings come from. Loading the same sources again reads the files as they are then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The settings file, where one is named.
    pub(crate) file: Option<PathBuf>,
    /// All variables: settings, and what `env:NAME` refers to.
    pub(crate) environment: Vec<(String, String)>,
    /// `NAME=VALUE`, later ones over earlier ones.
    pub(crate) sets: Vec<String>,
    /// Flags of their own: the flag, the setting's name, the text.
    pub(crate) flags: Vec<(&'static str, &'static str, String)>,
}

impl Sources {
    /// The variables by name.
    pub(super) fn variables(&self) -> BTreeMap<&str, &str> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

const PREFIX: &str = "ONLYONCE_";
/// The path of faults about the file itself.
pub(super) const FILE: &str = "config";
/// Between the levels of a setting's name.
const LEVEL: &str = "__";

/// All sources as one table: flags and `--set` over the environment over the file.
pub(super) fn read(sources: &Sources, faults: &mut Vec<Fault>) -> Table {
    let mut settings = file(sources, faults);
    let mut given = Table::new();
    for text in &sources.sets {
        match text.split_once('=') {
            Some((name, value)) => {
                let node = Node::bare(value.trim(), &Place::Set);
                insert(&mut given, name.trim().split('.'), name.trim(), node, faults);
            }
            None => faults.push(Fault {
                path: "--set".into(),
                route: None,
                value: Some(text.clone()),
                remedy: "has no value; write it like policy.lease=5s".into(),
                place: Place::Set,
            }),
        }
    }
    for (flag, name, text) in &sources.flags {
        insert(&mut given, std::iter::once(*name), name, Node::text(text, Place::Flag(flag)), faults);
    }
    let secrets = [&settings, &given].into_iter().flat_map(secrets_of).collect();
    overlay(&mut settings, environment(sources, &secrets, faults), faults, "");
    overlay(&mut settings, given, faults, "");
    settings
}

fn file(sources: &Sources, faults: &mut Vec<Fault>) -> Table {
    let Some(path) = &sources.file else { return Table::new() };
    let unreadable = |remedy: String| Fault {
        path: FILE.into(),
        route: None,
        value: Some(path.display().to_string()),
        remedy,
        place: Place::Flag("--config"),
    };
    let text = match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => text,
        Ok(Err(_)) => {
            faults.push(unreadable("is not UTF-8 text; use a settings file in TOML".into()));
            return Table::new();
        }
        Err(error) => {
            faults.push(unreadable(format!("cannot be read: {error}; use a file that this user may read")));
            return Table::new();
        }
    };
    tree::file(path, &text).unwrap_or_else(|found| {
        faults.extend(found);
        Table::new()
    })
}

/// The name under which one would expect a settings file.
const USUAL_FILE: &str = "onlyonce.toml";

/// A file lies ready and was not named: reading it unasked could start another gateway than the one that was meant.
pub(super) fn unread_file(sources: &Sources) -> Option<Warning> {
    let is_unread = sources.file.is_none() && std::path::Path::new(USUAL_FILE).exists();
    is_unread.then(|| Warning {
        path: FILE.into(),
        route: None,
        value: Some(USUAL_FILE.into()),
        remedy: format!("is in this folder but was not read; to use it, add --config {USUAL_FILE}"),
        place: Place::Default,
    })
}

/// The variables that are settings. One that a secret is read from is none, whatever its name.
fn environment(sources: &Sources, secrets: &BTreeSet<String>, faults: &mut Vec<Fault>) -> Table {
    let variables = sources.variables();
    let settings = |secrets: &BTreeSet<String>, faults: &mut Vec<Fault>| {
        let mut settings = Table::new();
        for (variable, value) in &variables {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if is_somebody_elses(name) || secrets.contains(*variable) {
                continue;
            }
            let place = Place::Variable((*variable).into());
            let path = name.to_lowercase().replace(LEVEL, ".");
            insert(&mut settings, path.split('.'), &path, Node::bare(value.trim(), &place), faults);
        }
        settings
    };
    // A variable may itself say which variable holds a secret.
    let own = secrets_of(&settings(secrets, &mut Vec::new()));
    settings(&secrets.iter().cloned().chain(own).collect(), faults)
}

/// What begins like our settings and is none: what our own tests are told, and what Kubernetes tells every container about
/// a service that is called `onlyonce`.
fn is_somebody_elses(name: &str) -> bool {
    let is_port = |rest: &str| {
        let mut parts = rest.split('_');
        let is_number = parts.next().is_some_and(|number| number.parse::<u16>().is_ok());
        is_number && parts.next().is_some_and(|kind| matches!(kind, "TCP" | "UDP" | "SCTP"))
    };
    matches!(name, "FAILPOINT" | "VECTORS" | "PORT" | "SERVICE_HOST" | "SERVICE_PORT")
        || name.starts_with("SERVICE_PORT_")
        || name.strip_prefix("PORT_").is_some_and(is_port)
}

/// The variables that `env:NAME` refers to, anywhere in `table`.
fn secrets_of(table: &Table) -> BTreeSet<String> {
    table.values().flat_map(secrets_in).collect()
}

fn secrets_in(node: &Node) -> BTreeSet<String> {
    match &node.value {
        Value::Text(text) => text.strip_prefix("env:").map(str::to_owned).into_iter().collect(),
        Value::List(nodes) => nodes.iter().flat_map(secrets_in).collect(),
        Value::Table(table) => secrets_of(table),
        Value::Integer(_) | Value::Flag(_) | Value::Odd(_) => BTreeSet::new(),
    }
}

/// Sets one name, making the tables it goes through.
fn insert<'a>(
    table: &mut Table,
    mut names: impl Iterator<Item = &'a str>,
    path: &str,
    node: Node,
    faults: &mut Vec<Fault>,
) {
    let Some(name) = names.next() else { return };
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        let mut one = Table::new();
        one.insert(name.to_owned(), node);
        let outer = path.strip_suffix(name).unwrap_or_default();
        return overlay(table, one, faults, outer);
    }
    let place = node.place.clone();
    let inner = table.entry(name.to_owned()).or_insert_with(|| Node {
        value: Value::Table(Table::new()),
        place: place.clone(),
        text: None,
    });
    match &mut inner.value {
        Value::Table(table) => insert(table, names.into_iter(), path, node, faults),
        Value::Text(_) | Value::Integer(_) | Value::Flag(_) | Value::List(_) | Value::Odd(_) => {
            faults.push(no_table(path, name, place));
        }
    }
}

/// Lays `over` over `settings`: tables are joined, all else is replaced.
fn overlay(settings: &mut Table, over: Table, faults: &mut Vec<Fault>, path: &str) {
    for (name, node) in over {
        let path = format!("{path}{name}");
        match (settings.get_mut(&name), node) {
            (Some(Node { value: Value::Table(below), .. }), Node { value: Value::Table(table), .. }) => {
                overlay(below, table, faults, &format!("{path}."));
            }
            // A list of tables cannot be changed in its middle.
            (Some(Node { value: Value::List(_), .. }), Node { value: Value::Table(_), place, .. })
                if setting::is_list(&path) =>
            {
                faults.push(no_table(&path, &name, place));
            }
            (_, node) => drop(settings.insert(name, node)),
        }
    }
}

fn no_table(path: &str, name: &str, place: Place) -> Fault {
    let remedy = if setting::is_list(name) {
        format!("is inside a list, which is set as a whole; write {name}=[{{…}}, {{…}}] or use a file")
    } else {
        format!("is inside \"{name}\", which was set to something that is not a table; set one of the two")
    };
    Fault { path: path.to_owned(), route: None, value: None, remedy, place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_says_of_a_service_called_onlyonce_is_no_setting() {
        for name in [
            "PORT",
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTP",
            "PORT_8080_TCP",
            "PORT_8080_TCP_ADDR",
        ] {
            assert!(is_somebody_elses(name), "{name}");
        }
        for name in ["SERVICE", "PORTS", "PORT_HTTP", "LISTEN", "SERVICE_HOSTS"] {
            assert!(!is_somebody_elses(name), "{name}");
        }
    }
}
