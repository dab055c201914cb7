//! One binary for all integration tests of the seam.

mod batch;
mod broken;
mod codec;

/// E06, E07
mod memory {
    use onlyonce_store::memory::Memory;

    onlyonce_store::conformance!(async { Memory::new() });
}
