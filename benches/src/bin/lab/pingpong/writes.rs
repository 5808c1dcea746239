//! Messages by RDMA writes into the memory that the other end polls.

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::via::descriptor::{Completed, Descriptor, Transfer};
use midplane::via::memory::{Memory, MemoryOptions, RemoteMemory};
use midplane::via::nic::{Nic, ViId, WorkQueue};

use crate::pingpong::arguments::Wait;
use crate::pingpong::layers::{
    GLANCE, RECEIVES, connect, failed, interface, read_all, received, stride,
};
use crate::pingpong::measure::Side;

/// Bytes for the name of memory, in text.
const NAME_BYTES: usize = 256;

/// An interface with RDMA writes.
pub(crate) struct Writes {
    nic: Nic,
    vi: ViId,
    wait: Wait,
    sends: Memory,
    /// This side's memory, which the other end writes: a ring of message slots.
    inbox: Memory,
    /// The other end's memory.
    outbox: RemoteMemory,
    room: usize,
    next: usize,
    spare: Vec<Descriptor>,
    /// Writes that have not completed.
    writing: usize,
    /// The receive that announced the last read message.
    spent: Option<Descriptor>,
    scratch: Vec<u8>,
}

impl Writes {
    pub(crate) async fn new(
        host: &impl Host,
        node: NodeId,
        most: usize,
        wait: Wait,
    ) -> Result<Self, String> {
        let (mut nic, vi) = interface(host, true).await?;
        let room = stride(most);
        let options =
            MemoryOptions { rdma_write: true, rdma_read: true, ..MemoryOptions::default() };
        let inbox = nic.register(RECEIVES * room, options).map_err(failed)?;
        let names = nic.register(2 * NAME_BYTES, MemoryOptions::default()).map_err(failed)?;
        let (name, theirs) = (names.segment(0, NAME_BYTES), names.segment(NAME_BYTES, NAME_BYTES));
        let (name, theirs) = (name.map_err(failed)?, theirs.map_err(failed)?);
        nic.post_receive(vi, Descriptor::of(theirs)).map_err(failed)?;
        for _ in 0..RECEIVES {
            nic.post_receive(vi, Descriptor::default()).map_err(failed)?;
        }
        connect(&mut nic, vi, node).await?;
        let text = serde_json::to_vec(&inbox.remote()).map_err(failed)?;
        names.write(0, &text).map_err(failed)?;
        let name = name.memory().segment(0, text.len()).map_err(failed)?;
        nic.post_send(vi, Descriptor::of(name)).map_err(failed)?;
        let done = nic.wait(vi, WorkQueue::Receive).await.map_err(failed)?;
        done.outcome.map_err(failed)?;
        let mut text = vec![0; done.length];
        names.read(NAME_BYTES, &mut text).map_err(failed)?;
        let outbox: RemoteMemory = serde_json::from_slice(&text).map_err(failed)?;
        nic.wait(vi, WorkQueue::Send).await.map_err(failed)?.outcome.map_err(failed)?;
        let sends = nic.register(room, MemoryOptions::default()).map_err(failed)?;
        sends.write(0, &vec![7; room]).map_err(failed)?;
        let (spare, scratch) = (Vec::new(), vec![0; GLANCE]);
        Ok(Self {
            nic,
            vi,
            wait,
            sends,
            inbox,
            outbox,
            room,
            next: 0,
            spare,
            writing: 0,
            spent: None,
            scratch,
        })
    }

    fn on_written(&mut self, done: Completed) -> Result<(), String> {
        done.outcome.map_err(failed)?;
        self.writing -= 1;
        self.spare.push(done.descriptor);
        Ok(())
    }
}

impl Side for Writes {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        let mut descriptor = self.spare.pop().unwrap_or_default();
        if descriptor.bytes() != bytes {
            descriptor.segments.clear();
            descriptor.segments.push(self.sends.segment(0, bytes).map_err(failed)?);
        }
        let place =
            self.outbox.at((self.next * self.room) as u32).ok_or("it has as many places")?;
        descriptor.transfer = Transfer::RdmaWrite(place);
        descriptor.immediate = Some(self.next as u32);
        self.next = (self.next + 1) % RECEIVES;
        self.nic.post_send(self.vi, descriptor).map_err(failed)?;
        self.writing += 1;
        // The message is on its way: post the spent receive meanwhile.
        if let Some(spent) = self.spent.take() {
            self.nic.post_receive(self.vi, spent).map_err(failed)?;
        }
        while let Some(done) = self.nic.taken(self.vi, WorkQueue::Send).map_err(failed)? {
            self.on_written(done)?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), String> {
        while self.writing > 0 {
            let done = self.nic.wait(self.vi, WorkQueue::Send).await.map_err(failed)?;
            self.on_written(done)?;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let done = received(&mut self.nic, self.vi, self.wait, bytes).await?;
        let place = done.immediate.ok_or("a message says where it is")? as usize;
        let (inbox, begin) = (&self.inbox, place * self.room);
        read_all(&mut self.scratch, bytes, |at, out| inbox.read(begin + at, out))?;
        match self.spent.replace(done.descriptor) {
            Some(before) => self.nic.post_receive(self.vi, before).map_err(failed),
            None => Ok(()),
        }
    }
}
