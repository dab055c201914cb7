//! The program's commands, one per file. Those for operators look at records and change them through a [`target::Target`].

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod reap;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod store;
pub(crate) mod sweep;
mod target;
mod text;
mod work;
