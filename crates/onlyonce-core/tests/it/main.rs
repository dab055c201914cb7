//! What onlyonce-core promises, through its public face. One binary, so that one link step serves them all.

mod key;
mod scope;
