//! A process's own way into its NIC: a submission ring, a completion ring, a doorbell, registered
//! memory.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use atomic_waker::AtomicWaker;
use thiserror::Error;

use crate::id::{ExtensionId, NodeId, PortId};
use crate::region::{MAX_REGION, Memory, Payload, Region, RegionError, RegionRef, RegionTable};
use crate::ring::{Consumer, Entry, Producer, ring};

/// Commands of a port that may be under way at once: two rings of 256 cache lines are 32 KiB.
pub const DEFAULT_DEPTH: usize = 256;
/// Most regions that one port may have registered at once.
pub const MAX_REGIONS: usize = 65_536;

/// What an application asks of its NIC: 56 bytes in the submission ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Command {
    /// The extension that is to carry it out.
    pub extension: ExtensionId,
    /// Which of the extension's commands.
    pub opcode: u8,
    /// The extension's own.
    pub flags: u16,
    /// The other node, where there is one.
    pub node: NodeId,
    /// The other node's port, where there is one.
    pub port: PortId,
    /// Comes back in the completion, untouched.
    pub cookie: u64,
    /// The memory that it is about.
    pub region: RegionRef,
    /// The extension's own.
    pub args: [u64; 3],
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Done = 0,
    /// No such extension or command, or arguments it does not take.
    Invalid = 1,
    /// The region is not the port's, or not that large.
    Region = 2,
    /// The message was longer than the memory for it; the memory holds its beginning.
    Truncated = 3,
    /// The peer is dead, or has restarted since.
    PeerLost = 4,
    /// There is no room for it now; try again later.
    Refused = 5,
    /// The extension failed or was withdrawn.
    ExtensionDown = 6,
    /// Given up before it was done.
    Cancelled = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Invalid,
        Self::Region,
        Self::Truncated,
        Self::PeerLost,
        Self::Refused,
        Self::ExtensionDown,
        Self::Cancelled,
    ];
}

/// How a command ended: 56 bytes in the completion ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Completion {
    /// How it ended.
    pub status: Status,
    /// The command's.
    pub opcode: u8,
    /// The extension's own.
    pub flags: u16,
    /// The other node, where there is one.
    pub node: NodeId,
    /// The other node's port, where there is one.
    pub port: PortId,
    /// The command's.
    pub cookie: u64,
    /// Bytes that were moved.
    pub length: u64,
    /// The extension's own.
    pub args: [u64; 4],
}

impl Command {
    fn emit(&self) -> Entry {
        let region = self.region;
        [
            u64::from(self.extension.0)
                | u64::from(self.opcode) << 8
                | u64::from(self.flags) << 16
                | u64::from(self.node.0) << 32
                | u64::from(self.port.0) << 48,
            self.cookie,
            u64::from(region.port.0)
                | u64::from(region.slot) << 16
                | u64::from(region.generation) << 32,
            u64::from(region.offset) | u64::from(region.length) << 32,
            self.args[0],
            self.args[1],
            self.args[2],
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    fn parse(entry: &Entry) -> Self {
        let [head, cookie, handle, range, args @ ..] = *entry;
        Self {
            extension: ExtensionId(head as u8),
            opcode: (head >> 8) as u8,
            flags: (head >> 16) as u16,
            node: NodeId((head >> 32) as u16),
            port: PortId((head >> 48) as u16),
            cookie,
            region: RegionRef {
                port: PortId(handle as u16),
                slot: (handle >> 16) as u16,
                generation: (handle >> 32) as u32,
                offset: range as u32,
                length: (range >> 32) as u32,
            },
            args,
        }
    }
}

impl Completion {
    fn emit(&self) -> Entry {
        [
            u64::from(self.status as u8)
                | u64::from(self.opcode) << 8
                | u64::from(self.flags) << 16
                | u64::from(self.node.0) << 32
                | u64::from(self.port.0) << 48,
            self.cookie,
            self.length,
            self.args[0],
            self.args[1],
            self.args[2],
            self.args[3],
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    fn parse(entry: &Entry) -> Self {
        let [head, cookie, length, args @ ..] = *entry;
        Self {
            status: Status::ALL.get((head & 0xFF) as usize).copied().unwrap_or(Status::Invalid),
            opcode: (head >> 8) as u8,
            flags: (head >> 16) as u16,
            node: NodeId((head >> 32) as u16),
            port: PortId((head >> 48) as u16),
            cookie,
            length,
            args,
        }
    }
}

/// What a port's doorbell rings.
pub(crate) trait Bell: Send + Sync {
    /// There are commands, or changes of registration, on `port`.
    fn ring(&self, port: PortId);
}

/// A change of what a port has registered: the control path, behind a lock.
#[derive(Debug)]
pub(crate) enum Registration {
    Register { slot: u16, generation: u32, memory: Arc<Memory> },
    Deregister { slot: u16, generation: u32 },
    Close,
}

/// What both ends of a port share beside its rings.
pub(crate) struct Registrar {
    changed: AtomicBool,
    closed: AtomicBool,
    waker: AtomicWaker,
    changes: Mutex<Changes>,
    bell: Box<dyn Bell>,
    id: PortId,
    /// Regions' generations count from here: a port's number may have been another's before, and
    /// what firmware still knows of that one's regions must not name this one's.
    first_generation: u32,
}

/// Ports that this process has made.
static PORTS: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
struct Changes {
    pending: Vec<Registration>,
    generations: Vec<u32>,
    free: Vec<u16>,
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registrar").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Registrar {
    fn push(&self, change: Registration) {
        let mut changes = self.changes.lock().expect("nothing panics while it holds this lock");
        changes.pending.push(change);
        self.changed.store(true, Ordering::Release);
    }

    pub(crate) fn deregister(&self, region: RegionRef) {
        {
            let mut changes = self.changes.lock().expect("nothing panics while it holds this lock");
            changes.free.push(region.slot);
        }
        self.push(Registration::Deregister { slot: region.slot, generation: region.generation });
        self.bell.ring(self.id);
    }
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RegisterError {
    /// A region has at least one byte and at most [`MAX_REGION`].
    #[error("a region has 1 to {MAX_REGION} bytes, not {0}")]
    Size(usize),
    /// Drop a region first.
    #[error("the port has {MAX_REGIONS} regions already")]
    TooMany,
    /// The NIC is gone.
    #[error("the NIC behind the port has stopped")]
    Closed,
}

/// Why a command was not posted.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// Reap a completion first.
    #[error("{depth} commands are under way already; take a completion first")]
    QueueFull {
        /// Commands that may be under way at once.
        depth: usize,
    },
    /// The NIC is gone.
    #[error("the NIC behind the port has stopped")]
    Closed,
}

/// The NIC behind a port has stopped: nothing more will complete.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the NIC behind the port has stopped")]
pub struct PortClosed;

/// A process's own way into its NIC. Exclusive, and no lock around its rings.
///
/// A posted command holds one slot of the completion ring until its completion is taken, so that a
/// completion always has room.
#[derive(Debug)]
pub struct Port {
    id: PortId,
    depth: usize,
    outstanding: usize,
    commands: Producer,
    completions: Consumer,
    registrar: Arc<Registrar>,
}

/// The NIC's end of a port.
#[derive(Debug)]
pub(crate) struct NicPort {
    commands: Consumer,
    completions: Producer,
    registrar: Arc<Registrar>,
    regions: RegionTable,
    open: bool,
    /// Commands that were taken and not completed.
    owed: usize,
}

/// A port and the NIC's end of it; `bell` is rung whenever the NIC should look.
pub(crate) fn port(id: PortId, depth: usize, bell: Box<dyn Bell>) -> (Port, NicPort) {
    let depth = depth.max(2).next_power_of_two();
    // The consumer gives slots back a quarter of the ring late.
    let (command_in, command_out) = ring(depth * 2);
    let (completion_in, completion_out) = ring(depth * 2);
    let registrar = Arc::new(Registrar {
        changed: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        waker: AtomicWaker::new(),
        changes: Mutex::default(),
        bell,
        id,
        first_generation: PORTS.fetch_add(1, Ordering::Relaxed) << 16,
    });
    let port = Port {
        id,
        depth,
        outstanding: 0,
        commands: command_in,
        completions: completion_out,
        registrar: Arc::clone(&registrar),
    };
    let nic = NicPort {
        commands: command_out,
        completions: completion_in,
        registrar,
        regions: RegionTable::default(),
        open: true,
        owed: 0,
    };
    (port, nic)
}

impl Port {
    /// The port's number on its NIC.
    #[must_use]
    pub const fn id(&self) -> PortId {
        self.id
    }

    /// Commands that may be under way at once.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Commands under way: posted, and their completions not yet taken.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Registers `bytes` of zeroed memory that the NIC may read and write.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was hit.
    pub fn register(&mut self, bytes: usize) -> Result<Region, RegisterError> {
        if bytes == 0 || bytes > MAX_REGION {
            return Err(RegisterError::Size(bytes));
        }
        if self.is_closed() {
            return Err(RegisterError::Closed);
        }
        let memory = Arc::new(Memory::new(bytes));
        let (slot, generation) = self.claim_slot()?;
        self.registrar.push(Registration::Register {
            slot,
            generation,
            memory: Arc::clone(&memory),
        });
        let length = u32::try_from(bytes).expect("at most MAX_REGION");
        let whole = RegionRef { port: self.id, slot, generation, offset: 0, length };
        Ok(Region { memory, whole, registrar: Arc::clone(&self.registrar) })
    }

    fn claim_slot(&self) -> Result<(u16, u32), RegisterError> {
        let mut changes =
            self.registrar.changes.lock().expect("nothing panics while it holds this lock");
        let slot = match changes.free.pop() {
            Some(slot) => slot,
            None => {
                let slot =
                    u16::try_from(changes.generations.len()).map_err(|_| RegisterError::TooMany)?;
                changes.generations.push(self.registrar.first_generation);
                slot
            }
        };
        let generation = &mut changes.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1);
        Ok((slot, *generation))
    }

    /// Puts a command into the submission ring; the NIC looks when [`Port::ring`] is called.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] while as many commands as the port is deep are under way;
    /// [`PostError::Closed`] once the NIC has stopped.
    pub fn post(&mut self, command: &Command) -> Result<(), PostError> {
        if self.is_closed() {
            return Err(PostError::Closed);
        }
        if self.outstanding == self.depth || self.commands.push(&command.emit()).is_err() {
            return Err(PostError::QueueFull { depth: self.depth });
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Rings the doorbell: the NIC looks at what was posted.
    pub fn ring(&mut self) {
        self.registrar.bell.ring(self.id);
    }

    /// Posts one command and rings.
    ///
    /// # Errors
    /// Those of [`Port::post`].
    pub fn submit(&mut self, command: &Command) -> Result<(), PostError> {
        self.post(command)?;
        self.ring();
        Ok(())
    }

    /// The next completion, if there is one.
    #[must_use]
    pub fn poll(&mut self) -> Option<Completion> {
        let entry = self.completions.pop()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(Completion::parse(&entry))
    }

    /// The next completion, when there is one.
    ///
    /// # Errors
    /// [`PortClosed`] once the NIC has stopped and every completion is taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn completion(&mut self) -> Result<Completion, PortClosed> {
        poll_fn(|context| {
            if let Some(completion) = self.poll() {
                return Poll::Ready(Ok(completion));
            }
            self.registrar.waker.register(context.waker());
            // Whatever came before the waker was in place woke nobody.
            match self.poll() {
                Some(completion) => Poll::Ready(Ok(completion)),
                None if self.is_closed() => Poll::Ready(Err(PortClosed)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Whether the NIC has stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.registrar.closed.load(Ordering::Acquire)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.registrar.push(Registration::Close);
        self.registrar.bell.ring(self.id);
    }
}

impl NicPort {
    /// Takes note of what was registered and deregistered. `false` once the port is dropped.
    pub(crate) fn sync(&mut self) -> bool {
        // Rarely anything has: a load costs less than a swap.
        if self.registrar.changed.load(Ordering::Relaxed)
            && self.registrar.changed.swap(false, Ordering::AcqRel)
        {
            let pending = {
                let mut changes =
                    self.registrar.changes.lock().expect("nothing panics while it holds this lock");
                std::mem::take(&mut changes.pending)
            };
            for change in pending {
                match change {
                    Registration::Register { slot, generation, memory } => {
                        self.regions.insert(slot, generation, memory);
                    }
                    Registration::Deregister { slot, generation } => {
                        self.regions.remove(slot, generation);
                    }
                    Registration::Close => self.open = false,
                }
            }
        }
        self.open
    }

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

    /// Publishes a completion and wakes whoever waits for it. One for which no command was taken is
    /// an extension's mistake and nobody's: it would take another's place.
    pub(crate) fn complete(&mut self, completion: &Completion) {
        if self.publish(completion) {
            self.wake();
        }
    }

    /// Publishes a completion and wakes nobody; `false` if there was none to publish.
    pub(crate) fn publish(&mut self, completion: &Completion) -> bool {
        let Some(owed) = self.owed.checked_sub(1) else { return false };
        let published = self.completions.push(&completion.emit()).is_ok();
        if published {
            self.owed = owed;
        }
        published
    }

    /// Wakes whoever waits for a completion.
    pub(crate) fn wake(&self) {
        self.registrar.waker.wake();
    }
}

impl Drop for NicPort {
    fn drop(&mut self) {
        self.registrar.closed.store(true, Ordering::Release);
        self.registrar.waker.wake();
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

    pub(crate) fn at(&mut self, id: PortId) -> Option<&mut NicPort> {
        self.0.get_mut(id.index())?.as_mut()
    }

    /// Takes note of registrations; forgets a port that was dropped.
    pub(crate) fn sync(&mut self, id: PortId) {
        if self.at(id).is_some_and(|port| !port.sync() && !port.has_command()) {
            self.0[id.index()] = None;
        }
    }

    /// Wakes everybody who waits for a completion.
    pub(crate) fn wake_all(&self) {
        self.0.iter().flatten().for_each(NicPort::wake);
    }

    pub(crate) fn next_command(&mut self, id: PortId) -> Option<Command> {
        let port = self.at(id)?;
        let command = port.next_command();
        if command.is_none() {
            self.sync(id);
        }
        command
    }

    pub(crate) fn read(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.table(at)?.read(at)
    }

    pub(crate) fn check(&self, at: RegionRef, bytes: usize) -> Result<(), RegionError> {
        self.table(at)?.check(at, bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;
    impl Bell for Silent {
        fn ring(&self, _: PortId) {}
    }

    fn pair(depth: usize) -> (Port, Ports) {
        let (port, nic) = port(PortId(0), depth, Box::new(Silent));
        let mut ports = Ports::default();
        ports.insert(PortId(0), nic);
        (port, ports)
    }

    #[test]
    fn commands_and_completions_cross_unchanged() {
        let (mut port, mut ports) = pair(4);
        let command = Command {
            extension: ExtensionId(250),
            opcode: 251,
            flags: 65_000,
            node: NodeId(65_001),
            port: PortId(65_002),
            cookie: u64::MAX - 1,
            region: RegionRef {
                port: PortId(0),
                slot: 65_003,
                generation: u32::MAX - 2,
                offset: u32::MAX - 3,
                length: u32::MAX - 4,
            },
            args: [1, u64::MAX, 3],
        };
        port.submit(&command).unwrap();
        assert_eq!(ports.next_command(PortId(0)), Some(command));
        let completion = Completion {
            status: Status::Cancelled,
            opcode: 251,
            flags: 65_000,
            node: NodeId(65_001),
            port: PortId(65_002),
            cookie: u64::MAX - 1,
            length: u64::MAX,
            args: [1, 2, 3, u64::MAX],
        };
        let nic = ports.at(PortId(0)).unwrap();
        nic.complete(&completion);
        nic.complete(&completion);
        assert_eq!(port.poll(), Some(completion));
        assert_eq!(port.poll(), None, "one completion a command");
    }

    #[test]
    fn a_command_holds_its_completion_slot_until_it_is_taken() {
        let (mut port, mut ports) = pair(4);
        for _ in 0..4 {
            port.post(&Command::default()).unwrap();
        }
        assert_eq!(port.post(&Command::default()), Err(PostError::QueueFull { depth: 4 }));
        while ports.next_command(PortId(0)).is_some() {
            ports.at(PortId(0)).unwrap().complete(&Completion::default());
        }
        assert_eq!(port.post(&Command::default()), Err(PostError::QueueFull { depth: 4 }));
        assert!(port.poll().is_some());
        port.post(&Command::default()).unwrap();
    }

    #[test]
    fn a_region_lives_from_its_registration_to_its_drop() {
        let (mut port, mut ports) = pair(4);
        assert_eq!(port.register(0).unwrap_err(), RegisterError::Size(0));
        let region = port.register(16).unwrap();
        let handle = region.whole();
        ports.sync(PortId(0));
        ports.write(handle, Payload::from(&b"hello"[..])).unwrap();
        let mut bytes = [0; 5];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        drop(region);
        ports.sync(PortId(0));
        assert_eq!(ports.read(handle).unwrap_err(), RegionError::Stale);
        let again = port.register(16).unwrap();
        ports.sync(PortId(0));
        assert_eq!(again.whole().slot, handle.slot);
        assert_eq!(ports.read(handle).unwrap_err(), RegionError::Stale);
        ports.read(again.whole()).unwrap();
    }

    #[test]
    fn a_port_whose_nic_stops_says_so() {
        let (mut port, ports) = pair(4);
        drop(ports);
        assert!(port.is_closed());
        assert_eq!(port.post(&Command::default()), Err(PostError::Closed));
        assert_eq!(port.register(8).unwrap_err(), RegisterError::Closed);
    }

    #[test]
    fn a_dropped_port_is_forgotten() {
        let (port, mut ports) = pair(4);
        drop(port);
        ports.sync(PortId(0));
        assert!(ports.at(PortId(0)).is_none());
    }
}
