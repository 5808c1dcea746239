//! A carrier within one process: bounded queues between engines, in memory.
//!
//! It serves tests, and is the reference for other carriers. Each pair of processes has one queue in each direction,
//! and each queue keeps its order. A seed decides which queue a process polls next, so that packets of different
//! senders overtake each other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use midplane_simhw::region::Payload;
use midplane_simhw::rng::Rng;

use super::carrier::{Carrier, Event, Refusal};
use super::envelope::{Envelope, LONGEST, Peer};
use super::transport::InitError;

/// Default number of packets that a queue holds.
const DEFAULT_DEPTH: usize = 64;
/// Default limit of a packet's payload in bytes.
const DEFAULT_ROOM: usize = 8192;

/// Configures a network in memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryConfig {
    depth: usize,
    room: usize,
    seed: u64,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { depth: DEFAULT_DEPTH, room: DEFAULT_ROOM, seed: 0 }
    }
}

impl MemoryConfig {
    /// Sets how many packets a queue holds, at least 1. Default: 64.
    #[must_use]
    pub const fn depth(mut self, packets: usize) -> Self {
        self.depth = if packets == 0 { 1 } else { packets };
        self
    }

    /// Sets the largest payload of a packet in bytes, at least 1. Default: 8 KiB.
    #[must_use]
    pub const fn room(mut self, bytes: usize) -> Self {
        self.room = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Sets the seed that decides which sender's packet is received next. Default: 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// A packet in a queue; its memory is reused.
#[derive(Debug)]
struct Packet {
    envelope: [u8; LONGEST],
    payload: Vec<u8>,
}

impl Packet {
    const EMPTY: Self = Self { envelope: [0; LONGEST], payload: Vec::new() };
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<Packet>,
    /// True if the sender was refused and waits for room.
    refused: bool,
    /// True once the sender has closed its end; the receiver gets `Lost` when the queue is empty.
    closed: bool,
    loss_reported: bool,
}

#[derive(Debug)]
struct Shared {
    /// The queue from sender `s` to receiver `r` is at `s * processes + r`.
    queues: Vec<Queue>,
    wakers: Vec<Option<Waker>>,
    /// For each process, true if it has had an event since its last poll that returned none.
    has_event: Vec<bool>,
    spare: Vec<Packet>,
    exited: Vec<bool>,
}

/// One process's end of a network in memory.
#[derive(Debug)]
pub struct MemoryCarrier {
    shared: Arc<Mutex<Shared>>,
    own: Peer,
    processes: usize,
    config: MemoryConfig,
    rng: Rng,
    /// The packet that `poll` returned last.
    current: Packet,
}

/// Makes a network of `processes`; returns their ends, in order.
#[must_use]
pub fn network(processes: usize, config: MemoryConfig) -> Vec<MemoryCarrier> {
    let shared = Arc::new(Mutex::new(Shared {
        queues: (0..processes * processes).map(|_| Queue::default()).collect(),
        wakers: vec![None; processes],
        has_event: vec![false; processes],
        spare: Vec::new(),
        exited: vec![false; processes],
    }));
    let end = |own: usize| MemoryCarrier {
        shared: Arc::clone(&shared),
        own: Peer(own as u32),
        processes,
        config,
        rng: Rng::new(config.seed, &format!("carrier {own}")),
        current: Packet::EMPTY,
    };
    (0..processes).map(end).collect()
}

impl Shared {
    /// Records an event of a process; returns its waker, to be woken after the unlock.
    #[must_use]
    fn notify(&mut self, process: usize) -> Option<Waker> {
        self.has_event[process] = true;
        self.wakers[process].take()
    }
}

fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

impl MemoryCarrier {
    fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
        shared.lock().expect("no code panics while it holds this lock")
    }

    /// Ends the process as if it had been killed: packets that it posted and that were not yet received are
    /// lost.
    pub fn kill(&mut self) {
        let mut shared = Self::lock(&self.shared);
        for other in 0..self.processes {
            shared.queues[self.own.0 as usize * self.processes + other].packets.clear();
        }
        drop(shared);
        self.close();
    }
}

impl Carrier for MemoryCarrier {
    fn own(&self) -> Peer {
        self.own
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        match peers.iter().find(|peer| peer.0 as usize >= self.processes) {
            Some(unknown) => Err(InitError::Unknown(*unknown)),
            None => Ok(()),
        }
    }

    fn is_local(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        self.config.room
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let (own, to) = (self.own.0 as usize, to.0 as usize);
        let mut shared = Self::lock(&self.shared);
        if shared.exited[to] || shared.exited[own] {
            return Err(Refusal::Lost);
        }
        let queue = &mut shared.queues[own * self.processes + to];
        if queue.packets.len() >= self.config.depth {
            queue.refused = true;
            return Err(Refusal::Full);
        }
        let mut packet = shared.spare.pop().unwrap_or(Packet::EMPTY);
        let _ = envelope.emit(&mut packet.envelope);
        packet.payload.clear();
        packet.payload.extend_from_slice(payload);
        shared.queues[own * self.processes + to].packets.push_back(packet);
        let waker = shared.notify(to);
        drop(shared);
        wake(waker);
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        let own = self.own.0 as usize;
        let mut shared = Self::lock(&self.shared);
        if !shared.has_event[own] {
            return None;
        }
        let first = self.rng.below(self.processes as u64) as usize;
        for step in 0..self.processes {
            let from = (first + step) % self.processes;
            let queue = &mut shared.queues[from * self.processes + own];
            if let Some(packet) = queue.packets.pop_front() {
                let refused = std::mem::take(&mut queue.refused);
                shared.spare.push(std::mem::replace(&mut self.current, packet));
                let waker = if refused { shared.notify(from) } else { None };
                drop(shared);
                wake(waker);
                let Packet { envelope, payload } = &self.current;
                let envelope = Envelope::parse(envelope).expect("post emitted this envelope");
                let payload = Payload::from(&payload[..]);
                return Some(Event::Packet { from: Peer(from as u32), envelope, payload });
            }
            if queue.closed && !std::mem::replace(&mut queue.loss_reported, true) {
                return Some(Event::Lost(Peer(from as u32)));
            }
        }
        shared.has_event[own] = false;
        None
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        let own = self.own.0 as usize;
        let mut shared = Self::lock(&self.shared);
        if shared.has_event[own] {
            // The event may be an arrival, or room again; the next poll checks.
            return false;
        }
        let former = shared.wakers[own].replace(waker.clone());
        // Dropping a waker may run any code.
        drop(shared);
        drop(former);
        true
    }

    fn close(&mut self) {
        let own = self.own.0 as usize;
        let mut shared = Self::lock(&self.shared);
        shared.exited[own] = true;
        let mut wakers = Vec::new();
        for other in 0..self.processes {
            shared.queues[own * self.processes + other].closed = true;
            wakers.extend(shared.notify(other));
        }
        drop(shared);
        wake(wakers);
    }
}

impl Drop for MemoryCarrier {
    fn drop(&mut self) {
        self.close();
    }
}
