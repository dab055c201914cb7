//! What is wrong with settings, and what is legal but risky: each with its path, its value, the remedy and its place.

use std::fmt;
use std::sync::Arc;

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: it is what holds where nothing is said.
    Default,
    File {
        name: Arc<str>,
        line: usize,
    },
    /// A variable of the environment.
    Variable(Arc<str>),
    /// `--set`
    Set,
    /// A flag of its own, such as `--listen`.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name} line {line}"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Set => f.write_str("--set"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A setting that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Its name with the tables around it: `policy.lease`, `route[2].lease`.
    pub(crate) path: String,
    /// The `match` of the route it is in.
    pub(crate) route: Option<String>,
    /// What it is set to; none where that is nothing, or nobody's business.
    pub(crate) value: Option<String>,
    /// What is wrong with it and what to do.
    pub(crate) remedy: String,
    /// Where it was written.
    pub(crate) place: Place,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        told(f, (&self.path, self.route.as_deref()), self.value.as_deref(), &self.remedy, &self.place)
    }
}

/// Every fault of the settings: names, then values in the order of the reference, then what is wrong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.0.len() == 1 { "fault" } else { "faults" };
        write!(f, "{} {noun} in the settings", self.0.len())?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Faults {}

/// A setting that can stand, and that somebody may regret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) path: String,
    pub(crate) route: Option<String>,
    pub(crate) value: Option<String>,
    /// What may come of it and what to do.
    pub(crate) remedy: String,
    pub(crate) place: Place,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        told(f, (&self.path, self.route.as_deref()), self.value.as_deref(), &self.remedy, &self.place)
    }
}

/// What only the user knows: a question that `check` asks, and `serve` does not.
pub(crate) type Question = Warning;

/// `path of "match": "value" remedy (place)`
fn told(
    f: &mut fmt::Formatter<'_>,
    (path, route): (&str, Option<&str>),
    value: Option<&str>,
    remedy: &str,
    place: &Place,
) -> fmt::Result {
    f.write_str(path)?;
    if let Some(route) = route {
        write!(f, " of \"{}\"", on_one_line(route))?;
    }
    match value {
        Some(value) => write!(f, ": \"{}\" {remedy}", on_one_line(value))?,
        None => write!(f, ": {remedy}")?,
    }
    match place {
        Place::Default => Ok(()),
        Place::File { .. } | Place::Variable(_) | Place::Set | Place::Flag(_) => write!(f, " ({place})"),
    }
}

/// Somebody else's text: it stays on its line and does nothing to the screen.
fn on_one_line(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(escaped).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn escaped(char: char) -> Vec<char> {
    if char.is_control() { char.escape_default().collect() } else { vec![char] }
}
