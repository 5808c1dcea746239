//! The events of the rendezvous, as polls handle them.

use super::inbox::PeerEvent;
use super::{Lanes, Peer};
use crate::id::NodeId;
use crate::sync::Ordering;

impl Lanes {
    /// Handles the events of the rendezvous, once polls have returned all shared memory of earlier ones. Until then the
    /// inbox keeps them, and its bound disconnects a peer that shares more.
    #[inline]
    pub(super) fn handle_events(&mut self) {
        if self.events.is_pending.load(Ordering::Relaxed) && self.shown.is_empty() {
            self.handle_all_events();
        }
    }

    pub(super) fn handle_all_events(&mut self) {
        if !self.events.is_pending.swap(false, Ordering::Acquire) {
            return;
        }
        for (node, event) in self.events.take() {
            let peer = &mut self.peers[node.index()];
            match (event, &mut *peer) {
                (PeerEvent::Joined(link), Peer::Expected) => {
                    if Self::admit(self.wakes.get_ref(), peer, *link) {
                        self.awaited.end(node);
                    }
                }
                (PeerEvent::Joined(link), Peer::Gone) => {
                    if Self::admit(self.wakes.get_ref(), peer, *link) {
                        self.returned.push_back(node);
                        self.has_pending_events = true;
                    }
                }
                (PeerEvent::Joined(link), Peer::Connected(peer)) => {
                    peer.on_joined(link);
                    self.has_pending_events = true;
                }
                (PeerEvent::Shown(name, memory), Peer::Connected(peer)) => {
                    self.shown.extend(peer.on_shown((node, name, memory)));
                    self.has_pending_events = true;
                }
                (PeerEvent::Shown(..), _) => {}
                (PeerEvent::Left, Peer::Connected(peer)) => {
                    peer.on_left();
                    self.has_pending_events = true;
                }
                (PeerEvent::Left, Peer::Expected | Peer::Gone) => {}
            }
        }
    }

    /// Removes a leaving process whose frames and shared memory are all handled. Returns its number, and whether its
    /// successor has connected.
    pub(super) fn take_leaver(&mut self) -> Option<(NodeId, bool)> {
        let leaving = |peer: &Peer| matches!(peer, Peer::Connected(peer) if peer.is_leaving);
        let others = !self.shown.is_empty() || !self.returned.is_empty();
        self.has_pending_events = others || self.peers.iter().any(leaving);
        let has_memory = |node| self.shown.iter().any(|(from, ..)| *from == node);
        let is_over = |peer: &Peer| match peer {
            Peer::Connected(peer) => {
                let has_frame = || peer.link.receiver.has_frame();
                peer.is_leaving && !has_frame() && !has_memory(peer.link.node)
            }
            Peer::Expected | Peer::Gone => false,
        };
        let at = self.peers.iter().position(is_over)?;
        let Peer::Connected(peer) = self.disconnect(at) else { return None };
        Some((peer.link.node, self.admit_next(at, peer.successors)))
    }
}
