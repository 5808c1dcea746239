//! The NIC's end of its ports.

use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::far::FarEnd;
use super::shared::{PortShared, Registration};
use super::{Command, Completion, NicGate};
use crate::frame::{Header, Kind};
use crate::id::PortId;
use crate::region::{Access, Payload, RegionError, RegionRef, RegionTable};
use crate::ring::{Consumer, Producer};

/// The NIC's end of a port.
#[derive(Debug)]
pub(crate) struct NicPort {
    commands: Consumer,
    completions: Producer,
    backend: PortBackend,
    regions: RegionTable,
    /// The port's gate, if it has one.
    pub(crate) gate: Option<NicGate>,
    open: bool,
    /// True if the application has posted more commands than the port is deep. No further one is taken.
    overfilled: bool,
    /// Commands that were taken and not yet completed.
    owed: usize,
    /// Completions that are written but not yet published.
    staged: usize,
}

/// The NIC's end of a port's registrations, flags and wake-ups.
#[derive(Debug)]
enum PortBackend {
    /// The application is in this process.
    Near(Arc<PortShared>),
    /// The application is in another process.
    #[cfg(target_os = "linux")]
    Far(Box<FarEnd>),
}

impl NicPort {
    pub(super) fn new(
        commands: Consumer,
        completions: Producer,
        gate: NicGate,
        shared: Arc<PortShared>,
    ) -> Self {
        Self::with(commands, completions, Some(gate), PortBackend::Near(shared))
    }

    #[cfg(target_os = "linux")]
    pub(super) fn far(commands: Consumer, completions: Producer, end: FarEnd) -> Self {
        Self::with(commands, completions, None, PortBackend::Far(Box::new(end)))
    }

    fn with(
        commands: Consumer,
        completions: Producer,
        gate: Option<NicGate>,
        backend: PortBackend,
    ) -> Self {
        let regions = RegionTable::default();
        let (open, overfilled) = (true, false);
        Self { commands, completions, backend, regions, gate, open, overfilled, owed: 0, staged: 0 }
    }

    /// Applies pending registrations and deregistrations. Returns `false` once the port is dropped.
    #[inline]
    pub(crate) fn sync(&mut self) -> bool {
        if self.backend.has_changed() {
            self.take_changes();
        }
        self.open
    }

    #[cold]
    fn take_changes(&mut self) {
        for change in self.backend.take() {
            match change {
                Registration::Register { slot, generation, memory, options } => {
                    self.regions.insert(slot, generation, memory, options);
                }
                Registration::Deregister { slot, generation } => {
                    self.regions.remove(slot, generation);
                }
                Registration::Close => self.open = false,
            }
        }
        self.backend.settle();
    }

    /// Takes the next command, if one waits. Closes the port if the application has more commands in flight than the
    /// port is deep: it bypasses [`Port::post`](super::Port::post), and the NIC's memory must stay bounded.
    #[inline]
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        if self.owed >= self.commands.slots() / 2 && self.has_command() {
            self.overfilled = true;
            // The number of a port of another process is free only once that process has left.
            match self.is_far() {
                true => self.backend.close(),
                false => self.open = false,
            }
        }
        if self.overfilled {
            return None;
        }
        let entry = self.commands.pop()?;
        // Applies what was registered before the command was posted.
        self.sync();
        self.owed += 1;
        Some(Command::parse(&entry))
    }

    /// Returns whether a command waits.
    pub(crate) fn has_command(&self) -> bool {
        !self.overfilled && !self.commands.is_empty()
    }

    pub(crate) const fn regions(&self) -> &RegionTable {
        &self.regions
    }

    /// Writes a completion that becomes visible at [`NicPort::publish`]. If all taken commands are completed
    /// already, writes nothing and returns `false`.
    pub(crate) fn stage(&mut self, completion: &Completion) -> bool {
        // A completion without a command is an extension's bug: it would take the slot of another completion.
        let has_room =
            self.staged < self.owed && self.completions.stage(&completion.emit()).is_ok();
        self.staged += usize::from(has_room);
        has_room
    }

    /// Publishes the staged completions without waking the application.
    pub(crate) fn publish(&mut self) {
        self.owed -= std::mem::take(&mut self.staged);
        self.completions.publish();
    }

    /// Discards the staged completions.
    pub(crate) fn unstage(&mut self) {
        self.staged = 0;
        self.completions.unstage();
    }

    /// Returns whether the application is in another process.
    pub(crate) const fn is_far(&self) -> bool {
        !matches!(self.backend, PortBackend::Near(_))
    }

    /// Wakes the application if it waits. The caller must fence between publishing and this call.
    pub(crate) fn wake(&self) {
        self.backend.wake_waiting();
    }

    /// Publishes a completion and wakes the application if it waits.
    pub(crate) fn complete(&mut self, completion: &Completion) {
        if self.complete_silently(completion) {
            self.backend.wake();
        }
    }

    /// Publishes a completion without waking the application; `false` if there was nothing to publish.
    pub(crate) fn complete_silently(&mut self, completion: &Completion) -> bool {
        let staged = self.stage(completion);
        if staged {
            self.publish();
        }
        staged
    }
}

impl Drop for NicPort {
    fn drop(&mut self) {
        self.backend.close();
    }
}

/// Calls the same method of either variant.
macro_rules! either {
    ($backend:expr, $end:ident => $call:expr) => {
        match $backend {
            PortBackend::Near($end) => $call,
            #[cfg(target_os = "linux")]
            PortBackend::Far($end) => $call,
        }
    };
}

impl PortBackend {
    #[inline]
    fn has_changed(&self) -> bool {
        either!(self, end => end.has_changed())
    }

    fn take(&mut self) -> Vec<Registration> {
        either!(self, end => end.take())
    }

    /// Publishes that the taken changes are in effect.
    fn settle(&self) {
        match self {
            Self::Near(_) => {}
            #[cfg(target_os = "linux")]
            Self::Far(end) => end.settle(),
        }
    }

    fn is_closing(&self) -> bool {
        either!(self, end => end.is_closing())
    }

    fn wake(&self) {
        either!(self, end => end.wake());
    }

    fn wake_waiting(&self) {
        either!(self, end => end.wake_waiting());
    }

    fn close(&self) {
        either!(self, end => end.close());
    }
}

/// The ports of one NIC.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    by_number: Vec<Option<NicPort>>,
    /// Ports that were removed, and whose close the firmware has yet to handle.
    closed: Vec<PortId>,
}

impl Ports {
    pub(crate) fn insert(&mut self, id: PortId, port: NicPort) {
        if id.index() >= self.by_number.len() {
            self.by_number.resize_with(id.index() + 1, || None);
        }
        self.by_number[id.index()] = Some(port);
    }

    #[inline]
    pub(crate) fn at(&mut self, id: PortId) -> Option<&mut NicPort> {
        self.by_number.get_mut(id.index())?.as_mut()
    }

    /// Applies pending registrations; removes a port that was dropped.
    pub(crate) fn sync(&mut self, id: PortId) {
        if self.at(id).is_some_and(|port| !port.sync() && !port.has_command()) {
            self.by_number[id.index()] = None;
            self.closed.push(id);
        }
    }

    /// Takes a port that was removed, whose close the firmware is to handle now: `id`, or any.
    pub(crate) fn take_closed(&mut self, id: Option<PortId>) -> Option<PortId> {
        let at = self.closed.iter().position(|closed| id.is_none_or(|id| id == *closed))?;
        Some(self.closed.swap_remove(at))
    }

    /// Returns the number of open ports.
    pub(crate) fn open(&self) -> usize {
        self.by_number.iter().flatten().count()
    }

    /// Returns whether a port's application has closed its end.
    pub(crate) fn is_closing(&self, id: PortId) -> bool {
        let port = self.by_number.get(id.index()).and_then(Option::as_ref);
        port.is_some_and(|port| port.backend.is_closing())
    }

    /// Returns whether the port that a data frame is for has commands that the firmware has yet to take.
    #[inline]
    pub(crate) fn has_posted(&mut self, header: &Header) -> bool {
        header.kind == Kind::Data && self.at(header.port).is_some_and(|port| port.has_command())
    }

    /// Wakes all applications that wait for a completion.
    pub(crate) fn wake_all(&self) {
        self.by_number.iter().flatten().for_each(|port| port.backend.wake());
    }

    pub(crate) fn next_command(&mut self, id: PortId) -> Option<Command> {
        let port = self.at(id)?;
        let command = port.next_command();
        // A dropped port has no further commands.
        if command.is_none() && !port.sync() {
            self.sync(id);
        }
        command
    }

    /// Opens a port's gate; returns the number under which it is open.
    pub(crate) fn open_gate(&mut self, id: PortId) -> Option<u64> {
        self.at(id)?.gate.as_mut()?.open()
    }

    /// Closes a port's gate; returns whether no post is in progress.
    pub(crate) fn close_gate(&mut self, id: PortId) -> bool {
        self.at(id).and_then(|port| port.gate.as_ref()).is_none_or(NicGate::close)
    }

    pub(crate) fn read(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.table(at)?.read(at)
    }

    /// Checks that `access` to a range is granted.
    pub(crate) fn check(&self, at: RegionRef, access: Access) -> Result<(), RegionError> {
        let table = self.table(at)?;
        if access.owner.is_some_and(|owner| owner != at.port) {
            return Err(RegionError::Owner);
        }
        table.check(at, access)
    }

    /// Checks that `bytes` may be written at the start of a range.
    pub(crate) fn check_write(&self, at: RegionRef, bytes: usize) -> Result<(), RegionError> {
        self.table(at)?.check_write(at, bytes)
    }

    pub(crate) fn write(&self, at: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.table(at)?.write(at, from)
    }

    fn table(&self, at: RegionRef) -> Result<&RegionTable, RegionError> {
        match self.by_number.get(at.port.index()) {
            Some(Some(port)) => Ok(port.regions()),
            _ => Err(RegionError::Stale),
        }
    }
}
