//! The rules of Onlyonce, and nothing else.
//!
//! Everything in this crate is a pure function of its arguments: no clock, no randomness, no I/O, no async and no
//! serialisation. A rule that needs the time is handed the time; a rule that needs a fresh token is handed one. That
//! is what lets one model checker, one table of tests and every engine exercise the very same code.
//!
//! * [`machine`] decides what may happen to a record, and is the only place that compares its state.
//! * [`record`] is what is stored for one (scope, key), and [`time`] how its moments are written down.
//! * [`key`], [`scope`] and [`fingerprint`] say which request this is.
//! * [`policy`] and [`dialect`] are the settings, [`outcome`] what an answer means under them.
//! * [`limits`] says how much callers may ask for, [`age`] how old a request may be.
//! * [`refusal`] is every answer that says why nothing ran.
//! * [`json`] finds one member of a JSON text.
//! * [`percent`] decodes what a URL or a form has percent-encoded.

pub mod age;
pub mod dialect;
pub mod fingerprint;
pub mod history;
pub mod json;
pub mod key;
pub mod limits;
pub mod machine;
pub mod outcome;
pub mod percent;
pub mod policy;
pub mod record;
pub mod refusal;
pub mod scope;
pub mod time;
