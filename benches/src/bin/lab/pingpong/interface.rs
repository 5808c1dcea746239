//! A reliable Virtual Interface: with messages, or with RDMA writes into the memory that the other end polls.

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::PortOptions;
use midplane::via::attributes::{Address, Reliability, ViAttributes};
use midplane::via::descriptor::{Completed, Descriptor, Transfer};
use midplane::via::memory::{Memory, MemoryOptions, RemoteMemory};
use midplane::via::nic::{Nic, ViId, WorkQueue};

use crate::pingpong::arguments::{MAX_BYTES, Wait};
use crate::pingpong::layers::{EmptyPolls, GLANCE, RECEIVES, read_all, stride};
use crate::pingpong::measure::{Side, WORD};
use crate::report::text;

/// Bytes for the name of memory, in text.
const NAME_BYTES: usize = 256;

/// One side of a connection; if the fabric has a shared-memory path, its data bypasses the NIC.
pub(crate) struct Interface {
    nic: Nic,
    vi: ViId,
    wait: Wait,
    sends: Memory,
    room: usize,
    /// Places for messages by RDMA write; `None` without RDMA writes.
    ring: Option<Ring>,
    spare: Vec<Descriptor>,
    /// Sends that have not completed.
    sending: usize,
    /// The receive that completed last: it is posted again once the answer is on its way.
    spent: Option<Descriptor>,
    scratch: Vec<u8>,
}

/// Places for messages, which the other end writes.
struct Ring {
    /// This side's memory.
    inbox: Memory,
    /// The other end's memory.
    outbox: RemoteMemory,
    next: usize,
}

impl Interface {
    /// Connects an interface with that of `node`.
    pub(crate) async fn new(
        host: &impl Host,
        node: NodeId,
        most: usize,
        wait: Wait,
        writes: bool,
    ) -> Result<Self, String> {
        let mut nic = Nic::open(host, PortOptions::default()).await.map_err(text)?;
        let attributes = ViAttributes {
            reliability: Reliability::ReliableDelivery,
            max_transfer: MAX_BYTES as u32,
            rdma_write: writes,
            ..ViAttributes::default()
        };
        let vi = nic.create_vi(attributes).await.map_err(text)?;
        let room = stride(most);
        let options =
            MemoryOptions { rdma_write: writes, rdma_read: writes, ..MemoryOptions::default() };
        let receives = nic.register(RECEIVES * room, options).map_err(text)?;
        let names = nic.register(2 * NAME_BYTES, MemoryOptions::default()).map_err(text)?;
        if writes {
            let theirs = names.segment(NAME_BYTES, NAME_BYTES).map_err(text)?;
            nic.post_receive(vi, Descriptor::of(theirs)).map_err(text)?;
        }
        for slot in 0..RECEIVES {
            // A descriptor may not exceed the interface's largest transfer.
            let segment = receives.segment(slot * room, most.max(WORD)).map_err(text)?;
            let descriptor = if writes { Descriptor::default() } else { Descriptor::of(segment) };
            nic.post_receive(vi, descriptor).map_err(text)?;
        }
        connect(&mut nic, vi, node).await?;
        let ring = match writes {
            true => Some(Ring::new(&mut nic, vi, &names, receives).await?),
            false => None,
        };
        let sends = nic.register(room, MemoryOptions::default()).map_err(text)?;
        sends.write(0, &vec![7; room]).map_err(text)?;
        let (spare, scratch) = (Vec::new(), vec![0; GLANCE]);
        Ok(Self { nic, vi, wait, sends, room, ring, spare, sending: 0, spent: None, scratch })
    }

    fn on_sent(&mut self, done: Completed) -> Result<(), String> {
        done.outcome.map_err(text)?;
        self.sending -= 1;
        self.spare.push(done.descriptor);
        Ok(())
    }
}

/// Connects the interface with the other node's.
async fn connect(nic: &mut Nic, vi: ViId, node: NodeId) -> Result<(), String> {
    let name = |node: NodeId| node.0.to_le_bytes();
    let to = Address::new(node, &name(node)).expect("two bytes");
    let own = Address::new(nic.node(), &name(nic.node())).expect("two bytes").discriminator;
    let patience = Some(std::time::Duration::from_secs(10));
    let ticket = nic.connect_peer(vi, to, own, patience).map_err(text)?;
    nic.finish(&ticket).await.map(drop).map_err(text)
}

impl Ring {
    /// Exchanges the names of both ends' memory.
    async fn new(nic: &mut Nic, vi: ViId, names: &Memory, inbox: Memory) -> Result<Self, String> {
        let name = serde_json::to_vec(&inbox.remote()).map_err(text)?;
        names.write(0, &name).map_err(text)?;
        let name = names.segment(0, name.len()).map_err(text)?;
        nic.post_send(vi, Descriptor::of(name)).map_err(text)?;
        let done = nic.wait(vi, WorkQueue::Receive).await.map_err(text)?;
        done.outcome.map_err(text)?;
        let mut theirs = vec![0; done.length];
        names.read(NAME_BYTES, &mut theirs).map_err(text)?;
        nic.wait(vi, WorkQueue::Send).await.map_err(text)?.outcome.map_err(text)?;
        Ok(Self { inbox, outbox: serde_json::from_slice(&theirs).map_err(text)?, next: 0 })
    }
}

impl Side for Interface {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        let mut descriptor = self.spare.pop().unwrap_or_default();
        if descriptor.bytes() != bytes {
            descriptor.segments.clear();
            descriptor.segments.push(self.sends.segment(0, bytes).map_err(text)?);
        }
        if let Some(ring) = &mut self.ring {
            let place = ring.outbox.at((ring.next * self.room) as u32);
            descriptor.transfer = Transfer::RdmaWrite(place.ok_or("there is no such place")?);
            descriptor.immediate = Some(ring.next as u32);
            ring.next = (ring.next + 1) % RECEIVES;
        }
        self.nic.post_send(self.vi, descriptor).map_err(text)?;
        self.sending += 1;
        // The message is on its way: post the spent receive meanwhile.
        if let Some(spent) = self.spent.take() {
            self.nic.post_receive(self.vi, spent).map_err(text)?;
        }
        while let Some(done) = self.nic.taken(self.vi, WorkQueue::Send).map_err(text)? {
            self.on_sent(done)?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), String> {
        while self.sending > 0 {
            let done = self.nic.wait(self.vi, WorkQueue::Send).await.map_err(text)?;
            self.on_sent(done)?;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let done = match self.wait {
            Wait::Poll => EmptyPolls::default()
                .until(|| self.nic.receive_done(self.vi).transpose())?
                .map_err(text)?,
            Wait::Await => self.nic.wait(self.vi, WorkQueue::Receive).await.map_err(text)?,
        };
        done.outcome.map_err(text)?;
        if done.length != bytes {
            return Err(format!("a message has {} bytes, not {bytes}", done.length));
        }
        let (memory, begin) = match &self.ring {
            Some(ring) => {
                let place = done.immediate.ok_or("a message does not name its place")?;
                (&ring.inbox, place as usize * self.room)
            }
            None => {
                let segment = &done.descriptor.segments[0];
                (segment.memory(), segment.offset())
            }
        };
        read_all(&mut self.scratch, bytes, |at, out| memory.read(begin + at, out))?;
        match self.spent.replace(done.descriptor) {
            Some(before) => self.nic.post_receive(self.vi, before).map_err(text),
            None => Ok(()),
        }
    }
}
