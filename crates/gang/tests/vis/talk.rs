//! One process: the messages that it sends and expects, and its results.

use std::collections::VecDeque;

use midplane_simhw::host::Host;
use midplane_simhw::port::PortOptions;
use midplane_via::attributes::Reliability;
use midplane_via::context::PortContext;
use midplane_via::descriptor::{Completed, Descriptor};
use midplane_via::memory::{Memory, MemoryOptions, RemoteMemory};
use midplane_via::nic::{Nic, NicContext, ViId};
use midplane_via::outcome::Operation;

use serde::{Deserialize, Serialize};

/// Most bytes of a message, which has several frames.
pub(crate) const BYTES: usize = 4000;
/// Messages that one end may be ahead of those received from the other.
const AHEAD: u32 = 4;
/// Posted receives: the other end is at most twice [`AHEAD`] ahead.
const SLOTS: usize = 2 * AHEAD as usize + 2;
/// Sends, writes and reads under way.
const OUT: usize = 5;
/// Most bytes of a read: more frames than may be under way, so that some are owed when a process is stopped.
const READ: usize = 50_000;
/// Bytes that other processes may read.
const LIBRARY: usize = READ + 4000;

/// Returns pseudo-random bytes, different ones for each seed.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1;
    let byte = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(byte).collect()
}

fn seed(from: u16, to: u16, level: Reliability, number: u32) -> u64 {
    u64::from(from) << 48 | u64::from(to) << 40 | (level as u64) << 32 | u64::from(number)
}

/// Returns the bytes of message `number` from one process to another, and whether it is a write.
fn message(from: u16, to: u16, level: Reliability, number: u32, rdma: bool) -> (Vec<u8>, bool) {
    let seed = seed(from, to, level, number);
    let mixed = seed.wrapping_mul(0xD134_2543_DE82_EF95) >> 20;
    (bytes(seed, mixed as usize % BYTES), rdma && (mixed / 8192).is_multiple_of(3))
}

/// An operation that a process has posted to its send queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SendOp {
    Message(u32),
    Read { at: usize, length: usize },
}

/// The results of one connection: a digest of all received messages, in order, and one of all read bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    pub(crate) sent: Vec<u32>,
    pub(crate) received: Vec<u32>,
    pub(crate) read: Vec<u32>,
    pub(crate) digests: Vec<[u64; 2]>,
}

/// The memory windows of the other end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Windows {
    of: (u16, u16, Reliability),
    window: RemoteMemory,
    library: RemoteMemory,
}

/// One connection. Its memory is for receives, for the peer's writes, for the peer's reads, and for its own sends and
/// reads.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) vi: ViId,
    pub(crate) peer: u16,
    pub(crate) level: Reliability,
    pub(crate) memory: [Memory; 4],
    window: RemoteMemory,
    library: RemoteMemory,
    free: Vec<usize>,
    asked: VecDeque<(usize, SendOp)>,
    sent: u32,
    received: u32,
    read: u32,
    /// Digests of the received messages and of the read bytes.
    digests: [u64; 2],
}

/// A [`Talk`] without its memory.
#[derive(Clone, Debug)]
struct TalkImage {
    vi: ViId,
    peer: u16,
    level: Reliability,
    window: RemoteMemory,
    library: RemoteMemory,
    free: Vec<usize>,
    asked: VecDeque<(usize, SendOp)>,
    sent: u32,
    received: u32,
    read: u32,
    digests: [u64; 2],
}

/// The saved state of a process.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) nic: NicContext,
    memory: Vec<Vec<u8>>,
    spare: Option<ViId>,
    rank: u16,
    count: u32,
    rdma: bool,
    dice: u64,
    talks: Vec<TalkImage>,
}

/// A process that talks over its interfaces.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) nic: Nic,
    /// An interface that is not connected.
    pub(crate) spare: Option<ViId>,
    pub(crate) rank: u16,
    count: u32,
    rdma: bool,
    dice: u64,
    pub(crate) talks: Vec<Talk>,
}

impl Program {
    pub(crate) fn new(nic: Nic, rank: u16, (seed, count, rdma): (u64, u32, bool)) -> Self {
        let dice = seed.wrapping_add(u64::from(rank) << 32);
        Self { nic, spare: None, rank, count, rdma, dice, talks: Vec::new() }
    }

    /// Registers an interface's memory, and posts its receives.
    pub(crate) fn add(&mut self, vi: ViId, peer: u16, level: Reliability) {
        let plain = MemoryOptions::default();
        let options = [
            (SLOTS * BYTES, plain),
            (SLOTS * BYTES, MemoryOptions { rdma_write: true, ..plain }),
            (LIBRARY, MemoryOptions { rdma_read: true, ..plain }),
            (OUT * READ, plain),
        ];
        let memory = options.map(|(bytes, options)| self.nic.register(bytes, options).unwrap());
        memory[2].write(0, &bytes(library(self.rank), LIBRARY)).unwrap();
        let none = RemoteMemory::default();
        let talk = Talk {
            vi,
            peer,
            level,
            memory,
            window: none,
            library: none,
            free: (0..OUT).collect(),
            asked: VecDeque::new(),
            sent: 0,
            received: 0,
            read: 0,
            digests: [0; 2],
        };
        for slot in 0..SLOTS {
            let segment = talk.memory[0].segment(slot * BYTES, BYTES).unwrap();
            self.nic.post_receive(vi, Descriptor::of(segment)).unwrap();
        }
        self.talks.push(talk);
    }

    pub(crate) fn windows(&self) -> Vec<Windows> {
        let talks = self.talks.iter().map(|talk| Windows {
            of: (self.rank, talk.peer, talk.level),
            window: talk.memory[1].remote(),
            library: talk.memory[2].remote(),
        });
        talks.collect()
    }

    pub(crate) fn learn(&mut self, windows: &[Vec<Windows>]) {
        for talk in &mut self.talks {
            let of = (talk.peer, self.rank, talk.level);
            let found = windows.iter().flatten().find(|windows| windows.of == of).unwrap();
            (talk.window, talk.library) = (found.window, found.library);
        }
    }

    /// Saves the process between two of its steps: its part of the NIC's state, its memory's bytes, and its progress.
    pub(crate) fn save(&mut self) -> Image {
        let nic = self.nic.save().unwrap();
        let bytes = |memory: &Memory| {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes).unwrap();
            bytes
        };
        let memory: Vec<Vec<u8>> =
            self.talks.iter().flat_map(|talk| &talk.memory).map(bytes).collect();
        assert_eq!(nic.memory.len(), memory.len());
        let talks = self.talks.iter().map(|talk| TalkImage {
            vi: talk.vi,
            peer: talk.peer,
            level: talk.level,
            window: talk.window,
            library: talk.library,
            free: talk.free.clone(),
            asked: talk.asked.clone(),
            sent: talk.sent,
            received: talk.received,
            read: talk.read,
            digests: talk.digests,
        });
        let Self { spare, rank, count, rdma, dice, .. } = *self;
        Image { nic, memory, spare, rank, count, rdma, dice, talks: talks.collect() }
    }

    /// Restores the process on another NIC; `taken` is the state of its port on the former NIC.
    pub(crate) async fn restore(host: &impl Host, image: &Image, taken: &PortContext) -> Self {
        let options = PortOptions::default();
        let (nic, memory) = Nic::restore(host, options, &image.nic, taken).await.unwrap();
        for (memory, bytes) in memory.iter().zip(&image.memory) {
            memory.write(0, bytes).unwrap();
        }
        let talks = image.talks.iter().zip(memory.chunks(4)).map(|(talk, memory)| Talk {
            vi: talk.vi,
            peer: talk.peer,
            level: talk.level,
            memory: std::array::from_fn(|at| memory[at].clone()),
            window: talk.window,
            library: talk.library,
            free: talk.free.clone(),
            asked: talk.asked.clone(),
            sent: talk.sent,
            received: talk.received,
            read: talk.read,
            digests: talk.digests,
        });
        let Image { spare, rank, count, rdma, dice, .. } = *image;
        Self { nic, spare, rank, count, rdma, dice, talks: talks.collect() }
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % below
    }

    /// Runs one step. Returns how long to wait until the next one, or `None` once all is done.
    pub(crate) fn step(&mut self) -> Option<u64> {
        for at in 0..self.talks.len() {
            let vi = self.talks[at].vi;
            while let Some(done) = self.nic.send_done(vi).unwrap() {
                self.on_sent(at, &done);
            }
            while let Some(done) = self.nic.receive_done(vi).unwrap() {
                self.on_received(at, done);
                if self.roll(4) == 0 {
                    break;
                }
            }
            self.post(at);
        }
        while let Some((vi, error)) = self.nic.next_error() {
            if self.spare == Some(vi) {
                continue;
            }
            let talk = self.talks.iter().find(|talk| talk.vi == vi).unwrap();
            assert!(!talk.level.is_reliable(), "rank {}: {error:?} of {talk:?}", self.rank);
        }
        let all = self.talks.iter().all(|talk| talk.is_done(self.count, self.rdma));
        (!all).then(|| 1 + self.roll(20_000))
    }

    fn on_sent(&mut self, at: usize, done: &Completed) {
        let talk = &mut self.talks[at];
        let (slot, asked) = talk.asked.pop_front().expect("nothing comes back twice");
        done.outcome.unwrap_or_else(|error| panic!("{asked:?} of rank {}: {error}", self.rank));
        talk.free.push(slot);
        match asked {
            SendOp::Message(_) => assert_ne!(done.operation, Operation::RdmaRead),
            SendOp::Read { at, length } => {
                assert_eq!((done.operation, done.length), (Operation::RdmaRead, length));
                let mut read = vec![0; length];
                talk.memory[3].read(slot * READ, &mut read).unwrap();
                assert!(
                    read == bytes(library(talk.peer), LIBRARY)[at..at + length],
                    "what was read"
                );
                talk.read += 1;
                talk.digests[1] = digest(talk.digests[1], &read);
            }
        }
    }

    fn on_received(&mut self, at: usize, done: Completed) {
        let (rank, rdma) = (self.rank, self.rdma);
        let talk = &mut self.talks[at];
        done.outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let number = done.immediate.expect("every message has its number");
        let reliable = talk.level.is_reliable();
        if reliable {
            assert_eq!(number, talk.received, "from {} to {rank}", talk.peer);
        } else {
            assert!(number >= talk.received, "{number} came after {}", talk.received);
        }
        let (expected, is_write) = message(talk.peer, rank, talk.level, number, rdma);
        let kind = if is_write { Operation::RemoteRdmaWrite } else { Operation::Receive };
        assert_eq!((done.operation, done.length), (kind, expected.len()), "message {number}");
        let receive = done.descriptor.segments[0].offset();
        let (memory, offset) = match is_write {
            true => (&talk.memory[1], number as usize % SLOTS * BYTES),
            false => (&talk.memory[0], receive),
        };
        let mut came = vec![0; expected.len()];
        memory.read(offset, &mut came).unwrap();
        // An unreliable write may be overwritten by a later one.
        assert!(came == expected || !reliable && is_write, "message {number} to {rank}");
        if reliable {
            talk.digests[0] = digest(talk.digests[0], &came);
        }
        talk.received = number + 1;
        self.nic.post_receive(talk.vi, done.descriptor).unwrap();
    }

    fn post(&mut self, at: usize) {
        let (count, rdma, rank) = (self.count, self.rdma, self.rank);
        while self.roll(3) != 0 {
            let dice = self.roll(1 << 20) as usize;
            let talk = &mut self.talks[at];
            let Some(slot) = talk.free.pop() else { return };
            let reads = rdma && talk.level.is_reliable() && talk.read_asked() < count;
            let ahead = !talk.level.is_reliable() || talk.sent < talk.received + AHEAD;
            let sends = talk.sent < count && ahead;
            let (descriptor, asked) = if reads && (!sends || dice.is_multiple_of(3)) {
                talk.ask_read(slot)
            } else if sends {
                talk.next_message(slot, rank, rdma, dice)
            } else {
                talk.free.push(slot);
                return;
            };
            talk.asked.push_back((slot, asked));
            self.nic.post_send(talk.vi, descriptor).unwrap();
        }
    }

    /// Describes the progress of the process, for error messages.
    pub(crate) fn describe(&self) -> String {
        let talk = |talk: &Talk| {
            let Talk { peer, level, sent, received, read, asked, .. } = talk;
            format!(
                "\n  with {peer} {level:?}: {sent} sent, {received} received, {read} read, {asked:?}"
            )
        };
        let talks: String = self.talks.iter().map(talk).collect();
        format!("\nrank {}:{talks}", self.rank)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for talk in &self.talks {
            totals.sent.push(talk.sent);
            totals.read.push(talk.read);
            let counts = talk.level.is_reliable();
            totals.received.push(if counts { talk.received } else { 0 });
            totals.digests.push(talk.digests);
        }
        totals
    }
}

impl Talk {
    fn read_asked(&self) -> u32 {
        let asked = self.asked.iter().filter(|(_, asked)| matches!(asked, SendOp::Read { .. }));
        self.read + asked.count() as u32
    }

    fn ask_read(&self, slot: usize) -> (Descriptor, SendOp) {
        let number = self.read_asked() as usize;
        let most = if number % 8 == 3 { READ } else { BYTES };
        let (at, length) = (number * 701 % 4000, number * 39_709 % most + 1);
        let segment = self.memory[3].segment(slot * READ, length).unwrap();
        let from = self.library.at(at as u32).unwrap();
        (Descriptor::of(segment).read(from), SendOp::Read { at, length })
    }

    fn next_message(
        &mut self,
        slot: usize,
        rank: u16,
        rdma: bool,
        dice: usize,
    ) -> (Descriptor, SendOp) {
        let number = self.sent;
        self.sent += 1;
        let (bytes, is_write) = message(rank, self.peer, self.level, number, rdma);
        self.memory[3].write(slot * READ, &bytes).unwrap();
        let cut = if bytes.is_empty() { 0 } else { dice % bytes.len() };
        let piece = |from, to| self.memory[3].segment(slot * READ + from, to - from).unwrap();
        let mut descriptor = match dice % 2 {
            0 => Descriptor::of(piece(0, bytes.len())),
            _ => vec![piece(0, cut), piece(cut, bytes.len())].into(),
        };
        descriptor.fence = dice.is_multiple_of(5);
        if is_write {
            let to = self.window.at((number as usize % SLOTS * BYTES) as u32).unwrap();
            descriptor = descriptor.write(to);
        }
        (descriptor.immediate(number), SendOp::Message(number))
    }

    fn is_done(&self, count: u32, rdma: bool) -> bool {
        let all = self.asked.is_empty() && self.sent == count;
        let reliable = self.level.is_reliable();
        all && (!reliable || self.received == count && (!rdma || self.read == count))
    }
}

fn library(rank: u16) -> u64 {
    0xB00C_0000 + u64::from(rank)
}

fn digest(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before.rotate_left(1) ^ 1, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)
    })
}
