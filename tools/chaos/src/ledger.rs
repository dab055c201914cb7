//! What really happened: every effect, booked outside of everything that is killed, and in a file too.
//!
//! 1. `opaque` and `queryable` act each time they are called.
//! 2. `keyed` acts once for each key of a caller, and answers the same ever after; while it is at it, a second call is
//!    told so.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use onlyonce_testkit::history::Said;

use crate::kind::Kind;
use crate::run::{Subject, locked};

pub(crate) struct Ledger {
    booked: Mutex<Booked>,
}

struct Booked {
    file: File,
    /// What took effect, by the number of the key.
    effects: Vec<usize>,
    /// Keyed work, by the number of the key: none while it is under way.
    remembered: HashMap<usize, Option<Said>>,
}

/// What keyed work finds when it arrives.
pub(crate) enum Arrival {
    First,
    /// Another call with this key is under way.
    Busy,
    Known(Said),
}

impl Ledger {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { booked: Mutex::new(Booked { file, effects: Vec::new(), remembered: HashMap::new() }) })
    }

    /// Keyed work arrives: from now on its key is known.
    pub(crate) fn arrive(&self, subject: &Subject) -> Arrival {
        let mut booked = locked(&self.booked);
        match booked.remembered.get(&subject.number) {
            Some(Some(said)) => Arrival::Known(said.clone()),
            Some(None) => Arrival::Busy,
            None => {
                booked.remembered.insert(subject.number, None);
                Arrival::First
            }
        }
    }

    /// Keyed work ended without its effect: it is as if it had never come.
    pub(crate) fn forget(&self, subject: &Subject) {
        if subject.kind == Kind::Keyed {
            locked(&self.booked).remembered.remove(&subject.number);
        }
    }

    /// What keyed work came to, whether or not it had an effect.
    pub(crate) fn remember(&self, subject: &Subject, said: &Said) {
        if subject.kind == Kind::Keyed {
            locked(&self.booked).remembered.insert(subject.number, Some(said.clone()));
        }
    }

    /// The effect takes place: the number of the charge.
    pub(crate) fn book(&self, subject: &Subject, token: u32) -> usize {
        let mut booked = locked(&self.booked);
        booked.effects.push(subject.number);
        let charge = booked.effects.len();
        // The file is for whoever looks into a failed run; the list above is what is judged.
        let _ = writeln!(booked.file, "charge {charge} {}/{} token {token}", subject.caller, subject.key);
        charge
    }

    /// How often the work of each key was done.
    pub(crate) fn charges(&self) -> HashMap<usize, usize> {
        let mut charges = HashMap::new();
        for number in &locked(&self.booked).effects {
            *charges.entry(*number).or_default() += 1;
        }
        charges
    }
}
