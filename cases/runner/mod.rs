//! Runs the cases of `cases/`, in every test binary that includes this folder. Each suite provides its [`Node`].
//!
//! ```text
//!  client ── socket ── node: the layer, the gateway, the program ── U      one runtime, one store, one thread a case
//! ```
//!
//! A case that a suite does not run is listed as ignored with its reason, never left out silently;
//! `every_case_of_the_list_is_there_once` counts them.

mod check;
mod client;
pub(crate) mod data;
mod http2;
mod logs;
mod moved;
mod node;
pub(crate) mod payload;
mod run;
mod socket;
mod step;
pub(crate) mod store;
mod suite;
pub(crate) mod upstream;
mod vectors;

pub(crate) use self::node::Node;
pub(crate) use self::suite::{run, trials};
