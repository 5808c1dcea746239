//! The pace of the slowest member: each NIC stores the operations that others have begun and its own host has not
//! posted, so no host begins operations far ahead of another.
//!
//! A period has [`PERIOD`] operations. A member reports to all others that it has begun a whole period. It begins the
//! last operation of a period once all others have begun all operations before that period. So the greatest lead is two
//! periods, less two operations.

use super::holder::is_before;
use super::{ASK, Collectives, Context, MOST_WAITING, PortId};

/// Operations between two reports of a member: so many that the reports cost little.
const PERIOD: u32 = 1_024;

impl Collectives {
    /// Returns whether an operation that `port` posts now has to wait: for room in the queues to the other members, or
    /// for the slowest of them.
    pub(super) fn must_wait(&self, port: PortId) -> bool {
        let needed = self.next.wrapping_sub(PERIOD - 1);
        let is_ahead = needed.is_multiple_of(PERIOD)
            && self.reached.iter().any(|reached| is_before(*reached, needed))
            && self.holder.admits(port).is_ok()
            && self.holder.lost(self.next).is_none();
        is_ahead || self.group.backlog.len() >= MOST_WAITING
    }

    /// Begins the operations that have waited, in their order, as far as they need not wait any more.
    pub(super) fn resume(&mut self, nic: &mut Context<'_>) {
        while let Some(command) = self.postponed.front().copied()
            && !self.must_wait(command.region.port)
        {
            self.postponed.pop_front();
            self.begin(nic, command);
        }
    }

    /// Reports this member's next operation to the other members, at the end of each period.
    pub(super) fn report(&mut self, nic: &mut Context<'_>) {
        if self.next.is_multiple_of(PERIOD) {
            self.reached[usize::from(self.group.rank)] = self.next;
            self.send_to_others(nic, (ASK, 0, self.next));
        }
    }

    /// Handles the report of a member's next operation. An older one than is known comes from a restarted member, or
    /// from one that has not started yet.
    pub(super) fn on_reached(&mut self, nic: &mut Context<'_>, rank: u16, next: u32) {
        let reached = &mut self.reached[usize::from(rank)];
        if is_before(*reached, next) {
            *reached = next;
            self.resume(nic);
        }
    }

    /// Notes that all members continue at this member's next operation, or have begun it already.
    pub(super) fn align(&mut self) {
        for reached in &mut self.reached {
            if is_before(*reached, self.next) {
                *reached = self.next;
            }
        }
    }
}
