//! What tests of other packages need of the project's own commands: servers to test on.

pub mod engines;
