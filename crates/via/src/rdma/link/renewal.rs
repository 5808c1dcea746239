//! The next connection, once one is over: to the process that takes the place of the one that is gone.

use super::{Broken, CONTROL_BYTES, HELLO_BYTES, Link};
use crate::message::envelope::Peer;
use crate::nic::{Nic, NicError};
use crate::rdma::credit::{Credit, Reader};

impl Link {
    /// Goes on ending the connection that is over; then waits for a process in the place of the lost one, for
    /// ever. Whether that has begun.
    pub(in crate::rdma) fn renew(
        &mut self,
        nic: &mut Nic,
        names: (u32, Peer, Peer),
    ) -> Result<bool, Broken> {
        let Some(ending) = self.ending else {
            match nic.begin_disconnect(self.vi) {
                Ok(cookie) => self.ending = Some(cookie),
                Err(NicError::QueueFull) => {}
                Err(_) => return Err(Broken),
            }
            return Ok(false);
        };
        // What was posted comes back before the end is told of, and so does all news of the connection.
        if !nic.has_ended(ending) {
            return Ok(false);
        }
        self.reap(nic);
        if self.posted > 0 || !self.sending.is_empty() {
            return Ok(false);
        }
        self.ending = None;
        self.reset();
        self.post_receives(nic)?;
        self.begin(nic, names, None)?;
        Ok(true)
    }

    /// Whether the connection that was just made takes the place of one that was lost.
    pub(in crate::rdma) fn has_returned(&mut self) -> bool {
        std::mem::take(&mut self.returns)
    }

    /// Nothing is left of the former connection.
    fn reset(&mut self) {
        for memory in [&self.control, &self.published] {
            let zeroes = [0; CONTROL_BYTES + HELLO_BYTES];
            memory.write(0, &zeroes).expect("it is as long");
        }
        self.places.clear();
        self.unposted.clear();
        (self.ticket, self.remote) = (None, None);
        (self.greeted, self.lost, self.returns) = (false, false, true);
        self.credit = Credit::new(self.config.area, self.config.descriptors);
        self.reader = Reader::new(self.config.area, self.config.descriptors);
        (self.asked, self.answered, self.heard, self.replied) = (0, 0, 0, 0);
        (self.low, self.starved) = (0, None);
    }
}
