//! Crash proof: a real process is killed at every durable step, started anew on the same store, and its clients retry.
//!
//! ```text
//!   driver (this process)                          victim (this program, started again)
//!   ┌──────────────────────┐   keyed POST   ┌───────────────────────────────────────────┐
//!   │ clients ─────────────┼───────────────►│ axum + the layer + workers on a store     │ ✝ at a failpoint,
//!   │ ledger  ◄────────────┼────────────────┤ handler: one call for each run            │   or by kill -9
//!   │ judge                │   POST /charge └───────────────────────────────────────────┘
//!   └──────────────────────┘
//! ```
//!
//! 1. `failpoints.rs` lists the steps, `death.rs` brings a process there, `judge.rs` says what must hold afterwards.
//! 2. Every step is a test for every kind of effects; one that is never reached fails.
//! 3. Every pair of steps, the second in the life that recovers from the first, runs with `cargo xtask crash --all`.
//! 4. On SQLite, and on servers that the tests start: PostgreSQL, MariaDB, Redis. There a dead process is only missed when its
//!    lease lapses, so leases are short. The usual run has two kinds of effects on PostgreSQL, and on the other servers the steps
//!    of the engine itself (`trials.rs`); `--all` has everything on each.
//! 5. Nothing sleeps for luck: the driver waits for a ready line, a death, a call of the ledger.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[cfg(unix)]
mod accepted;
#[cfg(unix)]
mod coverage;
#[cfg(unix)]
mod death;
#[cfg(unix)]
mod failpoints;
#[cfg(unix)]
mod judge;
#[cfg(unix)]
mod ledger;
#[cfg(unix)]
mod load;
#[cfg(unix)]
mod operate;
#[cfg(unix)]
mod order;
#[cfg(unix)]
mod pairs;
#[cfg(unix)]
mod planted;
#[cfg(unix)]
mod process;
#[cfg(unix)]
mod scenario;
#[cfg(unix)]
mod settling;
#[cfg(unix)]
mod torn;
#[cfg(unix)]
mod trials;
#[cfg(unix)]
mod victim;
#[cfg(unix)]
mod world;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    if let Ok(store) = std::env::var(victim::STORE) {
        victim::run(&store);
        return std::process::ExitCode::SUCCESS;
    }
    trials::run()
}

/// Deaths are told by their signals, which only Unix has.
#[cfg(not(unix))]
fn main() {}
