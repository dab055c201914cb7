//! The cases of `cases/` on the gateway, over real sockets, U being a service on a socket of its own. `cases/runner` runs
//! them.
//!
//! - `gateway::memory`, `gateway::sqlite`: the gateway in this process, on a store that fails on order and whose clock is
//!   moved.
//! - `program::sqlite`: `onlyonce serve`, a process a case, for the cases that need neither.

#![allow(missing_docs, reason = "a test binary has no readers of its documentation")]

mod gateway;
mod program;
#[path = "../../../../cases/runner/mod.rs"]
mod runner;
mod settings;

use std::process::ExitCode;

use crate::gateway::InProcess;
use crate::program::Program;
use crate::runner::store::Engine;
use crate::runner::{data, run, trials};

fn main() -> ExitCode {
    let cases = data::all();
    let gateway = Engine::ALL.iter().flat_map(|engine| trials::<InProcess>(&cases, *engine));
    let trials = gateway.chain(trials::<Program>(&cases, Engine::Sqlite)).collect();
    run(cases, trials)
}
