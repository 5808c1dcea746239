//! A carrier within one process: bounded queues between engines, in memory.
//!
//! For tests, and the reference for other carriers. Each pair of processes has one queue in each direction, and
//! each queue keeps its order. A seed decides which queue a process polls next, so that packets of different
//! senders overtake each other in every way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use midplane_simhw::region::Payload;
use midplane_simhw::rng::Rng;

use super::carrier::{Carrier, Event, Refusal};
use super::envelope::{Envelope, LONGEST, Peer};
use super::progression::InitError;

/// Default number of packets that a queue holds.
pub const DEFAULT_DEPTH: usize = 64;
/// Default limit of a packet's payload in bytes.
pub const DEFAULT_ROOM: usize = 8192;

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
    /// Sets how many packets a queue holds, at least 1. Default: [`DEFAULT_DEPTH`].
    #[must_use]
    pub const fn depth(mut self, packets: usize) -> Self {
        self.depth = if packets == 0 { 1 } else { packets };
        self
    }

    /// Sets the largest payload of a packet in bytes, at least 1. Default: [`DEFAULT_ROOM`].
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
struct Lane {
    packets: VecDeque<Packet>,
    /// True if the sender was refused and waits for room.
    refused: bool,
    /// True once the sender posts no more; the receiver gets `Lost` once the queue is empty.
    closed: bool,
    told: bool,
}

#[derive(Debug)]
struct Hub {
    /// From sender `s` to receiver `r`: `s * processes + r`.
    lanes: Vec<Lane>,
    wakers: Vec<Option<Waker>>,
    /// True for each process to which something has happened since its last arm or fruitless poll.
    news: Vec<bool>,
    spare: Vec<Packet>,
    gone: Vec<bool>,
}

/// One process's end of a network in memory.
#[derive(Debug)]
pub struct MemoryCarrier {
    hub: Arc<Mutex<Hub>>,
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
    let hub = Arc::new(Mutex::new(Hub {
        lanes: (0..processes * processes).map(|_| Lane::default()).collect(),
        wakers: vec![None; processes],
        news: vec![false; processes],
        spare: Vec::new(),
        gone: vec![false; processes],
    }));
    let end = |own: usize| MemoryCarrier {
        hub: Arc::clone(&hub),
        own: Peer(own as u32),
        processes,
        config,
        rng: Rng::new(config.seed, &format!("carrier {own}")),
        current: Packet::EMPTY,
    };
    (0..processes).map(end).collect()
}

impl Hub {
    /// Notes that something has happened to a process; returns its waker, to be woken after the unlock.
    #[must_use]
    fn tell(&mut self, process: usize) -> Option<Waker> {
        self.news[process] = true;
        self.wakers[process].take()
    }
}

fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

impl MemoryCarrier {
    fn hub(hub: &Mutex<Hub>) -> MutexGuard<'_, Hub> {
        hub.lock().expect("no code panics while it holds this lock")
    }

    /// Ends the process as if it had been killed: packets that it posted and that were not yet received are
    /// lost.
    pub fn kill(&mut self) {
        let mut hub = Self::hub(&self.hub);
        for other in 0..self.processes {
            hub.lanes[self.own.0 as usize * self.processes + other].packets.clear();
        }
        drop(hub);
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

    fn room(&self) -> usize {
        self.config.room
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let (own, to) = (self.own.0 as usize, to.0 as usize);
        let mut hub = Self::hub(&self.hub);
        if hub.gone[to] || hub.gone[own] {
            return Err(Refusal::Lost);
        }
        let lane = &mut hub.lanes[own * self.processes + to];
        if lane.packets.len() >= self.config.depth {
            lane.refused = true;
            return Err(Refusal::Full);
        }
        let mut packet = hub.spare.pop().unwrap_or(Packet::EMPTY);
        let _ = envelope.emit(&mut packet.envelope);
        packet.payload.clear();
        packet.payload.extend_from_slice(payload);
        hub.lanes[own * self.processes + to].packets.push_back(packet);
        let waker = hub.tell(to);
        drop(hub);
        wake(waker);
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        let own = self.own.0 as usize;
        let mut hub = Self::hub(&self.hub);
        if !hub.news[own] {
            return None;
        }
        let first = self.rng.below(self.processes as u64) as usize;
        for step in 0..self.processes {
            let from = (first + step) % self.processes;
            let lane = &mut hub.lanes[from * self.processes + own];
            if let Some(packet) = lane.packets.pop_front() {
                let refused = std::mem::take(&mut lane.refused);
                hub.spare.push(std::mem::replace(&mut self.current, packet));
                let waker = if refused { hub.tell(from) } else { None };
                drop(hub);
                wake(waker);
                let Packet { envelope, payload } = &self.current;
                let envelope = Envelope::parse(envelope).expect("post emitted this envelope");
                let payload = Payload::from(&payload[..]);
                return Some(Event::Packet { from: Peer(from as u32), envelope, payload });
            }
            if lane.closed && !std::mem::replace(&mut lane.told, true) {
                return Some(Event::Lost(Peer(from as u32)));
            }
        }
        hub.news[own] = false;
        None
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        let own = self.own.0 as usize;
        let mut hub = Self::hub(&self.hub);
        if std::mem::take(&mut hub.news[own]) {
            // There may be room again as well: the next poll checks.
            hub.news[own] = true;
            return false;
        }
        let former = hub.wakers[own].replace(waker.clone());
        // Its drop may run any code.
        drop(hub);
        drop(former);
        true
    }

    fn close(&mut self) {
        let own = self.own.0 as usize;
        let mut hub = Self::hub(&self.hub);
        hub.gone[own] = true;
        let mut wakers = Vec::new();
        for other in 0..self.processes {
            hub.lanes[own * self.processes + other].closed = true;
            wakers.extend(hub.tell(other));
        }
        drop(hub);
        wake(wakers);
    }
}

impl Drop for MemoryCarrier {
    fn drop(&mut self) {
        self.close();
    }
}
