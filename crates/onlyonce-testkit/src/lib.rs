//! What tests and tools share. It depends on no crate of the product: the product must not be judged by its own code.
//!
//! | module | what |
//! |---|---|
//! | [`engines`] | servers that a test starts, stops, kills and fails over |
//! | [`browser`] | a real browser, driven as a person would |
//! | [`disk`] | a disk whose syncs can be made to fail, and what a power cut would leave of it |
//! | [`wire`] | a connection to a server that a test can cut, hold and slow down |
//! | [`lossy`] | a connection to a server that loses every second answer |
//! | [`random`] | random numbers that follow from a seed |
//! | [`history`] | the checker: what happened to a key, and whether the promise was kept |
//! | [`gateway`], [`process`], [`http`] | the product's program and other servers as processes, and requests to them |
//! | [`install`], [`repository`], [`verdict`] | what commands of the project need: packages, cargo, exit codes |

pub mod browser;
pub mod disk;
pub mod engines;
pub mod gateway;
pub mod history;
pub mod http;
pub mod install;
pub mod lossy;
pub mod process;
pub mod random;
pub mod repository;
pub mod verdict;
pub mod wire;
