//! Servers that engines need: found, installed, started and stopped.
//!
//! A test that needs a server starts it, through [`postgres::Server`]. It is never a server that somebody else uses: tests
//! kill it. If it cannot be started, the test fails with the reason and the remedy, and is never skipped.

pub mod postgres;
pub mod sqlite;
