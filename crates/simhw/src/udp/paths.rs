//! The longest datagram to each peer: discovered, or configured.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::discovery::{BASE_BYTES, Discovery};
use super::path;
use crate::frame::{HEADER_BYTES, MAX_PAYLOAD};
use crate::id::NodeId;
use crate::time::Instant;

/// Bytes of the longest datagram through a switch in software: an MTU of 9,000, without headers. Probes need no tokens,
/// so longer ones would fill a port's buffer that the token holder's frames need.
const MAX_SWITCHED: usize = 9_000 - 28;

/// The paths from one NIC. Datagrams are counted with their seals.
#[derive(Debug)]
pub(super) struct Paths {
    /// The configured length of datagrams on each path, if there is one.
    vouched: Option<usize>,
    /// Bytes of the longest datagram to try.
    most: usize,
    /// One for each peer to which a full datagram was sent.
    machines: BTreeMap<NodeId, Discovery>,
    /// Peers to which probes are in flight or due.
    probing: BTreeSet<NodeId>,
}

impl Paths {
    /// Creates the paths for datagrams that are `around` bytes longer than their frames. `is_switched` is true if they
    /// pass a switch in software.
    pub(super) fn new(vouched: Option<usize>, around: usize, is_switched: bool) -> Self {
        let longest = HEADER_BYTES + MAX_PAYLOAD + around;
        let most = if is_switched { longest.min(MAX_SWITCHED) } else { longest };
        Self { vouched, most, machines: BTreeMap::new(), probing: BTreeSet::new() }
    }

    /// Returns the most bytes of a datagram to `to` now.
    pub(super) fn usable(&self, to: NodeId) -> usize {
        let found = || self.machines.get(&to).map_or(BASE_BYTES, Discovery::usable);
        self.vouched.unwrap_or_else(found)
    }

    /// Handles a datagram of `bytes` to `to`, at `address`, that was put on the line.
    pub(super) fn on_sent(&mut self, now: Instant, to: NodeId, address: SocketAddr, bytes: usize) {
        if self.vouched.is_some() || bytes < self.usable(to) {
            return;
        }
        let (most, headers) = (self.most, path::headers(address));
        let limit = || {
            let fits = path::interface_mtu(address).map(|mtu| mtu.saturating_sub(headers));
            fits.unwrap_or(most).min(most)
        };
        let machine = self.machines.entry(to).or_insert_with(|| Discovery::new(headers, limit()));
        if machine.is_raising(now) {
            machine.set_limit(limit());
        }
        machine.on_sent(now, bytes);
        self.probing.insert(to);
    }

    /// Handles a peer's acknowledgement of a probe.
    pub(super) fn handle_probed(&mut self, now: Instant, from: NodeId, number: u32) {
        if let Some(machine) = self.machines.get_mut(&from) {
            machine.handle_probed(now, number);
            self.probing.insert(from);
        }
    }

    /// Handles a datagram of `bytes` that the system refused as too long for its interface. Its destination is
    /// one of the nodes for which `is_its` is true.
    pub(super) fn handle_refused(
        &mut self,
        now: Instant,
        bytes: usize,
        is_its: impl Fn(NodeId) -> bool,
    ) {
        for (to, machine) in self.machines.iter_mut().filter(|(to, _)| is_its(**to)) {
            machine.handle_refused(now, bytes);
            self.probing.insert(*to);
        }
    }

    /// Counts probes as lost that were not answered in time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for to in &self.probing {
            if let Some(machine) = self.machines.get_mut(to) {
                machine.handle_timeout(now);
            }
        }
    }

    /// Returns when to call [`Paths::handle_timeout`]; far in the future if never.
    pub(super) fn poll_timeout(&self) -> Instant {
        let machines = self.probing.iter().filter_map(|to| self.machines.get(to));
        machines.map(Discovery::poll_timeout).fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// Takes the next probe to send: its destination, its number, and the bytes of its datagram.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(NodeId, u32, usize)> {
        let Self { machines, probing, .. } = self;
        let mut found = None;
        probing.retain(|to| {
            let Some(machine) = machines.get_mut(to) else { return false };
            if found.is_none() {
                found = machine.poll_transmit(now).map(|(number, bytes)| (*to, number, bytes));
            }
            found.is_some() || machine.poll_timeout() < Instant::FAR_FUTURE
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest datagram that is found to a peer on this host that answers each probe.
    fn found(is_switched: bool) -> usize {
        let (peer, address) = (NodeId(1), SocketAddr::from(([127, 0, 0, 1], 9)));
        let mut paths = Paths::new(None, 0, is_switched);
        let mut now = Instant::from_nanos(1);
        for _ in 0..8 {
            paths.on_sent(now, peer, address, paths.usable(peer));
            while let Some((_, number, _)) = paths.poll_transmit(now) {
                now = now.plus_nanos(1_000_000);
                paths.handle_probed(now, peer, number);
            }
        }
        paths.usable(peer)
    }

    #[test]
    fn a_switch_in_software_gets_no_probe_longer_than_a_jumbo_frame() {
        assert_eq!(found(true), MAX_SWITCHED);
        assert!(found(false) > MAX_SWITCHED);
    }
}
