//! Descriptors: requests to a Virtual Interface, and their results.
//!
//! One process waits for a connection, posts receives and registers memory that its peer may write. The other one
//! connects, sends a message, and writes to that memory. Here both run in virtual time; on a live NIC (`ShmNic`,
//! `UdpNic`), only the code that makes `host` differs.
//!
//! ```
//! use midplane_nicvm::unit::Unit;
//! use midplane_simhw::host::Host;
//! use midplane_simhw::id::NodeId;
//! use midplane_simhw::port::PortOptions;
//! # use midplane_simhw::profile::Machine;
//! # use midplane_simhw::sim::World;
//! use midplane_simhw::wire;
//! use midplane_via::VIA;
//! use midplane_via::attributes::{Address, Discriminator, Reliability, ViAttributes};
//! use midplane_via::descriptor::Descriptor;
//! use midplane_via::firmware::{Via, ViaConfig};
//! use midplane_via::memory::{MemoryOptions, RemoteMemory};
//! use midplane_via::nic::{ConnectFailed, Nic, WorkQueue};
//! use midplane_via::outcome::{ConnectError, Operation};
//!
//! type Outcome = Result<(), Box<dyn std::error::Error>>;
//!
//! async fn serve(host: impl Host) -> Outcome {
//!     let mut nic = Nic::open(&host, PortOptions::default()).await?;
//!     let writable = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
//!     let memory = nic.register(4_096, writable)?;
//!     // Completion queues are optional: without one, wait on the interface's own queue.
//!     let received = nic.create_cq();
//!     let reliability = Reliability::ReliableDelivery;
//!     let attributes = ViAttributes { reliability, rdma_write: true, ..ViAttributes::default() };
//!     let vi = nic.create_vi_with(attributes, None, Some(received)).await?;
//!     // Before the connection: a message that finds no receive breaks a reliable one.
//!     for offset in [0, 100] {
//!         nic.post_receive(vi, Descriptor::of(memory.segment(offset, 100)?))?;
//!     }
//!     let name = Discriminator::new(b"store").expect("it is short");
//!     let request = nic.connect_wait(name, None).await?;
//!     nic.accept(&request, vi).await?;
//!
//!     let (vi, queue) = nic.cq_wait(received).await?;
//!     let done = nic.taken(vi, queue)?.expect("the queue has an entry");
//!     done.outcome?;
//!     assert_eq!((done.length, done.immediate), (5, Some(7)));
//!     // Answers with the name of its memory.
//!     let name = wire::encode(&memory.remote())?;
//!     memory.write(200, &name)?;
//!     nic.post_send(vi, Descriptor::of(memory.segment(200, name.len())?))?;
//!     nic.wait(vi, WorkQueue::Send).await?.outcome?;
//!
//!     // Immediate data notifies of a write: such a write takes a receive descriptor, and none of its memory.
//!     let (vi, queue) = nic.cq_wait(received).await?;
//!     let done = nic.taken(vi, queue)?.expect("the queue has an entry");
//!     assert_eq!((done.operation, done.immediate), (Operation::RemoteRdmaWrite, Some(8)));
//!     let mut written = [0; 5];
//!     memory.read(1_000, &mut written)?;
//!     assert_eq!(&written, b"world");
//!     Ok(())
//! }
//!
//! async fn store(host: impl Host, server: NodeId) -> Outcome {
//!     let mut nic = Nic::open(&host, PortOptions::default()).await?;
//!     let memory = nic.register(4_096, MemoryOptions::default())?;
//!     // Both ends need the same reliability and largest transfer.
//!     let reliability = Reliability::ReliableDelivery;
//!     let vi = nic.create_vi(ViAttributes { reliability, ..ViAttributes::default() }).await?;
//!     nic.post_receive(vi, Descriptor::of(memory.segment(100, 100)?))?;
//!     let server = Address::new(server, b"store").expect("it is short");
//!     // The server may not wait yet.
//!     while let Err(error) = nic.connect(vi, server, None).await {
//!         let ConnectFailed::Connect(ConnectError::NoMatch) = error else { return Err(error.into()) };
//!         host.sleep_until(host.now() + std::time::Duration::from_millis(1)).await;
//!     }
//!     memory.write(0, b"helloworld")?;
//!     nic.post_send(vi, Descriptor::of(memory.segment(0, 5)?).immediate(7))?;
//!     nic.wait(vi, WorkQueue::Send).await?.outcome?;
//!     let answer = nic.wait(vi, WorkQueue::Receive).await?;
//!     answer.outcome?;
//!     let bytes = answer.descriptor.segments[0].to_vec();
//!     let remote: RemoteMemory = wire::decode(&bytes[..answer.length])?;
//!     let to = remote.at(1_000).expect("the memory is that long");
//!     nic.post_send(vi, Descriptor::of(memory.segment(5, 5)?).write(to).immediate(8))?;
//!     nic.wait(vi, WorkQueue::Send).await?.outcome?;
//!     Ok(())
//! }
//!
//! fn unit() -> Unit {
//!     let mut unit = Unit::default();
//!     unit.install(VIA, Via::new(ViaConfig::default())).expect("its number is free");
//!     unit
//! }
//!
//! # let machine = Machine::DVCM_ATM;
//! # let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| unit());
//! # let client = world.host(NodeId(1));
//! # world.spawn(NodeId(1), async move { store(client, NodeId(0)).await.expect("it stores") });
//! # let server = world.host(NodeId(0));
//! # world.block_on(NodeId(0), async move { serve(server).await.expect("it serves") }).expect("it ends");
//! ```

use std::ops::{Deref, DerefMut};

use crate::memory::{RemoteMemory, Segment};
use crate::outcome::{DescriptorError, Operation};

/// The operation of a descriptor on the send queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Transfer {
    /// Sends its segments to the other end's next receive descriptor.
    #[default]
    Send,
    /// Writes its segments to the other end's memory. While the hosts bypass their NICs, the write may wait until the
    /// other process polls its [`Nic`](crate::nic::Nic), also if it is refused.
    RdmaWrite(RemoteMemory),
    /// Fills its segments from the other end's memory.
    RdmaRead(RemoteMemory),
}

/// A request to a Virtual Interface. The NIC may use its memory until the descriptor completes.
///
/// Its [fields](Fields) stay at one address, as descriptors of the Virtual Interface Architecture lie in memory
/// and are posted by their address. Posting a completed descriptor again allocates nothing and moves one word.
#[derive(Debug, Default)]
pub struct Descriptor(Box<Fields>);

/// The fields of a [`Descriptor`].
#[derive(Debug, Default)]
pub struct Fields {
    /// Its data: gathered from or scattered to these segments, in order; at most
    /// [`MAX_SEGMENTS`](crate::nic::MAX_SEGMENTS). The NIC of a reliable interface sends each segment in frames of its
    /// own. That of an unreliable one fills frames across segments by a copy, so that fewer frames can be lost.
    pub segments: Vec<Segment>,
    /// Its operation on a send queue; ignored on a receive queue.
    pub transfer: Transfer,
    /// 32 bits of immediate data that accompany a send or a write. Such a write consumes a receive descriptor.
    pub immediate: Option<u32>,
    /// True if the descriptor starts only once all reads posted before it have completed.
    pub fence: bool,
}

impl Deref for Descriptor {
    type Target = Fields;

    #[inline]
    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for Descriptor {
    #[inline]
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

impl From<Fields> for Descriptor {
    fn from(fields: Fields) -> Self {
        Self(Box::new(fields))
    }
}

impl From<Vec<Segment>> for Descriptor {
    fn from(segments: Vec<Segment>) -> Self {
        Self::from(Fields { segments, ..Fields::default() })
    }
}

impl Descriptor {
    /// Makes a descriptor of one segment.
    #[must_use]
    pub fn of(segment: Segment) -> Self {
        Self::from(vec![segment])
    }

    /// Adds 32 bits of immediate data.
    #[must_use]
    pub fn immediate(mut self, value: u32) -> Self {
        self.immediate = Some(value);
        self
    }

    /// Makes the descriptor a write to the other end's memory.
    #[must_use]
    pub fn write(mut self, to: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaWrite(to);
        self
    }

    /// Makes the descriptor a read of the other end's memory.
    #[must_use]
    pub fn read(mut self, from: RemoteMemory) -> Self {
        self.transfer = Transfer::RdmaRead(from);
        self
    }

    /// Makes the descriptor wait for all reads posted before it.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Returns the bytes of all its segments.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// A completed descriptor: its memory belongs to the application again.
#[derive(Debug)]
pub struct Completed {
    /// The descriptor, as it was posted.
    pub descriptor: Descriptor,
    /// The operation that it performed.
    pub operation: Operation,
    /// Success, or why it failed.
    pub outcome: Result<(), DescriptorError>,
    /// Number of bytes transferred.
    pub length: usize,
    /// Immediate data of a received message.
    pub immediate: Option<u32>,
}
