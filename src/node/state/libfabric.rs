//! Sessions over libfabric, in addition to those over UDP and TCP.

use std::sync::Arc;

use midplane_via::session::{Session, TransportKind};

use tokio::time::Instant;

use super::{Candidate, Shared, State};
use crate::node::ofi::{Ofi, PAUSE};

impl State {
    /// Returns whether there is a session over libfabric to a peer.
    fn has_libfabric(&self, peer: u64) -> bool {
        self.sessions.iter().any(|(number, session)| {
            session.transport() == TransportKind::Ofi
                && self.members.peer_of(*number).is_some_and(|(id, _)| id == peer)
        })
    }
}

impl Shared {
    /// Accepts nodes over libfabric, and dials peers that have it.
    pub(in crate::node) fn serve_ofi(self: &Arc<Self>, ofi: Arc<Ofi>) {
        let accepting = Arc::clone(&ofi).accept(Arc::downgrade(self));
        self.on_end(tokio::spawn(accepting).abort_handle());
        // `ofi` is set only here, once.
        let _ = self.ofi.set(ofi);
    }

    /// Handles the description of a peer. Dials the peer over libfabric if both have the same provider, there is no
    /// session over it, and this node has the lower number.
    pub(super) fn improve(self: &Arc<Self>, session: &Arc<Session>, described: &[u8]) {
        let Some(ofi) = self.ofi.get() else { return };
        let state = self.state();
        let Some((peer, _)) = state.members.peer_of(session.number()) else { return };
        let (has_link, is_dialer) = (state.has_libfabric(peer), state.hello.id < peer);
        drop(state);
        if has_link {
            ofi.on_session(peer);
        } else if session.transport() != TransportKind::Shm {
            ofi.on_peer(self, peer, described, is_dialer);
        }
    }

    /// Returns whether a peer is known and there is no session over libfabric to it.
    pub(in crate::node) fn lacks_libfabric(&self, peer: u64) -> bool {
        let state = self.state();
        !state.is_closed && state.members.knows(peer) && !state.has_libfabric(peer)
    }

    /// Handles the end of a session to a peer, which has ended if it is unknown now.
    pub(super) fn on_link_ended(self: &Arc<Self>, session: &Session, peer: Option<u64>) {
        let (Some(ofi), Some(peer)) = (self.ofi.get(), peer) else { return };
        let state = self.state();
        let (is_known, is_dialer) = (state.members.knows(peer), state.hello.id < peer);
        drop(state);
        if !is_known {
            ofi.forget(peer);
        } else if is_dialer && session.transport() == TransportKind::Ofi {
            ofi.dial(self, peer, PAUSE);
        }
    }

    /// Returns until when new streams wait for a session over libfabric to one of these peers; `None` if none is
    /// expected.
    pub(in crate::node) fn awaits_libfabric(&self, candidates: &[Candidate]) -> Option<Instant> {
        let ofi = self.ofi.get()?;
        let over_others =
            candidates.iter().filter(|one| one.session.transport() != TransportKind::Shm);
        over_others.filter_map(|one| ofi.awaits(one.peer)).min()
    }
}
