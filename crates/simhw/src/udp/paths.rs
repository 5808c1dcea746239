//! The longest datagram to each peer: discovered, or configured.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::discovery::{BASE_BYTES, Discovery};
use super::path;
use crate::frame::{HEADER_BYTES, MAX_PAYLOAD};
use crate::id::NodeId;
use crate::time::Instant;

/// The paths from one NIC. Datagrams are counted with their seals.
#[derive(Debug)]
pub(super) struct Paths {
    /// The configuration vouches for this many bytes on each path.
    vouched: Option<usize>,
    /// Bytes of the longest datagram that there is: a frame of the most bytes, and its seal.
    most: usize,
    /// One for each peer that a full datagram was sent to.
    machines: BTreeMap<NodeId, Discovery>,
    /// Peers that probes are under way to, or due.
    probing: BTreeSet<NodeId>,
}

impl Paths {
    /// Paths of datagrams that are `around` bytes longer than their frames.
    pub(super) const fn new(vouched: Option<usize>, around: usize) -> Self {
        let most = HEADER_BYTES + MAX_PAYLOAD + around;
        Self { vouched, most, machines: BTreeMap::new(), probing: BTreeSet::new() }
    }

    /// Most bytes of a datagram to `to` now.
    pub(super) fn usable(&self, to: NodeId) -> usize {
        let found = || self.machines.get(&to).map_or(BASE_BYTES, Discovery::usable);
        self.vouched.unwrap_or_else(found)
    }

    /// A datagram of `bytes` to `to`, at `address`, was put on the line.
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

    /// A peer has received a probe of ours.
    pub(super) fn handle_probed(&mut self, now: Instant, from: NodeId, number: u32) {
        if let Some(machine) = self.machines.get_mut(&from) {
            machine.handle_probed(now, number);
            self.probing.insert(from);
        }
    }

    /// The system has refused a datagram of `bytes` as too long for its interface, to one of those that `is_its` names.
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

    /// Counts as lost what was not answered in time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for to in &self.probing {
            if let Some(machine) = self.machines.get_mut(to) {
                machine.handle_timeout(now);
            }
        }
    }

    /// When [`Paths::handle_timeout`] has to be called; far in the future if never.
    pub(super) fn poll_timeout(&self) -> Instant {
        let machines = self.probing.iter().filter_map(|to| self.machines.get(to));
        machines.map(Discovery::poll_timeout).fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// The next probe that should leave: for whom, its number, and the bytes of its datagram.
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
