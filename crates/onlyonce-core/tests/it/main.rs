//! What the crate promises, seen from outside.

mod fingerprint;
mod key;
mod scope;
