//! A daemon's hold on the interfaces of other processes: saves those of one that stands still, has the
//! NIC forget them, and puts them back there or on another NIC.
//!
//! Whoever preempts a job stops all its processes first, then [saves](Keeper::save) each, names the ends
//! of connections by rank ([`PortContext::with_peers`]), checks the cut
//! ([`check_cut`](crate::context::check_cut)) and has the NICs [forget](Keeper::forget) it. To put it back,
//! it [restores](Keeper::restore) every process's part, tells all of the other ends
//! ([`Keeper::join`]), and lets the processes go on. `midplane-gang` does that for a job.

mod refused;

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::port::{
    Command, Completion, Port, PortClosed, PortOptions, PostError, RegisterError, Status,
};
use midplane_simhw::region::Region;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::command::{FORGET, JOIN, RESTORE, SAVE, about};
use crate::context::{MemoryName, PortContext, Wrong};

pub use refused::Refused;

/// Bytes for a context, at first.
const SCRATCH: usize = 4096;
/// Times that a NIC is asked for a context before it counts as unsteady: what is yet to be counted is so
/// with the next turns.
const PATIENCE: u32 = 64;

/// One end of a connection, as NICs know it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct NicEnd {
    /// The node.
    pub node: NodeId,
    /// Which life of it.
    pub life: Incarnation,
    /// The NIC's number of the interface.
    pub vi: u16,
    /// The NIC's number of the connection, or of the interface's next one.
    pub connection: u16,
}

/// What a NIC has for one process.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SavedPort {
    /// The interfaces.
    pub context: PortContext<NicEnd>,
    /// What their NIC knows them by, in the same order.
    pub ends: Vec<NicEnd>,
}

/// The other end of a restored connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// What the process calls its interface.
    pub name: u16,
    /// The other end, as NICs know it now.
    pub end: NicEnd,
    /// The frame that the other end takes next: those before it are not sent again.
    pub taken: u32,
}

/// What the memory of a process is called, and what its NIC calls it now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct MappedMemory {
    /// As the process and its peers call it.
    pub name: MemoryName,
    /// As the NIC does.
    pub now: MemoryName,
    /// Its bytes.
    pub bytes: u32,
}

/// What a keeper hands to the NIC to restore.
#[derive(Debug, Deserialize)]
pub(crate) struct RestoreRequest {
    pub(crate) context: PortContext<()>,
    /// None keeps the names that the port has.
    pub(crate) memory: Option<Vec<MappedMemory>>,
}

/// Why a keeper could not do what it was asked to.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum KeepError {
    /// The keeper's port is not to be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC has no room for what is saved.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// The context contradicts itself; nothing was restored.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// The context is longer than a gigabyte.
    #[error("the context has more bytes than a NIC is handed: close interfaces first")]
    TooLong,
    /// A descriptor names memory that the process has not registered again, or too little of it;
    /// nothing was restored.
    #[error(
        "interface {vi}: a descriptor names bytes up to {end} of memory {memory:?}, and the process has registered {there} there"
    )]
    Unmapped {
        /// What the process calls the interface.
        vi: u16,
        /// What it calls the memory.
        memory: MemoryName,
        /// The first byte after what the descriptor names.
        end: u64,
        /// Bytes that there are; 0 where the memory is not there.
        there: u32,
    },
    /// The NIC refuses, and has changed nothing.
    #[error("the NIC refuses to {what}: {}{why}", Of(.vi))]
    Refused {
        /// What it was asked.
        what: &'static str,
        /// Why not.
        why: Refused,
        /// The interface that it is about, by the process's name of it.
        vi: Option<u16>,
    },
}

/// An interface that something is about.
struct Of<'a>(&'a Option<u16>);

impl std::fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |vi| write!(f, "interface {vi}: "))
    }
}

impl From<PostError> for KeepError {
    fn from(_: PostError) -> Self {
        Self::Closed(PortClosed)
    }
}

/// A daemon's hold on the interfaces of a NIC.
#[derive(Debug)]
pub struct Keeper {
    port: Port,
    scratch: Region,
}

impl Keeper {
    /// Opens the port that the NIC's [`ViaConfig::keeper`](crate::firmware::ViaConfig::keeper) names.
    ///
    /// # Errors
    /// [`KeepError::Open`] if somebody has it.
    pub fn open(host: &impl Host, number: PortId) -> Result<Self, KeepError> {
        let mut port = host.open_port_with(PortOptions::default().depth(4).number(number))?;
        let scratch = port.register(SCRATCH)?;
        Ok(Self { port, scratch })
    }

    async fn ask(
        &mut self,
        what: &'static str,
        command: Command,
        length: usize,
    ) -> Result<Completion, KeepError> {
        let region = self.scratch.range(0, length).unwrap_or_else(|| self.scratch.whole());
        self.port.submit(&Command { region, ..command })?;
        let completion = self.port.completion().await?;
        if completion.status == Status::Done {
            return Ok(completion);
        }
        let [code, vi, ..] = completion.args;
        let vi = u16::try_from(vi.wrapping_sub(1)).ok();
        Err(KeepError::Refused { what, why: Refused::of(code), vi })
    }

    /// Makes the scratch as large as that.
    fn reserve(&mut self, bytes: usize) -> Result<(), KeepError> {
        if bytes > self.scratch.len() {
            self.scratch = self.port.register(bytes.next_power_of_two())?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), KeepError> {
        self.reserve(bytes.len())?;
        self.scratch.write(0, bytes).expect("it was made large enough");
        Ok(())
    }

    /// What the NIC has for the process behind a port, which stands still. The NIC keeps it as well.
    ///
    /// # Errors
    /// [`KeepError::Refused`] says what can't be saved now.
    ///
    /// # Cancel safety
    /// None: the next order would take the answer for its own.
    pub async fn save(&mut self, port: PortId) -> Result<SavedPort, KeepError> {
        const WHAT: &str = "save a process's interfaces";
        let mut tries = 0;
        loop {
            let length = self.scratch.len();
            let answer = self.ask(WHAT, order(SAVE, port), length).await;
            match answer {
                Err(KeepError::Refused { why: Refused::Unsteady, .. }) if tries < PATIENCE => {
                    tries += 1;
                }
                Err(error) => return Err(error),
                Ok(completion) => {
                    let bytes = completion.args[0] as usize;
                    if bytes > length {
                        self.reserve(bytes)?;
                        continue;
                    }
                    let mut saved = vec![0; bytes];
                    self.scratch.read(0, &mut saved).map_err(|_| KeepError::TooLong)?;
                    let damaged =
                        KeepError::Refused { what: WHAT, why: Refused::Malformed, vi: None };
                    return wire::decode_long(&saved).map_err(|_| damaged);
                }
            }
        }
    }

    /// The NIC forgets what it has for the process behind a port, if that is still what was saved: only a
    /// restore makes the process's descriptors complete.
    ///
    /// # Errors
    /// [`Refused::Changed`] if it is not.
    ///
    /// # Cancel safety
    /// As [`Keeper::save`].
    pub async fn forget(&mut self, port: PortId, saved: &SavedPort) -> Result<(), KeepError> {
        let bytes = wire::encode_long(saved).map_err(|_| KeepError::TooLong)?;
        self.put(&bytes)?;
        self.ask("forget a process's interfaces", order(FORGET, port), bytes.len()).await?;
        Ok(())
    }

    /// The NIC forgets what was restored and not joined, as if it had not been restored.
    ///
    /// # Errors
    /// [`Refused::NotRestored`] if it was joined.
    ///
    /// # Cancel safety
    /// As [`Keeper::save`].
    pub async fn take_back(&mut self, port: PortId) -> Result<(), KeepError> {
        let forget = Command { args: [port.0.into(), 1, 0], ..order(FORGET, port) };
        self.ask("take back what was restored", forget, 0).await?;
        Ok(())
    }

    /// Puts interfaces back for the process behind a port, which stands still and has none. `memory` says
    /// where the process's memory is now ([`Nic::memory_map`](crate::nic::Nic::memory_map)); `None` if it is
    /// the process from whose port they were saved. What their NIC knows them by is returned, in order.
    /// They are not whole before [`Keeper::join`].
    ///
    /// # Errors
    /// [`KeepError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// As [`Keeper::save`].
    pub async fn restore<P: Clone>(
        &mut self,
        port: PortId,
        context: &PortContext<P>,
        memory: Option<&[MappedMemory]>,
    ) -> Result<Vec<NicEnd>, KeepError> {
        context.validate()?;
        if let Some(memory) = memory {
            check_memory(context, memory)?;
        }
        let nameless = context.clone().with_peers(|_, _| Ok::<_, KeepError>(()))?;
        let bytes = wire::encode_long(&(nameless, memory)).map_err(|_| KeepError::TooLong)?;
        self.put(&bytes)?;
        let what = "restore a process's interfaces";
        let answer = self.ask(what, order(RESTORE, port), bytes.len()).await?;
        let mut ends = vec![0; answer.args[0] as usize];
        let damaged = KeepError::Refused { what, why: Refused::Malformed, vi: None };
        self.scratch.read(0, &mut ends).map_err(|_| damaged)?;
        wire::decode_long(&ends).map_err(|_| damaged)
    }

    /// Tells restored interfaces of their other ends, of each that is connected.
    ///
    /// # Errors
    /// [`Refused::NotRestored`] if they are not those that were restored.
    ///
    /// # Cancel safety
    /// As [`Keeper::save`].
    pub async fn join(&mut self, port: PortId, ends: &[Joined]) -> Result<(), KeepError> {
        let bytes = wire::encode_long(&ends).map_err(|_| KeepError::TooLong)?;
        self.put(&bytes)?;
        self.ask("join restored interfaces", order(JOIN, port), bytes.len()).await?;
        Ok(())
    }
}

fn order(opcode: u8, port: PortId) -> Command {
    Command { args: [port.0.into(), 0, 0], ..about(PortId(0), opcode, 0) }
}

/// Whether all memory that a context names is there.
fn check_memory<P>(context: &PortContext<P>, memory: &[MappedMemory]) -> Result<(), KeepError> {
    for (vi, piece) in context.pieces() {
        let end = u64::from(piece.offset) + u64::from(piece.length);
        let there = memory.iter().find(|there| there.name == piece.memory);
        let there = there.map_or(0, |there| there.bytes);
        if end > there.into() {
            return Err(KeepError::Unmapped { vi, memory: piece.memory, end, there });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
