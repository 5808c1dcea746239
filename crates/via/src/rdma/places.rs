//! Messages that are written straight into the receiver's registered memory.
//!
//! When an announced message has met its receive, the answer that clears it names registered memory
//! of the receiver's. The sender writes the bytes there with one write, and behind it the packet that
//! would have carried them, without them. What the area's size and its credits would have cut into
//! parts and held up goes in one piece.

use std::collections::BTreeMap;

use crate::memory::{Memory, MemoryOptions, RemoteMemory, Segment};
use crate::nic::Nic;

/// Longest message that is written in one piece; longer ones go through the area, in parts.
pub(super) const LONGEST_PLACED: usize = 4 << 20;
/// Shortest one: below it, the write of its own costs more than the area's copy.
const SHORTEST_PLACED: usize = 4096;
/// Messages of one process that are cleared to be written here at once.
const MAX_PLACES: usize = 8;
/// Memories that are kept for the next message, of each direction to a process.
const MAX_SPARE: usize = 4;
/// Memories registered from the start, of each direction to a process, and their bytes.
const AHEAD: usize = 2;
const AHEAD_BYTES: usize = 1 << 20;
/// Bytes of a place's name behind the answer that clears a message.
pub(super) const NAME_BYTES: usize = 16;

/// How messages that are too long to leave whole come into registered memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Registration {
    /// In parts through the area that is registered for all of them.
    Copied,
    /// Into memory that is registered when it is needed, and kept for the next message.
    #[default]
    Cached,
    /// Into memory that is registered from the start, two times 1 MiB for each process and direction;
    /// what finds none free goes in parts.
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

    /// Memory of at least so many bytes; `None` if there is none to be had.
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

    fn give_back(&mut self, memory: Memory) {
        if self.spare.len() >= MAX_SPARE {
            // The one that fits the fewest messages goes.
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
    /// Of the pool; the message is copied out of it.
    Pooled(Memory),
    /// Of the receive itself, which finds its message there.
    Lent(Segment),
}

impl Place {
    fn name(&self) -> Option<RemoteMemory> {
        match self {
            Self::Pooled(memory) => Some(memory.remote()),
            Self::Lent(room) => room.remote(),
        }
    }
}

/// What is written in one piece, from and to one process.
#[derive(Debug)]
pub(super) struct Places {
    registration: Registration,
    /// Where our messages are written from.
    from: Pool,
    /// Where the other side writes.
    into: Pool,
    /// What it may write at the moment, by the receive that it is for.
    open: BTreeMap<u64, Place>,
    /// Memory of receives whose answers have yet to leave.
    lent: BTreeMap<u64, Segment>,
    /// What we may write there, by the receive.
    named: BTreeMap<u64, RemoteMemory>,
}

impl Places {
    pub(super) fn new(nic: &mut Nic, into: MemoryOptions, registration: Registration) -> Self {
        let from = MemoryOptions { rdma_write: false, ..into };
        Self {
            registration,
            from: Pool::new(nic, from, registration),
            into: Pool::new(nic, into, registration),
            open: BTreeMap::new(),
            lent: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// Forgets what both sides have named.
    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.lent.clear();
        while let Some((_, place)) = self.open.pop_first() {
            self.put_back(place);
        }
    }

    fn put_back(&mut self, place: Place) {
        if let Place::Pooled(memory) = place {
            self.into.give_back(memory);
        }
    }

    /// Registers memory that both sides of this connection may use.
    pub(super) fn register(&self, nic: &mut Nic, bytes: usize) -> Option<Memory> {
        nic.register(bytes, self.into.options).ok()
    }

    /// Takes memory for the message of a receive, until the answer that clears it has left.
    pub(super) fn lend(&mut self, nic: &Nic, receive: u64, room: &Segment) {
        if is_for(nic, room.memory(), self.into.options) {
            self.lent.insert(receive, room.clone());
        }
    }

    /// Whether the NIC may send from this memory over this connection.
    pub(super) fn may_send(&self, nic: &Nic, memory: &Memory) -> bool {
        is_for(nic, memory, self.from.options)
    }

    /// Opens memory for a message that a receive has been found for; its name.
    pub(super) fn open(
        &mut self,
        nic: &mut Nic,
        receive: u64,
        bytes: usize,
    ) -> Option<[u8; NAME_BYTES]> {
        let lent = self.lent.remove(&receive);
        let sized = (SHORTEST_PLACED..=LONGEST_PLACED).contains(&bytes);
        if !sized || self.registration == Registration::Copied || self.open.len() >= MAX_PLACES {
            return None;
        }
        let place = match lent {
            Some(room) => Place::Lent(room),
            None => Place::Pooled(self.into.take(nic, bytes)?),
        };
        let name = place.name()?.to_bytes();
        self.open.insert(receive, place);
        Some(name)
    }

    /// The answer that names it did not leave.
    pub(super) fn close(&mut self, receive: u64) {
        if let Some(place) = self.open.remove(&receive) {
            self.put_back(place);
        }
    }

    /// The other side has named memory for one of our messages.
    pub(super) fn on_named(&mut self, receive: u64, name: [u8; NAME_BYTES], bytes: usize) {
        let memory = RemoteMemory::from_bytes(name);
        if self.named.len() < MAX_PLACES && memory.len() as usize >= bytes {
            self.named.insert(receive, memory);
        }
    }

    /// Whether a message to this receive may be written in one piece.
    pub(super) fn is_named(&self, receive: u64) -> bool {
        self.named.contains_key(&receive)
    }

    /// Where the message for a receive goes.
    pub(super) fn named(&self, receive: u64) -> Option<RemoteMemory> {
        self.named.get(&receive).copied()
    }

    /// Registered memory with these bytes, and where they go; `None` while none is to be had.
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

    /// They have left.
    pub(super) fn on_written(&mut self, receive: u64) {
        self.named.remove(&receive);
    }

    /// Memory that a message was sent from is free again.
    pub(super) fn unload(&mut self, memory: Memory) {
        self.from.give_back(memory);
    }

    /// What has been written for a receive: it is closed once that was read.
    pub(super) fn written(&self, receive: u64) -> Option<&Place> {
        self.open.get(&receive)
    }
}

/// Whether memory was registered with this NIC, for the connection with this tag, and with these rights.
fn is_for(nic: &Nic, memory: &Memory, options: MemoryOptions) -> bool {
    memory.is_of(nic.port(), options.tag, options.rights())
}
