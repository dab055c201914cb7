//! Servers that engines need: found, installed, started and stopped.
//!
//! A test that needs a server starts it, through [`postgres::Server`], [`mariadb::Server`], [`redis::Server`] or [`dynamodb::Server`], or through
//! [`server::Engine`] where it does the same on each of them. It is never a server that somebody else uses: tests
//! kill it. If it cannot be started, the test fails with the reason and the remedy, and is never skipped.

pub mod dynamodb;
pub mod mariadb;
pub mod postgres;
pub mod redis;
pub mod server;
pub mod sqlite;
mod system;

pub use self::system::DATA_VARIABLE;
