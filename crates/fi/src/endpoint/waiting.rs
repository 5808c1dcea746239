//! Waiting for peers without polling.

use std::os::fd::{AsFd, BorrowedFd};

use super::{Endpoint, Link, Network};

impl Endpoint {
    /// Requests wake-ups once the rings of waiting records have space. Returns `false` if the records can be sent now.
    pub(crate) fn await_room(&mut self) -> bool {
        let mut is_idle = true;
        for number in &self.state.busy {
            let peer = &self.state.peers[*number];
            match peer.link {
                Link::Open(key) => {
                    let sender = &mut self.pairs[key].rings.sender;
                    sender.await_room();
                    is_idle &= sender.room().is_none_or(|room| room < peer.needed());
                }
                Link::Unconnected | Link::Lost(_) => is_idle = false,
            }
        }
        is_idle
    }

    /// Requests wake-ups from all peers. Returns `false` if there is work already.
    pub(crate) fn park(&mut self) -> bool {
        self.is_parked = true;
        if let Some(network) = &self.network {
            network.release();
        }
        let mut is_idle = self.await_room();
        for (_, pair) in &mut self.pairs {
            if pair.rings.receiver.park() {
                pair.rings.wake();
            }
            is_idle &= !pair.has_ended && matches!(pair.rings.receiver.peek(), Ok(None));
        }
        // The descriptors are readable while connections wait for free descriptors.
        is_idle && !self.is_short
    }

    /// Withdraws the requests for wake-ups, if there are any.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        if std::mem::take(&mut self.is_parked) {
            self.take_wakes();
        }
    }

    fn take_wakes(&mut self) {
        if let Some(network) = &self.network {
            network.clear();
        }
        self.pairs.iter().for_each(|(_, pair)| pair.rings.receiver.unpark());
        self.progress_connections();
    }

    /// Returns the descriptors that are readable when a peer has woken this process, or connects.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let network = self.network.as_ref().map(Network::descriptor);
        let own = [self.wakes.as_fd(), self.listener.as_fd(), self.greetings.as_fd()];
        own.into_iter().chain(network)
    }
}
