//! The program's commands, one per file. Those for operators look at records and change them through a [`target::Target`].

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod conform;
pub(crate) mod doctor;
pub(crate) mod epoch;
pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod reap;
pub(crate) mod relay;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod store;
pub(crate) mod sweep;
mod target;
mod text;
mod work;
