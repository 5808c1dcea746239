//! One end of a connection of raw messages: a port with posted buffers.

use midplane::nicvm::messages::{receive, send};
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Completion, Port, PortOptions, Status};
use midplane::simhw::region::Region;

use super::BYTES;
use crate::pingpong::layers::failed;

/// The number of the ports of both ends.
const PORT: PortId = PortId(1);
/// Cookie of messages that are sent; buffers have their numbers.
const SENT: u64 = u64::MAX;

/// A port of one of two nodes, with posted buffers.
pub(super) struct End {
    pub(super) port: Port,
    region: Region,
    peer: NodeId,
}

impl End {
    /// Opens a port of `host`, the node 0 or 1, and posts so many buffers.
    pub(super) fn open(host: &impl Host, buffers: usize) -> Result<Self, String> {
        let mut port = host.open_port_with(PortOptions::default().number(PORT)).map_err(failed)?;
        let region = port.register(buffers * BYTES).map_err(failed)?;
        let mut end = Self { port, region, peer: NodeId(1 - host.node().0) };
        for slot in 0..buffers as u64 {
            end.post_buffer(slot)?;
        }
        end.port.ring();
        Ok(end)
    }

    /// Posts a buffer, without a doorbell.
    pub(super) fn post_buffer(&mut self, slot: u64) -> Result<(), String> {
        let range = self.region.range(slot as usize * BYTES, BYTES).expect("a slot of it");
        self.port.post(&receive(range, slot)).map_err(failed)
    }

    /// Posts a message if the port has room, without a doorbell.
    pub(super) fn post_message(&mut self) -> bool {
        let range = self.region.range(0, BYTES).expect("a slot of it");
        self.port.post(&send(self.peer, PORT, range, SENT)).is_ok()
    }

    /// Returns the buffer of a completion, if it is that of a received message.
    pub(super) fn received(done: &Completion) -> Result<Option<u64>, String> {
        match done.status {
            Status::Done => Ok((done.cookie != SENT).then_some(done.cookie)),
            status => Err(format!("a message ended as {status:?}")),
        }
    }

    /// Reads a received message.
    pub(super) fn read(&self, slot: u64, bytes: &mut [u8; BYTES]) -> Result<(), String> {
        self.region.read(slot as usize * BYTES, bytes).map_err(failed)
    }
}
