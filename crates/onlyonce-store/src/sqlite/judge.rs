//! Compare and swap: which swaps of a batch are applied, and what the others lost to.

use std::collections::HashMap;
use std::path::PathBuf;

use onlyonce_core::record::{Id, Revision, Seen};
use onlyonce_core::time::Timestamp;
use rusqlite::Connection;

use super::connection::run;
use super::failure::Failure;
use super::fresh::{Fresh, Rounds, Written};
use super::post::Letter;
use super::row::{self, Swap};
use crate::outbox::Message;
use crate::{Error, Swapped};

/// What a batch writes, in order; of a record that it writes twice the last counts.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) written: Vec<(Id, Written, Vec<Message>)>,
    last: HashMap<Id, usize>,
}

impl Staged {
    fn get(&self, id: &Id) -> Option<&Written> {
        self.last.get(id).map(|place| &self.written[*place].1)
    }

    fn put(&mut self, swap: Swap, now: Timestamp) -> Seen {
        let Swap { id, expected: _, revision, next, record, messages } = swap;
        let written = Written::new(revision, *next, record, now);
        let seen = written.seen(now);
        self.last.insert(id, self.written.len());
        self.written.push((id, written, messages));
        seen
    }
}

/// Judges each letter in its turn. Nobody has been told yet.
pub(super) fn all(letters: &mut [Box<Letter>], fresh: &Fresh, file: &Lookup, now: Timestamp) -> Staged {
    // Held over all of them: see there. The database is read as it is from here on.
    let rounds = fresh.read();
    // Without the transaction each look would begin one of its own: slower, and as right.
    let is_begun = run(&file.connection, "BEGIN").is_ok();
    let mut staged = Staged::default();
    for letter in letters {
        let swap = letter.swap.take().expect("a letter is judged once");
        letter.done = Some(judge(swap, &rounds, file, &mut staged, now));
    }
    if is_begun {
        // Nothing was written there.
        let _ = run(&file.connection, "COMMIT");
    }
    staged
}

fn judge(
    swap: Swap,
    rounds: &Rounds,
    file: &Lookup,
    staged: &mut Staged,
    now: Timestamp,
) -> Result<Swapped, Error> {
    let found = match staged.get(&swap.id).or_else(|| rounds.get(&swap.id)) {
        Some(written) => Some((written.revision, Some(written.seen(now)))),
        None => file.revision(swap.id)?.map(|revision| (revision, None)),
    };
    if found.as_ref().map(|(revision, _)| *revision) == swap.expected {
        return Ok(Swapped::Applied(staged.put(swap, now)));
    }
    Ok(Swapped::Lost(match found {
        None => None,
        Some((_, Some(seen))) => Some(seen),
        Some((_, None)) => file.load(swap.id, now)?,
    }))
}

/// The database, for what is not fresh.
pub(super) struct Lookup {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
}

impl Lookup {
    fn revision(&self, id: Id) -> Result<Option<Revision>, Error> {
        row::revision(&self.connection, id).map_err(|error| Failure::of(&self.path, &error).error())
    }

    fn load(&self, id: Id, now: Timestamp) -> Result<Option<Seen>, Error> {
        let stored = row::load(&self.connection, id);
        let stored = stored.map_err(|error| Failure::of(&self.path, &error).error())?;
        stored.map(|stored| stored.seen(now)).transpose()
    }
}
