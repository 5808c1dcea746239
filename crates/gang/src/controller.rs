//! Controls one channel of a daemon's NIC: opens, stops, saves, restores, starts and closes its contexts.

mod fifos;

use std::sync::Arc;

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::port::{Port, PortClosed, PortOptions, PostError, RegisterError, Status};
use midplane_simhw::region::Region;
use midplane_simhw::wire;
use slab::Slab;
use thiserror::Error;

use crate::channel::command::{
    CLOSE, NicState, OPEN, OpenRequest, RESTORE, SAVE, SAVE_FORGETS, SAVE_MEASURES, START, STOP,
};
use crate::channel::geometry::{Geometry, GeometryError};
use crate::channel::local_rings::{Bells, Layout, LocalRings};
use crate::channel::memory::Memory;
use crate::channel::{Descriptor, gang};
use crate::context::ChannelContext;
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};

use fifos::{read_context, write_fifos};

/// Initial size of the scratch region, in bytes.
const SCRATCH: usize = 1024;

/// Identifies a context of one [`Controller`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ContextId(usize);

/// Errors of a [`Controller`].
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ControlError {
    /// The NIC has no free port.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC has no memory left for the FIFOs.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The FIFO sizes are invalid.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The NIC has stopped.
    #[error(transparent)]
    Closed(#[from] PortClosed),
    /// Messages of the longest length, in bytes, don't fit into one frame.
    #[error("messages of {0} bytes do not fit into a frame of this NIC")]
    TooLong(u32),
    /// The NIC refused a command.
    #[error("the NIC refuses to {what}: {status:?}")]
    Refused {
        /// The command, as a verb phrase.
        what: &'static str,
        /// The status of the command's completion.
        status: Status,
    },
    /// The job has too many ranks: the list of their places does not fit into one request.
    #[error(
        "a job of {0} ranks has too many to open a context: the list of their places is too long"
    )]
    TooManyRanks(usize),
    /// The system refuses the events by which the ranks of one host wake each other.
    #[error("the system refuses events for the ranks of one host: {0}")]
    Events(std::io::ErrorKind),
    /// A context is damaged, does not match this controller's, or is too large to be encoded.
    #[error("the saved context does not fit: {0}")]
    Saved(&'static str),
}

impl From<PostError> for ControlError {
    fn from(_: PostError) -> Self {
        Self::Closed(PortClosed)
    }
}

/// Options of [`Controller::open_context`].
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// The job's number.
    pub job: JobId,
    /// The rank whose context this is.
    pub rank: Rank,
    /// Node and channel of each rank, by rank.
    pub places: Vec<ChannelAddress>,
}

/// Controls one channel of a daemon's NIC.
#[derive(Debug)]
pub struct Controller {
    port: Port,
    channel: ChannelId,
    geometry: Geometry,
    /// Region that transfers the NIC's part of a context, in both directions.
    scratch: Region,
    /// The FIFOs that all contexts share, one at a time; `None` if each has its own.
    shared: Option<Arc<Region>>,
    /// True if other processes map the FIFOs.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "live")),
        expect(dead_code, reason = "no other process maps them there")
    )]
    is_mapped: bool,
    contexts: Slab<Descriptor>,
    next_key: u64,
    /// Number of commands so far.
    commands: u64,
}

impl Controller {
    /// Opens the controller of a channel.
    ///
    /// If `shared`, all contexts use the same FIFOs, as in the paper: one context must be saved and forgotten before
    /// another is restored. Otherwise each context has its own FIFOs.
    ///
    /// # Errors
    /// [`ControlError`] if the geometry is invalid, or the NIC has no free port or no memory left.
    pub fn open(
        host: &impl Host,
        channel: ChannelId,
        geometry: Geometry,
        shared: bool,
    ) -> Result<Self, ControlError> {
        Self::open_with(host, (channel, geometry), shared, false)
    }

    /// Opens the controller of a channel. If `is_mapped`, other processes map the FIFOs. They attach with a
    /// [`Ticket`](crate::channel::Ticket), the context's [files](Self::files) and its [events](Self::events).
    pub(crate) fn open_with(
        host: &impl Host,
        (channel, geometry): (ChannelId, Geometry),
        shared: bool,
        is_mapped: bool,
    ) -> Result<Self, ControlError> {
        geometry.check()?;
        let mut port = host.open_port_with(PortOptions::default().depth(16))?;
        let scratch = port.register(SCRATCH)?;
        let mut controller = Self {
            port,
            channel,
            geometry,
            scratch,
            shared: None,
            is_mapped,
            contexts: Slab::new(),
            next_key: host.rng("gang keys").next_u64(),
            commands: 0,
        };
        if shared {
            controller.shared = Some(controller.memory(geometry.bytes())?);
        }
        Ok(controller)
    }

    /// Registers memory for rings of this layout.
    pub(crate) fn rings(&mut self, layout: Layout) -> Result<LocalRings, ControlError> {
        let memory = Memory::Own(self.memory(layout.bytes())?);
        let bells = self.bells(layout.ranks().len())?;
        Ok(LocalRings { layout, memory, bells })
    }

    #[cfg_attr(
        not(all(target_os = "linux", feature = "live")),
        expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "no process has any")
    )]
    fn bells(&self, ranks: usize) -> Result<Bells, ControlError> {
        #[cfg(all(target_os = "linux", feature = "live"))]
        if self.is_mapped {
            return Bells::far(ranks).map_err(|error| ControlError::Events(error.kind()));
        }
        Ok(Bells::near(ranks))
    }

    /// Registers memory. If other processes map the FIFOs, they can map this memory too.
    fn memory(&mut self, bytes: usize) -> Result<Arc<Region>, RegisterError> {
        #[cfg(all(target_os = "linux", feature = "live"))]
        if self.is_mapped {
            let options = midplane_simhw::region::RegionOptions::default();
            return Ok(Arc::new(self.port.register_shared(bytes, options)?));
        }
        Ok(Arc::new(self.port.register(bytes)?))
    }

    /// Returns the files of the memory that another process needs with a context's ticket: the FIFOs and, if there are
    /// any, the job's rings on this host.
    ///
    /// # Panics
    /// If the context was closed.
    #[cfg(all(target_os = "linux", feature = "live"))]
    #[must_use]
    pub fn files(&self, context: ContextId) -> Vec<Arc<std::os::fd::OwnedFd>> {
        let Descriptor { memory, rings, .. } = self.opened(context);
        let rings = rings.as_ref().map(|rings| &rings.memory);
        std::iter::once(memory).chain(rings).filter_map(Memory::file).collect()
    }

    /// Returns the events that the other process needs to wake, and to be woken by, the other ranks of this host.
    ///
    /// # Panics
    /// If the context was closed.
    #[cfg(all(target_os = "linux", feature = "live"))]
    #[must_use]
    pub fn events(&self, context: ContextId) -> Vec<Arc<std::os::fd::OwnedFd>> {
        let rings = self.opened(context).rings.iter();
        rings.flat_map(|rings| rings.bells.events()).cloned().collect()
    }

    /// Gives the NIC a command, and returns the first argument of its completion.
    async fn ask(
        &mut self,
        what: &'static str,
        opcode: u8,
        args: [u64; 3],
        length: usize,
    ) -> Result<u64, ControlError> {
        let mut command = gang(opcode, args);
        command.region = self.scratch.range(0, length).unwrap_or_else(|| self.scratch.whole());
        self.commands += 1;
        command.cookie = self.commands;
        self.port.submit(&command)?;
        let completion = loop {
            let completion = self.port.completion().await?;
            // Other completions are those of calls that were dropped.
            if completion.cookie == self.commands {
                break completion;
            }
        };
        match completion.status {
            Status::Done => Ok(completion.args[0]),
            status => Err(ControlError::Refused { what, status }),
        }
    }

    /// Grows the scratch region to at least `bytes`.
    fn reserve(&mut self, bytes: usize) -> Result<(), RegisterError> {
        if bytes > self.scratch.len() {
            self.scratch = self.port.register(bytes.next_power_of_two())?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), RegisterError> {
        self.reserve(bytes.len())?;
        self.scratch.write(0, bytes).expect("the scratch region has been grown to this size");
        Ok(())
    }

    /// Opens a context for one rank of a job; the context is parked.
    ///
    /// # Errors
    /// [`ControlError`]; no context is open then.
    ///
    /// # Cancel safety
    /// If the future is dropped, the context may stay open until the controller is dropped.
    pub async fn open_context(
        &mut self,
        options: ContextOptions,
    ) -> Result<ContextId, ControlError> {
        self.open_member(options, None).await
    }

    /// Opens a context like [`open_context`](Self::open_context), for a rank that may have rings.
    pub(crate) async fn open_member(
        &mut self,
        options: ContextOptions,
        rings: Option<&LocalRings>,
    ) -> Result<ContextId, ControlError> {
        let memory = match &self.shared {
            Some(memory) => Arc::clone(memory),
            None => self.memory(self.geometry.bytes())?,
        };
        self.next_key = self.next_key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (key, ranks) = (self.next_key, options.places.len() as u16);
        let ContextOptions { job, rank, places } = options;
        let too_many = ControlError::TooManyRanks(places.len());
        let request = OpenRequest {
            job,
            rank,
            channel: self.channel,
            places,
            geometry: self.geometry,
            memory: memory.whole().to_words(),
            key,
        };
        let bytes = wire::encode(&request).map_err(|_| too_many)?;
        self.put(&bytes)?;
        let opened = self.ask("open a context", OPEN, [0; 3], bytes.len()).await;
        let handle = opened.map_err(|error| match error {
            ControlError::Refused { status: Status::Truncated, .. } => {
                ControlError::TooLong(self.geometry.message)
            }
            other => other,
        })?;
        let geometry = self.geometry;
        let (memory, rings) = (Memory::Own(memory), rings.cloned());
        let opened = Descriptor { handle, key, memory, geometry, rank, ranks, rings };
        Ok(ContextId(self.contexts.insert(opened)))
    }

    /// Returns the descriptor of a context.
    ///
    /// # Panics
    /// If the context was closed.
    fn opened(&self, context: ContextId) -> &Descriptor {
        self.contexts.get(context.0).expect("the context was closed")
    }

    /// Returns the descriptor by which a process attaches to a context.
    ///
    /// # Panics
    /// If the context was closed.
    #[must_use]
    pub fn descriptor(&self, context: ContextId) -> Descriptor {
        self.opened(context).clone()
    }

    /// Stops a context, and waits until it is steady: all its transmissions are answered.
    ///
    /// Unless frames are lost, this takes one round trip, independently of the peers' state.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the context may still be stopped.
    ///
    /// # Panics
    /// If the context was closed.
    pub async fn stop(&mut self, context: ContextId) -> Result<(), ControlError> {
        let handle = self.opened(context).handle;
        self.ask("stop a context", STOP, [handle, 0, 0], 0).await.map(|_| ())
    }

    /// Starts a parked context in `epoch`, which must be newer than the context's last one.
    ///
    /// # Errors
    /// [`ControlError`]; `Refused` while another context runs on the channel.
    ///
    /// # Panics
    /// If the context was closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the context may still be started.
    pub async fn start(&mut self, context: ContextId, epoch: Epoch) -> Result<(), ControlError> {
        let handle = self.opened(context).handle;
        self.ask("start a context", START, [handle, epoch.0.into(), 0], 0).await.map(|_| ())
    }

    /// Returns the contents of a parked context. If `forget`, the NIC forgets the context, and another may use its
    /// FIFOs.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Panics
    /// If the context was closed.
    ///
    /// # Cancel safety
    /// If the future is dropped with `forget`, the context may be lost.
    pub async fn save(
        &mut self,
        context: ContextId,
        forget: bool,
    ) -> Result<ChannelContext, ControlError> {
        let handle = self.opened(context).handle;
        // The first command returns the length, the second the bytes.
        let measures = [handle, SAVE_MEASURES, 0];
        let length = self.ask("save a context", SAVE, measures, 0).await? as usize;
        self.reserve(length)?;
        let args = [handle, if forget { SAVE_FORGETS } else { 0 }, 0];
        let mut bytes = vec![0; self.ask("save a context", SAVE, args, length).await? as usize];
        self.scratch
            .read(0, &mut bytes)
            .map_err(|_| ControlError::Saved("its NIC part is too long"))?;
        let state: NicState =
            wire::decode(&bytes).map_err(|_| ControlError::Saved("the NIC's part is damaged"))?;
        read_context(self.opened(context), &state)
            .ok_or(ControlError::Saved("the FIFOs contradict the NIC"))
    }

    /// Makes the NIC forget a parked context, after which another may use its FIFOs.
    ///
    /// The context must have been [saved](Self::save) since it was parked.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Panics
    /// If the context was closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the NIC may still forget the context.
    pub async fn forget(&mut self, context: ContextId) -> Result<(), ControlError> {
        let handle = self.opened(context).handle;
        let args = [handle, SAVE_FORGETS | SAVE_MEASURES, 0];
        self.ask("forget a context", SAVE, args, 0).await.map(|_| ())
    }

    /// Restores a saved context, which is parked afterwards.
    ///
    /// # Errors
    /// [`ControlError::Saved`] if the context does not match; [`ControlError::Refused`] if the NIC finds it
    /// inconsistent.
    ///
    /// # Panics
    /// If the context was closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the context may still be restored.
    pub async fn restore(
        &mut self,
        context: ContextId,
        saved: &ChannelContext,
    ) -> Result<(), ControlError> {
        let descriptor = self.opened(context);
        if saved.geometry != descriptor.geometry {
            return Err(ControlError::Saved("it was saved from FIFOs of other sizes"));
        }
        if saved.rank != descriptor.rank {
            return Err(ControlError::Saved("it is another rank's"));
        }
        write_fifos(descriptor, saved)
            .ok_or(ControlError::Saved("a message lies outside its FIFO"))?;
        let handle = descriptor.handle;
        let bytes = wire::encode(&saved.nic_state())
            .map_err(|_| ControlError::Saved("it knows too many peers"))?;
        self.put(&bytes)?;
        self.ask("restore a context", RESTORE, [handle, 0, 0], bytes.len()).await.map(|_| ())
    }

    /// Closes a context.
    ///
    /// # Panics
    /// If the context was closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the context may still be closed.
    pub(crate) async fn close_context(&mut self, context: ContextId) -> Result<(), ControlError> {
        let handle = self.contexts.remove(context.0).handle;
        self.ask("close a context", CLOSE, [handle, 0, 0], 0).await.map(|_| ())
    }
}
