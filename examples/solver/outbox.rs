//! What a rank has to send, and when it is sent.

use std::collections::{BTreeMap, BTreeSet};

use midplane::nicvm::messages;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Completion, Port};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware::{self, PAID};
use midplane::warp::gate::Gate;
use midplane::warp::law::FlushBuffer;

use crate::arguments::Control;
use crate::rank::{PORT, updates};

/// Bytes of an update: which unknown, and its value.
pub(crate) const UPDATE_BYTES: usize = 10;
/// Most updates of a message: it fits into one frame.
pub(crate) const MOST_UPDATES: usize = 128;
/// Bytes of headers around a message's updates on the cable.
const HEADERS: u32 = 48 + 28 + 38;
/// Messages that may be on their way to the NIC, of updates and of notes.
const SLOTS: usize = 96;
const NOTES: usize = 16;
const SLOT_BYTES: usize = 1_480;
/// Messages under way to each rank at which Lambda holds still: one leaves, one is ready.
const READY: f64 = 2.0;
/// The share of ready messages that may be refused while Lambda holds still.
const ACCEPTED: f64 = 0.25;
/// Lambda's gain, a second for each unit.
const GAIN: f64 = 2.0;

/// The updates of one rank on their way out.
#[derive(Debug)]
pub(crate) struct Outbox {
    control: Control,
    peers: Vec<NodeId>,
    gather: FlushBuffer<(usize, f64)>,
    full: Vec<Vec<(usize, f64)>>,
    /// Unknowns whose last value a rank has not been sent, where the latest alone counts.
    dirty: BTreeMap<NodeId, BTreeSet<usize>>,
    /// The unknown from which the next message to a rank goes on.
    next: BTreeMap<NodeId, usize>,
    memory: Region,
    free: Vec<usize>,
    free_notes: Vec<usize>,
    adjusted: Instant,
    /// Messages that were ready and that the gates refused since.
    refused: usize,
}

impl Outbox {
    pub(crate) fn new(
        port: &mut Port,
        peers: Vec<NodeId>,
        control: Control,
        buffer: u16,
    ) -> Result<Self, String> {
        let memory =
            port.register((SLOTS + NOTES) * SLOT_BYTES).map_err(|error| error.to_string())?;
        let buffer = if control == Control::None { 1 } else { usize::from(buffer) };
        Ok(Self {
            control,
            dirty: peers.iter().map(|peer| (*peer, BTreeSet::new())).collect(),
            next: BTreeMap::new(),
            peers,
            gather: FlushBuffer::new(MOST_UPDATES, buffer, GAIN),
            full: Vec::new(),
            memory,
            free: (0..SLOTS).collect(),
            free_notes: (SLOTS..SLOTS + NOTES).collect(),
            adjusted: Instant::ZERO,
            refused: 0,
        })
    }

    /// An unknown has a new value.
    pub(crate) fn push(&mut self, i: usize, value: f64) {
        if self.control == Control::WarpCsend {
            for dirty in self.dirty.values_mut() {
                dirty.insert(i);
            }
        } else if let Some(full) = self.gather.push((i, value)) {
            self.full.push(full);
        }
    }

    /// Sends what is to be sent now; messages that were.
    pub(crate) fn send(
        &mut self,
        port: &mut Port,
        now: Instant,
        x: &[f64],
        gates: &BTreeMap<NodeId, Gate>,
    ) -> Result<u64, String> {
        let mut sent = 0;
        if self.control == Control::WarpCsend {
            for peer in self.peers.clone() {
                sent += self.send_latest(port, peer, x, &gates[&peer])?;
            }
            self.adjust_to_gates(now);
            return Ok(sent);
        }
        if self.control == Control::Warp {
            self.adjust(now);
        }
        for full in std::mem::take(&mut self.full) {
            for peer in self.peers.clone() {
                let gate = (self.control == Control::Csend).then(|| &gates[&peer]);
                sent += u64::from(self.send_to(port, peer, &full, gate)?);
            }
        }
        Ok(sent)
    }

    /// What has been read may be written again.
    pub(crate) fn on_sent(&mut self, done: &Completion) {
        let slot = done.cookie as usize;
        if slot < SLOTS { self.free.push(slot) } else { self.free_notes.push(slot) }
    }

    /// Sends a note, if there is room for it; notes are repeated.
    pub(crate) fn say(&mut self, port: &mut Port, to: NodeId, bytes: &[u8]) -> Result<(), String> {
        let Some(slot) = self.free_notes.pop() else { return Ok(()) };
        let at = slot * SLOT_BYTES;
        self.memory.write(at, bytes).map_err(|error| error.to_string())?;
        let range = self.memory.range(at, bytes.len()).expect("a note is short");
        let command = messages::send(to, PORT, range, slot as u64);
        port.submit(&command).map_err(|error| error.to_string())
    }

    /// The share of a full message that is waited for.
    pub(crate) const fn lambda(&self) -> f64 {
        self.gather.lambda()
    }

    /// The updates of a message.
    pub(crate) fn updates(bytes: &[u8]) -> impl Iterator<Item = (usize, f64)> + '_ {
        bytes.chunks_exact(UPDATE_BYTES).filter_map(|update| {
            let (i, value) = update.split_first_chunk::<2>()?;
            let value = f64::from_le_bytes(value.try_into().ok()?);
            Some((usize::from(u16::from_le_bytes(*i)), value))
        })
    }

    /// Lambda follows the messages that wait at the NIC for Warp's rate: they are the difference
    /// between what is computed and what may leave.
    fn adjust(&mut self, now: Instant) {
        let waiting = (SLOTS - self.free.len()) as f64 / self.peers.len().max(1) as f64;
        let seconds = now.since(self.adjusted).as_secs_f64().min(0.1);
        self.adjusted = now;
        self.gather.adjust(1.0 + (waiting - READY) / READY, seconds);
    }

    /// Lambda grows while messages that are ready are refused, and falls while none is.
    fn adjust_to_gates(&mut self, now: Instant) {
        let seconds = now.since(self.adjusted).as_secs_f64().min(0.1);
        self.adjusted = now;
        let refused = self.refused as f64 / self.peers.len().max(1) as f64;
        self.refused = 0;
        self.gather.adjust(1.0 + refused - ACCEPTED, seconds);
    }

    /// The latest values, in as many messages as the gate lets through.
    fn send_latest(
        &mut self,
        port: &mut Port,
        peer: NodeId,
        x: &[f64],
        gate: &Gate,
    ) -> Result<u64, String> {
        let mut sent = 0;
        loop {
            let dirty = &self.dirty[&peer];
            let count = dirty.len().min(MOST_UPDATES);
            let bytes = (count * UPDATE_BYTES) as u32 + HEADERS;
            if (count as f64) <= self.gather.lambda() * MOST_UPDATES as f64 {
                return Ok(sent);
            }
            if !gate.is_open(bytes) {
                self.refused += 1;
                return Ok(sent);
            }
            // From where the last message ended: else the first unknowns alone would ever leave.
            let from = self.next.get(&peer).copied().unwrap_or(0);
            let turn = dirty.range(from..).chain(dirty.range(..from)).take(count);
            let some: Vec<(usize, f64)> = turn.map(|i| (*i, x[*i])).collect();
            if !self.send_to(port, peer, &some, Some(gate))? {
                return Ok(sent);
            }
            sent += 1;
            self.next.insert(peer, some.last().map_or(0, |(i, _)| i + 1));
            let dirty = self.dirty.entry(peer).or_default();
            dirty.retain(|i| !some.iter().any(|(sent, _)| sent == i));
        }
    }

    /// Sends one message, if there is room at the NIC and the gate is open.
    fn send_to(
        &mut self,
        port: &mut Port,
        to: NodeId,
        some: &[(usize, f64)],
        gate: Option<&Gate>,
    ) -> Result<bool, String> {
        let Some(slot) = self.free.last().copied() else { return Ok(false) };
        let length = some.len() * UPDATE_BYTES;
        let permit = match gate.map(|gate| gate.try_reserve(length as u32 + HEADERS)) {
            Some(Err(_)) => return Ok(false),
            Some(Ok(permit)) => Some(permit),
            None => None,
        };
        self.free.pop();
        let at = slot * SLOT_BYTES;
        let mut bytes = Vec::with_capacity(length);
        for (i, value) in some {
            bytes.extend_from_slice(&(*i as u16).to_le_bytes());
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        self.memory.write(at, &bytes).map_err(|error| error.to_string())?;
        let range = self.memory.range(at, length).expect("it fits into a slot");
        let mut command = match self.control {
            Control::None | Control::Static => messages::send(to, PORT, range, slot as u64),
            Control::Csend | Control::Warp | Control::WarpCsend => {
                firmware::send(to, PORT, range, slot as u64)
            }
        };
        if let Some(permit) = permit {
            permit.spend();
            command.flags |= PAID;
        }
        port.submit(&updates(command)).map_err(|error| error.to_string())?;
        Ok(true)
    }
}
