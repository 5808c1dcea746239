//! Finds the longest packet that reaches a peer unfragmented.

use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of the UDP header.
const UDP_HEADER: usize = 8;

/// Returns the most bytes that one datagram to each of `peers` may have without being fragmented, as far as the
/// system finds out within `wait`. `None` on systems other than Linux.
///
/// Classical path MTU discovery (RFC 1191, RFC 8201). Packets of the length that the route allows go to the
/// discard port of each host (RFC 863), with don't-fragment set. A router for which they are too long reports
/// that, and shorter ones follow. Routers that report nothing are not detected.
///
/// Blocks for `wait`, unless all peers are on this host.
#[must_use]
#[doc(hidden)]
pub fn path_mtus(peers: &[SocketAddr], wait: Duration) -> Vec<Option<usize>> {
    let mut probes: Vec<Option<system::Probe>> =
        peers.iter().map(|peer| system::Probe::new(*peer)).collect();
    let far = peers.iter().any(|peer| !peer.ip().to_canonical().is_loopback());
    for _ in 0..if far { ROUNDS } else { 0 } {
        probes.iter_mut().flatten().for_each(system::Probe::send);
        std::thread::park_timeout(wait / ROUNDS);
    }
    let datagram = |(probe, peer): (&Option<system::Probe>, &SocketAddr)| {
        probe.as_ref()?.mtu()?.checked_sub(headers(*peer))
    };
    probes.iter().zip(peers).map(datagram).collect()
}

/// Returns the bytes of the IP and UDP headers before a datagram to `address`.
pub(super) fn headers(address: SocketAddr) -> usize {
    UDP_HEADER + if address.ip().to_canonical().is_ipv4() { 20 } else { 40 }
}

/// Returns the MTU that the system has for datagrams to `address`, including IP's header: the interface's, or
/// less if a router has recently reported that. `None` on systems other than Linux.
#[must_use]
#[doc(hidden)]
pub fn interface_mtu(address: SocketAddr) -> Option<usize> {
    system::Probe::new(address)?.mtu()
}

/// Number of lengths tried in a row: each router on the path may shorten the length once more.
const ROUNDS: u32 = 5;

#[cfg(target_os = "linux")]
mod system {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

    use nix::sys::socket::{getsockopt, sockopt};
    use rustix::net::sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    };

    use super::UDP_HEADER;

    /// The discard protocol's port.
    const DISCARD: u16 = 9;

    #[derive(Debug)]
    pub(super) struct Probe {
        socket: UdpSocket,
        ip_header: usize,
    }

    impl Probe {
        pub(super) fn new(peer: SocketAddr) -> Option<Self> {
            let ip = peer.ip().to_canonical();
            let (any, ip_header): (IpAddr, _) = match ip {
                IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), 20),
                IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), 40),
            };
            let socket = UdpSocket::bind((any, 0)).ok()?;
            let forbidden = match ip {
                IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO),
                IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO),
            };
            forbidden.ok()?;
            let mut to = peer;
            to.set_ip(ip);
            to.set_port(DISCARD);
            socket.connect(to).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(Self { socket, ip_header })
        }

        /// Returns the MTU that the system has for the path now, including IP's header.
        pub(super) fn mtu(&self) -> Option<usize> {
            // The option is IPv4's by name, but reports the MTU of the socket's route.
            usize::try_from(getsockopt(&self.socket, sockopt::IpMtu).ok()?).ok()
        }

        /// Sends a packet as long as the path seems to allow. An error reports an earlier packet.
        pub(super) fn send(&mut self) {
            let most = self.mtu().unwrap_or(0).saturating_sub(self.ip_header + UDP_HEADER);
            for _ in 0..2 {
                if self.socket.send(&vec![0; most.min(65_507)]).is_ok() {
                    break;
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::net::SocketAddr;

    #[derive(Debug)]
    pub(super) struct Probe;

    impl Probe {
        pub(super) const fn new(_: SocketAddr) -> Option<Self> {
            None
        }

        pub(super) const fn mtu(&self) -> Option<usize> {
            None
        }

        pub(super) const fn send(&mut self) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_own_host_is_reached_by_the_longest_datagrams_and_none_waits_for_it() {
        let peers = ["127.0.0.1:7000", "[::1]:7000"].map(|peer| peer.parse().unwrap());
        let found = path_mtus(&peers, Duration::from_secs(1_000));
        assert_eq!(found, [Some(65_535 - 28), Some(65_536 - 48)]);
    }
}
