//! Network reports that a peer is unreachable.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use midplane_simhw::time::Instant;

use super::Endpoint;

impl Endpoint {
    /// Handles a network report that no process receives at `peer`; port 0 if the report names none.
    ///
    /// Pings all connections there. Those that the report certainly concerns end unless the peer answers soon: dials,
    /// and all connections if the report names a port. A report without a port says that the host can't be reached now:
    /// routes and cables may return.
    pub fn handle_unreachable(&mut self, now: Instant, peer: SocketAddr) {
        let is_certain = peer.port() != 0;
        let ports = if is_certain { (peer.port(), peer.port()) } else { (0, u16::MAX) };
        let (first, last) = (address(peer.ip(), ports.0, 0), address(peer.ip(), ports.1, u32::MAX));
        let there: Vec<u32> =
            self.by_address.range((first, 0)..=(last, u32::MAX)).map(|(_, slot)| *slot).collect();
        for slot in there {
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.pipe.handle_unreachable(now, is_certain);
                self.enqueue(slot);
            }
        }
    }
}

/// Makes an address with this flow label and this scope, if it is of IPv6: the least or the greatest one of its port.
fn address(ip: IpAddr, port: u16, labels: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, labels, labels).into(),
    }
}
