//! Messages between the members of a communicator, for collective operations, and notices to all of them.

use super::{Communicator, Pending};
use crate::message::envelope::{Context, LEFT, Tag};
use crate::message::group::Rank;
use crate::message::process::{MessageError, Process};
use crate::message::request::{Failure, Load, Mode};

impl Communicator {
    pub(in crate::message) fn isend_in(
        &self,
        context: Context,
        to: Rank,
        tag: Tag,
        load: Load<'_>,
    ) -> Result<Pending, MessageError> {
        let request = self.with(|process| {
            self.check_member(process, to)?;
            let request = process.build_send(&self.scope, context, Mode::Standard, to, tag)?;
            process.start_or_free(request, load)
        })?;
        Ok(self.adopt(request, false))
    }

    pub(in crate::message) fn ireceive_in(
        &self,
        context: Context,
        source: Rank,
        tag: Tag,
    ) -> Result<Pending, MessageError> {
        let request = self.with(|process| {
            self.check_member(process, source)?;
            let request = process.build_receive(&self.scope, context, Some(source), Some(tag))?;
            process.start_or_free(request, Load::anything())
        })?;
        Ok(self.adopt(request, true))
    }

    /// Checks that a collective operation can include `rank`: the process must not have been lost since this
    /// communicator was made, and no process may have left an operation.
    fn check_member(&self, process: &Process, rank: Rank) -> Result<(), MessageError> {
        let peer = self.scope.group().peer(rank)?;
        if process.engine().has_returned(peer, self.losses) {
            return Err(Failure::PeerRestarted(peer).into());
        }
        if process.engine().was_left(self.scope.collective()) {
            return Err(Failure::Abandoned.into());
        }
        Ok(())
    }

    /// Returns the number of process losses so far.
    pub(in crate::message) fn losses(&self) -> u32 {
        self.with(|process| process.engine().losses())
    }

    /// Returns whether a member was lost since this communicator was made; another process may have replaced it.
    pub(in crate::message) fn was_lost(&self, rank: Rank) -> bool {
        let Ok(peer) = self.scope.group().peer(rank) else { return true };
        self.with(|process| process.engine().was_lost(peer, self.losses))
    }

    /// Notifies all other members that this process left a collective operation before its end.
    pub(in crate::message) fn notify_left(&self) {
        self.notify_others(self.scope.collective());
    }

    pub(super) fn notify_others(&self, context: Context) {
        let scope = &self.scope;
        self.with(|process| {
            for to in (0..self.size()).map(Rank).filter(|to| *to != self.rank()) {
                let sent = process.build_send(scope, context, Mode::Standard, to, LEFT);
                let sent = sent.and_then(|sent| process.start_or_free(sent, Load::Copy(&[])));
                // If the notice cannot be sent, the member was lost and needs none.
                if let Ok(request) = sent {
                    process.free(request);
                }
            }
        });
    }
}
