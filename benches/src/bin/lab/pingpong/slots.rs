//! The bare ring slots of shared memory, which all layers are built on; both processes busy-poll.

use midplane::simhw::frame::Header;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::ShmConfig;
use midplane::simhw::shm::measure::Bare;

use crate::pingpong::layers::EmptyPolls;
use crate::pingpong::measure::Side;
use crate::report::text;

/// Most bytes of a slot.
const SLOT: usize = 16 << 10;

/// One end of the rings, with a buffer for messages in both directions.
pub(crate) struct Slots {
    bare: Bare,
    node: NodeId,
    bytes: Vec<u8>,
}

impl Slots {
    pub(crate) fn new(place: &str, node: NodeId, most: usize) -> Result<Self, String> {
        let bare = Bare::meet(&ShmConfig::new(place, node, 2)).map_err(text)?;
        Ok(Self { bare, node, bytes: vec![7; most.max(SLOT)] })
    }
}

impl Side for Slots {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        for piece in self.bytes[..bytes].chunks(SLOT) {
            let length = piece.len() as u16;
            let header = Header { source: self.node, length, ..Header::default() };
            EmptyPolls::default().until(|| self.bare.send(&header, piece).then_some(()))?;
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let mut polls = EmptyPolls::default();
        let mut received = 0;
        while received < bytes {
            received += polls.until(|| self.bare.receive(&mut self.bytes[received..bytes]))?;
        }
        Ok(())
    }
}
