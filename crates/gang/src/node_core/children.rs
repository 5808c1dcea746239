//! Admits children, checks and handles messages of the parent and the children, and detects lost ones.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::election::Turn;
use super::message::{Down, RankEvent, Up};
use super::{Effect, NodeCore, Peer, Transmit};

/// A connected child.
#[derive(Debug)]
pub(super) struct Child {
    connection: u64,
    /// The child's host, and the hosts below it.
    pub(super) hosts: BTreeSet<u16>,
    heard: Instant,
}

impl NodeCore {
    /// Handles the connection of a daemon that says it is `host`, which is below this one in the tree. If that host is
    /// already connected, refuses the new connection: a host that is silent is lost in time, and admitted when it
    /// tries again. A daemon without a root admits none.
    pub(super) fn take_child(&mut self, now: Instant, host: u16, connection: u64) {
        if !self.admits(host) {
            return self.effects.push_back(Effect::Disconnect(Peer::Child(connection)));
        }
        if self.children.contains_key(&host) {
            self.effects.push_back(Effect::Disconnect(Peer::Child(connection)));
            self.effects.push_back(Effect::Refused(host));
            return;
        }
        self.begin_beating(now);
        let child = Child { connection, hosts: BTreeSet::new(), heard: now };
        self.children.insert(host, child);
        self.welcome(host);
    }

    /// Handles a message of a child, which may be about the child's host and the hosts below it in the tree.
    pub(super) fn take_up(&mut self, now: Instant, connection: u64, mut up: Up) {
        let Some(host) = self.child_of(connection) else { return };
        let child = self.children.get_mut(&host).expect("its connection was just found");
        child.heard = now;
        let tree = self.tree;
        match &mut up {
            Up::Report { number, outcome } => {
                return self.handle_report(host, *number, std::mem::take(outcome));
            }
            Up::Present => return,
            // If every host can be the root, a host joins by its inventory instead.
            Up::Here(_) if self.election.is_some() => return,
            Up::Here(hosts) => {
                hosts.retain(|other| tree.is_within(*other, host));
                let hosts = hosts.clone();
                self.note_below(host, &hosts);
            }
            Up::Joined { host: other, .. }
            | Up::Holds { host: other, .. }
            | Up::Arrived { host: other, .. }
                if !tree.is_within(*other, host) =>
            {
                return;
            }
            // The rest of an inventory whose host has meanwhile joined below another child.
            Up::Joined { host: other, at: 1.., .. } if !child.hosts.contains(other) => return,
            Up::Joined { host: other, .. } => {
                let other = *other;
                self.note_below(host, &[other]);
            }
            Up::Holds { .. } | Up::Arrived { .. } => {}
            Up::Gone(hosts) => {
                hosts.retain(|other| child.hosts.remove(other));
                self.order_began = now;
            }
            // Reports and orders wait behind chunks, so the children get their full time again.
            Up::HasChunk => self.order_began = now,
            Up::Rank { job, rank, event } => {
                let is_chunk = matches!(event, RankEvent::Chunk(_));
                if is_chunk && self.waits_for().any(|child| child == host) {
                    self.order_began = now;
                }
                let its = self.manager.as_ref().and_then(|root| root.host_of(*job, *rank));
                if its.is_some_and(|its| !tree.is_within(its, host)) {
                    return;
                }
            }
        }
        self.up(now, up);
    }

    /// Records that hosts are below a child, and removes them from other children, which may not know that yet.
    fn note_below(&mut self, host: u16, hosts: &[u16]) {
        for (at, child) in &mut self.children {
            child.hosts.retain(|of| !hosts.contains(of));
            if *at == host {
                child.hosts.extend(hosts);
            }
        }
    }

    /// Handles the new connection to the parent.
    pub(super) fn dialled(&mut self, now: Instant) {
        self.has_dialled = true;
        if self.election.is_some() {
            // The parent may not admit this daemon.
            return;
        }
        self.begin_beating(now);
        self.parent_heard = Some(now);
        let below = self.children.values().flat_map(|child| child.hosts.iter().copied());
        let hosts = std::iter::once(self.config.host).chain(below).collect();
        self.up(now, Up::Here(hosts));
    }

    /// Handles a message of the parent.
    pub(super) fn take_down(&mut self, now: Instant, down: Down) {
        if let Down::Welcome { root, position, table } = down {
            return self.welcomed(now, root, (position, table));
        }
        let Some(heard) = &mut self.parent_heard else { return };
        *heard = now;
        // All other messages come from the root.
        let silence = if let Down::Present(silence) = &down { *silence } else { Duration::ZERO };
        self.root_heard = self.root_heard.max(now - silence);
        match down {
            Down::Order(order) => self.begin(now, order),
            Down::Signal { .. }
            | Down::Resize { .. }
            | Down::Say(..)
            | Down::BarrierOut(..)
            | Down::Abandon(_)
            | Down::Drop { .. } => self.everywhere(now, down),
            Down::Change(position, change) => self.take_change(now, position, change),
            Down::Chunk { host, job, rank, chunk } => {
                self.forward_chunk(now, host, (job, rank), chunk);
            }
            Down::Cut => self.lose_parent(now),
            Down::Present(_) | Down::Welcome { .. } => {}
        }
    }

    /// Handles the end of a connection.
    pub(super) fn disconnected(&mut self, now: Instant, peer: Peer) {
        match peer {
            Peer::Parent if self.parent_heard.is_some() => self.lose_parent(now),
            Peer::Parent => self.has_dialled = false,
            Peer::Child(connection) => {
                if let Some(host) = self.child_of(connection) {
                    // The child has ended, or is cut off: it receives nothing more.
                    let lost = self.remove_child(host);
                    self.lose_hosts(now, lost);
                }
            }
        }
    }

    fn child_of(&self, connection: u64) -> Option<u16> {
        let is_its = |child: &Child| child.connection == connection;
        self.children.iter().find(|(_, child)| is_its(child)).map(|(host, _)| *host)
    }

    /// Returns the child that is `host`, or that `host` is below.
    pub(super) fn child_above(&self, host: u16) -> Option<u16> {
        self.children.iter().find(|(_, child)| child.hosts.contains(&host)).map(|(own, _)| *own)
    }

    pub(super) fn send_child(&mut self, host: u16, down: Down) {
        if let Some(child) = self.children.get(&host) {
            self.transmits.push_back(Transmit::Down(child.connection, down));
        }
    }

    pub(super) fn send_children(&mut self, down: &Down) {
        let all = self.children.values().map(|child| child.connection);
        self.transmits.extend(all.map(|connection| Transmit::Down(connection, down.clone())));
    }

    /// Handles the loss of the parent: this daemon has no root from now on. If only host 0 can be the root, ends all
    /// jobs on this node and below, because no other host can rely on them.
    fn lose_parent(&mut self, now: Instant) {
        if self.election.is_some() {
            return self.elect(now, |election, own| {
                election.seek(now, own);
                Some(Turn::Seek)
            });
        }
        self.detach();
        self.agent.clear();
    }

    /// Closes the connections with the parent and the children, and abandons the order in progress.
    pub(super) fn detach(&mut self) {
        (self.parent_heard, self.has_dialled) = (None, false);
        self.effects.push_back(Effect::Disconnect(Peer::Parent));
        self.pending = None;
        for host in self.children.keys().copied().collect::<Vec<_>>() {
            self.cut_child(host);
        }
    }

    /// Notifies a child that it is lost, and closes its connection. Returns the hosts that are lost with it.
    fn cut_child(&mut self, host: u16) -> Vec<u16> {
        self.send_child(host, Down::Cut);
        self.remove_child(host)
    }

    /// Closes the connection of a child. Returns the hosts that are lost with it.
    fn remove_child(&mut self, host: u16) -> Vec<u16> {
        let Some(child) = self.children.remove(&host) else { return Vec::new() };
        self.effects.push_back(Effect::Disconnect(Peer::Child(child.connection)));
        if let Some(pending) = &mut self.pending {
            pending.below.remove(&host);
        }
        child.hosts.into_iter().collect()
    }

    /// Reports lost hosts.
    fn lose_hosts(&mut self, now: Instant, lost: Vec<u16>) {
        // The other children may have waited for the lost hosts, so they get their full time again.
        self.order_began = now;
        self.up(now, Up::Gone(lost));
    }

    /// Closes connections to daemons that were silent, or have not reported an order, for too long.
    pub(super) fn lose_silent(&mut self, now: Instant) {
        let is_late = |since: Instant, after: Duration| now >= since + after;
        let patience = self.config.patience;
        let mut silent: BTreeSet<u16> = BTreeSet::new();
        if is_late(self.order_began, self.order_patience()) {
            silent.extend(self.waits_for());
        }
        let unheard = self.children.iter().filter(|(_, child)| is_late(child.heard, patience));
        silent.extend(unheard.map(|(host, _)| *host));
        for host in silent {
            let lost = self.cut_child(host);
            self.lose_hosts(now, lost);
        }
        if self.parent_heard.is_some_and(|heard| is_late(heard, patience)) {
            self.lose_parent(now);
        }
    }

    /// Returns when the next daemon is lost, unless a message arrives before.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let order = self.waits_for().next().map(|_| self.order_began + self.order_patience());
        let heard = self.children.values().map(|child| child.heard).chain(self.parent_heard);
        heard.map(|heard| heard + self.config.patience).chain(order).min()
    }

    /// Returns the time that the children get for an order.
    fn order_patience(&self) -> Duration {
        self.config.patience * self.tree.depth_below(self.config.host).max(1)
    }

    pub(super) fn has_peers(&self) -> bool {
        self.parent_heard.is_some() || !self.children.is_empty()
    }

    pub(super) fn begin_beating(&mut self, now: Instant) {
        if !self.has_peers() {
            self.beat_at = now + self.config.patience / 4;
        }
    }

    /// Sends a sign of life to all connected daemons, when it is due.
    pub(super) fn beat(&mut self, now: Instant) {
        if now < self.beat_at || !self.has_peers() {
            return;
        }
        self.beat_at = now + self.config.patience / 4;
        let is_root = self.manager.is_some();
        let silence = if is_root { Duration::ZERO } else { now.since(self.root_heard) };
        self.send_children(&Down::Present(silence));
        if self.parent_heard.is_some() {
            self.transmits.push_back(Transmit::Up(Up::Present));
        }
    }
}
