//! What tests of other packages need of the project's own commands: servers to test on, and lines to them that break.

pub mod engines;
pub mod wire;
