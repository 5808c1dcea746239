//! The NIC's end of its ports.

use std::sync::Arc;

#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
use super::far::FarEnd;
use super::registrar::{Registrar, Registration};
use super::{Command, Completion};
use crate::id::PortId;
use crate::region::{Access, Payload, RegionError, RegionRef, RegionTable};
use crate::ring::{Consumer, Producer};

/// The NIC's end of a port.
#[derive(Debug)]
pub(crate) struct NicPort {
    commands: Consumer,
    completions: Producer,
    beside: Beside,
    regions: RegionTable,
    open: bool,
    /// Commands that were taken and not completed.
    owed: usize,
    /// Completions that are written and not published.
    staged: usize,
}

/// What a port has beside its two rings.
#[derive(Debug)]
enum Beside {
    /// The application is in this process.
    Near(Arc<Registrar>),
    /// It is in another.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    Far(Box<FarEnd>),
}

impl NicPort {
    pub(super) fn new(
        commands: Consumer,
        completions: Producer,
        registrar: Arc<Registrar>,
    ) -> Self {
        Self::with(commands, completions, Beside::Near(registrar))
    }

    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(super) fn far(commands: Consumer, completions: Producer, end: FarEnd) -> Self {
        Self::with(commands, completions, Beside::Far(Box::new(end)))
    }

    fn with(commands: Consumer, completions: Producer, beside: Beside) -> Self {
        let regions = RegionTable::default();
        Self { commands, completions, beside, regions, open: true, owed: 0, staged: 0 }
    }

    /// Takes note of what was registered and deregistered. `false` once the port is dropped.
    #[inline]
    pub(crate) fn sync(&mut self) -> bool {
        if self.beside.has_changed() {
            self.take_changes();
        }
        self.open
    }

    #[cold]
    fn take_changes(&mut self) {
        for change in self.beside.take() {
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
        self.beside.settle();
    }

    #[inline]
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        let entry = self.commands.pop()?;
        // What was registered before the command was posted is known from here on.
        self.sync();
        self.owed += 1;
        Some(Command::parse(&entry))
    }

    /// Whether a command waits.
    pub(crate) fn has_command(&self) -> bool {
        !self.commands.is_empty()
    }

    pub(crate) const fn regions(&self) -> &RegionTable {
        &self.regions
    }

    /// Writes a completion that nobody sees before [`NicPort::publish`]; `false`, and nothing is
    /// written, if no command is left that it could be for.
    pub(crate) fn stage(&mut self, completion: &Completion) -> bool {
        // One for which no command was taken is an extension's mistake: it would take another's
        // place.
        let has_room =
            self.staged < self.owed && self.completions.stage(&completion.emit()).is_ok();
        self.staged += usize::from(has_room);
        has_room
    }

    /// Publishes what is staged; nobody is woken.
    pub(crate) fn publish(&mut self) {
        self.owed -= std::mem::take(&mut self.staged);
        self.completions.publish();
    }

    /// What is staged never was.
    pub(crate) fn unstage(&mut self) {
        self.staged = 0;
        self.completions.unstage();
    }

    /// Wakes the application, if it waits. A fence must lie between publishing and this.
    pub(crate) fn wake(&self) {
        self.beside.wake_waiting();
    }

    /// Publishes a completion and wakes whoever waits for it.
    pub(crate) fn complete(&mut self, completion: &Completion) {
        if self.complete_silently(completion) {
            self.beside.wake();
        }
    }

    /// Publishes a completion and wakes nobody; `false` if there was none to publish.
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
        self.beside.close();
    }
}

/// Calls the same of whichever it is.
macro_rules! either {
    ($beside:expr, $end:ident => $call:expr) => {
        match $beside {
            Beside::Near($end) => $call,
            #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
            Beside::Far($end) => $call,
        }
    };
}

impl Beside {
    #[inline]
    fn has_changed(&self) -> bool {
        either!(self, end => end.has_changed())
    }

    fn take(&mut self) -> Vec<Registration> {
        either!(self, end => end.take())
    }

    /// What was taken has taken effect.
    fn settle(&self) {
        match self {
            Self::Near(_) => {}
            #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
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
pub(crate) struct Ports(Vec<Option<NicPort>>);

impl Ports {
    pub(crate) fn insert(&mut self, id: PortId, port: NicPort) {
        if id.index() >= self.0.len() {
            self.0.resize_with(id.index() + 1, || None);
        }
        self.0[id.index()] = Some(port);
    }

    #[inline]
    pub(crate) fn at(&mut self, id: PortId) -> Option<&mut NicPort> {
        self.0.get_mut(id.index())?.as_mut()
    }

    /// Takes note of registrations; forgets a port that was dropped.
    pub(crate) fn sync(&mut self, id: PortId) {
        if self.at(id).is_some_and(|port| !port.sync() && !port.has_command()) {
            self.0[id.index()] = None;
        }
    }

    /// Ports that are open.
    pub(crate) fn open(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether the application's end of a port is gone.
    pub(crate) fn is_closing(&self, id: PortId) -> bool {
        let port = self.0.get(id.index()).and_then(Option::as_ref);
        port.is_some_and(|port| port.beside.is_closing())
    }

    /// Wakes everybody who waits for a completion.
    pub(crate) fn wake_all(&self) {
        self.0.iter().flatten().for_each(|port| port.beside.wake());
    }

    pub(crate) fn next_command(&mut self, id: PortId) -> Option<Command> {
        let port = self.at(id)?;
        let command = port.next_command();
        // One that was dropped has no more to say.
        if command.is_none() && !port.sync() {
            self.sync(id);
        }
        command
    }

    pub(crate) fn read(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.table(at)?.read(at)
    }

    /// Whether `access` may be had to a range.
    pub(crate) fn check(&self, at: RegionRef, access: Access) -> Result<(), RegionError> {
        let table = self.table(at)?;
        if access.owner.is_some_and(|owner| owner != at.port) {
            return Err(RegionError::Owner);
        }
        table.check(at, access)
    }

    /// Whether `bytes` may be written at the start of a range.
    pub(crate) fn check_write(&self, at: RegionRef, bytes: usize) -> Result<(), RegionError> {
        self.table(at)?.check_write(at, bytes)
    }

    pub(crate) fn write(&self, at: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.table(at)?.write(at, from)
    }

    fn table(&self, at: RegionRef) -> Result<&RegionTable, RegionError> {
        match self.0.get(at.port.index()) {
            Some(Some(port)) => Ok(port.regions()),
            _ => Err(RegionError::Stale),
        }
    }
}
