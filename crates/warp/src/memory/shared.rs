//! The memory as applications see it: values of a type, at locations.

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

use super::extension::{
    CO_WRITE, FLUSH, MERMERA, MOST_VALUE, PRAM_WRITE, READ, SLOW_WRITE, level_of,
};
use super::{Location, Origin};

/// Why an access to the memory failed.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AccessError {
    /// The NIC has stopped.
    #[error("the NIC has stopped")]
    Stopped(#[from] PortClosed),
    /// A value takes more bytes than a location has.
    #[error("a value takes {MOST_VALUE} bytes at most: write it in parts, at several locations")]
    TooLong,
    /// What is at the location was written as another type.
    #[error("what is at location {0} is of another type: read it as what its writer writes")]
    OtherType(Location),
    /// The NIC has no such extension, or it has failed.
    #[error("the NIC refused: {0:?}; is the extension installed?")]
    Refused(Status),
    /// The port is full of other accesses.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The memory behind the port is gone.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Why the memory was not opened.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OpenMemoryError {
    /// There is no port to be had.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// There is no memory to be had.
    #[error(transparent)]
    Memory(#[from] RegisterError),
}

/// A node's way into the memory: values of type `V`, plain or of serde's making, at any number of
/// locations. Several may be open on one node; they are the same memory.
///
/// An access that is dropped before its end may have happened or not; the next one waits for it.
#[derive(Debug)]
pub struct Shared<V> {
    port: Port,
    region: Region,
    /// Of the next access.
    cookie: u64,
    /// Accesses under way: more than one where futures were dropped.
    under_way: u32,
    values: PhantomData<fn(V) -> V>,
}

impl<V: Serialize + DeserializeOwned> Shared<V> {
    /// Opens the memory of `host`'s node.
    ///
    /// # Errors
    /// [`OpenMemoryError`] if the NIC has no port or no memory left.
    pub fn open(host: &impl Host) -> Result<Self, OpenMemoryError> {
        let mut port = host.open_port()?;
        let region = port.register(MOST_VALUE)?;
        Ok(Self { port, region, cookie: 0, under_way: 0, values: PhantomData })
    }

    /// Writes so that this writer's values of this location are seen in order, and the last of them
    /// everywhere; in between any may be skipped: it is a conditional send. Never waits for the
    /// network.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was written then.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, it may be written all the same; the next access waits for it.
    pub async fn slow_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(SLOW_WRITE, at, value).await
    }

    /// Writes so that all nodes see this writer's PRAM writes in the order that they were made in.
    /// Never waits for the network.
    ///
    /// # Errors
    /// [`AccessError`]; nothing was written then.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, it may be written all the same; the next access waits for it.
    pub async fn pram_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(PRAM_WRITE, at, value).await
    }

    /// Writes in the one order of all coherent writes, and waits until the write has its place and
    /// this node sees it. A writer that waits for each before it reads on has sequential consistency.
    ///
    /// # Errors
    /// [`AccessError`].
    ///
    /// # Cancel safety
    /// The write is made even if the future is dropped.
    pub async fn co_write(&mut self, at: Location, value: &V) -> Result<(), AccessError> {
        self.write(CO_WRITE, at, value).await
    }

    /// The value at a location in this node's copy; `None` before the first write that is seen here.
    /// Never waits for the network.
    ///
    /// # Errors
    /// [`AccessError::OtherType`] where something else was written.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&mut self, at: Location) -> Result<Option<V>, AccessError> {
        Ok(self.read_origin(at).await?.map(|(value, _)| value))
    }

    /// The value at a location, and whose it is.
    ///
    /// # Errors
    /// As [`Shared::read`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_origin(&mut self, at: Location) -> Result<Option<(V, Origin)>, AccessError> {
        self.settle().await?;
        let done = self.carry_out(READ, at, MOST_VALUE).await?;
        if done.args[2] == 0 {
            return Ok(None);
        }
        let mut bytes = [0; MOST_VALUE];
        let bytes = &mut bytes[..(done.length as usize).min(MOST_VALUE)];
        self.region.read(0, bytes)?;
        let value = wire::decode(bytes).map_err(|_| AccessError::OtherType(at))?;
        let level = level_of(done.args[0]).ok_or(AccessError::OtherType(at))?;
        Ok(Some((value, Origin { writer: done.node, level, order: done.args[1] })))
    }

    /// Waits until all other nodes that live are known to have the last slow write to each location.
    ///
    /// # Errors
    /// [`AccessError`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn flush(&mut self) -> Result<(), AccessError> {
        self.settle().await?;
        self.carry_out(FLUSH, 0, 0).await.map(drop)
    }

    async fn write(&mut self, opcode: u8, at: Location, value: &V) -> Result<(), AccessError> {
        let bytes = wire::encode(value).map_err(|_: WireError| AccessError::TooLong)?;
        if bytes.len() > MOST_VALUE {
            return Err(AccessError::TooLong);
        }
        self.settle().await?;
        self.region.write(0, &bytes)?;
        self.carry_out(opcode, at, bytes.len()).await.map(drop)
    }

    /// Waits for accesses whose futures were dropped: the NIC reads or writes the same memory.
    async fn settle(&mut self) -> Result<(), AccessError> {
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
