//! What the layer promises when things go wrong, on a clock that the tests move.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod attempts;
mod copies;
mod decisions;
mod epoch;
mod extract;
mod observe;
mod operate;
mod outage;
mod reconciler;
mod status;
mod stream;
mod waiting;
mod worker;
mod world;
