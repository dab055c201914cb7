//! Makes any HTTP write safe to retry.

mod answer;
mod attempt;
mod body;
mod breaker;
mod cache;
mod engine;
mod flight;
mod future;
mod headers;
mod keyed;
mod layer;
mod lease;
mod problem;
mod service;
mod status;
mod task;
mod wait;
pub mod worker;

pub use attempt::Attempt;
pub use body::Body;
pub use engine::Engine;
pub use future::ResponseFuture;
pub use layer::{Caller, Layer, Onlyonce};
pub use onlyonce_core::dialect::{self, Dialect};
pub use onlyonce_core::fingerprint;
pub use onlyonce_core::key;
pub use onlyonce_core::policy::{self, Faults, Policy};
pub use onlyonce_core::record::Effects;
pub use onlyonce_core::scope;
pub use onlyonce_store as store;
pub use service::Service;
