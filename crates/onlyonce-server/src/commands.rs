//! The operators' commands, one per file.

pub(crate) mod check;
pub(crate) mod migrate;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod store;
