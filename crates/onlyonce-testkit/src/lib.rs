//! What tests and tools share: servers to test on, connections that a test can break, random numbers that follow from a
//! seed, and the checker of histories. It depends on no crate of the product: it must not judge the product by the
//! product's own code.

pub mod engines;
pub mod history;
pub mod random;
pub mod wire;
