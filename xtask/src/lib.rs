//! What tests of other packages need of the project's own commands: servers to test on, lines to them that break, chance
//! that can be repeated, and the checker of histories.

pub mod engines;
pub mod history;
pub mod random;
pub mod wire;
