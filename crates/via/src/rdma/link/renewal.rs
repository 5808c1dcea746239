//! The next connection after one has ended: with the process that replaces the lost one.

use super::{Broken, CONTROL_BYTES, HELLO_BYTES, Link};
use crate::message::envelope::Peer;
use crate::nic::{Nic, NicError};
use crate::rdma::exchange::Exchange;

impl Link {
    /// Continues to end the former connection; then waits without a timeout for a process that replaces the lost one.
    /// Returns whether that wait has begun.
    pub(in crate::rdma) fn renew(
        &mut self,
        nic: &mut Nic,
        names: (u32, Peer, Peer),
    ) -> Result<bool, Broken> {
        if !self.is_reset && !self.end(nic)? {
            return Ok(false);
        }
        match self.post_receives(nic).and_then(|()| self.begin(nic, names, None)) {
            Ok(()) => self.is_reset = false,
            Err(NicError::QueueFull) => {}
            Err(_) => return Err(Broken),
        }
        Ok(!self.is_reset)
    }

    /// Continues to end the former connection; returns whether its state is reset.
    fn end(&mut self, nic: &mut Nic) -> Result<bool, Broken> {
        let Some(ending) = self.ending else {
            match nic.begin_disconnect(self.vi) {
                Ok(cookie) => self.ending = Some(cookie),
                Err(NicError::QueueFull) => {}
                Err(_) => return Err(Broken),
            }
            return Ok(false);
        };
        // All posted descriptors and all events of the connection arrive before its end is reported.
        if !nic.has_ended(ending) {
            return Ok(false);
        }
        self.reap(nic);
        if self.posted > 0 || !self.sending.is_empty() {
            return Ok(false);
        }
        self.ending = None;
        self.reset();
        self.is_reset = true;
        Ok(true)
    }

    /// Returns whether the connection that was just made replaces one that was lost.
    pub(in crate::rdma) fn has_returned(&mut self) -> bool {
        std::mem::take(&mut self.replaces_lost)
    }

    /// Resets all state of the former connection.
    fn reset(&mut self) {
        for memory in [&self.control, &self.published] {
            let zeroes = [0; CONTROL_BYTES + HELLO_BYTES];
            memory.write(0, &zeroes).expect("it is as long");
        }
        self.rendezvous.clear();
        self.unposted.clear();
        (self.ticket, self.remote) = (None, None);
        (self.has_greeted, self.lost, self.replaces_lost) = (false, false, true);
        self.exchange = Exchange::new(self.config.area, self.config.descriptors);
        self.starved = None;
    }
}
