//! Messages that are written directly into the receiver's registered memory.
//!
//! Once an RTS has met its receive, the CTS names registered memory of the receiver. The sender writes the bytes there
//! with one write, and then sends the data packet without them. So such a message is not cut to the area's size, and
//! does not wait for the area's credit.

use std::collections::BTreeMap;

use crate::memory::{Memory, MemoryOptions, RemoteMemory, Segment};
use crate::nic::Nic;

/// Longest message written in one piece, in bytes; longer ones go through the area, in parts.
pub(super) const LONGEST_PLACED: usize = 4 << 20;
/// Shortest such message, in bytes: below it, a separate write costs more than the copy through the area.
const SHORTEST_PLACED: usize = 4096;
/// Most messages of one process that may be written here at once.
const MAX_PLACES: usize = 8;
/// Most unused regions kept for later messages, for each process and direction.
const MAX_SPARE: usize = 4;
/// Regions registered from the start, for each process and direction, and the bytes of each.
const AHEAD: usize = 2;
const AHEAD_BYTES: usize = 1 << 20;
/// Bytes of the memory's name that follows a CTS.
pub(super) const NAME_BYTES: usize = 16;

/// The way in which rendezvous messages reach registered memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Registration {
    /// Messages go in parts through the area, which is registered once for all of them.
    Copied,
    /// Messages go into memory that is registered on demand, and kept for later messages.
    #[default]
    Cached,
    /// Messages go into memory that is registered from the start: two times 1 MiB for each process and direction. If
    /// none is free, a message goes in parts through the area.
    Registered,
}

/// Registered memory that is not in use, by size.
#[derive(Debug)]
struct Pool {
    options: MemoryOptions,
    registration: Registration,
    spare: Vec<Memory>,
}

impl Pool {
    fn new(nic: &mut Nic, options: MemoryOptions, registration: Registration) -> Self {
        let ahead = if registration == Registration::Registered { AHEAD } else { 0 };
        let spare = (0..ahead).filter_map(|_| nic.register(AHEAD_BYTES, options).ok()).collect();
        Self { options, registration, spare }
    }

    /// Takes memory of at least `bytes`; returns `None` if there is none.
    fn take(&mut self, nic: &mut Nic, bytes: usize) -> Option<Memory> {
        let fits = |memory: &Memory| memory.len() >= bytes;
        if let Some(at) = self.spare.iter().position(fits) {
            return Some(self.spare.swap_remove(at));
        }
        match self.registration {
            Registration::Cached => nic.register(bytes.next_power_of_two(), self.options).ok(),
            Registration::Copied | Registration::Registered => None,
        }
    }

    fn put(&mut self, memory: Memory) {
        if self.spare.len() >= MAX_SPARE {
            // Drops the smallest, which fits the fewest messages.
            let least = (0..self.spare.len()).min_by_key(|at| self.spare[*at].len());
            let at = least.expect("there are some");
            if self.spare[at].len() >= memory.len() {
                return;
            }
            self.spare.swap_remove(at);
        }
        self.spare.push(memory);
    }
}

/// Memory that the other side may write a message to.
#[derive(Debug)]
pub(super) enum Place {
    /// Memory of the pool; the message is copied out of it.
    Pooled(Memory),
    /// The receive's own memory, where the message stays.
    Receive(Segment),
}

impl Place {
    fn name(&self) -> Option<RemoteMemory> {
        match self {
            Self::Pooled(memory) => Some(memory.remote()),
            Self::Receive(room) => room.remote(),
        }
    }
}

/// The registered memory for rendezvous messages from and to one process.
#[derive(Debug)]
pub(super) struct RendezvousBuffers {
    registration: Registration,
    /// Memory from which this side's messages are written.
    from: Pool,
    /// Memory into which the other side writes.
    into: Pool,
    /// Memory that the other side may write now, by receive.
    open: BTreeMap<u64, Place>,
    /// Memory of receives whose CTS has not been sent.
    offered: BTreeMap<u64, Segment>,
    /// Memory of the other side that this side may write, by receive.
    named: BTreeMap<u64, RemoteMemory>,
}

impl RendezvousBuffers {
    pub(super) fn new(nic: &mut Nic, into: MemoryOptions, registration: Registration) -> Self {
        let from = MemoryOptions { rdma_write: false, ..into };
        Self {
            registration,
            from: Pool::new(nic, from, registration),
            into: Pool::new(nic, into, registration),
            open: BTreeMap::new(),
            offered: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// Forgets the memory that both sides have named.
    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.offered.clear();
        while let Some((_, place)) = self.open.pop_first() {
            self.put_back(place);
        }
    }

    fn put_back(&mut self, place: Place) {
        if let Place::Pooled(memory) = place {
            self.into.put(memory);
        }
    }

    /// Registers memory that both sides of this connection may use.
    pub(super) fn register(&self, nic: &mut Nic, bytes: usize) -> Option<Memory> {
        nic.register(bytes, self.into.options).ok()
    }

    /// Keeps a receive's own memory for its message, until the CTS was sent.
    pub(super) fn offer(&mut self, nic: &Nic, receive: u64, room: &Segment) {
        if is_for(nic, room.memory(), self.into.options) {
            self.offered.insert(receive, room.clone());
        }
    }

    /// Returns whether the NIC may send from this memory over this connection.
    pub(super) fn may_send(&self, nic: &Nic, memory: &Memory) -> bool {
        is_for(nic, memory, self.from.options)
    }

    /// Opens memory for the message of a receive; returns the memory's name.
    pub(super) fn open(
        &mut self,
        nic: &mut Nic,
        receive: u64,
        bytes: usize,
    ) -> Option<[u8; NAME_BYTES]> {
        let offered = self.offered.remove(&receive);
        let sized = (SHORTEST_PLACED..=LONGEST_PLACED).contains(&bytes);
        if !sized || self.registration == Registration::Copied || self.open.len() >= MAX_PLACES {
            return None;
        }
        let place = match offered {
            Some(room) => Place::Receive(room),
            None => Place::Pooled(self.into.take(nic, bytes)?),
        };
        let name = place.name()?.to_bytes();
        self.open.insert(receive, place);
        Some(name)
    }

    /// Closes the memory that was opened for a receive.
    pub(super) fn close(&mut self, receive: u64) {
        if let Some(place) = self.open.remove(&receive) {
            self.put_back(place);
        }
    }

    /// Handles the name of the other side's memory for one of this side's messages. Without memory to send from, this
    /// side sends in parts.
    pub(super) fn on_named(&mut self, receive: u64, name: [u8; NAME_BYTES], bytes: usize) {
        let memory = RemoteMemory::from_bytes(name);
        let has_memory = self.registration != Registration::Copied;
        if has_memory && self.named.len() < MAX_PLACES && memory.len() as usize >= bytes {
            self.named.insert(receive, memory);
        }
    }

    /// Returns whether a message to this receive may be written in one piece.
    pub(super) fn is_named(&self, receive: u64) -> bool {
        self.named.contains_key(&receive)
    }

    /// Returns the other side's memory for the message of a receive.
    pub(super) fn named(&self, receive: u64) -> Option<RemoteMemory> {
        self.named.get(&receive).copied()
    }

    /// Copies the bytes into registered memory; returns it, and where it is to be written. `None` while no memory is
    /// free.
    pub(super) fn load(
        &mut self,
        nic: &mut Nic,
        receive: u64,
        bytes: &[u8],
    ) -> Option<(Memory, RemoteMemory)> {
        let to = self.named(receive)?;
        let memory = self.from.take(nic, bytes.len())?;
        memory.write(0, bytes).expect("it is as long");
        Some((memory, to))
    }

    /// Forgets the memory named for a receive, because its message was written.
    pub(super) fn on_written(&mut self, receive: u64) {
        self.named.remove(&receive);
    }

    /// Returns memory to the pool after the message was sent from it.
    pub(super) fn unload(&mut self, memory: Memory) {
        self.from.put(memory);
    }

    /// Returns the memory that was written for a receive; it stays open until the message was read.
    pub(super) fn written(&self, receive: u64) -> Option<&Place> {
        self.open.get(&receive)
    }
}

/// Returns whether memory was registered with this NIC, with the connection's tag and these rights.
fn is_for(nic: &Nic, memory: &Memory, options: MemoryOptions) -> bool {
    memory.is_of(nic.port(), options.tag, options.rights())
}
