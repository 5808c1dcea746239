//! The application's end of a port whose NIC is in another process: allocates its regions.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use range_alloc::RangeAllocator;

use super::control_block::PortControlBlock;
use super::far::{Change, Place, REGISTRATIONS};
use super::shared::Bell;
use super::{PortClosed, RegisterError};
use crate::id::PortId;
use crate::lock::lock;
use crate::passing::Socket;
use crate::region::{Memory, RegionOptions};
use crate::ring::Producer;
use crate::segment::{LINE, Segment};

/// Regions of up to this size share arenas: 64 KiB.
const SMALL: usize = 64 << 10;
/// Bytes of a shared arena: 1 MiB.
const ARENA: usize = 1 << 20;

/// A source of memory: the NIC's process.
pub(crate) trait ArenaSource: Send {
    /// Requests a new arena of `bytes`; returns it with its number, or `None` if the NIC's process refuses. May block
    /// until that process answers.
    ///
    /// # Errors
    /// [`PortClosed`] if that process does not answer in time: the port then closes.
    fn request(&self, bytes: usize) -> Result<Option<(u32, Arc<Segment>)>, PortClosed>;

    /// Notifies the NIC's process that the port is dropped.
    fn hang_up(&self);
}

/// Allocates the regions of a port whose NIC is in another process, and sends their registrations.
pub(crate) struct RemoteAllocator {
    words: PortControlBlock,
    inner: Mutex<Inner>,
    /// Called while `inner` is not locked: releasing memory must not wait for an answer.
    source: Mutex<Box<dyn ArenaSource>>,
}

struct Inner {
    registrations: Producer,
    /// Number of published changes.
    published: u64,
    /// Changes for which the ring had no space.
    unsent: VecDeque<Change>,
    arenas: BTreeMap<u32, (Arc<Segment>, RangeAllocator<usize>)>,
    regions: BTreeMap<u16, (Place, usize)>,
    /// Released ranges, as (changes, arena, range): the NIC may use each until it has taken that count of changes.
    lingering: VecDeque<(u64, u32, Range<usize>)>,
}

impl RemoteAllocator {
    pub(super) fn new(
        words: PortControlBlock,
        registrations: Producer,
        source: Box<dyn ArenaSource>,
    ) -> Self {
        let inner = Inner {
            registrations,
            published: 0,
            unsent: VecDeque::new(),
            arenas: BTreeMap::new(),
            regions: BTreeMap::new(),
            lingering: VecDeque::new(),
        };
        Self { words, inner: Mutex::new(inner), source: Mutex::new(source) }
    }

    pub(super) const fn words(&self) -> &PortControlBlock {
        &self.words
    }

    /// Allocates and registers zeroed memory. The NIC applies the registration before it takes any later command.
    pub(super) fn register(
        &self,
        slot: u16,
        generation: u32,
        bytes: usize,
        options: RegionOptions,
        bell: &dyn Fn(),
    ) -> Result<Memory, RegisterError> {
        let (memory, at) = self.allocate(bytes)?;
        let mut inner = lock(&self.inner);
        inner.regions.insert(slot, (at, bytes));
        let change = Change::Register { slot, generation, options, at, bytes };
        // If the change cannot be published now, the registration fails: later commands must not overtake it.
        let is_known = inner.send() && inner.publish(&change);
        if !is_known {
            inner.give_up(slot, generation);
        }
        let waiting = inner.published.wrapping_sub(self.words.taken());
        drop(inner);
        // Rings before the ring is full.
        if waiting >= REGISTRATIONS as u64 / 2 {
            bell();
        }
        if is_known {
            return Ok(memory);
        }
        Err(if self.words.is_closed() { RegisterError::Closed } else { RegisterError::Busy })
    }

    pub(super) fn deregister(&self, slot: u16, generation: u32) {
        lock(&self.inner).give_up(slot, generation);
    }

    /// Allocates from an arena, or requests a new one.
    fn allocate(&self, bytes: usize) -> Result<(Memory, Place), RegisterError> {
        let refused = RegisterError::NoMemory(bytes);
        if bytes <= SMALL {
            let mut inner = lock(&self.inner);
            inner.reclaim(self.words.taken());
            if let Some((segment, at)) = inner.find(bytes) {
                return clean(segment, at, bytes).ok_or(refused);
            }
        }
        let whole = if bytes > SMALL { bytes } else { ARENA };
        let granted =
            lock(&self.source).request(whole).map_err(|PortClosed| RegisterError::Closed)?;
        let (arena, segment) = granted.ok_or(refused)?;
        let is_alone = bytes > SMALL;
        let mut ranges = RangeAllocator::new(0..whole.next_multiple_of(LINE));
        let range = ranges.allocate_range(bytes.next_multiple_of(LINE)).map_err(|_| refused)?;
        let offset = range.start;
        let mut inner = lock(&self.inner);
        // The daemon reuses the number of an arena only after it was given up.
        if inner.arenas.contains_key(&arena) {
            return Err(refused);
        }
        inner.arenas.insert(arena, (Arc::clone(&segment), ranges));
        drop(inner);
        clean(segment, Place { arena, offset, is_alone }, bytes).ok_or(refused)
    }

    pub(super) fn hang_up(&self) {
        lock(&self.source).hang_up();
    }
}

impl Inner {
    /// Publishes the unsent changes; returns `true` if all were published.
    fn send(&mut self) -> bool {
        while let Some(change) = self.unsent.front().copied() {
            if !self.publish(&change) {
                return false;
            }
            self.unsent.pop_front();
        }
        true
    }

    /// Publishes a change; `false` if the ring has no space.
    fn publish(&mut self, change: &Change) -> bool {
        let has_room = self.registrations.push(&change.emit()).is_ok();
        self.published += u64::from(has_room);
        has_room
    }

    /// Releases a region's memory, and notifies the NIC once the ring has space.
    fn give_up(&mut self, slot: u16, generation: u32) {
        let Some((at, bytes)) = self.regions.remove(&slot) else { return };
        self.unsent.push_back(Change::Deregister { slot, generation, at });
        self.send();
        // Counts all unsent changes: the NIC takes this one last.
        let last = self.published + self.unsent.len() as u64;
        if at.is_alone {
            self.arenas.remove(&at.arena);
        } else {
            let range = at.offset..at.offset + bytes.next_multiple_of(LINE);
            self.lingering.push_back((last, at.arena, range));
        }
    }

    /// Frees the ranges that the NIC has released.
    fn reclaim(&mut self, taken: u64) {
        while let Some((last, arena, range)) = self.lingering.front() {
            if *last > taken {
                break;
            }
            if let Some((_, ranges)) = self.arenas.get_mut(arena) {
                ranges.free_range(range.clone());
            }
            self.lingering.pop_front();
        }
    }

    /// Finds space in an arena that small regions share.
    fn find(&mut self, bytes: usize) -> Option<(Arc<Segment>, Place)> {
        let wanted = bytes.next_multiple_of(LINE);
        self.arenas.iter_mut().find_map(|(arena, (segment, ranges))| {
            let offset = ranges.allocate_range(wanted).ok()?.start;
            let at = Place { arena: *arena, offset, is_alone: false };
            Some((Arc::clone(segment), at))
        })
    }
}

/// Returns a range of an arena as zeroed memory.
fn clean(segment: Arc<Segment>, at: Place, bytes: usize) -> Option<(Memory, Place)> {
    let memory = Memory::within(segment, at.offset, bytes)?;
    if !at.is_alone {
        memory.clear();
    }
    Some((memory, at))
}

/// The doorbell of a port whose NIC is in another process.
pub(super) struct FarBell {
    pub(super) words: PortControlBlock,
    /// Wakes the NIC's process.
    pub(super) channel: Arc<Socket>,
    pub(super) spin_nanos: u32,
}

impl Bell for FarBell {
    #[inline]
    fn ring(&self, _: PortId) {
        if self.words.ring() {
            self.channel.wake();
        }
    }

    fn spin_nanos(&self) -> u32 {
        self.spin_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::far::{far_port, open};
    use crate::port::nic::NicPort;
    use crate::port::{Arenas, PortName};
    use crate::region::{Payload, RegionRef};
    use crate::segment::{Kind, View};
    use proptest::prelude::*;

    /// Stands in for the NIC's process.
    struct Here(Arc<Arenas>);

    impl ArenaSource for Here {
        fn request(&self, bytes: usize) -> Result<Option<(u32, Arc<Segment>)>, PortClosed> {
            let (segment, _) = Segment::shared(Kind::Arena, bytes).unwrap();
            let segment = Arc::new(segment);
            let number = self.0.add(Arc::clone(&segment));
            Ok(Some((u32::try_from(number).unwrap(), segment)))
        }

        fn hang_up(&self) {}
    }

    fn pair() -> (RemoteAllocator, NicPort, Arc<Arenas>) {
        let (nic, grant) = far_port(PortName { id: PortId(0), epoch: 1 }, 4).unwrap();
        let (_, _, registrations, words) = open(&grant.file, 4, |_| true).unwrap();
        let source = Here(Arc::clone(&grant.arenas));
        (RemoteAllocator::new(words, registrations, Box::new(source)), nic, grant.arenas)
    }

    proptest! {
        #[test]
        fn memory_is_zeroed_and_not_reused_before_the_nic_has_released_it(
            ops in proptest::collection::vec((0_u8..3, 1_usize..3_000, 0_usize..8), 1..80),
        ) {
            let (remote, mut nic, _) = pair();
            let mut live: Vec<(u16, u32, Memory)> = Vec::new();
            // The NIC may still write to memory that it has not released.
            let mut slots = 0_u16;
            let mut gone: Vec<RegionRef> = Vec::new();
            for (op, bytes, pick) in ops {
                match op {
                    0 => {
                        let (slot, generation) = (slots, 1);
                        slots += 1;
                        let options = RegionOptions::default();
                        let memory = remote.register(slot, generation, bytes, options, &|| {}).unwrap();
                        prop_assert!(memory.view(0, bytes).unwrap().to_vec().iter().all(|b| *b == 0));
                        memory.store(0, Payload::from(&vec![slot as u8 + 1; bytes][..])).unwrap();
                        live.push((slot, generation, memory));
                    }
                    1 if !live.is_empty() => {
                        let (slot, generation, memory) = live.swap_remove(pick % live.len());
                        remote.deregister(slot, generation);
                        let length = u32::try_from(memory.len()).unwrap();
                        gone.push(RegionRef { slot, generation, length, ..RegionRef::default() });
                    }
                    _ => {
                        nic.sync();
                    }
                }
                // The NIC writes to memory that it has not released.
                for stale in &gone {
                    let _ = nic.regions().write(*stale, Payload::from(&[255; 9][..]));
                }
                for (slot, _, memory) in &live {
                    let bytes = memory.view(0, memory.len()).unwrap().to_vec();
                    prop_assert!(bytes.iter().all(|byte| *byte == *slot as u8 + 1), "slot {slot}");
                }
            }
        }
    }

    #[test]
    fn registering_fails_while_the_ring_is_full() {
        let (remote, mut nic, _) = pair();
        let (mut slot, rung) = (0, std::cell::Cell::new(0));
        let mut register = || {
            slot += 1;
            let bell = || rung.set(rung.get() + 1);
            remote.register(slot, 1, 8, RegionOptions::default(), &bell)
        };
        for _ in 0..3 {
            let registered = (0..=REGISTRATIONS).map_while(|_| register().ok()).count();
            assert!((REGISTRATIONS / 2..=REGISTRATIONS).contains(&registered), "{registered}");
            assert_eq!(register().unwrap_err(), RegisterError::Busy);
            assert!(rung.take() > 0, "the bell is rung before the ring is full");
            // Sends deferred changes first.
            nic.sync();
            register().unwrap();
            nic.sync();
        }
    }

    /// Grants memory when the test allows it; its answer is late once the test no longer does.
    struct Slow(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>);

    impl ArenaSource for Slow {
        fn request(&self, bytes: usize) -> Result<Option<(u32, Arc<Segment>)>, PortClosed> {
            self.1.send(()).unwrap();
            self.0.recv().map_err(|_| PortClosed)?;
            Ok(Some((u32::from(bytes != ARENA), Arc::new(Segment::private(bytes)))))
        }

        fn hang_up(&self) {}
    }

    #[test]
    fn memory_can_be_released_during_a_request_for_more() {
        let (_nic, grant) = far_port(PortName { id: PortId(0), epoch: 1 }, 4).unwrap();
        let (_, _, registrations, words) = open(&grant.file, 4, |_| true).unwrap();
        let (may, waits) = std::sync::mpsc::channel();
        let (asks, asked) = std::sync::mpsc::channel();
        let remote = RemoteAllocator::new(words, registrations, Box::new(Slow(waits, asks)));
        let register =
            |slot, bytes| remote.register(slot, 1, bytes, RegionOptions::default(), &|| {});
        may.send(()).unwrap();
        register(0, 8).unwrap();
        asked.recv().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| register(1, SMALL + 1).unwrap());
            asked.recv().unwrap();
            remote.deregister(0, 1);
            register(2, 8).unwrap();
            may.send(()).unwrap();
        });
    }

    #[test]
    fn a_late_answer_is_reported_as_a_closed_port() {
        let (_nic, grant) = far_port(PortName { id: PortId(0), epoch: 1 }, 4).unwrap();
        let (_, _, registrations, words) = open(&grant.file, 4, |_| true).unwrap();
        let (may, waits) = std::sync::mpsc::channel();
        let (asks, _asked) = std::sync::mpsc::channel();
        let remote = RemoteAllocator::new(words, registrations, Box::new(Slow(waits, asks)));
        drop(may);
        for bytes in [8, SMALL + 1] {
            let registered = remote.register(0, 1, bytes, RegionOptions::default(), &|| {});
            assert_eq!(registered.unwrap_err(), RegisterError::Closed);
        }
    }

    #[test]
    fn released_memory_no_longer_counts() {
        let (remote, mut nic, arenas) = pair();
        for slot in 0..10 {
            remote.register(slot, 1, SMALL + 1, RegionOptions::default(), &|| {}).unwrap();
            remote.deregister(slot, 1);
            nic.sync();
        }
        assert_eq!(arenas.bytes(), 0);
    }

    proptest! {
        #[test]
        fn the_nic_continues_whatever_the_application_writes(
            scribbles in proptest::collection::vec((any::<u16>(), any::<u64>(), any::<bool>()), 1..200),
        ) {
            let (mut nic, grant) = far_port(PortName { id: PortId(0), epoch: 1 }, 4).unwrap();
            let found = (1..64).find_map(|pages| {
                Segment::open(&grant.file, Kind::Port, pages * 4_096, |_| true).ok()
            });
            let segment = found.expect("as many pages as it has");
            let lines = segment.len() / LINE;
            for (at, value, is_small) in scribbles {
                let value = if is_small { value % 64 } else { value };
                let at = usize::from(at) % (lines * 8) * 8;
                segment.store(at, View::from(&value.to_le_bytes()[..])).unwrap();
                nic.sync();
                let _ = nic.next_command();
                nic.complete(&crate::port::Completion::default());
                let stale = RegionRef { slot: 3, generation: 1, length: 8, ..RegionRef::default() };
                let _ = nic.regions().read(stale).map(|payload| payload.to_vec());
            }
        }
    }
}
