//! What the crate promises, seen from outside: tables, stories, vectors and properties.

mod fingerprint;
mod key;
mod machine;
mod scope;
mod script;
