//! What the layer promises when things go wrong, on a clock that the tests move.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod accepted;
mod attempts;
mod copies;
mod decisions;
mod epoch;
mod extract;
mod front;
#[cfg(all(feature = "deadpool-postgres", feature = "sqlite", feature = "sqlx"))]
mod isolation;
mod limits;
mod observe;
mod operate;
mod outage;
mod phases;
#[cfg(feature = "sqlite")]
mod phases_at_random;
mod reconciler;
#[cfg(feature = "redis")]
mod redis_front;
mod relay;
mod status;
mod stream;
mod waiting;
mod worker;
mod world;
#[cfg(all(feature = "deadpool-postgres", feature = "sqlite", feature = "sqlx"))]
mod write_first;
#[cfg(all(feature = "deadpool-postgres", feature = "sqlite", feature = "sqlx", feature = "sqlx-mysql"))]
mod write_first_mysql;
