//! Digest of the request.

/// The digest of a request, as it is stored beside its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Which version of the algorithm made it.
    pub version: u8,
    /// Over the body's bytes as they came.
    pub raw: [u8; 32],
    /// Over the body's canonical form; none where the bytes themselves are all there is.
    pub canonical: Option<[u8; 32]>,
}
/// x
#[derive(Clone, Debug, Default, PartialEq, Eq)] pub struct Settings {}
