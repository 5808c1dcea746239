//! The application's interface to the memory: values of one type, at locations.

use std::marker::PhantomData;

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::port::{
    Command, Completion, Port, PortClosed, PostError, RegisterError, Status,
};
use midplane_simhw::region::{Region, RegionError};
use midplane_simhw::wire::{self, WireError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::extension::{CO_WRITE, FLUSH, MAX_VALUE, MERMERA, PRAM_WRITE, READ, SLOW_WRITE};
use super::{Level, Location, MAX_LOCATIONS, Origin};

/// An error of an access to the memory.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AccessError {
    /// The NIC has stopped.
    #[error("the NIC has stopped")]
    Stopped(#[from] PortClosed),
    /// The encoded value is longer than [`MAX_VALUE`] bytes.
    #[error("a value takes {MAX_VALUE} bytes at most: write it in parts, at several locations")]
    TooLong,
    /// The value at the location was written as another type.
    #[error(
        "the value at location {0} has another type: read it as the type that its writer writes"
    )]
    OtherType(Location),
    /// The NIC has no such extension, or it has failed.
    #[error("{}", refusal(*.0))]
    Refused(Status),
    /// The port's queue is full of other accesses.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The port's memory region is no longer registered.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Says what to do about a status other than success.
fn refusal(status: Status) -> String {
    match status {
        Status::Invalid => "the NIC has no shared memory: install `Mermera` in its unit".into(),
        Status::Refused => format!(
            "the memory takes writes to {MAX_LOCATIONS} locations: use fewer, each with more data"
        ),
        Status::PeerLost => {
            "the other nodes ignore this node's coherent writes, because it has restarted \
                             or was reported dead, or no majority is left: use slow or PRAM writes, \
                             or restart all nodes"
                .into()
        }
        Status::ExtensionDown => {
            "the NIC's shared memory is down: `Mermera` failed, was removed, or refused its \
                                  configuration, whose nodes must include the own one"
                .into()
        }
        other => format!("the NIC refused the access: {other:?}"),
    }
}

/// An error of [`MemoryHandle::open`].
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OpenMemoryError {
    /// The NIC has no free port.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// The memory region could not be registered.
    #[error(transparent)]
    Memory(#[from] RegisterError),
}

/// An application's handle to its node's memory, for values of type `V`.
///
/// `V` is encoded by serde. Several handles may be open on one node; they share the same memory. An
/// access whose future is dropped may happen or not; the next access waits for it.
#[derive(Debug)]
pub struct MemoryHandle<V> {
    port: Port,
    region: Region,
    /// Cookie of the last access.
    cookie: u64,
    /// Accesses whose completion is outstanding; above zero between calls only if futures were
    /// dropped.
    under_way: u32,
    values: PhantomData<fn(V) -> V>,
}

impl<V: Serialize + DeserializeOwned> MemoryHandle<V> {
    /// Opens the memory of `host`'s node.
    ///
    /// # Errors
    /// [`OpenMemoryError`] if the NIC has no port or no memory left.
    pub fn open(host: &impl Host) -> Result<Self, OpenMemoryError> {
        let mut port = host.open_port()?;
        let region = port.register(MAX_VALUE)?;
        Ok(Self { port, region, cookie: 0, under_way: 0, values: PhantomData })
    }

    /// Writes the latest value: readers see this writer's values of this location in order. Any but
    /// the last may be skipped, since this is a conditional send. Never waits for the network.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing was written.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the write may still happen; the next access waits for it.
    pub async fn slow_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(SLOW_WRITE, at, value).await
    }

    /// Writes in FIFO order: all nodes see this writer's PRAM writes in the order of the calls. If over
    /// 1.6 MB of updates wait for a slow node, first waits until they are fewer, or that node is lost;
    /// otherwise never waits for the network.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing was written.
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the write may still happen; the next access waits for it.
    pub async fn pram_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(PRAM_WRITE, at, value).await
    }

    /// Writes in total order: all nodes see all coherent writes in one order. Waits until the write
    /// is committed and this node sees it. If over 1.6 MB of updates wait for a slow node, first waits
    /// until they are fewer, or that node is lost. Nodes that were reported dead count no more.
    ///
    /// A writer that waits for each write before its next read has sequential consistency.
    ///
    /// # Errors
    /// [`AccessError::Refused`] with [`Status::PeerLost`] if the other nodes ignore this node's
    /// coherent writes: it was reported dead, or has restarted; or if no majority of the nodes is left.
    /// A write that was under way may still happen. Others of [`AccessError`].
    ///
    /// # Cancel safety
    /// If dropped after its first poll, the write may still happen; the next access waits for it.
    pub async fn co_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(CO_WRITE, at, value).await
    }

    /// Reads the value at a location in this node's copy; `None` before the first visible write.
    /// Never waits for the network, unless the future of an earlier access of this handle was
    /// dropped, such as a coherent write. Other handles do not wait for that one.
    ///
    /// # Errors
    /// [`AccessError::OtherType`] if a value of another type was written there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&mut self, at: Location) -> Result<Option<V>, AccessError> {
        Ok(self.read_origin(at).await?.map(|(value, _)| value))
    }

    /// Reads the value at a location, and the write that made it.
    ///
    /// # Errors
    /// As [`MemoryHandle::read`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_origin(&mut self, at: Location) -> Result<Option<(V, Origin)>, AccessError> {
        self.await_dropped().await?;
        let done = self.carry_out(READ, at, MAX_VALUE).await?;
        if done.args[2] == 0 {
            return Ok(None);
        }
        let mut bytes = [0; MAX_VALUE];
        let bytes = &mut bytes[..(done.length as usize).min(MAX_VALUE)];
        self.region.read(0, bytes)?;
        let value = wire::decode(bytes).map_err(|_| AccessError::OtherType(at))?;
        let level = level_of(done.args[0]).ok_or(AccessError::OtherType(at))?;
        Ok(Some((value, Origin { writer: done.node, level, order: done.args[1] })))
    }

    /// Waits until all other live nodes have acknowledged the last slow write to each location before
    /// this call, or a later one. If a node has acknowledged nothing for 16 feedback delays, a reliable
    /// message checks that it lives, and it no longer counts once it is reported dead. A node that has
    /// never answered this one may not have started yet; it counts for 1,024 feedback delays.
    ///
    /// # Errors
    /// [`AccessError::Refused`] if another node had no room for the location of a slow or PRAM write of
    /// this node since this handle's last flush: the memory has [`MAX_LOCATIONS`] locations. The write
    /// may be another handle's. A flush does not wait for PRAM writes: it reports one if the other
    /// node's report has arrived, which may be lost. Others of [`AccessError`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn flush(&mut self) -> Result<(), AccessError> {
        self.await_dropped().await?;
        self.carry_out(FLUSH, 0, 0).await.map(drop)
    }

    async fn write(&mut self, opcode: u8, at: Location, value: &V) -> Result<(), AccessError> {
        let bytes = wire::encode(value).map_err(|_: WireError| AccessError::TooLong)?;
        if bytes.len() > MAX_VALUE {
            return Err(AccessError::TooLong);
        }
        self.await_dropped().await?;
        self.region.write(0, &bytes)?;
        self.carry_out(opcode, at, bytes.len()).await.map(drop)
    }

    /// Waits for accesses whose futures were dropped: the NIC reads or writes the same memory.
    async fn await_dropped(&mut self) -> Result<(), AccessError> {
        while self.under_way > 0 {
            self.port.completion().await?;
            self.under_way -= 1;
        }
        Ok(())
    }

    async fn carry_out(
        &mut self,
        opcode: u8,
        at: Location,
        length: usize,
    ) -> Result<Completion, AccessError> {
        let region = self.region.range(0, length).expect("no value is longer than the region");
        self.cookie += 1;
        let args = [at.into(), 0, 0];
        let cookie = self.cookie;
        let extension = MERMERA;
        let command = Command { extension, opcode, region, cookie, args, ..Command::default() };
        self.port.submit(&command)?;
        self.under_way += 1;
        let done = self.port.completion().await?;
        self.under_way -= 1;
        match done.status {
            Status::Done => Ok(done),
            other => Err(AccessError::Refused(other)),
        }
    }
}

/// Decodes the level in the completion of a read.
const fn level_of(word: u64) -> Option<Level> {
    match word {
        0 => Some(Level::Slow),
        1 => Some(Level::Pram),
        2 => Some(Level::Coherent),
        _ => None,
    }
}
