//! Connections between peers that request each other: the first request waits here for this side's.

use midplane_nicvm::context::Context;
use midplane_simhw::id::{NodeId, PortId};

use super::{Incoming, differ, end_of, incarnation_of};
use crate::attributes::{Discriminator, ViAttributes, ViState};
use crate::command::CONNECT_PEER;
use crate::firmware::Via;
use crate::firmware::endpoint::Link;
use crate::firmware::message::{End, Message, send_message};
use crate::outcome::ConnectError;

/// Most connection requests of one node that wait here: to be accepted or rejected, or for this side's request.
const MAX_OF_NODE: usize = 256;

impl Via {
    /// Returns the most requests that wait in one direction: one for each interface, if there are many.
    pub(super) fn most_waiting(&self) -> usize {
        self.config.max_vis.max(MAX_OF_NODE)
    }

    /// Returns whether one more request of a node may wait here.
    pub(super) fn has_room(&self, node: NodeId) -> bool {
        let of_node = self.incoming.iter().filter(|other| other.node == node).count();
        self.incoming.len() < self.most_waiting() && of_node < MAX_OF_NODE
    }

    /// Connects two peers that request each other, if their attributes agree.
    pub(super) fn connect_peers(&mut self, nic: &mut Context<'_>, at: usize, peer: &Incoming) {
        let pending = self.pending.swap_remove(at);
        let caller = (pending.owner, pending.opcode, pending.cookie);
        let Some(vi) = pending.vi else { return };
        let now = nic.now();
        let Some(endpoint) = self.own(pending.owner, vi) else { return };
        endpoint.state = ViState::Idle;
        let theirs = ViAttributes::from_words(peer.from.attributes);
        let agreed = theirs.ok_or(ConnectError::Rejected).and_then(|theirs| {
            differ(&endpoint.attributes, &theirs)?;
            Ok(theirs)
        });
        match agreed {
            Ok(theirs) => {
                let ends = (PortId(peer.from.vi), peer.from.connection);
                endpoint.connect(Link::new(now, peer.node, peer.incarnation, ends, theirs));
                self.answer_connected(nic, caller, vi);
            }
            Err(error) => Self::answer(nic, caller, Err(error), 0),
        }
        self.arm_sweep(nic);
    }

    pub(super) fn on_peer_request(
        &mut self,
        nic: &mut Context<'_>,
        node: NodeId,
        from: End,
        names: (Discriminator, Discriminator),
    ) {
        let Some(incarnation) = incarnation_of(nic, node) else { return };
        let peer = Incoming {
            id: 0,
            owner: None,
            node,
            incarnation,
            request: 0,
            from,
            names: Some(names),
        };
        let (theirs, ours) = names;
        let waits = self.pending.iter().position(|pending| {
            pending.opcode == CONNECT_PEER
                && pending.node == node
                && (pending.local, pending.remote) == (ours, theirs)
        });
        match waits {
            Some(at) => self.connect_peers(nic, at, &peer),
            None if self.answer_again(nic, &peer, names) => {}
            None => {
                self.incoming.retain(|other| other.names != Some(names) || other.node != node);
                if self.has_room(node) {
                    self.incoming.push(peer);
                } else {
                    self.has_dropped = true;
                }
            }
        }
    }

    /// Handles a repeated request for a connection that this end already has. Its peer's NIC has dropped this end's
    /// request, and gets it again. Answers once, because an answer looks like a request.
    fn answer_again(
        &mut self,
        nic: &mut Context<'_>,
        peer: &Incoming,
        (theirs, ours): (Discriminator, Discriminator),
    ) -> bool {
        let end = (peer.node, peer.incarnation, PortId(peer.from.vi), peer.from.connection);
        let is_its = |link: &Link| (link.node, link.incarnation, link.vi, link.connection) == end;
        let mut endpoints = self.vis.iter_mut().flatten();
        let Some(endpoint) = endpoints.find(|it| it.link.as_ref().is_some_and(is_its)) else {
            return false;
        };
        let from = end_of(endpoint);
        let link = endpoint.link.as_mut().filter(|link| !link.has_answered);
        if let Some(link) = link {
            let message = Message::Peer { from, local: ours, remote: theirs };
            link.has_answered = send_message(nic, peer.node, &message);
        }
        true
    }
}
