//! What a unit keeps of each extension.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;

use crate::control::Body;
use crate::extension::{Epoch, Extension};
use crate::heap::Heap;

/// Control messages that may wait for a version that does not run yet, of all extensions.
pub const PARKED: usize = 8_192;

/// What an extension has been called for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ExtensionCounters {
    /// Commands.
    pub commands: u64,
    /// Control messages.
    pub controls: u64,
    /// Data frames.
    pub frames: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Everything else: beginnings, news of peers, of the scheduler, of the unit.
    pub others: u64,
    /// Handlers that failed.
    pub traps: u64,
}

/// Which handler is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    Command,
    Control,
    Frame,
    Timeout,
    Other,
}

/// A version that was replaced: it hears control messages of its own version until its time is over.
pub(super) struct Former {
    pub(super) extension: Box<dyn Extension>,
    pub(super) epoch: Epoch,
    pub(super) until: Instant,
    pub(super) heap: Heap,
}

/// One extension of a unit.
pub(super) struct Slot {
    pub(super) extension: Box<dyn Extension>,
    pub(super) epoch: Epoch,
    /// It failed, refused its configuration, or was deactivated.
    pub(super) is_down: bool,
    pub(super) former: Option<Former>,
    pub(super) heap: Heap,
}

impl Slot {
    pub(super) fn new(extension: Box<dyn Extension>, epoch: Epoch, heap: Heap) -> Self {
        Self { extension, epoch, is_down: false, former: None, heap }
    }
}

impl ExtensionCounters {
    pub(super) const fn count(&mut self, handler: Handler) {
        let counter = match handler {
            Handler::Command => &mut self.commands,
            Handler::Control => &mut self.controls,
            Handler::Frame => &mut self.frames,
            Handler::Timeout => &mut self.timeouts,
            Handler::Other => &mut self.others,
        };
        *counter += 1;
    }
}

/// What an extension that is taken down has held. One that has failed may fail in this as well: then
/// nobody knows.
pub(super) fn held_by(extension: &mut dyn Extension) -> Vec<Command> {
    catch_unwind(AssertUnwindSafe(|| extension.held())).unwrap_or_default()
}

/// A control message for a version that does not run here yet.
pub(super) struct Parked {
    pub(super) number: ExtensionId,
    pub(super) epoch: Epoch,
    pub(super) from: NodeId,
    pub(super) body: Body,
}

/// Takes out what waits for that version, in order; what waits for an earlier one waits in vain.
pub(super) fn unpark(
    parked: &mut VecDeque<Parked>,
    number: ExtensionId,
    epoch: Epoch,
) -> VecDeque<Parked> {
    let (mine, others) = std::mem::take(parked)
        .into_iter()
        .partition(|parked: &Parked| parked.number == number && !parked.epoch.is_newer_than(epoch));
    *parked = others;
    mine
}
