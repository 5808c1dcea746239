//! Frames under way: a pool that is filled once and used again.

use crate::drops::DropCause;
use crate::frame::Header;
use crate::id::NodeId;
use crate::time::{Instant, Serializer};
use crate::topology::LinkId;
use crate::trace::Sighting;

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// A frame somewhere in the network.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) header: Header,
    /// Counts all frames there ever were.
    pub(super) number: u64,
    /// The link that it was last seen at the end of.
    pub(super) link: Option<LinkId>,
    /// The link at whose end its hop limit ended.
    pub(super) ends_at: Option<LinkId>,
    /// The NIC that sends it, whoever the header says it is from.
    pub(super) origin: NodeId,
    pub(super) payload: Vec<u8>,
    pub(super) pieces: u16,
    /// Pieces that have neither arrived nor been dropped.
    pub(super) outstanding: u16,
    /// Whether it has its own place on its NIC's line.
    pub(super) reserved: bool,
    /// Whether a piece has arrived.
    pub(super) arrived: bool,
    /// It passes within its node.
    pub(super) looped: bool,
    /// Why the first lost piece was lost.
    pub(super) lost: Option<DropCause>,
    /// The line that the pieces leave the NIC on, as it was after the last one that left.
    pub(super) line: Serializer,
    /// Delay of a fault, in nanoseconds.
    pub(super) delay: u64,
    /// When its first piece began to leave its NIC.
    pub(super) sent: Instant,
    /// When the piece that is on its way over the uplink leaves it.
    pub(super) leaves: Instant,
    /// Urgent frames that its pieces have waited for, as the uplink counts them.
    pub(super) thefts: u64,
}

impl InFlight {
    pub(super) fn sighting(&self) -> Sighting<'_> {
        Sighting { number: self.number, header: &self.header, payload: &self.payload }
    }
}

/// The frames under way. A key names one use of a slot.
#[derive(Debug, Default)]
pub(super) struct FramePool {
    slots: Vec<(u32, InFlight)>,
    free: Vec<u32>,
    numbers: u64,
}

impl FramePool {
    /// A new frame; its payload is whatever the slot's last one was, for the caller to replace.
    pub(super) fn allocate(&mut self, origin: NodeId, header: Header, line: Serializer) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                assert!(
                    slot <= SLOT_MASK,
                    "a million frames are under way: the network has no bound"
                );
                let frame = InFlight {
                    header,
                    number: 0,
                    link: None,
                    ends_at: None,
                    origin,
                    payload: Vec::new(),
                    pieces: 0,
                    outstanding: 0,
                    reserved: false,
                    arrived: false,
                    looped: false,
                    lost: None,
                    line,
                    delay: 0,
                    sent: Instant::ZERO,
                    leaves: Instant::ZERO,
                    thefts: 0,
                };
                self.slots.push((slot, frame));
                slot
            }
        };
        let (key, frame) = &mut self.slots[slot as usize];
        self.numbers += 1;
        frame.header = header;
        frame.number = self.numbers;
        frame.link = None;
        frame.ends_at = None;
        frame.origin = origin;
        frame.reserved = false;
        frame.arrived = false;
        frame.looped = false;
        frame.line = line;
        frame.lost = None;
        frame.delay = 0;
        *key
    }

    /// A frame that carries the same.
    pub(super) fn duplicate(&mut self, key: u32) -> u32 {
        let original = self.at(key);
        let (origin, header, line) = (original.origin, original.header, original.line);
        let (pieces, sent, thefts) = (original.pieces, original.sent, original.thefts);
        let payload = std::mem::take(&mut self.at(key).payload);
        let copy = self.allocate(origin, header, line);
        let frame = self.at(copy);
        frame.payload.clone_from(&payload);
        frame.pieces = pieces;
        frame.outstanding = pieces;
        frame.sent = sent;
        frame.thefts = thefts;
        self.at(key).payload = payload;
        copy
    }

    /// # Panics
    /// If the frame was freed: nobody keeps a key longer than the frame.
    pub(super) fn at(&mut self, key: u32) -> &mut InFlight {
        let (live, frame) = &mut self.slots[(key & SLOT_MASK) as usize];
        assert!(*live == key, "a freed frame is nobody's");
        frame
    }

    /// Whether the key names a frame that is under way.
    pub(super) fn is_live(&self, key: u32) -> bool {
        self.slots[(key & SLOT_MASK) as usize].0 == key
    }

    pub(super) fn free(&mut self, key: u32) {
        let (live, frame) = &mut self.slots[(key & SLOT_MASK) as usize];
        assert!(*live == key, "a frame is freed once");
        *live = key.wrapping_add(1 << SLOT_BITS);
        frame.outstanding = 0;
        self.free.push(key & SLOT_MASK);
    }

    /// Takes an allocation back, as if it had never been; the newest first.
    pub(super) fn unallocate(&mut self, key: u32) {
        let (live, frame) = &mut self.slots[(key & SLOT_MASK) as usize];
        assert!(*live == key, "only what was allocated is taken back");
        frame.outstanding = 0;
        self.free.push(key & SLOT_MASK);
    }

    /// Frames of which some pieces have arrived and others have not.
    pub(super) fn partly_arrived(&mut self) -> impl Iterator<Item = &mut InFlight> {
        let frames = self.slots.iter_mut().map(|(_, frame)| frame);
        frames.filter(|frame| frame.outstanding > 0 && frame.arrived)
    }

    /// Frames under way.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
