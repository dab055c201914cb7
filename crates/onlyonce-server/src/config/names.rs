//! Which names there are: what is misspelt or misplaced.

use super::fault::Place;
use super::reader::Section;
use super::setting::{self, SETTINGS, Shape, TABLES};
use super::tree::{Node, Value};

/// Looks at every name that was written. `known` is the section's path in the table of settings.
pub(super) fn check(section: &Section<'_>, known: &str) {
    for (name, node) in section.members() {
        let path = if known.is_empty() { name.clone() } else { format!("{known}.{name}") };
        let policys = setting::in_policy(&path);
        let found = setting::of(&path).or_else(|| policys.as_deref().and_then(setting::of));
        let inner = setting::table_of(&path).or_else(|| policys.as_deref().and_then(setting::table_of));
        match (found, inner) {
            (Some(_), _) => {}
            (None, Some(inner)) => match (inner.shape, &node.value) {
                (Shape::One, Value::Table(_)) => check(&section.inner(name), inner.path),
                (Shape::List, Value::List(nodes)) => list(section, name, nodes, inner.path),
                (Shape::Named, Value::Table(_)) => named(&section.inner(name), inner.path),
                (shape, _) => section.fault(name, None, no_table(&section.path_of(name), shape)),
            },
            (None, None) => {
                let hint = hint(known, name, &section.place_of(name));
                section.fault(name, None, format!("is an unknown setting; {hint}"));
            }
        }
    }
}

fn no_table(path: &str, shape: Shape) -> String {
    match shape {
        Shape::One => format!("is not a table; write [{path}] and its settings below"),
        Shape::List => format!("is not a list of tables; write [[{path}]] for each"),
        Shape::Named => format!("is not a table of tables; write [{path}.NAME] for each"),
    }
}

fn list(section: &Section<'_>, name: &str, nodes: &[Node], known: &str) {
    for (node, section) in nodes.iter().zip(section.list(name)) {
        match node.table() {
            Some(_) => check(&section, known),
            None => section.fault("", node.value.to_string(), no_table(name, Shape::List)),
        }
    }
}

fn named(section: &Section<'_>, known: &str) {
    for (name, node) in section.members() {
        match node.table() {
            Some(_) => check(&section.inner(name), &format!("{known}.*")),
            None => section.fault(name, None, no_table(&section.path, Shape::Named)),
        }
    }
}

/// What was probably meant.
fn hint(table: &str, name: &str, place: &Place) -> String {
    let plain = name.to_lowercase().replace('-', "_");
    let here: Vec<&str> = names_of(table);
    if let Some(right) = here.iter().find(|right| **right == plain) {
        return format!("write {right}");
    }
    if let Place::Variable(_) = place
        && let Some(right) = SETTINGS.iter().find(|setting| setting.path.replace('.', "_") == plain)
    {
        let variable = right.path.to_uppercase().replace('.', "__");
        return format!("two underscores separate the levels: write ONLYONCE_{variable}");
    }
    if let Some((_, meant)) = SYNONYMS.iter().find(|(other, _)| *other == plain) {
        return format!("here it is called {meant}");
    }
    if let Some(elsewhere) = SETTINGS.iter().find(|setting| setting.split().1 == plain) {
        return match elsewhere.split() {
            ("", name) => format!("{name} belongs outside any table: write it above the first one"),
            (table, name) => format!("{name} belongs to {}", written(table)),
        };
    }
    let nearest = nearest(&plain, here.into_iter()).map(str::to_owned);
    let anywhere = || {
        let names = SETTINGS.iter().map(|setting| (setting.split().1, &setting.path));
        let near = names
            .filter_map(|(last, path)| Some((near(&plain, last)?, path)))
            .min_by_key(|(distance, _)| *distance);
        near.map(|(_, path)| path.to_owned())
    };
    match nearest.or_else(anywhere) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "`onlyonce settings` lists them all".to_owned(),
    }
}

/// What others call what is a setting here.
const SYNONYMS: [(&str, &str); 11] = [
    ("ttl", "policy.retention"),
    ("tenant", "policy.scope"),
    ("namespace", "policy.scope"),
    ("timeout", "policy.deadline"),
    ("port", "listen"),
    ("bind", "listen"),
    ("backend", "upstream"),
    ("target", "upstream"),
    ("level", "log.filter"),
    ("path", "route.match"),
    ("database", "store"),
];

/// The names that may stand in a table.
fn names_of(table: &str) -> Vec<&'static str> {
    let members = |table: &str| {
        let prefix = if table.is_empty() { String::new() } else { format!("{table}.") };
        let paths =
            SETTINGS.iter().map(|setting| &*setting.path).chain(TABLES.iter().map(|table| table.path));
        let names = paths.filter_map(move |path| path.strip_prefix(prefix.as_str()));
        names.filter(|name| !name.is_empty() && !name.contains('.')).collect::<Vec<_>>()
    };
    let mut names = members(table);
    if table == "route" {
        names.extend(members("policy"));
    }
    names
}

fn written(table: &str) -> String {
    match (setting::table_of(table).map(|table| table.shape), table.strip_suffix(".*")) {
        (Some(Shape::List), _) => format!("[[{table}]]"),
        (_, Some(table)) => format!("[{table}.NAME]"),
        _ => format!("[{table}]"),
    }
}

pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .filter_map(|right| Some((near(name, right)?, right)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, right)| right)
}

/// How far `name` is from `right`, where that is near enough to be a slip.
fn near(name: &str, right: &str) -> Option<usize> {
    let distance = distance(name, right);
    (distance <= (right.chars().count() / 3).max(1)).then_some(distance)
}

/// The longest name whose distance is worth reckoning.
const NAME_CHARS_MAX: usize = 64;

/// How many characters must be added, left out, changed or swapped with their neighbour.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<_>, Vec<_>) = (one.chars().collect(), two.chars().collect());
    if one.len() > NAME_CHARS_MAX {
        return usize::MAX;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=two.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in two.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == two[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near() {
        for (one, two, far) in
            [("lease", "lease", 0), ("laese", "lease", 1), ("leas", "lease", 1), ("", "abc", 3), ("x", "", 1)]
        {
            assert_eq!(distance(one, two), far, "{one} {two}");
        }
        assert_eq!(distance(&"é".repeat(1_000), "lease"), usize::MAX);
    }

    #[test]
    fn a_wrong_name_is_told_the_right_one() {
        for (table, name, told) in [
            ("policy", "laese", "did you mean lease?"),
            ("policy", "on-5xx", "write on_5xx"),
            ("policy", "Lease", "write lease"),
            ("", "lease", "lease belongs to [policy]"),
            ("policy", "listen", "listen belongs outside any table: write it above the first one"),
            ("route", "retension", "did you mean retention?"),
            ("route", "mach", "did you mean match?"),
            ("", "polcy", "did you mean policy?"),
            ("", "token", "token belongs to [[admin_token]]"),
            ("", "attempts_max", "attempts_max belongs to [destinations.NAME]"),
            ("tls", "timeout", "here it is called policy.deadline"),
            ("tls", "flux_capacitor", "`onlyonce settings` lists them all"),
        ] {
            assert!(
                hint(table, name, &Place::Set).contains(told),
                "{table} {name}: {}",
                hint(table, name, &Place::Set)
            );
        }
        let variable = Place::Variable("ONLYONCE_POLICY_LEASE".into());
        assert!(hint("", "policy_lease", &variable).contains("write ONLYONCE_POLICY__LEASE"));
    }
}
