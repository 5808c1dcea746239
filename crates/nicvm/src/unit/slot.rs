//! The state that a unit keeps for each extension.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;

use crate::control::Body;
use crate::extension::{Epoch, Extension};
use crate::heap::Heap;

/// Control messages that may wait for a version that does not run yet, counted over all extensions.
pub(crate) const PARKED: usize = 8_192;

/// Time for which they wait: longer than any change of an extension takes.
pub(crate) const PARKED_FOR: Duration = Duration::from_secs(30);

/// Counts the handler calls of one extension, by kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ExtensionCounters {
    /// Calls of `on_command`.
    pub commands: u64,
    /// Calls of `on_control`.
    pub controls: u64,
    /// Calls of `on_data`.
    pub frames: u64,
    /// Calls of `on_timeout`.
    pub timeouts: u64,
    /// All other calls: initialisation, and events of peers, ports, the scheduler and the unit.
    pub others: u64,
    /// Handlers that panicked.
    pub traps: u64,
}

/// The kind of handler that is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    Command,
    Control,
    Frame,
    Timeout,
    Other,
}

/// A replaced version: it handles control messages of its own version until `until`.
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
    /// True if it panicked, refused its configuration, or was deactivated.
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

/// Returns the commands that an extension holds when it is taken down. An extension that has panicked may panic here
/// too; then the list is empty.
pub(super) fn held_by(extension: &mut dyn Extension) -> Vec<Command> {
    catch_unwind(AssertUnwindSafe(|| extension.outstanding_commands())).unwrap_or_default()
}

/// A control message for a version that does not run here yet.
pub(super) struct Parked {
    pub(super) number: ExtensionId,
    pub(super) epoch: Epoch,
    pub(super) from: NodeId,
    pub(super) body: Body,
    pub(super) since: Instant,
}

/// Takes out the messages parked for this version or an earlier one, in order.
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
