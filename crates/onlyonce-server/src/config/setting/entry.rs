//! An entry of the table of settings: it is listed for the reference, and read where it is set.

use super::kind::Takes;
use super::{Need, Setting};
use crate::config::fault::Place;
use crate::config::reader::Section;
use crate::config::tree::Node;

impl<'a> Section<'a> {
    /// The setting of that name in this table.
    pub(super) fn setting(&'a self, name: &'static str, meaning: &'static str) -> Entry<'a> {
        Entry { section: self, name, meaning }
    }
}

/// A setting. What it takes and which field it fills is said by one of the functions below.
#[must_use]
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    section: &'a Section<'a>,
    name: &'static str,
    meaning: &'static str,
}

/// What a setting of the type `T` takes.
type Taken<'k, T> = &'k dyn Takes<Value = T>;

impl<'a> Entry<'a> {
    /// What is set, or the default, which is read just as if it had been written.
    #[must_use]
    pub(super) fn with_default<T>(self, takes: Taken<'_, T>, default: &'static str) -> T {
        self.list(takes, Some(default), default, Need::Optional);
        self.read(takes).unwrap_or_else(|| {
            let node = Node::bare(default, &Place::Default);
            takes.read(&node, &self.section.reader.environment).expect("a default is a right value")
        })
    }

    /// What is set. `default` is only shown: the library has it, and a test compares the two.
    #[must_use]
    pub(super) fn given<T>(self, takes: Taken<'_, T>, default: &'static str) -> Option<T> {
        self.list(takes, Some(default), default, Need::Optional);
        self.read(takes)
    }

    /// As [`Entry::given`], laid over what holds without it.
    pub(super) fn over<T>(self, below: &mut T, takes: Taken<'_, T>, default: &'static str) {
        if let Some(value) = self.given(takes, default) {
            *below = value;
        }
    }

    /// As [`Entry::over`], for what is derived from other settings unless it is set.
    pub(super) fn over_derived<T>(self, below: &mut Option<T>, takes: Taken<'_, T>, default: &'static str) {
        *below = self.given(takes, default).or(below.take());
    }

    /// What is set. There is no default, and the reference has an example.
    #[must_use]
    pub(super) fn optional<T>(self, takes: Taken<'_, T>, example: &'static str) -> Option<T> {
        self.list(takes, None, example, Need::Optional);
        self.read(takes)
    }

    /// What is set. Not to set it is a fault: `missing` says what to do.
    #[must_use]
    pub(super) fn required<T>(self, takes: Taken<'_, T>, example: &'static str, missing: &str) -> Option<T> {
        if !self.section.has(self.name) {
            self.section.fault(self.name, None, missing);
        }
        self.list(takes, None, example, Need::Required);
        self.read(takes)
    }

    fn read<T>(self, takes: Taken<'_, T>) -> Option<T> {
        let node = self.section.node(self.name)?;
        let wrongs = match takes.read(node, &self.section.reader.environment) {
            Ok(value) => return Some(value),
            Err(wrongs) => wrongs,
        };
        for wrong in wrongs {
            self.section.fault(self.name, wrong.value, wrong.remedy);
        }
        None
    }

    fn list<T>(self, takes: Taken<'_, T>, default: Option<&'static str>, example: &'static str, need: Need) {
        let Some(listed) = &self.section.reader.listed else { return };
        let path = self.section.known_path_of(self.name);
        // A route has the settings of [policy] again.
        if listed.borrow().iter().all(|setting| setting.path != path) {
            let (schema, takes, meaning) = (takes.schema(), takes.described(), self.meaning);
            listed.borrow_mut().push(Setting { path, takes, schema, default, example, need, meaning });
        }
    }
}
