//! A port with its two ends in two processes: the layout of its segment, and the NIC's end. The [application's
//! end](super::remote_allocator) registers memory over a third ring.
//!
//! Neither side waits for the other, so that either may be stopped or killed at any instruction. Neither trusts
//! the other: a malformed entry is ignored.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use super::control_block::PortControlBlock;
use super::nic::NicPort;
use super::shared::Registration;
use super::{MAX_DEPTH, PortName};
use crate::host::OpenError;
use crate::lock::lock;
use crate::passing::Socket;
use crate::region::{Memory, ProtectionTag, RegionOptions, Rights};
use crate::ring::{Consumer, Entry, Producer, ring, ring_bytes};
use crate::segment::{Kind, Segment, SegmentError};
use crate::sync::{Ordering, fence};

/// Changes of registration that may be in flight.
pub(super) const REGISTRATIONS: usize = 1_024;

/// Offsets of the parts of a port's segment.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Commands that may be in flight; a power of two.
    depth: usize,
}

impl Layout {
    fn of(depth: usize) -> Self {
        Self { depth: depth.clamp(2, MAX_DEPTH).next_power_of_two() }
    }

    const fn commands() -> usize {
        PortControlBlock::BYTES
    }

    const fn completions(self) -> usize {
        Self::commands() + ring_bytes(2 * self.depth)
    }

    const fn registrations(self) -> usize {
        self.completions() + ring_bytes(2 * self.depth)
    }

    const fn bytes(self) -> usize {
        self.registrations() + ring_bytes(REGISTRATIONS)
    }
}

/// The segments that hold a port's regions, in the NIC's process.
#[derive(Debug, Default)]
pub(crate) struct Arenas(Mutex<Vec<ArenaSlot>>);

/// A segment that was passed to the application. Its memory counts for as long as a region is registered in it, even
/// if the application has released it.
#[derive(Debug, Default)]
struct ArenaSlot {
    arena: Option<Arc<Segment>>,
    alive: Weak<Segment>,
}

impl Arenas {
    /// Returns the bytes of all segments.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0).iter().filter_map(|slot| slot.alive.upgrade()).map(|arena| arena.len()).sum()
    }

    /// Adds a segment and returns its number.
    pub(crate) fn add(&self, arena: Arc<Segment>) -> usize {
        let mut slots = lock(&self.0);
        let is_free = |slot: &ArenaSlot| slot.alive.strong_count() == 0;
        let number = slots.iter().position(is_free).unwrap_or(slots.len());
        if number == slots.len() {
            slots.push(ArenaSlot::default());
        }
        slots[number] = ArenaSlot { alive: Arc::downgrade(&arena), arena: Some(arena) };
        number
    }

    fn get(&self, number: usize) -> Option<Arc<Segment>> {
        lock(&self.0).get(number)?.arena.clone()
    }

    fn release(&self, number: usize) {
        if let Some(slot) = lock(&self.0).get_mut(number) {
            slot.arena = None;
        }
    }
}

/// A change of registration, as encoded in the ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Register { slot: u16, generation: u32, options: RegionOptions, at: Place, bytes: usize },
    Deregister { slot: u16, generation: u32, at: Place },
}

/// Position of a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) arena: u32,
    pub(super) offset: usize,
    /// True if the arena holds this region only, and ends with it.
    pub(super) is_alone: bool,
}

const REGISTER: u64 = 1;
const DEREGISTER: u64 = 2;

impl Change {
    /// Encodes the change. Word 0: which, 8 bits; alone, 8; slot, 16; generation, 32. Word 1: arena; word 2:
    /// offset; word 3: bytes; word 4: rights; word 5: tag.
    pub(super) fn emit(&self) -> Entry {
        let (which, slot, generation, at) = match *self {
            Self::Register { slot, generation, at, .. } => (REGISTER, slot, generation, at),
            Self::Deregister { slot, generation, at } => (DEREGISTER, slot, generation, at),
        };
        let head = which
            | u64::from(at.is_alone) << 8
            | u64::from(slot) << 16
            | u64::from(generation) << 32;
        let place = [head, at.arena.into(), at.offset as u64];
        let rest = match *self {
            Self::Register { options, bytes, .. } => {
                [bytes as u64, options.rights.bits().into(), options.tag.0.into()]
            }
            Self::Deregister { .. } => [0; 3],
        };
        [place[0], place[1], place[2], rest[0], rest[1], rest[2], 0]
    }

    /// Decodes an entry; `None` if it is malformed.
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    fn parse(entry: &Entry) -> Option<Self> {
        let [head, arena, offset, bytes, rights, tag, _] = *entry;
        let (slot, generation) = ((head >> 16) as u16, (head >> 32) as u32);
        let at = Place {
            arena: u32::try_from(arena).ok()?,
            offset: usize::try_from(offset).ok()?,
            is_alone: (head >> 8) & 0xff == 1,
        };
        match head & 0xff {
            REGISTER => {
                let rights = u8::try_from(rights).ok().and_then(Rights::from_bits)?;
                let tag = ProtectionTag(u32::try_from(tag).ok()?);
                let options = RegionOptions::default().rights(rights).tag(tag);
                let bytes = usize::try_from(bytes).ok()?;
                Some(Self::Register { slot, generation, options, at, bytes })
            }
            DEREGISTER => Some(Self::Deregister { slot, generation, at }),
            _ => None,
        }
    }
}

/// A port of another process, as held by the server in the NIC's process. The server rings its doorbell, grants it
/// memory, and closes it.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) name: PortName,
    /// Commands that may be in flight.
    pub(crate) depth: usize,
    /// Bytes of the segment of its rings.
    pub(crate) bytes: usize,
    /// The segment's descriptor, to be passed to the application.
    pub(crate) file: OwnedFd,
    /// The NIC's end of the channel on which application and NIC wake each other.
    pub(crate) channel: Arc<Socket>,
    /// The application's end of the channel, to be passed on.
    pub(crate) theirs: OwnedFd,
    pub(crate) words: PortControlBlock,
    pub(crate) arenas: Arc<Arenas>,
    /// Set when the application has closed the port or exited; the NIC must then be rung.
    pub(crate) is_gone: Arc<AtomicBool>,
}

/// The NIC's end of a port's registrations, flags and wake-ups.
#[derive(Debug)]
pub(crate) struct FarEnd {
    words: PortControlBlock,
    registrations: Consumer,
    arenas: Arc<Arenas>,
    channel: Arc<Socket>,
    is_gone: Arc<AtomicBool>,
    /// True once the close was reported.
    is_over: bool,
    taken: u64,
}

/// Creates a port for another process.
pub(crate) fn far_port(name: PortName, depth: usize) -> Result<(NicPort, Grant), OpenError> {
    let (channel, theirs) = Socket::pair().map_err(|error| OpenError::System(error.kind()))?;
    let channel = Arc::new(channel);
    let layout = Layout::of(depth);
    let shared = Segment::shared(Kind::Port, layout.bytes());
    let (segment, file) = shared.map_err(|_| OpenError::System(std::io::ErrorKind::OutOfMemory))?;
    let segment = Arc::new(segment);
    let (_, commands) = ring(&segment, Layout::commands(), 2 * layout.depth);
    let (completions, _) = ring(&segment, layout.completions(), 2 * layout.depth);
    let (_, registrations) = ring(&segment, layout.registrations(), REGISTRATIONS);
    let words = PortControlBlock::new(segment);
    let (arenas, is_gone) = (Arc::<Arenas>::default(), Arc::<AtomicBool>::default());
    let end = FarEnd {
        words: words.clone(),
        registrations,
        arenas: Arc::clone(&arenas),
        channel: Arc::clone(&channel),
        is_gone: Arc::clone(&is_gone),
        is_over: false,
        taken: 0,
    };
    let (depth, bytes) = (layout.depth, layout.bytes());
    let grant = Grant { name, depth, bytes, file, channel, theirs, words, arenas, is_gone };
    Ok((NicPort::far(commands, completions, end), grant))
}

/// Opens the application's ends of a mapped port: commands, completions, registrations, control block.
pub(super) fn open(
    file: &OwnedFd,
    depth: usize,
    admits: impl Fn(u32) -> bool,
) -> Result<(Producer, Consumer, Producer, PortControlBlock), SegmentError> {
    let layout = Layout::of(depth);
    let segment = Arc::new(Segment::open(file, Kind::Port, layout.bytes(), admits)?);
    let (commands, _) = ring(&segment, Layout::commands(), 2 * layout.depth);
    let (_, completions) = ring(&segment, layout.completions(), 2 * layout.depth);
    let (registrations, _) = ring(&segment, layout.registrations(), REGISTRATIONS);
    Ok((commands, completions, registrations, PortControlBlock::new(segment)))
}

impl FarEnd {
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        !self.registrations.is_empty() || self.is_closing()
    }

    /// Returns whether the application has closed its end, and the NIC has yet to handle that.
    pub(super) fn is_closing(&self) -> bool {
        !self.is_over && self.is_gone.load(Ordering::Acquire)
    }

    /// Takes the changes of registration since the last call. [`FarEnd::settle`] must follow.
    pub(super) fn take(&mut self) -> Vec<Registration> {
        let mut changes = Vec::new();
        for _ in 0..REGISTRATIONS {
            let Some(entry) = self.registrations.pop() else { break };
            self.taken += 1;
            changes.extend(Change::parse(&entry).and_then(|change| self.follow(change)));
        }
        if self.is_closing() {
            self.is_over = true;
            changes.push(Registration::Close);
        }
        changes
    }

    fn follow(&self, change: Change) -> Option<Registration> {
        match change {
            Change::Register { slot, generation, options, at, bytes } => {
                let arena = self.arenas.get(at.arena as usize)?;
                let memory = Memory::within(arena, at.offset, bytes)?;
                Some(Registration::Register { slot, generation, memory, options })
            }
            Change::Deregister { slot, generation, at } => {
                if at.is_alone {
                    self.arenas.release(at.arena as usize);
                }
                Some(Registration::Deregister { slot, generation })
            }
        }
    }

    /// Publishes that the taken changes are in effect: the application may reuse released memory.
    pub(super) fn settle(&self) {
        self.words.set_taken(self.taken);
    }

    pub(super) fn wake(&self) {
        // Orders the completion before the load of the waiting flag; see `PortControlBlock::wait`.
        fence(Ordering::SeqCst);
        self.wake_waiting();
    }

    pub(super) fn wake_waiting(&self) {
        if self.words.takes_wake() {
            self.channel.wake();
        }
    }

    pub(super) fn close(&self) {
        self.words.close();
        self.channel.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PortId;
    use proptest::prelude::*;

    #[test]
    fn memory_counts_while_a_region_is_registered_in_it() {
        let (mut nic, grant) = far_port(PortName { id: PortId(0), epoch: 1 }, 4).unwrap();
        let (_, _, mut registrations, _) = open(&grant.file, 4, |_| true).unwrap();
        let bytes = 1 << 16;
        let (arena, _) = Segment::shared(Kind::Arena, bytes).unwrap();
        let arena = grant.arenas.add(Arc::new(arena)) as u32;
        let at = Place { arena, offset: 0, is_alone: true };
        let options = RegionOptions::default();
        let changes = [
            Change::Register { slot: 1, generation: 1, options, at, bytes },
            // There is no such region: the application only claims to have released the memory.
            Change::Deregister { slot: 9, generation: 1, at },
        ];
        for change in changes {
            registrations.push(&change.emit()).unwrap();
        }
        nic.sync();
        assert_eq!(grant.arenas.bytes(), bytes);
        registrations.push(&Change::Deregister { slot: 1, generation: 1, at }.emit()).unwrap();
        nic.sync();
        assert_eq!(grant.arenas.bytes(), 0);
    }

    proptest! {
        #[test]
        fn a_change_is_parsed_as_emitted_and_changed_words_do_not_panic(
            slot: u16, generation: u32, arena: u32, offset: u32, bytes: u32, rights in 0_u8..16,
            tag: u32, is_alone: bool, at in 0_usize..7, word: u64,
        ) {
            let place = Place { arena, offset: offset as usize, is_alone };
            let rights = Rights::from_bits(rights).unwrap();
            let options = RegionOptions::default().rights(rights).tag(ProtectionTag(tag));
            let bytes = bytes as usize;
            let changes = [
                Change::Register { slot, generation, options, at: place, bytes },
                Change::Deregister { slot, generation, at: place },
            ];
            for change in changes {
                let mut entry = change.emit();
                prop_assert_eq!(Change::parse(&entry), Some(change));
                entry[at] = word;
                let _ = Change::parse(&entry);
            }
        }
    }
}
