//! A process's access to its NIC: a submission ring, a completion ring, a doorbell, registered memory.

mod bells;
mod command;
#[cfg(target_os = "linux")]
mod control_block;
#[cfg(target_os = "linux")]
mod far;
mod gate;
mod nic;
mod numbers;
#[cfg(target_os = "linux")]
mod remote_allocator;
mod shared;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use thiserror::Error;

use crate::id::PortId;
use crate::live::adaptive_spin::AdaptiveSpin;
use crate::region::{MAX_REGION, Region, RegionOptions, RegionRef};
use crate::ring::{Consumer, Producer, ring, ring_bytes};
use crate::segment::Segment;

pub use command::{Command, Completion, Status};
pub use gate::HostGate;
pub use numbers::WELL_KNOWN;

pub(crate) use bells::Bells;
#[cfg(target_os = "linux")]
pub(crate) use control_block::PortControlBlock;
#[cfg(target_os = "linux")]
pub(crate) use far::{Arenas, Grant, far_port};
pub(crate) use gate::{GATE_BYTES, NicGate, gate};
pub(crate) use nic::{NicPort, Ports};
pub(crate) use numbers::{PortName, PortNumbers};
#[cfg(target_os = "linux")]
pub(crate) use remote_allocator::ArenaSource;
pub(crate) use shared::{Bell, PortShared};

/// Default number of commands that a port may have in flight: two rings of 256 cache lines are 32 KiB.
pub(crate) const DEFAULT_DEPTH: usize = 256;
/// Most commands that a port may have in flight.
pub const MAX_DEPTH: usize = 65_536;
/// Most regions that one port may have registered at once.
#[doc(hidden)]
pub const MAX_REGIONS: usize = 65_536;

/// Options for opening a port.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortOptions {
    pub(crate) depth: Option<usize>,
    pub(crate) number: Option<PortId>,
}

impl PortOptions {
    /// Sets how many commands may be in flight, from 1 to [`MAX_DEPTH`]; rounded up to a power of two, at least
    /// 2. Default: the fabric's depth, mostly 256.
    #[must_use]
    pub const fn depth(mut self, commands: usize) -> Self {
        self.depth = Some(commands);
        self
    }

    /// Sets the port's number, so that peers can know it beforehand. Numbers in [`WELL_KNOWN`] are given only
    /// to ports that ask for them. Default: the lowest free number.
    #[must_use]
    pub const fn number(mut self, number: PortId) -> Self {
        self.number = Some(number);
        self
    }

    /// Returns the depth, or `default`, the fabric's own, if none is set.
    pub(crate) fn depth_or(&self, default: usize) -> usize {
        self.depth.unwrap_or(default)
    }
}

/// The reason why memory was not registered.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The size is not 1 to [`MAX_REGION`] bytes.
    #[error("a region has 1 to {MAX_REGION} bytes, not {0}")]
    Size(usize),
    /// The port has its most regions; drop one first.
    #[error("the port has {MAX_REGIONS} regions already")]
    TooMany,
    /// The NIC's process refuses more memory, or the system has none.
    #[error("the NIC's process gives no region of {0} bytes; drop regions, or raise its limit")]
    NoMemory(usize),
    /// The NIC, in another process, has yet to process earlier registrations: at least 768.
    #[error("the NIC has yet to process earlier registrations; try again in a moment")]
    Busy,
    /// The NIC has stopped, or its process has not answered in time and the port closes.
    #[error("the NIC behind the port has stopped, or its process has not answered in time")]
    Closed,
}

/// The reason why a command was not posted.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// The port has its most commands in flight; take a completion first.
    #[error("{depth} commands are in flight already; take a completion first")]
    QueueFull {
        /// Most commands in flight.
        depth: usize,
    },
    /// The NIC has stopped.
    #[error("the NIC behind the port has stopped")]
    Closed,
}

/// The error of a port whose NIC has stopped; no further command completes.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the NIC behind the port has stopped")]
pub struct PortClosed;

/// A process's access to its NIC. It is exclusive, and its rings need no lock.
///
/// A posted command reserves a slot of the completion ring until its completion is taken. A completion
/// therefore always has space.
#[derive(Debug)]
pub struct Port {
    id: PortId,
    depth: usize,
    outstanding: usize,
    /// Adapts how long to busy-poll for a completion before parking.
    spin_state: AdaptiveSpin,
    commands: Producer,
    completions: Consumer,
    /// The port's gate, until the host takes it.
    gate: Option<HostGate>,
    shared: Arc<PortShared>,
}

/// Creates a port and the NIC's end of it. `bell` is rung whenever the NIC must poll the port.
pub(crate) fn port(name: PortName, depth: usize, bell: Box<dyn Bell>) -> (Port, NicPort) {
    let id = name.id;
    let depth = depth.max(2).next_power_of_two();
    // The consumer returns slots late, by up to a quarter of the ring.
    let bytes = ring_bytes(depth * 2);
    let segment = Arc::new(Segment::private(2 * bytes + GATE_BYTES));
    let (host_gate, nic_gate) = gate(&segment, 2 * bytes);
    let (command_in, command_out) = ring(&segment, 0, depth * 2);
    let (completion_in, completion_out) = ring(&segment, bytes, depth * 2);
    let shared = Arc::new(PortShared::new(name, bell));
    let port = Port {
        id,
        depth,
        outstanding: 0,
        spin_state: AdaptiveSpin::default(),
        commands: command_in,
        completions: completion_out,
        gate: Some(host_gate),
        shared: Arc::clone(&shared),
    };
    let nic = NicPort::new(command_out, completion_in, nic_gate, shared);
    (port, nic)
}

/// Parts of a port that the NIC's process passes to the process that opens it.
#[cfg(target_os = "linux")]
pub(crate) struct PortParts {
    pub(crate) name: PortName,
    pub(crate) depth: usize,
    /// Segment of the port's rings.
    pub(crate) file: std::os::fd::OwnedFd,
    /// Wakes the NIC's process.
    pub(crate) channel: Arc<crate::passing::Socket>,
    pub(crate) spin_nanos: u32,
    pub(crate) source: Box<dyn ArenaSource>,
}

/// Creates the application's end of a port whose NIC runs in a process of an admitted user. The caller must
/// call `wake` and `close` of the returned value when that process sends a wake-up or closes.
#[cfg(target_os = "linux")]
pub(crate) fn remote_port(
    parts: PortParts,
    admits: impl Fn(u32) -> bool,
) -> Result<(Port, Arc<PortShared>), crate::segment::SegmentError> {
    let PortParts { name, depth, file, channel, spin_nanos, source } = parts;
    let (commands, completions, registrations, words) = far::open(&file, depth, admits)?;
    let bell = remote_allocator::FarBell { words: words.clone(), channel, spin_nanos };
    let remote = remote_allocator::RemoteAllocator::new(words, registrations, source);
    let shared = Arc::new(PortShared::far(name, Box::new(bell), remote));
    let id = name.id;
    let (local, spin_state) = (Arc::clone(&shared), AdaptiveSpin::default());
    let (gate, outstanding) = (None, 0);
    Ok((
        Port { id, depth, outstanding, spin_state, commands, completions, gate, shared: local },
        shared,
    ))
}

impl Port {
    /// Returns the port's number on its NIC.
    #[must_use]
    pub const fn id(&self) -> PortId {
        self.id
    }

    /// Returns how many commands may be in flight.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of commands in flight: posted, and their completions not yet taken.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes the port's gate, by which the NIC controls whether this process may write to other processes itself.
    /// Returns `None` if it was taken before, or if the NIC is in another process.
    #[doc(hidden)]
    pub const fn take_gate(&mut self) -> Option<HostGate> {
        self.gate.take()
    }

    /// Registers `bytes` of zeroed memory that the NIC may read and write for this port's commands. In virtual time the
    /// host is charged for it ([`HostProfile::pin`](crate::profile::HostProfile::pin)).
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was reached.
    pub fn register(&mut self, bytes: usize) -> Result<Region, RegisterError> {
        self.register_with(bytes, RegionOptions::default())
    }

    /// Registers `bytes` of zeroed memory with rights and a protection tag.
    ///
    /// If the NIC is in another process and its granted memory is used up, requests more from that process. This
    /// blocks the thread until the answer arrives, for 2 s at most. If there is no answer by then, the port closes.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was reached; [`RegisterError::Closed`] also if the port closes because of a
    /// late answer.
    pub fn register_with(
        &mut self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<Region, RegisterError> {
        self.check(bytes)?;
        let (memory, slot, generation) = self.shared.register(bytes, options)?;
        self.shared.on_registered(bytes);
        let length = u32::try_from(bytes).expect("at most MAX_REGION");
        let whole = RegionRef { port: self.id, slot, generation, offset: 0, length };
        Ok(Region {
            memory,
            whole,
            options,
            shared: Arc::clone(&self.shared),
            #[cfg(target_os = "linux")]
            file: None,
        })
    }

    /// Registers `bytes` of zeroed memory that other processes may map: a process that has its
    /// [file](Region::file) maps it as [`SharedMemory`](crate::region::SharedMemory). Works on Linux, for ports
    /// of a NIC in this process.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was reached. [`RegisterError::NoMemory`] also if the NIC is in
    /// another process, or the system is not Linux.
    #[doc(hidden)]
    pub fn register_shared(
        &mut self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<Region, RegisterError> {
        self.check(bytes)?;
        self.share(bytes, options)?.ok_or(RegisterError::NoMemory(bytes))
    }

    /// Checks that memory of this length can be registered.
    fn check(&self, bytes: usize) -> Result<(), RegisterError> {
        match bytes {
            1..=MAX_REGION if self.is_closed() => Err(RegisterError::Closed),
            1..=MAX_REGION => Ok(()),
            _ => Err(RegisterError::Size(bytes)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
    const fn share(&self, _: usize, _: RegionOptions) -> Result<Option<Region>, RegisterError> {
        Ok(None)
    }

    #[cfg(target_os = "linux")]
    fn share(&self, bytes: usize, options: RegionOptions) -> Result<Option<Region>, RegisterError> {
        use crate::region::Memory;
        use crate::segment::{Kind, Segment};

        let Ok((segment, file)) = Segment::shared(Kind::Arena, bytes) else { return Ok(None) };
        let Some(memory) = Memory::within(Arc::new(segment), 0, bytes) else { return Ok(None) };
        let registered = self.shared.register_own(memory.clone(), options)?;
        let Some((slot, generation)) = registered else { return Ok(None) };
        self.shared.on_registered(bytes);
        let length = u32::try_from(bytes).expect("at most MAX_REGION");
        let whole = RegionRef { port: self.id, slot, generation, offset: 0, length };
        let shared = Arc::clone(&self.shared);
        Ok(Some(Region { memory, whole, options, shared, file: Some(Arc::new(file)) }))
    }

    /// Puts a command into the submission ring. The NIC takes it after [`Port::ring`], or when a data frame for this
    /// port arrives: receive buffers need no doorbell.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] while as many commands as the port is deep are in flight; [`PostError::Closed`]
    /// once the NIC has stopped.
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

    /// Rings the doorbell: the NIC takes the posted commands.
    pub fn ring(&mut self) {
        self.shared.ring();
    }

    /// Posts one command and rings the doorbell.
    ///
    /// # Errors
    /// Those of [`Port::post`].
    pub fn submit(&mut self, command: &Command) -> Result<(), PostError> {
        self.post(command)?;
        self.ring();
        Ok(())
    }

    /// Takes the next completion, if there is one. A NIC that runs on its applications' tasks takes a turn
    /// here.
    #[must_use]
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.take() {
            return Some(completion);
        }
        self.shared.progress();
        self.take()
    }

    /// Takes the next completion, if it is in the ring already. Unlike [`Port::poll`], gives no turn to a NIC
    /// that runs on its applications' tasks. Use it after `poll` to take the rest.
    #[must_use]
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        let entry = self.completions.pop()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(Completion::parse(&entry))
    }

    /// Waits for the next completion and takes it.
    ///
    /// # Errors
    /// [`PortClosed`] once the NIC has stopped and every completion is taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses no completion.
    pub async fn completion(&mut self) -> Result<Completion, PortClosed> {
        loop {
            if let Some(completion) =
                poll_fn(|context| self.poll_completion(context, || false)).await?
            {
                return Ok(completion);
            }
        }
    }

    /// Takes the next completion, or wakes the task of `context` when there is one. Before it parks, it busy-polls for
    /// a completion and for `is_ready`, and returns `None` once that is true. `is_ready` is for callers that also poll
    /// shared memory.
    ///
    /// # Errors
    /// [`PortClosed`] once the NIC has stopped and every completion is taken.
    #[doc(hidden)]
    pub fn poll_completion(
        &mut self,
        context: &mut Context<'_>,
        is_ready: impl FnMut() -> bool,
    ) -> Poll<Result<Option<Completion>, PortClosed>> {
        if let Some(found) = self.spin(is_ready) {
            return Poll::Ready(Ok(found));
        }
        self.shared.wait(context.waker());
        self.shared.rest();
        // A completion that arrived before the waker was registered has woken no task.
        if let Some(completion) = self.take() {
            return Poll::Ready(Ok(Some(completion)));
        }
        if !self.is_closed() {
            return Poll::Pending;
        }
        // The NIC may have completed commands between the two.
        Poll::Ready(self.take().map(Some).ok_or(PortClosed))
    }

    /// Waits for the next completion and takes it; blocks the thread. The NIC must run elsewhere: on a runtime
    /// with other threads, or in another process.
    ///
    /// # Errors
    /// [`PortClosed`] once the NIC has stopped and every completion is taken.
    pub fn wait(&mut self) -> Result<Completion, PortClosed> {
        pollster::block_on(self.completion())
    }

    /// Busy-polls for a completion or readiness, for an adaptive time up to the NIC's limit.
    fn spin(&mut self, mut is_ready: impl FnMut() -> bool) -> Option<Option<Completion>> {
        let most = self.shared.spin_nanos();
        let mut spin = std::mem::take(&mut self.spin_state);
        let mut find = || match self.poll() {
            None => is_ready().then_some(None),
            completion => Some(completion),
        };
        let found = find().or_else(|| spin.spin(most, find));
        self.spin_state = spin;
        found
    }

    /// Returns whether the NIC has stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.drop_port();
    }
}

#[cfg(test)]
mod tests;
