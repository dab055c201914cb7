//! What the crate promises, seen from outside: tables, stories, vectors and properties.

mod asking;
mod fingerprint;
mod history;
mod json;
mod key;
mod machine;
mod sample;
mod scope;
mod script;
mod verdict;
