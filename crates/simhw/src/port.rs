//! A process's own way into its NIC: a submission ring, a completion ring, a doorbell, registered
//! memory.

mod bells;
mod command;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod far;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod ground;
mod nic;
mod numbers;
mod registrar;
#[cfg(target_os = "linux")]
mod words;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use thiserror::Error;

use crate::id::PortId;
use crate::live::looks::Looks;
use crate::region::{MAX_REGION, Region, RegionOptions, RegionRef};
use crate::ring::{Consumer, Producer, ring, ring_bytes};
use crate::segment::Segment;

pub use command::{Command, Completion, Status};
pub use numbers::WELL_KNOWN;

pub(crate) use bells::Bells;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub(crate) use far::{Arenas, Grant, far_port};
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub(crate) use ground::Lender;
pub(crate) use nic::{NicPort, Ports};
pub(crate) use numbers::{PortName, PortNumbers};
pub(crate) use registrar::{Bell, Registrar};
#[cfg(target_os = "linux")]
pub(crate) use words::Words;

/// Commands of a port that may be under way at once: two rings of 256 cache lines are 32 KiB.
pub const DEFAULT_DEPTH: usize = 256;
/// Most commands of a port that may be under way at once.
pub const MAX_DEPTH: usize = 65_536;
/// Most regions that one port may have registered at once.
pub const MAX_REGIONS: usize = 65_536;

/// What a port is opened with.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortOptions {
    pub(crate) depth: Option<usize>,
    pub(crate) number: Option<PortId>,
}

impl PortOptions {
    /// Commands that may be under way at once, from 1 to [`MAX_DEPTH`]; the next power of two is
    /// taken, and 2 at least. Default: what the fabric says, mostly [`DEFAULT_DEPTH`].
    #[must_use]
    pub const fn depth(mut self, commands: usize) -> Self {
        self.depth = Some(commands);
        self
    }

    /// The port's number, so that others can know it beforehand; those of [`WELL_KNOWN`] are given
    /// to nobody who did not ask. Default: the lowest that is free.
    #[must_use]
    pub const fn number(mut self, number: PortId) -> Self {
        self.number = Some(number);
        self
    }

    /// The depth that these mean, where the fabric's own is `default`.
    pub(crate) fn depth_or(&self, default: usize) -> usize {
        self.depth.unwrap_or(default)
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
    /// The process of the NIC lends no more memory, or the system has none.
    #[error("the NIC lends no region of {0} bytes; drop regions, or let it lend more")]
    NoMemory(usize),
    /// The NIC, in another process, has not taken note of earlier changes of registration: 768 at least.
    #[error("the NIC has not taken note of earlier registrations; try again in a moment")]
    Busy,
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
    /// How looking for a completion before waiting for it has paid.
    looks: Looks,
    commands: Producer,
    completions: Consumer,
    registrar: Arc<Registrar>,
}

/// A port and the NIC's end of it; `bell` is rung whenever the NIC should look.
pub(crate) fn port(name: PortName, depth: usize, bell: Box<dyn Bell>) -> (Port, NicPort) {
    let id = name.id;
    let depth = depth.max(2).next_power_of_two();
    // The consumer gives slots back a quarter of the ring late.
    let bytes = ring_bytes(depth * 2);
    let segment = Arc::new(Segment::private(2 * bytes));
    let (command_in, command_out) = ring(&segment, 0, depth * 2);
    let (completion_in, completion_out) = ring(&segment, bytes, depth * 2);
    let registrar = Arc::new(Registrar::new(name, bell));
    let port = Port {
        id,
        depth,
        outstanding: 0,
        looks: Looks::default(),
        commands: command_in,
        completions: completion_out,
        registrar: Arc::clone(&registrar),
    };
    let nic = NicPort::new(command_out, completion_in, registrar);
    (port, nic)
}

/// What the process of a NIC has given for a port of another process.
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub(crate) struct Loan {
    pub(crate) name: PortName,
    pub(crate) depth: usize,
    /// The segment of the port's rings.
    pub(crate) file: std::os::fd::OwnedFd,
    /// Wakes the NIC's process.
    pub(crate) channel: Arc<crate::passing::Socket>,
    pub(crate) spin_nanos: u32,
    pub(crate) lender: Box<dyn Lender>,
}

/// The application's end of a port whose NIC is in another process, one of a user that `admits`
/// admits. Somebody has to call the registrar's `wake` and `close` when that process does.
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
pub(crate) fn borrowed_port(
    loan: Loan,
    admits: impl Fn(u32) -> bool,
) -> Result<(Port, Arc<Registrar>), crate::segment::SegmentError> {
    let Loan { name, depth, file, channel, spin_nanos, lender } = loan;
    let (commands, completions, registrations, words) = far::open(&file, depth, admits)?;
    let bell = ground::FarBell { words: words.clone(), channel, spin_nanos };
    let ground = ground::Ground::new(words, registrations, lender);
    let registrar = Arc::new(Registrar::far(name, Box::new(bell), ground));
    let id = name.id;
    let (near, looks) = (Arc::clone(&registrar), Looks::default());
    Ok((
        Port { id, depth, outstanding: 0, looks, commands, completions, registrar: near },
        registrar,
    ))
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

    /// Registers `bytes` of zeroed memory that the NIC may read and write for this port's commands.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was hit.
    pub fn register(&mut self, bytes: usize) -> Result<Region, RegisterError> {
        self.register_with(bytes, RegionOptions::default())
    }

    /// Registers `bytes` of zeroed memory with rights and a protection tag.
    ///
    /// Where the NIC is in another process, that is asked for memory when what it has lent is taken: this blocks the
    /// thread until the answer comes, for 2 s at most.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was hit.
    pub fn register_with(
        &mut self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<Region, RegisterError> {
        if bytes == 0 || bytes > MAX_REGION {
            return Err(RegisterError::Size(bytes));
        }
        if self.is_closed() {
            return Err(RegisterError::Closed);
        }
        let (memory, slot, generation) = self.registrar.register(bytes, options)?;
        let length = u32::try_from(bytes).expect("at most MAX_REGION");
        let whole = RegionRef { port: self.id, slot, generation, offset: 0, length };
        Ok(Region {
            memory,
            whole,
            options,
            registrar: Arc::clone(&self.registrar),
            #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
            file: None,
        })
    }

    /// Registers `bytes` of zeroed memory that other processes may map: whoever has its
    /// [file](Region::file), as [`SharedMemory`](crate::region::SharedMemory). On Linux, for ports of a NIC in
    /// this process.
    ///
    /// # Errors
    /// [`RegisterError`] says which limit was hit; [`RegisterError::NoMemory`] also where the NIC is in
    /// another process, or the system is another one.
    pub fn register_shared(
        &mut self,
        bytes: usize,
        options: RegionOptions,
    ) -> Result<Region, RegisterError> {
        if bytes == 0 || bytes > MAX_REGION {
            return Err(RegisterError::Size(bytes));
        }
        if self.is_closed() {
            return Err(RegisterError::Closed);
        }
        self.share(bytes, options)?.ok_or(RegisterError::NoMemory(bytes))
    }

    #[cfg(not(all(target_os = "linux", not(all(test, midplane_loom)))))]
    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
    const fn share(&self, _: usize, _: RegionOptions) -> Result<Option<Region>, RegisterError> {
        Ok(None)
    }

    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    fn share(&self, bytes: usize, options: RegionOptions) -> Result<Option<Region>, RegisterError> {
        use crate::region::Memory;
        use crate::segment::{Kind, Segment};

        let Ok((segment, file)) = Segment::shared(Kind::Arena, bytes) else { return Ok(None) };
        let Some(memory) = Memory::within(Arc::new(segment), 0, bytes) else { return Ok(None) };
        let registered = self.registrar.register_own(memory.clone(), options)?;
        let Some((slot, generation)) = registered else { return Ok(None) };
        let length = u32::try_from(bytes).expect("at most MAX_REGION");
        let whole = RegionRef { port: self.id, slot, generation, offset: 0, length };
        let registrar = Arc::clone(&self.registrar);
        Ok(Some(Region { memory, whole, options, registrar, file: Some(Arc::new(file)) }))
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
        self.registrar.ring();
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
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.take() {
            return Some(completion);
        }
        self.registrar.progress();
        self.take()
    }

    /// The next completion, if it is there already: unlike [`Port::poll`], this gives a NIC that its
    /// applications run no turn. For whoever has polled and takes the rest.
    #[must_use]
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
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
            if let Some(completion) = self.look() {
                return Poll::Ready(Ok(completion));
            }
            self.registrar.wait(context.waker());
            self.registrar.rest();
            // Whatever came before the waker was in place woke nobody.
            match self.take() {
                Some(completion) => Poll::Ready(Ok(completion)),
                None if self.is_closed() => Poll::Ready(Err(PortClosed)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The next completion, when there is one; blocks the thread until then. Whatever runs the NIC
    /// must do so elsewhere: a runtime of other threads, or another process.
    ///
    /// # Errors
    /// [`PortClosed`] once the NIC has stopped and every completion is taken.
    pub fn wait(&mut self) -> Result<Completion, PortClosed> {
        pollster::block_on(self.completion())
    }

    /// Looks for a completion for as long as that has paid lately, within what the NIC allows.
    fn look(&mut self) -> Option<Completion> {
        let most = self.registrar.spin_nanos();
        let mut looks = std::mem::take(&mut self.looks);
        let found = self.poll().or_else(|| looks.look(most, || self.poll()));
        self.looks = looks;
        found
    }

    /// Whether the NIC has stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.registrar.is_closed()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.registrar.drop_port();
    }
}

#[cfg(test)]
mod tests;
