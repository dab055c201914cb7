//! Two and three gateways on one store, each a process of its own, before one service that keeps the ledger.
//!
//! ```text
//!   clients ─┬► onlyonce serve ─┐            ┌─► the service, in this process
//!            ├► onlyonce serve ─┼── each ────┤
//!            └► onlyonce serve ─┘            └─► one PostgreSQL, MariaDB, Redis or DynamoDB
//! ```
//!
//! Cases that take an engine run on each. The others are PostgreSQL's: they change its schema or its roles, count its connections, or call
//! its SQL functions.
//!
//! Waits poll with a bound. Times are printed but not asserted, except for bounds that only a hang exceeds: figures belong
//! to the bench.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on says where")]

mod application;
mod client;
mod epoch;
mod node;
mod releases;
mod replay;
mod roles;
mod service;
mod settling;
mod storm;
mod wait;
mod work;
mod write_first;
