//! The cases of `cases/` on an axum app with the layer, over real sockets: one test a case and engine, named by both.
//! `cases/runner` runs them.

#![allow(missing_docs, reason = "a test binary has no readers of its documentation")]

mod node;
#[path = "../../../../cases/runner/mod.rs"]
mod runner;
mod settings;

use std::process::ExitCode;

use crate::node::Layer;
use crate::runner::store::Engine;
use crate::runner::{data, run, trials};

fn main() -> ExitCode {
    let cases = data::all();
    let trials = Engine::ALL.iter().flat_map(|engine| trials::<Layer>(&cases, *engine)).collect();
    run(cases, trials)
}
