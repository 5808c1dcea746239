//! A pool of frames in flight, whose slots are reused.

use crate::drops::DropCause;
use crate::frame::Header;
use crate::id::NodeId;
use crate::time::{Instant, Serializer};
use crate::topology::LinkId;
use crate::trace::TracedFrame;

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// A frame in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) header: Header,
    /// Sequence number among all frames of the run.
    pub(super) number: u64,
    /// The last link whose end it has reached.
    pub(super) link: Option<LinkId>,
    /// The link at whose end its hop limit expired.
    pub(super) ends_at: Option<LinkId>,
    /// The NIC that sends it; the header may name another source.
    pub(super) origin: NodeId,
    pub(super) payload: Vec<u8>,
    pub(super) pieces: u16,
    /// Pieces that have neither arrived nor been dropped.
    pub(super) outstanding: u16,
    /// True if the frame has a reservation on its NIC's line.
    pub(super) reserved: bool,
    /// True if a piece has arrived.
    pub(super) arrived: bool,
    /// True if it stays within its node.
    pub(super) looped: bool,
    /// The cause for which the first lost piece was lost.
    pub(super) lost: Option<DropCause>,
    /// The line on which its pieces leave the NIC, as of the last piece that left.
    pub(super) line: Serializer,
    /// Extra delay in nanoseconds, from faults.
    pub(super) delay: u64,
    /// When its first piece began to leave its NIC.
    pub(super) sent: Instant,
    /// When the piece that is now on the uplink leaves it.
    pub(super) leaves: Instant,
    /// Number of preemptions by urgent frames, as the uplink counts them, for which its pieces have been delayed.
    pub(super) preemptions: u64,
}

impl InFlight {
    pub(super) fn sighting(&self) -> TracedFrame<'_> {
        TracedFrame { number: self.number, header: &self.header, payload: &self.payload }
    }
}

/// The frames in flight. A key names one use of a slot.
#[derive(Debug, Default)]
pub(super) struct FramePool {
    slots: Vec<(u32, InFlight)>,
    free: Vec<u32>,
    numbers: u64,
}

impl FramePool {
    /// Allocates a frame. Its payload is that of the slot's last frame, for the caller to replace.
    pub(super) fn allocate(&mut self, origin: NodeId, header: Header, line: Serializer) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                assert!(
                    slot <= SLOT_MASK,
                    "a million frames are in flight: the network has no bound"
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
                    preemptions: 0,
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

    /// Allocates a copy of a frame.
    pub(super) fn duplicate(&mut self, key: u32) -> u32 {
        let original = self.at(key);
        let (origin, header, line) = (original.origin, original.header, original.line);
        let (pieces, sent, preemptions) = (original.pieces, original.sent, original.preemptions);
        let payload = std::mem::take(&mut self.at(key).payload);
        let copy = self.allocate(origin, header, line);
        let frame = self.at(copy);
        frame.payload.clone_from(&payload);
        frame.pieces = pieces;
        frame.outstanding = pieces;
        frame.sent = sent;
        frame.preemptions = preemptions;
        self.at(key).payload = payload;
        copy
    }

    /// # Panics
    /// If the frame was freed.
    pub(super) fn at(&mut self, key: u32) -> &mut InFlight {
        let (live, frame) = &mut self.slots[(key & SLOT_MASK) as usize];
        assert!(*live == key, "a frame is not used after it is freed");
        frame
    }

    /// Returns whether `key` names a frame in flight.
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

    /// Undoes an allocation; the newest must be undone first.
    pub(super) fn unallocate(&mut self, key: u32) {
        let (live, frame) = &mut self.slots[(key & SLOT_MASK) as usize];
        assert!(*live == key, "only a live allocation is undone");
        frame.outstanding = 0;
        self.free.push(key & SLOT_MASK);
    }

    /// Iterates over frames of which some pieces have arrived and others have not.
    pub(super) fn partly_arrived(&mut self) -> impl Iterator<Item = &mut InFlight> {
        let frames = self.slots.iter_mut().map(|(_, frame)| frame);
        frames.filter(|frame| frame.outstanding > 0 && frame.arrived)
    }

    /// Returns the number of frames in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
