//! Results of phases: what the committed phases of a handler returned, so that a resumed attempt is given them.
//!
//! A result is written in the commit of its phase's recovery point, and is deleted with the use of its key: by the reaper,
//! when the key is forgotten or used anew, and when its scope is erased. Results are numbered from 1 in the order of the
//! handler.

use std::sync::Arc;

/// The longest result, in bytes of JSON.
pub const BYTES_MAX: usize = 64 << 10;

/// What one committed phase returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseResult {
    /// Which phase of the handler it was, from 1.
    pub number: u32,
    /// The phase's name.
    pub phase: Arc<str>,
    /// What it returned, as JSON.
    pub json: Arc<str>,
}

/// What a write of a record does to the results of its phases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted: the use of the key that they belong to has ended.
    Drop,
    /// One is added. Where there is one of its number, it is replaced: that one was left by another use of the key.
    Add(PhaseResult),
}
