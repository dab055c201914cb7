//! A seeded simulation: nodes, clients and a downstream on a virtual clock, while everything around them fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod history;
