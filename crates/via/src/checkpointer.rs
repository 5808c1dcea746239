//! A daemon's access to the interfaces of other processes. It saves the interfaces of a suspended process,
//! removes them from the NIC, and restores them there or on another NIC.
//!
//! To preempt a job, a daemon first suspends all its processes. It then [saves](Checkpointer::save) each one's
//! interfaces, names the ends of connections by rank ([`PortContext::with_peers`]), checks the cut
//! ([`check_cut`](crate::context::check_cut)), and [removes](Checkpointer::forget) the interfaces from the NICs. To
//! put the job back, it [restores](Checkpointer::restore) every process's interfaces, [joins](Checkpointer::join) all
//! with their other ends, and resumes the processes. `midplane-gang` does that for a job.

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
use crate::context::{Inconsistency, MemoryName, PortContext};

pub use refused::Refused;

/// Bytes of the buffer for a context, at first.
const SCRATCH: usize = 4096;
/// Attempts to save a context before the NIC counts as unsteady. The NIC counts withdrawn descriptors in its
/// next turns.
const SAVE_ATTEMPTS: u32 = 64;

/// One end of a connection, by the NICs' numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct NicEnd {
    /// The node of the interface.
    pub node: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The NIC's number of the interface.
    pub vi: u16,
    /// The NIC's number of the connection, or of the interface's next one.
    pub connection: u16,
}

/// The NIC's half of a saved process.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SavedPort {
    /// The state of the process's interfaces.
    pub context: PortContext<NicEnd>,
    /// The NIC's numbers of the interfaces, in the same order.
    pub ends: Vec<NicEnd>,
}

/// The other end of a restored connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// The process's name of its interface.
    pub name: u16,
    /// The other end, by the NICs' present numbers.
    pub end: NicEnd,
    /// The frame that the other end accepts next: those before it are not sent again.
    pub taken: u32,
}

/// A region of a process's memory, by both its names: as the process knows it, and as its NIC does now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct MappedMemory {
    /// The name that the process and its peers use.
    pub name: MemoryName,
    /// The NIC's present name.
    pub now: MemoryName,
    /// Its length in bytes.
    pub bytes: u32,
}

/// A checkpointer's request to the NIC to restore interfaces.
#[derive(Debug, Deserialize)]
pub(crate) struct RestoreRequest {
    pub(crate) context: PortContext<()>,
    /// `None` keeps the names that the port has.
    pub(crate) memory: Option<Vec<MappedMemory>>,
}

/// The reason why a checkpointer's command failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum CheckpointerError {
    /// The checkpointer's port could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC has no room for the saved state.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// The context is inconsistent; nothing was restored.
    #[error(transparent)]
    Inconsistency(#[from] Inconsistency),
    /// The context is longer than a gigabyte.
    #[error("the context is longer than a NIC accepts: close interfaces first")]
    TooLong,
    /// A descriptor names memory that the process has not registered again, or not to that length; nothing was
    /// restored.
    #[error(
        "interface {vi}: a descriptor names bytes up to {end} of memory {memory:?}, and the process has registered {there} bytes of it"
    )]
    Unmapped {
        /// The process's name of the interface.
        vi: u16,
        /// The process's name of the memory.
        memory: MemoryName,
        /// The byte after the range that the descriptor names.
        end: u64,
        /// Bytes registered; 0 if the memory is not registered.
        there: u32,
    },
    /// The NIC refused, and has changed nothing.
    #[error("the NIC refuses to {what}: {}{why}", Of(.vi))]
    Refused {
        /// The command that it refused.
        what: &'static str,
        /// The reason for the refusal.
        why: Refused,
        /// The interface concerned, by the process's name of it.
        vi: Option<u16>,
    },
}

/// Formats the interface concerned, if there is one.
struct Of<'a>(&'a Option<u16>);

impl std::fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |vi| write!(f, "interface {vi}: "))
    }
}

impl From<PostError> for CheckpointerError {
    fn from(_: PostError) -> Self {
        Self::Closed(PortClosed)
    }
}

/// A daemon's access to the interfaces on a NIC.
#[derive(Debug)]
pub struct Checkpointer {
    port: Port,
    scratch: Region,
}

impl Checkpointer {
    /// Opens the port that the NIC's [`ViaConfig::checkpointer`](crate::firmware::ViaConfig::checkpointer) names.
    ///
    /// # Errors
    /// [`CheckpointerError::Open`] if another process has it open.
    pub fn open(host: &impl Host, number: PortId) -> Result<Self, CheckpointerError> {
        let mut port = host.open_port_with(PortOptions::default().depth(4).number(number))?;
        let scratch = port.register(SCRATCH)?;
        Ok(Self { port, scratch })
    }

    async fn call(
        &mut self,
        what: &'static str,
        command: Command,
        length: usize,
    ) -> Result<Completion, CheckpointerError> {
        let region = self.scratch.range(0, length).unwrap_or_else(|| self.scratch.whole());
        self.port.submit(&Command { region, ..command })?;
        let completion = self.port.completion().await?;
        if completion.status == Status::Done {
            return Ok(completion);
        }
        let [code, vi, ..] = completion.args;
        let vi = u16::try_from(vi.wrapping_sub(1)).ok();
        Err(CheckpointerError::Refused { what, why: Refused::of(code), vi })
    }

    /// Enlarges the scratch region to at least `bytes`.
    fn reserve(&mut self, bytes: usize) -> Result<(), CheckpointerError> {
        if bytes > self.scratch.len() {
            self.scratch = self.port.register(bytes.next_power_of_two())?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointerError> {
        self.reserve(bytes.len())?;
        self.scratch.write(0, bytes).expect("the scratch region was enlarged before");
        Ok(())
    }

    /// Saves the NIC's half of the process behind a port, which must be suspended. The NIC keeps the interfaces. All
    /// frames that the saved state counts as accepted are then in the process's memory, because a NIC answers after all
    /// its earlier writes.
    ///
    /// # Errors
    /// [`CheckpointerError::Refused`] says what can't be saved now.
    ///
    /// # Cancel safety
    /// None: if dropped, the next command would take this one's answer for its own.
    pub async fn save(&mut self, port: PortId) -> Result<SavedPort, CheckpointerError> {
        const WHAT: &str = "save a process's interfaces";
        let mut tries = 0;
        loop {
            let length = self.scratch.len();
            let answer = self.call(WHAT, order(SAVE, port), length).await;
            match answer {
                Err(CheckpointerError::Refused { why: Refused::Unsteady, .. })
                    if tries < SAVE_ATTEMPTS =>
                {
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
                    self.scratch.read(0, &mut saved).map_err(|_| CheckpointerError::TooLong)?;
                    let damaged = CheckpointerError::Refused {
                        what: WHAT,
                        why: Refused::Malformed,
                        vi: None,
                    };
                    return wire::decode_long(&saved).map_err(|_| damaged);
                }
            }
        }
    }

    /// Removes a process's interfaces from the NIC, if they are still as they were saved. The process's
    /// descriptors then complete only after a restore.
    ///
    /// # Errors
    /// [`Refused::Changed`] if they have changed.
    ///
    /// # Cancel safety
    /// As [`Checkpointer::save`].
    pub async fn forget(
        &mut self,
        port: PortId,
        saved: &SavedPort,
    ) -> Result<(), CheckpointerError> {
        let bytes = wire::encode_long(saved).map_err(|_| CheckpointerError::TooLong)?;
        self.put(&bytes)?;
        self.call("forget a process's interfaces", order(FORGET, port), bytes.len()).await?;
        Ok(())
    }

    /// Removes interfaces that were restored and not joined, as if they had not been restored.
    ///
    /// # Errors
    /// [`Refused::NotRestored`] if they were joined.
    ///
    /// # Cancel safety
    /// As [`Checkpointer::save`].
    pub async fn discard_restored(&mut self, port: PortId) -> Result<(), CheckpointerError> {
        let forget = Command { args: [port.0.into(), 1, 0], ..order(FORGET, port) };
        self.call("discard restored interfaces", forget, 0).await?;
        Ok(())
    }

    /// Restores interfaces for the process behind a port, which must be suspended and have none. `memory` says where
    /// the process's memory is now ([`Nic::memory_map`](crate::nic::Nic::memory_map)); it is `None` if the interfaces
    /// were saved from this very port. Returns the NIC's numbers of the interfaces, in order. They are usable only
    /// after [`Checkpointer::join`].
    ///
    /// # Errors
    /// [`CheckpointerError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// As [`Checkpointer::save`].
    pub async fn restore<P: Clone>(
        &mut self,
        port: PortId,
        context: &PortContext<P>,
        memory: Option<&[MappedMemory]>,
    ) -> Result<Vec<NicEnd>, CheckpointerError> {
        context.validate()?;
        if let Some(memory) = memory {
            check_memory(context, memory)?;
        }
        let nameless = context.clone().with_peers(|_, _| Ok::<_, CheckpointerError>(()))?;
        let bytes =
            wire::encode_long(&(nameless, memory)).map_err(|_| CheckpointerError::TooLong)?;
        self.put(&bytes)?;
        let what = "restore a process's interfaces";
        let answer = self.call(what, order(RESTORE, port), bytes.len()).await?;
        let mut ends = vec![0; answer.args[0] as usize];
        let damaged = CheckpointerError::Refused { what, why: Refused::Malformed, vi: None };
        self.scratch.read(0, &mut ends).map_err(|_| damaged)?;
        wire::decode_long(&ends).map_err(|_| damaged)
    }

    /// Connects restored interfaces with their other ends; `ends` has an entry for each connected one.
    ///
    /// # Errors
    /// [`Refused::NotRestored`] if they are not those that were restored.
    ///
    /// # Cancel safety
    /// As [`Checkpointer::save`].
    pub async fn join(&mut self, port: PortId, ends: &[Joined]) -> Result<(), CheckpointerError> {
        let bytes = wire::encode_long(&ends).map_err(|_| CheckpointerError::TooLong)?;
        self.put(&bytes)?;
        self.call("join restored interfaces", order(JOIN, port), bytes.len()).await?;
        Ok(())
    }
}

fn order(opcode: u8, port: PortId) -> Command {
    Command { args: [port.0.into(), 0, 0], ..about(PortId(0), opcode, 0) }
}

/// Checks that all memory that a context names is registered.
fn check_memory<P>(
    context: &PortContext<P>,
    memory: &[MappedMemory],
) -> Result<(), CheckpointerError> {
    for (vi, piece) in context.pieces() {
        let end = u64::from(piece.offset) + u64::from(piece.length);
        let there = memory.iter().find(|there| there.name == piece.memory);
        let there = there.map_or(0, |there| there.bytes);
        if end > there.into() {
            return Err(CheckpointerError::Unmapped { vi, memory: piece.memory, end, there });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
