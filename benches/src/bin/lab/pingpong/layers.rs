//! One side of a connection, for each of our layers.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::via::attributes::{Address, Reliability, ViAttributes};
use midplane::via::descriptor::{Completed, Descriptor};
use midplane::via::memory::{Memory, MemoryOptions};
use midplane::via::message::carrier::Carrier;
use midplane::via::message::communicator::{Communicator, block_on};
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::{CommHandle, Rank};
use midplane::via::message::process::{Parker, Process};
use midplane::via::message::request::{Load, Mode};
use midplane::via::message::transport::Wait as Advance;
use midplane::via::nic::{Nic, ViId, WorkQueue};
use midplane::via::rdma::{self, RdmaCarrier, RdmaConfig};

use crate::pingpong::arguments::{MAX_BYTES, Registration, Wait};
use crate::pingpong::measure::{Side, WINDOW, WORD};

/// Number of posted receives.
pub(crate) const RECEIVES: usize = 2 * WINDOW;

/// Returns the bytes from one buffer of `most` bytes to the next: an odd number of cache lines, because buffers a
/// power of two apart would compete for the same cache sets.
pub(crate) const fn stride(most: usize) -> usize {
    const LINE: usize = 64;
    most.next_multiple_of(2 * LINE) + LINE
}

pub(crate) fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Waits for `future`: awaits it, or blocks the thread.
async fn rest<T>(wait: Wait, future: impl Future<Output = T>) -> T {
    match wait {
        Wait::Block => block_on(future),
        Wait::Await | Wait::Poll => future.await,
    }
}

/// Empty polls (some 15 us) after which a polling process yields its core: with more processes than cores, the
/// awaited one may need it.
const POLLS: u32 = 256;

/// Bytes of a message that a receiver reads at a time, in place.
pub(crate) const GLANCE: usize = 4096;

/// Reads every byte of a message in registered memory.
pub(crate) fn read_all(
    scratch: &mut [u8],
    bytes: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), midplane::simhw::region::RegionError>,
) -> Result<(), String> {
    for at in (0..bytes).step_by(GLANCE) {
        read(at, &mut scratch[..GLANCE.min(bytes - at)]).map_err(failed)?;
    }
    Ok(())
}

/// Number of empty polls in a row.
#[derive(Debug, Default)]
pub(crate) struct EmptyPolls(u32);

impl EmptyPolls {
    #[inline]
    pub(crate) fn again(&mut self) {
        self.0 += 1;
        // No pause between polls: a pause takes longer than a poll.
        if self.0.is_multiple_of(POLLS) {
            std::thread::yield_now();
        }
    }
}

/// Silence after which an unreliable message counts as lost.
pub(crate) const LOST: Duration = Duration::from_secs(2);

pub(crate) fn lost() -> String {
    format!("a message was lost: none came for {LOST:?}, and this layer does not send again")
}

/// The unit's message service: posted buffers, and sends.
pub(crate) struct Raw {
    port: Port,
    peer: (NodeId, PortId),
    wait: Wait,
    receives: Region,
    room: usize,
    sends: Region,
    arrived: Vec<(usize, usize)>,
    /// The buffer that was read last: it is posted again once the answer is on its way.
    spent: Option<usize>,
    scratch: Vec<u8>,
}

const SENT: u64 = u64::MAX;

impl Raw {
    pub(crate) fn new(
        host: &impl Host,
        own: PortId,
        peer: (NodeId, PortId),
        most: usize,
        wait: Wait,
    ) -> Result<Self, String> {
        let mut port = host.open_port_with(PortOptions::default().number(own)).map_err(failed)?;
        let room = stride(most);
        let receives = port.register(RECEIVES * room).map_err(failed)?;
        let sends = port.register(room).map_err(failed)?;
        sends.write(0, &vec![7; room]).map_err(failed)?;
        let mut raw = Self {
            port,
            peer,
            wait,
            receives,
            room,
            sends,
            arrived: Vec::new(),
            spent: None,
            scratch: vec![0; GLANCE],
        };
        for slot in 0..RECEIVES {
            raw.lend(slot)?;
        }
        Ok(raw)
    }

    fn lend(&mut self, slot: usize) -> Result<(), String> {
        let range = self.receives.range(slot * self.room, self.room).expect("a slot of it");
        self.port.submit(&messages::receive(range, slot as u64)).map_err(failed)
    }
}

impl Side for Raw {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        let range = self.sends.range(0, bytes).expect("it is that long");
        let command = messages::send(self.peer.0, self.peer.1, range, SENT);
        while self.port.submit(&command).is_err() {
            let completion = self.port.completion().await.map_err(failed)?;
            if completion.cookie != SENT {
                self.arrived.insert(0, (completion.cookie as usize, completion.length as usize));
            }
        }
        match self.spent.take() {
            Some(slot) => self.lend(slot),
            None => Ok(()),
        }
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let mut polls = EmptyPolls::default();
        let (slot, length) = loop {
            if let Some(arrived) = self.arrived.pop() {
                break arrived;
            }
            let completion = match self.wait {
                Wait::Poll => loop {
                    if let Some(completion) = self.port.poll() {
                        break completion;
                    }
                    polls.again();
                },
                wait => {
                    let next = tokio::time::timeout(LOST, self.port.completion());
                    rest(wait, next).await.map_err(|_| lost())?.map_err(failed)?
                }
            };
            if completion.status != Status::Done {
                return Err(format!("a message ended as {:?}", completion.status));
            }
            if completion.cookie != SENT {
                break (completion.cookie as usize, completion.length as usize);
            }
        };
        if length != bytes {
            return Err(format!("a message has {length} bytes, not {bytes}"));
        }
        let (receives, begin) = (&self.receives, slot * self.room);
        read_all(&mut self.scratch, length, |at, out| receives.read(begin + at, out))?;
        match self.spent.replace(slot) {
            Some(before) => self.lend(before),
            None => Ok(()),
        }
    }
}

/// Creates a reliable Virtual Interface. With `rdma_write` the other end may write this side's memory.
pub(crate) async fn interface(host: &impl Host, rdma_write: bool) -> Result<(Nic, ViId), String> {
    let mut nic = Nic::open(host, PortOptions::default()).await.map_err(failed)?;
    let attributes = ViAttributes {
        reliability: Reliability::ReliableDelivery,
        max_transfer: MAX_BYTES as u32,
        rdma_write,
        ..ViAttributes::default()
    };
    let vi = nic.create_vi(attributes).await.map_err(failed)?;
    Ok((nic, vi))
}

/// Connects the interface with the other node's.
pub(crate) async fn connect(nic: &mut Nic, vi: ViId, node: NodeId) -> Result<(), String> {
    let name = |node: NodeId| node.0.to_le_bytes();
    let to = Address::new(node, &name(node)).expect("two bytes");
    let own = Address::new(nic.node(), &name(nic.node())).expect("two bytes").discriminator;
    let patience = Some(std::time::Duration::from_secs(10));
    let ticket = nic.connect_peer(vi, to, own, patience).map_err(failed)?;
    nic.finish(&ticket).await.map(drop).map_err(failed)
}

/// Waits for the interface's next receive, of a message of `bytes`.
pub(crate) async fn received(
    nic: &mut Nic,
    vi: ViId,
    wait: Wait,
    bytes: usize,
) -> Result<Completed, String> {
    let mut polls = EmptyPolls::default();
    let done = match wait {
        Wait::Poll => loop {
            if let Some(done) = nic.receive_done(vi).map_err(failed)? {
                break done;
            }
            polls.again();
        },
        wait => rest(wait, nic.wait(vi, WorkQueue::Receive)).await.map_err(failed)?,
    };
    done.outcome.map_err(failed)?;
    if done.length != bytes {
        return Err(format!("a message has {} bytes, not {bytes}", done.length));
    }
    Ok(done)
}

/// A reliable Virtual Interface; if the fabric has a shared-memory path, its data bypasses the NIC.
pub(crate) struct Interface {
    nic: Nic,
    vi: ViId,
    wait: Wait,
    sends: Memory,
    spare: Vec<Descriptor>,
    /// Sends that have not completed.
    sending: usize,
    /// The receive that completed last: it is posted again once the answer is on its way.
    spent: Option<Descriptor>,
    scratch: Vec<u8>,
}

impl Interface {
    pub(crate) async fn new(
        host: &impl Host,
        node: NodeId,
        most: usize,
        wait: Wait,
    ) -> Result<Self, String> {
        let (mut nic, vi) = interface(host, false).await?;
        let room = stride(most);
        let receives = nic.register(RECEIVES * room, MemoryOptions::default()).map_err(failed)?;
        for slot in 0..RECEIVES {
            // A descriptor may not exceed the interface's largest transfer.
            let segment = receives.segment(slot * room, most.max(WORD)).map_err(failed)?;
            nic.post_receive(vi, Descriptor::of(segment)).map_err(failed)?;
        }
        connect(&mut nic, vi, node).await?;
        let sends = nic.register(room, MemoryOptions::default()).map_err(failed)?;
        sends.write(0, &vec![7; room]).map_err(failed)?;
        let (spare, scratch) = (Vec::new(), vec![0; GLANCE]);
        Ok(Self { nic, vi, wait, sends, spare, sending: 0, spent: None, scratch })
    }
}

impl Side for Interface {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        let mut descriptor = self.spare.pop().unwrap_or_default();
        if descriptor.bytes() != bytes {
            descriptor.segments.clear();
            descriptor.segments.push(self.sends.segment(0, bytes).map_err(failed)?);
        }
        self.nic.post_send(self.vi, descriptor).map_err(failed)?;
        self.sending += 1;
        // The message is on its way: post the spent receive meanwhile.
        if let Some(spent) = self.spent.take() {
            self.nic.post_receive(self.vi, spent).map_err(failed)?;
        }
        while let Some(done) = self.nic.taken(self.vi, WorkQueue::Send).map_err(failed)? {
            done.outcome.map_err(failed)?;
            self.sending -= 1;
            self.spare.push(done.descriptor);
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), String> {
        while self.sending > 0 {
            let done = self.nic.wait(self.vi, WorkQueue::Send).await.map_err(failed)?;
            done.outcome.map_err(failed)?;
            self.sending -= 1;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let done = received(&mut self.nic, self.vi, self.wait, bytes).await?;
        let segment = &done.descriptor.segments[0];
        let (memory, begin) = (segment.memory(), segment.offset());
        read_all(&mut self.scratch, bytes, |at, out| memory.read(begin + at, out))?;
        match self.spent.replace(done.descriptor) {
            Some(before) => self.nic.post_receive(self.vi, before).map_err(failed),
            None => Ok(()),
        }
    }
}

/// Messages with tags: polled by hand, or as futures.
pub(crate) enum Messages {
    Polled(Box<Polled>),
    Awaited { all: Communicator, peer: Rank, wait: Wait, scratch: Bytes },
}

/// A process that is polled by hand.
pub(crate) struct Polled {
    process: Process,
    scope: CommHandle,
    peer: Rank,
    scratch: Bytes,
    storage: Vec<u8>,
    parker: Parker,
}

const TAG: Tag = Tag(1);

/// Opens the carrier of messages over Virtual Interfaces.
pub(crate) async fn interfaces(
    host: &impl Host,
    how: Registration,
    eager: usize,
) -> Result<RdmaCarrier, String> {
    let own = Peer(host.node().0.into());
    let config = RdmaConfig::default().eager(eager).registration(match how {
        Registration::Copied => rdma::Registration::Copied,
        Registration::Cached => rdma::Registration::Cached,
        Registration::Registered => rdma::Registration::Registered,
    });
    RdmaCarrier::open(host, own, &[NodeId(0), NodeId(1)], config).await.map_err(failed)
}

impl Messages {
    pub(crate) fn new(
        carrier: impl Carrier + 'static,
        most: usize,
        wait: Wait,
        eager: usize,
    ) -> Result<Self, String> {
        let peer = Rank(1 - carrier.own().0);
        let engine = Engine::new(carrier, Config::default().eager(eager));
        let scratch = Bytes::from(vec![7; most.max(8)]);
        if wait == Wait::Poll {
            let (process, scope) = Process::new(engine, 2).map_err(failed)?;
            let storage = scratch.to_vec();
            let parker = Parker::polling();
            let polled = Polled { process, scope, peer, scratch, storage, parker };
            return Ok(Self::Polled(Box::new(polled)));
        }
        let all = Communicator::world(engine, 2).map_err(failed)?;
        Ok(Self::Awaited { all, peer, wait, scratch })
    }

    /// Takes a communicator of two ranks that is awaited.
    pub(crate) fn of(all: Communicator, most: usize) -> Self {
        let (peer, scratch) = (Rank(1 - all.rank().0), Bytes::from(vec![7; most.max(8)]));
        Self::Awaited { all, peer, wait: Wait::Await, scratch }
    }
}

impl Side for Messages {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        match self {
            Self::Polled(polled) => {
                let Polled { process, scope, peer, scratch, parker, .. } = &mut **polled;
                let message = &scratch[..bytes];
                process.send(scope, Mode::Standard, *peer, TAG, message, parker).map_err(failed)
            }
            Self::Awaited { all, peer, wait, scratch } => {
                let sent = all.send(*peer, TAG, scratch.slice(..bytes));
                rest(*wait, sent).await.map_err(failed)
            }
        }
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let length = match self {
            Self::Polled(polled) => {
                let Polled { process, scope, peer, storage, parker, .. } = &mut **polled;
                let load = Load::Room { room: MAX_BYTES, storage: std::mem::take(storage) };
                let received = process.receive(scope, Some(*peer), Some(TAG), load, parker);
                let outcome = received.map_err(failed)?;
                outcome.result.map_err(failed)?;
                *storage = outcome.bytes;
                storage.len()
            }
            Self::Awaited { all, peer, wait, .. } => {
                let received = all.receive(*peer, TAG);
                rest(*wait, received).await.map_err(failed)?.bytes.len()
            }
        };
        if length == bytes {
            Ok(())
        } else {
            Err(format!("a message has {length} bytes, not {bytes}"))
        }
    }

    async fn finish(&mut self) -> Result<(), String> {
        match self {
            Self::Polled(polled) => {
                while polled.process.engine_mut().finalize().is_pending() {
                    polled.process.engine_mut().advance(Advance::Not);
                }
            }
            Self::Awaited { all, wait, .. } => rest(*wait, all.finalize()).await,
        }
        Ok(())
    }
}
