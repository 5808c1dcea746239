//! The flushes that wait for acknowledgements of slow writes.

use midplane_nicvm::context::Context;
use midplane_simhw::port::{Command, Status};

use super::{Mermera, complete};
use crate::memory::Awaited;

/// Calls after which a flush no longer waits for a node that has never answered.
const CALLS: u32 = 64;

/// A flush, with the slow writes that it still waits for.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) command: Command,
    pub(super) awaited: Vec<Awaited>,
    /// Calls to silent nodes since it began.
    pub(super) calls: u32,
}

impl Mermera {
    /// Completes the flushes that wait for no acknowledgement any more.
    pub(super) fn complete_flushes(&mut self, nic: &mut Context<'_>) {
        let Some(memory) = &self.memory else { return };
        self.flushing.retain_mut(|Flush { command, awaited, .. }| {
            while awaited.pop_if(|write| memory.is_acknowledged(*write)).is_some() {}
            if awaited.is_empty() {
                let refused = memory.refused();
                match self.reported.insert(command.region.port, refused) {
                    Some(reported) if reported < refused => nic.refuse(command, Status::Refused),
                    _ => complete(nic, command),
                }
            }
            !awaited.is_empty()
        });
    }

    /// Calls nodes that have acknowledged nothing, if a flush waits for them.
    pub(super) fn call_silent(&mut self) {
        let Self { memory: Some(memory), flushing, seen, .. } = self else { return };
        if flushing.is_empty() {
            return;
        }
        memory.call_silent(|node| seen.contains_key(&node));
        for flush in flushing {
            flush.calls += 1;
            if flush.calls >= CALLS {
                flush.awaited.retain(|(node, ..)| seen.contains_key(node));
            }
        }
    }
}
