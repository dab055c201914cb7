//! A server fails under load, in every way it can, and comes back: PostgreSQL, MariaDB, Redis. The gateway is never restarted.
//!
//! ```text
//!   clients ──► onlyonce serve, a process ──► a line ──► a server, the test's own ✝
//!                        └──► the service, with its ledger, in this process
//! ```
//!
//! | meanwhile | afterwards |
//! |---|---|
//! | 503 within `store_timeout`, and nothing runs | every key reaches its end: done, and done once |
//! | an outcome that cannot be written: its client has it, marked as not stored | that outcome is what a retry gets |
//! | the database is asked now and then, not by every request | it is found by itself |
//!
//! 1. `outages.rs` breaks it, `load.rs` has the clients, `judge.rs` says what must hold; `lost.rs` is about answers of the
//!    database that are lost on the way, `failover.rs` about a synchronous standby, `contention.rs` about what is no outage.
//! 2. A run in which too little happened is void, and fails.
//! 3. Cases that take an engine run on each. The others are PostgreSQL's: they need a standby, locks of somebody else, or a limit of
//!    connections.
//! 4. Nothing sleeps for luck: what is waited for is polled, with a bound.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on says where")]

mod client;
mod contention;
mod failover;
mod gateway;
mod judge;
mod ledger;
mod load;
mod lost;
mod outages;
mod world;
