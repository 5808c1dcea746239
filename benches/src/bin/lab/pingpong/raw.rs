//! The unit's message service: posted buffers, and sends.

use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Completion, Port, PortOptions, Status};
use midplane::simhw::region::Region;

use crate::pingpong::arguments::Wait;
use crate::pingpong::layers::{EmptyPolls, GLANCE, LOST, RECEIVES, lost, read_all, stride};
use crate::pingpong::measure::Side;
use crate::report::text;

/// Cookie of messages that are sent; buffers have their numbers.
const SENT: u64 = u64::MAX;

/// A port with posted buffers, and a message to send.
pub(crate) struct End {
    pub(crate) port: Port,
    peer: (NodeId, PortId),
    /// Bytes from one buffer to the next.
    room: usize,
    /// The message, then the buffers.
    memory: Region,
}

impl End {
    /// Opens the port `own` of `host` for messages to and from `peer`, and posts `buffers` buffers of `room` bytes.
    pub(crate) fn open(
        host: &impl Host,
        own: PortId,
        peer: (NodeId, PortId),
        (room, buffers): (usize, usize),
    ) -> Result<Self, String> {
        let mut port = host.open_port_with(PortOptions::default().number(own)).map_err(text)?;
        let memory = port.register((1 + buffers) * room).map_err(text)?;
        memory.write(0, &vec![7; room]).map_err(text)?;
        let mut end = Self { port, peer, room, memory };
        for slot in 0..buffers as u64 {
            end.post_buffer(slot)?;
        }
        end.port.ring();
        Ok(end)
    }

    /// Posts a buffer, without a doorbell.
    pub(crate) fn post_buffer(&mut self, slot: u64) -> Result<(), String> {
        let range = self.memory.range(self.at(slot), self.room).expect("a slot of it");
        self.port.post(&messages::receive(range, slot)).map_err(text)
    }

    /// Posts a message if the port has room, without a doorbell.
    pub(crate) fn post_message(&mut self, bytes: usize) -> bool {
        let range = self.memory.range(0, bytes).expect("it is that long");
        self.port.post(&messages::send(self.peer.0, self.peer.1, range, SENT)).is_ok()
    }

    /// Returns the buffer of a completion, if it is that of a received message.
    pub(crate) fn received(done: &Completion) -> Result<Option<u64>, String> {
        match done.status {
            Status::Done => Ok((done.cookie != SENT).then_some(done.cookie)),
            status => Err(format!("a message ended as {status:?}")),
        }
    }

    /// Reads every byte of a received message.
    pub(crate) fn read(
        &self,
        slot: u64,
        bytes: usize,
        scratch: &mut [u8; GLANCE],
    ) -> Result<(), String> {
        let begin = self.at(slot);
        read_all(scratch, bytes, |at, out| self.memory.read(begin + at, out))
    }

    /// Returns the place of a buffer in the memory.
    const fn at(&self, slot: u64) -> usize {
        (1 + slot as usize) * self.room
    }
}

/// One side of a connection of raw messages.
pub(crate) struct Raw {
    end: End,
    wait: Wait,
    arrived: Vec<(u64, u64)>,
    /// The buffer that was read last: it is posted again once the answer is on its way.
    spent: Option<u64>,
    scratch: Box<[u8; GLANCE]>,
}

impl Raw {
    pub(crate) fn new(
        host: &impl Host,
        own: PortId,
        peer: (NodeId, PortId),
        most: usize,
        wait: Wait,
    ) -> Result<Self, String> {
        let end = End::open(host, own, peer, (stride(most), RECEIVES))?;
        Ok(Self { end, wait, arrived: Vec::new(), spent: None, scratch: Box::new([0; GLANCE]) })
    }

    fn post_again(&mut self, slot: Option<u64>) -> Result<(), String> {
        if let Some(slot) = slot {
            self.end.post_buffer(slot)?;
            self.end.port.ring();
        }
        Ok(())
    }
}

impl Side for Raw {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        while !self.end.post_message(bytes) {
            let done = self.end.port.completion().await.map_err(text)?;
            if let Some(slot) = End::received(&done)? {
                self.arrived.insert(0, (slot, done.length));
            }
        }
        self.end.port.ring();
        let spent = self.spent.take();
        self.post_again(spent)
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let mut polls = EmptyPolls::default();
        let (slot, length) = loop {
            if let Some(arrived) = self.arrived.pop() {
                break arrived;
            }
            let done = match self.wait {
                Wait::Poll => polls.until(|| self.end.port.poll())?,
                Wait::Await => {
                    let next = tokio::time::timeout(LOST, self.end.port.completion());
                    next.await.map_err(|_| lost())?.map_err(text)?
                }
            };
            if let Some(slot) = End::received(&done)? {
                break (slot, done.length);
            }
        };
        if length != bytes as u64 {
            return Err(format!("a message has {length} bytes, not {bytes}"));
        }
        self.end.read(slot, bytes, &mut self.scratch)?;
        let before = self.spent.replace(slot);
        self.post_again(before)
    }
}
