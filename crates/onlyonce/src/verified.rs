//! What somebody in front of the layer has verified about a caller.

use onlyonce_core::scope::Source;

/// What is known for certain about the caller of a request: the claim of a token whose signature was checked, the header
/// of a proxy that was recognised, the certificate of the connection.
///
/// Whoever verified it puts it into the request's extensions; a client cannot. A layer believes it after
/// [`Onlyonce::with_verified`](crate::Onlyonce::with_verified).
///
/// ```
/// use onlyonce::{Verified, scope::Source};
///
/// let tenant: Source = "trusted:x-tenant".parse()?;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Verified::default().with(tenant, "acme"));
/// # Ok::<(), onlyonce::scope::MalformedSource>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verified(Vec<(Source, Vec<u8>)>);

impl Verified {
    /// Also this source, with the value it was found to have.
    #[must_use]
    pub fn with(mut self, source: Source, value: impl Into<Vec<u8>>) -> Self {
        self.0.push((source, value.into()));
        self
    }

    /// What was found for `source`, if anything.
    pub fn value(&self, source: &Source) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| known == source).map(|(_, value)| value.as_slice())
    }
}
