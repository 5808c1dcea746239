//! Addresses of endpoints, as `fi_getname` returns them and address vectors take them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of an address.
pub(crate) const BYTES: usize = 48;
/// "MPFI", with a version in the next four bytes.
const MAGIC: [u8; 4] = *b"MPFI";
const VERSION: u32 = 2;

/// The address of an endpoint: its host, and a random number of the endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Address {
    /// Identifies the host: the same for all processes that share its abstract namespace of sockets.
    pub(crate) host: u64,
    /// Identifies the endpoint.
    pub(crate) endpoint: u64,
    /// The endpoint's address for other hosts, if it has one.
    pub(crate) udp: Option<SocketAddr>,
}

impl Address {
    /// Creates the address of a new endpoint of this process.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { host: host()?, endpoint: getrandom::u64()?, udp: None })
    }

    /// Parses an address; `None` if the bytes are not one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let is_ours = bytes.get(..4)? == MAGIC && bytes.get(4..8)? == VERSION.to_le_bytes();
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(24..40)?).ok()?);
        let port = u16::from_le_bytes(bytes.get(40..42)?.try_into().ok()?);
        bytes.get(..BYTES)?;
        let udp = (port != 0).then(|| SocketAddr::new(ip.to_canonical(), port));
        is_ours.then_some(Self { host: word(8)?, endpoint: word(16)?, udp })
    }

    pub(crate) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.host.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.endpoint.to_le_bytes());
        if let Some(udp) = self.udp {
            let ip = match udp.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[24..40].copy_from_slice(&ip.octets());
            bytes[40..42].copy_from_slice(&udp.port().to_le_bytes());
        }
        bytes
    }

    /// Returns the name in the abstract namespace at which the endpoint listens.
    pub(crate) fn name(&self) -> String {
        format!("midplane/fi/{:016x}", self.endpoint)
    }
}

/// Returns a number for this boot of this host and this network namespace, which has its own abstract names.
fn host() -> io::Result<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/net")?;
    let bytes = boot.iter().chain(namespace.as_os_str().as_encoded_bytes());
    // FNV-1a, whose constants are these two: http://www.isthe.com/chongo/tech/comp/fnv/
    Ok(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_nothing_else_is_one() {
        let mut address = Address::new().unwrap();
        for udp in [None, Some("10.0.0.1:4700"), Some("[fd00::1]:4700")] {
            address.udp = udp.map(|text| text.parse().unwrap());
            assert_eq!(Address::parse(&address.bytes()), Some(address));
        }
        assert_eq!(Address::parse(&address.bytes()[..BYTES - 1]), None);
        assert_eq!(Address::parse(&[0; BYTES]), None);
        assert_eq!(Address::new().unwrap().host, address.host);
    }
}
