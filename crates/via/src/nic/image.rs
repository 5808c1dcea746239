//! The host's half of a saved process, as data: its interfaces and their queues, saved at the same stop as the
//! NIC's half ([`PortContext`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use midplane_simhw::host::Host;
use midplane_simhw::port::PortOptions;
use midplane_simhw::region::{ProtectionTag, Rights};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::posted::{End, cookie, number};
use super::queues::{Queues, WorkQueue};
use super::{Nic, NicError, ViId};
use crate::attributes::{ViAttributes, ViState};
use crate::checkpointer::MappedMemory;
use crate::command::{AWAIT, QUERY_NIC, about};
use crate::context::{MemoryName, Piece, PortContext};
use crate::descriptor::{Descriptor, Fields, Transfer};
use crate::memory::{Memory, MemoryOptions, RemoteMemory};
use crate::outcome::AsyncError;

/// The host's half of a saved process. The bytes of its memory are not in it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct NicContext {
    /// Its memory, in the order of registration.
    pub memory: Vec<HeldMemory>,
    vis: Vec<HeldVi>,
    queues: Vec<Vec<(ViId, WorkQueue)>>,
    errors: Vec<(ViId, AsyncError)>,
    next_tag: u32,
    next_serial: u32,
}

/// A region of registered memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct HeldMemory {
    /// The name that the process and its peers use.
    pub name: MemoryName,
    /// Its length in bytes.
    pub bytes: u32,
    /// The tag of the interfaces that may use it.
    pub tag: ProtectionTag,
    /// True if the other ends of those interfaces may write it.
    pub rdma_write: bool,
    /// True if the other ends of those interfaces may read it.
    pub rdma_read: bool,
}

#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct HeldVi {
    id: ViId,
    attributes: ViAttributes,
    state: ViState,
    told: [Option<usize>; 2],
    posted: [Vec<HeldDescriptor>; 2],
}

/// A descriptor that the application has not taken back yet.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct HeldDescriptor {
    cookie: u64,
    pieces: Vec<Piece>,
    transfer: HeldTransfer,
    immediate: Option<u32>,
    fence: bool,
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
enum HeldTransfer {
    Send,
    Write(RemoteMemory),
    Read(RemoteMemory),
}

/// Why the host's half was not saved.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum NicSaveError {
    /// A command is under way, or its completion was not taken.
    #[error("a command is under way: wait for its completion, and take it, first")]
    Busy,
    /// Messages of the process bypassed the NIC when it was suspended.
    #[error("messages bypass the NIC: shut the gate of NICs whose processes move to others")]
    Lent,
}

/// Why the host's half was not restored.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum NicRestoreError {
    /// The NIC refused what the restore needs.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The context is inconsistent.
    #[error("the context contradicts itself: {0}")]
    Malformed(&'static str),
}

impl Nic {
    /// Saves the host's half of a process that is [suspended](crate::checkpointer), after its NIC has saved the other
    /// half.
    ///
    /// # Errors
    /// [`NicSaveError`]; nothing has changed then.
    #[doc(hidden)]
    pub fn save(&mut self) -> Result<NicContext, NicSaveError> {
        if self.holds_queues() {
            return Err(NicSaveError::Lent);
        }
        while let Some(completion) = self.port.take() {
            self.on_completion(&completion);
        }
        if !self.operations.is_empty() {
            return Err(NicSaveError::Busy);
        }
        let vis = self.queues.iter().map(|queues| HeldVi {
            id: queues.id,
            attributes: queues.attributes,
            state: queues.state,
            told: queues.cqs.map(|cq| cq.map(|cq| cq.0)),
            posted: [WorkQueue::Send, WorkQueue::Receive].map(|queue| {
                let posted = queues.posted[queue as usize].iter();
                posted
                    .map(|(at, it, end)| held(cookie(queues.id.number, queue, at), it, end))
                    .collect()
            }),
        });
        let vis = vis.collect();
        let memory = self.memories.iter().filter_map(|(name, region)| {
            let region = region.upgrade()?;
            Some(HeldMemory {
                name: *name,
                bytes: region.len() as u32,
                tag: region.tag(),
                rdma_write: region.rights().contains(Rights::REMOTE_WRITE),
                rdma_read: region.rights().contains(Rights::REMOTE_READ),
            })
        });
        Ok(NicContext {
            memory: memory.collect(),
            vis,
            queues: self
                .queues
                .completion_queues()
                .map(|queue| queue.iter().copied().collect())
                .collect(),
            errors: self.errors.iter().copied().collect(),
            next_tag: self.next_tag,
            next_serial: self.next_serial,
        })
    }

    /// Opens a NIC for a process that was saved elsewhere, and registers its memory again, in the same order and sizes.
    /// The caller fills that memory. `taken` is the half that the former NIC saved of the same process. All names stay
    /// valid: [`ViId`]s, completion queues, and [`RemoteMemory`] that other processes have.
    ///
    /// Then stop the port; have a [`Checkpointer`](crate::checkpointer::Checkpointer) restore `taken` with
    /// [`Nic::memory_map`]; resume the port; and call [`Nic::post_untaken`] before anything else.
    ///
    /// # Errors
    /// [`NicRestoreError`].
    ///
    /// # Cancel safety
    /// If dropped, the port is closed.
    #[doc(hidden)]
    pub async fn restore<P>(
        host: &impl Host,
        options: PortOptions,
        saved: &NicContext,
        taken: &PortContext<P>,
    ) -> Result<(Self, Vec<Memory>), NicRestoreError> {
        let mut nic = Self::open(host, options).await?;
        let mut memory = Vec::new();
        for held in &saved.memory {
            let HeldMemory { name, bytes, tag, rdma_write, rdma_read } = *held;
            let options = MemoryOptions { tag, rdma_write, rdma_read };
            memory.push(nic.register_as(bytes as usize, options, Some(name))?);
        }
        nic.restored = saved.memory.iter().map(|held| held.name).collect();
        if nic.restored.len() != memory.len() {
            return Err(NicRestoreError::Malformed("two regions have one name"));
        }
        let taken: BTreeSet<u64> = taken.cookies().collect();
        nic.adopt(saved, &memory, &taken)?;
        let unended = saved.vis.iter().flat_map(|vi| {
            let of_queue = |queue: WorkQueue| {
                let posted = vi.posted[queue as usize].iter();
                posted.filter(|held| held.ended.is_none()).map(move |it| (vi.id, it.cookie))
            };
            of_queue(WorkQueue::Send).chain(of_queue(WorkQueue::Receive))
        });
        for (vi, cookie) in unended {
            if taken.contains(&cookie) {
                nic.port.submit(&about(vi.number, AWAIT, cookie)).map_err(NicError::from)?;
            }
        }
        // Once this completes, the NIC has received the commands before it.
        nic.call(about(midplane_simhw::id::PortId(0), QUERY_NIC, 0)).await?;
        Ok((nic, memory))
    }

    /// Restores the interfaces and the descriptors posted to them.
    fn adopt(
        &mut self,
        saved: &NicContext,
        memory: &[Memory],
        taken: &BTreeSet<u64>,
    ) -> Result<(), NicRestoreError> {
        let wrong = NicRestoreError::Malformed;
        let mut queues = Queues::default();
        for told in &saved.queues {
            queues.restore_cq(told);
        }
        for vi in &saved.vis {
            if queues.id(vi.id.number).is_some() {
                return Err(wrong("an interface is there twice"));
            }
            let told = vi.told.map(|told| told.map(super::CqId));
            if told.iter().flatten().any(|cq| cq.0 >= saved.queues.len()) {
                return Err(wrong("an interface reports to a completion queue that is not there"));
            }
            queues.insert(vi.id, vi.attributes, told);
            queues.set_state(vi.id, vi.state);
            self.add_path(vi.id, vi.attributes);
            for queue in [WorkQueue::Send, WorkQueue::Receive] {
                for held in &vi.posted[queue as usize] {
                    let descriptor = held.descriptor(memory, &saved.memory);
                    let descriptor =
                        descriptor.ok_or_else(|| wrong("a descriptor lies outside its memory"))?;
                    let at = number(held.cookie);
                    let is_its_own = held.cookie == cookie(vi.id.number, queue, at);
                    let place = &mut queues.of(vi.id)?.posted[queue as usize];
                    let is_kept = !taken.contains(&held.cookie);
                    if !is_its_own || !place.restore(at, descriptor, held.ended, is_kept) {
                        return Err(wrong("a descriptor's cookie is not one that there is"));
                    }
                    queues.unended += usize::from(held.ended.is_none());
                }
            }
        }
        self.queues = queues;
        self.errors = saved.errors.iter().copied().collect();
        (self.next_tag, self.next_serial) = (saved.next_tag, saved.next_serial);
        Ok(())
    }

    /// Posts the descriptors that the former NIC did not have when the process was stopped. A restored process calls
    /// this before anything else.
    ///
    /// # Errors
    /// [`NicError::QueueFull`], [`NicError::Closed`]: the next call posts the rest.
    #[doc(hidden)]
    pub fn post_untaken(&mut self) -> Result<(), NicError> {
        let vis: Vec<ViId> = self.queues.iter().map(|queues| queues.id).collect();
        for vi in vis {
            for queue in [WorkQueue::Send, WorkQueue::Receive] {
                let kept = self.queues.posted(vi.number, queue).and_then(|it| it.first_kept());
                let Some(first) = kept else { continue };
                self.post_from(vi, queue, first).map_err(|(_, error)| error)?;
            }
        }
        self.ring();
        Ok(())
    }

    /// Returns the names of this process's memory, for the process and for the NIC. A checkpointer restores the NIC's
    /// half from them.
    #[must_use]
    #[doc(hidden)]
    pub fn memory_map(&self) -> Vec<MappedMemory> {
        let mapped = self.memories.iter().filter_map(|(name, region)| {
            let region = region.upgrade()?;
            let now = region.whole().into();
            Some(MappedMemory { name: *name, now, bytes: region.len() as u32 })
        });
        mapped.collect()
    }

    /// Registers memory, under the given name or under its own.
    pub(super) fn register_as(
        &mut self,
        bytes: usize,
        options: MemoryOptions,
        name: Option<MemoryName>,
    ) -> Result<Memory, NicError> {
        let registered = midplane_simhw::region::RegionOptions::default()
            .tag(options.tag)
            .rights(options.rights());
        let exposed = if name.is_none() { self.register_exposed(bytes, options) } else { None };
        let mut is_exposed = exposed.is_some();
        let mut region = match exposed {
            Some(region) => region,
            None => self.port.register_with(bytes, registered)?,
        };
        // Peers use the former names of restored memory: no other memory may get such a name.
        while name.is_none() && self.restored.contains(&region.whole().into()) {
            drop(region);
            region = self.port.register_with(bytes, registered)?;
            is_exposed = false;
        }
        let name = name.unwrap_or_else(|| region.whole().into());
        let memory = Memory::new(region, name);
        if self.memories.len() == self.memories.capacity() {
            self.memories.retain(|(_, region)| region.strong_count() > 0);
        }
        self.memories.push((name, Arc::downgrade(memory.region())));
        if is_exposed {
            self.expose(&memory);
        }
        Ok(memory)
    }
}

fn held(cookie: u64, descriptor: &Descriptor, ended: Option<End>) -> HeldDescriptor {
    let pieces = descriptor.segments.iter().map(|segment| Piece {
        memory: segment.memory().name(),
        offset: segment.offset() as u32,
        length: segment.len() as u32,
    });
    HeldDescriptor {
        cookie,
        pieces: pieces.collect(),
        transfer: match descriptor.transfer {
            Transfer::Send => HeldTransfer::Send,
            Transfer::RdmaWrite(to) => HeldTransfer::Write(to),
            Transfer::RdmaRead(from) => HeldTransfer::Read(from),
        },
        immediate: descriptor.immediate,
        fence: descriptor.fence,
        ended,
    }
}

impl HeldDescriptor {
    /// Restores the descriptor; returns `None` if its memory is missing.
    fn descriptor(&self, memory: &[Memory], names: &[HeldMemory]) -> Option<Descriptor> {
        let segment = |piece: &Piece| {
            let at = names.iter().position(|held| held.name == piece.memory)?;
            memory[at].segment(piece.offset as usize, piece.length as usize).ok()
        };
        Some(Descriptor::from(Fields {
            segments: self.pieces.iter().map(segment).collect::<Option<_>>()?,
            transfer: match self.transfer {
                HeldTransfer::Send => Transfer::Send,
                HeldTransfer::Write(to) => Transfer::RdmaWrite(to),
                HeldTransfer::Read(from) => Transfer::RdmaRead(from),
            },
            immediate: self.immediate,
            fence: self.fence,
        }))
    }
}
