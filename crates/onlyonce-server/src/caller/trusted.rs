//! Headers of an authenticating proxy, trusted only from its addresses.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use crate::config::Network;

/// The trusted addresses and the headers.
#[derive(Debug)]
pub(super) struct Proxies {
    networks: Vec<Network>,
    /// The names of all scopes: each is removed from untrusted requests on every route.
    names: Vec<HeaderName>,
}

impl Proxies {
    pub(super) fn new(networks: Vec<Network>, names: Vec<HeaderName>) -> Self {
        Self { networks, names }
    }

    /// The header's value, if `peer` is trusted and sent it exactly once: of two, one may be the client's own.
    pub(super) fn value<'a>(
        &self,
        headers: &'a HeaderMap,
        name: &HeaderName,
        peer: IpAddr,
    ) -> Option<&'a [u8]> {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?.as_bytes().trim_ascii();
        let is_single = values.next().is_none();
        (is_single && !value.is_empty() && self.trusts(peer)).then_some(value)
    }

    /// Removes the headers from untrusted requests.
    ///
    /// `X_Tenant` is removed with `X-Tenant`: many services see headers by their CGI names, where both are `HTTP_X_TENANT`.
    pub(super) fn strip(&self, headers: &mut HeaderMap, peer: IpAddr) {
        if self.names.is_empty() || self.trusts(peer) {
            return;
        }
        let is_ours =
            |sent: &HeaderName| self.names.iter().any(|name| reads_as(sent.as_str(), name.as_str()));
        let found: Vec<HeaderName> = headers.keys().filter(|sent| is_ours(sent)).cloned().collect();
        for name in found {
            headers.remove(name);
        }
    }

    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.networks.iter().any(|network| covers(network, peer))
    }
}

/// Both in lower case, as [`HeaderName`] keeps them.
fn reads_as(sent: &str, name: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    sent.len() == name.len() && sent.bytes().map(dashed).eq(name.bytes().map(dashed))
}

/// Whether `address` is in `network`. An IPv4-mapped IPv6 address, as on a dual-stack listener, counts as
/// IPv4.
fn covers(network: &Network, address: IpAddr) -> bool {
    match (network.address, address.to_canonical()) {
        (IpAddr::V4(network_bits), IpAddr::V4(address)) => {
            let host_bits = 32_u32.saturating_sub(network.prefix_bits.into());
            let [network_bits, address] = [network_bits, address].map(|address| u64::from(address.to_bits()));
            network_bits >> host_bits == address >> host_bits
        }
        (IpAddr::V6(network_bits), IpAddr::V6(address)) => {
            let host_bits = 128_u32.saturating_sub(network.prefix_bits.into());
            let shifted = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0);
            shifted(network_bits.to_bits()) == shifted(address.to_bits())
        }
        // A network of IPv4-mapped addresses.
        (IpAddr::V6(mapped), IpAddr::V4(_)) => {
            match (mapped.to_ipv4_mapped(), network.prefix_bits.checked_sub(96)) {
                (Some(v4), Some(prefix_bits)) => {
                    covers(&Network { address: v4.into(), prefix_bits }, address)
                }
                (None, _) | (_, None) => false,
            }
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_covered(network: (&str, u8), address: &str) -> bool {
        let network = Network { address: network.0.parse().expect("an address"), prefix_bits: network.1 };
        covers(&network, address.parse().expect("an address"))
    }

    #[test]
    fn a_network_has_its_own_addresses_and_no_others() {
        for (network, inside, outside) in [
            (("10.0.0.0", 8), "10.255.1.2", "11.0.0.1"),
            (("10.1.2.3", 32), "10.1.2.3", "10.1.2.4"),
            (("192.168.4.0", 22), "192.168.7.255", "192.168.8.0"),
            (("fd00::", 8), "fdff::1", "fe00::1"),
            (("::1", 128), "::1", "::2"),
            (("2001:db8::", 33), "2001:db8:7fff::1", "2001:db8:8000::1"),
        ] {
            assert!(is_covered(network, inside), "{inside} in {network:?}");
            assert!(!is_covered(network, outside), "{outside} in {network:?}");
        }
        assert!(is_covered(("0.0.0.0", 0), "203.0.113.7"));
        assert!(is_covered(("::", 0), "2001:db8::1"));
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert!(is_covered(("10.0.0.0", 8), "::ffff:10.1.2.3"));
        assert!(!is_covered(("10.0.0.0", 8), "::ffff:11.1.2.3"));
        assert!(is_covered(("::ffff:10.0.0.0", 104), "10.1.2.3"));
        assert!(!is_covered(("::ffff:10.0.0.0", 104), "11.1.2.3"));
        assert!(!is_covered(("::", 0), "10.1.2.3"), "all of IPv6 is not all of IPv4");
        assert!(!is_covered(("0.0.0.0", 0), "::1"));
        assert!(!is_covered(("10.0.0.0", 8), "::10.1.2.3"), "compatible addresses are not mapped ones");
    }
}
