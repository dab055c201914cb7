//! One binary for all integration tests of the stores.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod broken;
mod dynamodb;
mod expires;
mod mysql;
mod postgres;
mod redis;
mod sealed;
mod sqlite;
mod write_first;

/// E06, E07
mod memory {
    use onlyonce_store::memory::Memory;

    onlyonce_store::conformance!(async { Memory::new() });
}
