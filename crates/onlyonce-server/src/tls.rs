//! TLS with clients and with upstreams: rustls, on ring.
//!
//! Early data is off on both sides, which is rustls' default: an attacker can replay it.

mod accept;
mod connect;
mod files;
mod stream;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub(crate) use self::accept::{Accepted, Acceptor};
pub(crate) use self::connect::{Connected, Connector};
pub(crate) use self::files::warnings;
pub(crate) use self::stream::Stream;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Passed explicitly, since another library in the build may bring a second provider.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
