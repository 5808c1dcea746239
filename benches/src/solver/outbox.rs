//! A rank's outgoing updates, and when they are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use midplane::nicvm::messages;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Completion, Port, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::warp::firmware::{self, PAID};
use midplane::warp::gate::Gate;
use midplane::warp::law::FlushBuffer;

use super::message::{self, MAX_UPDATES, MESSAGE_BYTES, NOTE_BYTES, PORT, UPDATES};
use super::setting::{Control, Hosts, Setting};

/// Bytes of headers around a message on the network.
const HEADERS: u32 = 48 + 28 + 38;
/// Messages of updates, and notes, in flight to the NIC.
const SLOTS: usize = 96;
const NOTES: usize = 32;
/// Messages in flight per target at which Lambda is constant: one leaves, one is ready.
const READY: f64 = 2.0;
/// Messages in flight per target above which no more are posted.
const MAX_READY: f64 = 2.0 * READY;
/// If messages cost the hosts time: share of ready messages that may be refused while Lambda is constant.
const ACCEPTED: f64 = 0.02;
/// Additional accepted share per unit of Lambda: large messages shrink again when the network has room.
const RELAXED: f64 = 0.1;
/// Lambda's gain per second and unit.
const GAIN: f64 = 4.0;
/// The same in the paper's loop, per second and unit of warp. By the linearised law Lambda does not overshoot up to
/// Lambda / (e tau): 1.8 at a Lambda of 0.1, which fills the cable, and a delay of 20 ms.
const PAPER_GAIN: f64 = 1.0;
/// Weight of one message in the mean size of messages.
const SIZE_GAIN: f64 = 1.0 / 8.0;
/// Least share of the mean size that a message has.
const MIN_SHARE: f64 = 0.5;
/// Least share of a rank's unknowns that a message carries. Its values then wait an eighth of a sweep at most. Smaller
/// messages are hardly fresher, but their headers use the room that others' traffic needs when it returns. Of 0, 1/13,
/// 1/8, 1/6 and 1/4, chosen on systems with the seeds 101 and 102, at no load and under a load that changes.
const MIN_SWEEP: f64 = 1.0 / 8.0;
/// Most time that values are gathered because of the queue: a longer queue is other nodes', and no size of messages
/// shortens it. Of 3, 5, 6, 8 and 12 ms and no limit, chosen on systems with the seeds 101 and 102 under changing loads.
const GATHERS_FOR: Duration = Duration::from_millis(5);
/// Time after which a target is sent as many values as it has credit for: at the least rate all values together take
/// 36 ms.
const PATIENCE: Duration = Duration::from_millis(8);
/// Least number of values of such a message: headers take more than fewer values.
const MIN_PART: usize = 18;

/// Outgoing updates of one rank.
#[derive(Debug)]
pub struct Outbox {
    control: Control,
    targets: Vec<NodeId>,
    /// Number of this rank's unknowns: the limit on a message of latest values.
    own: usize,
    /// Least number of latest values in a message, unless fewer are left.
    least: f64,
    gates: BTreeMap<NodeId, Gate>,
    gather: FlushBuffer<(usize, f64)>,
    full: Vec<Vec<(usize, f64)>>,
    /// Unknowns whose last value a target has not been sent, in the mode where only the latest value counts.
    dirty: BTreeMap<NodeId, BTreeSet<usize>>,
    /// Last sent value of each unknown, by target.
    sent_values: BTreeMap<NodeId, BTreeMap<usize, f64>>,
    /// Time of the last message to each target.
    sent_at: BTreeMap<NodeId, Instant>,
    memory: Region,
    free: Vec<usize>,
    free_notes: Vec<usize>,
    adjusted: Instant,
    /// True if messages cost the hosts time: few large ones are then better than fresh ones.
    is_costly: bool,
    /// Ready and refused messages since Lambda was adjusted.
    refused: usize,
    /// Mean updates per message, in the mode where the gate alone decides.
    size: f64,
    /// Messages of updates that the NIC has taken.
    sent: u64,
}

impl Outbox {
    pub fn new(
        port: &mut Port,
        node: NodeId,
        setting: &Setting,
        gates: BTreeMap<NodeId, Gate>,
    ) -> Result<Self, String> {
        let bytes = SLOTS * MESSAGE_BYTES + NOTES * NOTE_BYTES;
        let memory = port.register(bytes).map_err(|error| error.to_string())?;
        let targets = setting.targets(node);
        let gain = if setting.control == Control::WarpPaper { PAPER_GAIN } else { GAIN };
        let unknowns = setting.unknowns.div_ceil(usize::from(setting.ranks));
        let own = unknowns.min(MAX_UPDATES);
        Ok(Self {
            control: setting.control,
            dirty: targets.iter().map(|target| (*target, BTreeSet::new())).collect(),
            sent_values: BTreeMap::new(),
            sent_at: BTreeMap::new(),
            targets,
            own,
            least: (MIN_SWEEP * unknowns as f64).min(own as f64 - 1.0),
            gates,
            gather: FlushBuffer::new(MAX_UPDATES, setting.buffer.into(), gain),
            full: Vec::new(),
            memory,
            free: (0..SLOTS).collect(),
            free_notes: (SLOTS..SLOTS + NOTES).collect(),
            adjusted: Instant::ZERO,
            is_costly: setting.hosts == Hosts::Paper,
            refused: 0,
            size: setting.buffer.into(),
            sent: 0,
        })
    }

    /// Queues the new value of an unknown.
    pub fn push(&mut self, i: usize, value: f64) {
        if self.control == Control::WarpCsend {
            for dirty in self.dirty.values_mut() {
                dirty.insert(i);
            }
        } else if let Some(full) = self.gather.push((i, value)) {
            self.full.push(full);
        }
    }

    /// Sends all messages that are due.
    pub fn send(&mut self, port: &mut Port, now: Instant, x: &[f64]) -> Result<(), String> {
        if self.control == Control::WarpCsend {
            for target in self.targets.clone() {
                self.send_latest(port, now, target, x)?;
            }
            if self.is_costly {
                self.adjust_to_gates(now);
            }
            return Ok(());
        }
        if self.control == Control::Warp {
            self.adjust(now);
            if !self.is_costly && self.waiting() >= MAX_READY {
                // Waiting messages would be stale when they leave: keep only the last full one.
                self.full.drain(..self.full.len().saturating_sub(1));
                return Ok(());
            }
        }
        for full in std::mem::take(&mut self.full) {
            for target in self.targets.clone() {
                self.send_to(port, now, target, (0, &full))?;
            }
        }
        Ok(())
    }

    /// Handles the `warp` of a message that arrived at `now`. In the paper's loop it holds for the time since the last
    /// message, from any rank (Heddaya and Park 1994, section 5.2).
    pub fn on_warp(&mut self, now: Instant, warp: f64) {
        if self.control == Control::WarpPaper {
            let seconds = now.since(self.adjusted).as_secs_f64();
            self.adjusted = now;
            self.gather.adjust(warp, seconds);
        }
    }

    /// Frees the slot of a sent message.
    pub fn on_sent(&mut self, done: &Completion) {
        let slot = done.cookie as usize;
        if slot < SLOTS {
            self.sent += u64::from(done.status == Status::Done);
            self.free.push(slot);
        } else {
            self.free_notes.push(slot);
        }
    }

    /// Sends a note if there is room for it; the caller repeats notes.
    pub fn send_note(&mut self, port: &mut Port, to: NodeId, bytes: &[u8]) -> Result<(), String> {
        let Some(slot) = self.free_notes.pop() else { return Ok(()) };
        let at = SLOTS * MESSAGE_BYTES + (slot - SLOTS) * NOTE_BYTES;
        self.memory.write(at, bytes).map_err(|error| error.to_string())?;
        let range = self.memory.range(at, bytes.len()).expect("a note is short");
        let command = messages::send(to, PORT, range, slot as u64);
        port.submit(&command).map_err(|error| error.to_string())
    }

    /// Returns Lambda: the share of a full message that is waited for.
    pub fn lambda(&self) -> f64 {
        match self.control {
            Control::WarpCsend if !self.is_costly => self.size / MAX_UPDATES as f64,
            _ => self.gather.lambda(),
        }
    }

    /// Returns the sent messages of updates, each counted once per target.
    pub fn sent(&self, ranks: u16) -> u64 {
        let copies = if self.targets == [NodeId::BROADCAST] { u64::from(ranks) - 1 } else { 1 };
        self.sent * copies
    }

    /// Returns the messages that wait at the NIC, per target.
    fn waiting(&self) -> f64 {
        (SLOTS - self.free.len()) as f64 / self.targets.len().max(1) as f64
    }

    /// Adjusts Lambda to the messages that wait at the NIC for Warp's rate: the difference between what is computed
    /// and what may leave.
    fn adjust(&mut self, now: Instant) {
        let seconds = now.since(self.adjusted).as_secs_f64().min(0.1);
        self.adjusted = now;
        self.gather.adjust(1.0 + (self.waiting() - READY) / READY, seconds);
    }

    /// Raises Lambda while ready messages are refused, and lowers it while none is.
    fn adjust_to_gates(&mut self, now: Instant) {
        let seconds = now.since(self.adjusted).as_secs_f64().min(0.1);
        self.adjusted = now;
        let refused = self.refused as f64 / self.targets.len().max(1) as f64;
        self.refused = 0;
        let accepted = ACCEPTED + RELAXED * self.gather.lambda();
        self.gather.adjust(1.0 + refused - accepted, seconds);
    }

    /// Returns how many of `dirty` values may go to a target now, if any: all that fit into a message, once the gate
    /// has credit for them; after a time limit, as many as there is credit for.
    fn allowed(&self, now: Instant, target: NodeId, dirty: usize) -> Option<usize> {
        if self.waiting() >= READY {
            return None;
        }
        let gate = &self.gates[&target];
        let all = dirty.min(MAX_UPDATES);
        if gate.is_open(message::length(all) as u32 + HEADERS) {
            return Some(all);
        }
        let sent_at = self.sent_at.get(&target).copied().unwrap_or(Instant::ZERO);
        let part =
            message::room(gate.budget(Duration::ZERO).saturating_sub(HEADERS.into()) as usize);
        (now.since(sent_at) > PATIENCE && part >= MIN_PART).then_some(part.min(all))
    }

    /// Returns whether less time has passed since the last message to a target than a message waits in the queue, and
    /// less than [`GATHERS_FOR`]. Values that are gathered for that time are at most twice as old when they arrive, and
    /// larger messages shorten the queue before the rate has fallen.
    fn is_early(&self, now: Instant, target: NodeId) -> bool {
        let sent_at = self.sent_at.get(&target);
        let queue = self.gates[&target].queue_delay().min(GATHERS_FOR);
        !self.is_costly && sent_at.is_some_and(|at| now.since(*at) < queue)
    }

    /// Sends the latest values once the gate has credit for all new ones. Credit grows with the network's share, and
    /// new values with the computation: so messages are as small as both allow, and a changed rate affects the next
    /// message.
    fn send_latest(
        &mut self,
        port: &mut Port,
        now: Instant,
        target: NodeId,
        x: &[f64],
    ) -> Result<(), String> {
        loop {
            let dirty = &self.dirty[&target];
            let count = dirty.len().min(MAX_UPDATES);
            let wanted = match self.is_costly {
                true => self.gather.lambda() * MAX_UPDATES as f64,
                false => self.least.max(MIN_SHARE * self.size),
            };
            let is_small = count as f64 <= wanted || self.is_early(now, target);
            if count == 0 || count < self.own && is_small {
                return Ok(());
            }
            let Some(count) = self.allowed(now, target, count) else {
                self.refused += 1;
                return Ok(());
            };
            // If not all values fit, send those that have moved most since this target's last message.
            let sent_values = self.sent_values.entry(target).or_default();
            let moved = |i: &usize| (x[*i] - sent_values.get(i).copied().unwrap_or(0.0)).abs();
            let mut some: Vec<(usize, f64)> = dirty.iter().map(|i| (*i, moved(i))).collect();
            if count < some.len() {
                some.select_nth_unstable_by(count, |(_, a), (_, b)| b.total_cmp(a));
                some.truncate(count);
            }
            some.iter_mut().for_each(|(i, value)| *value = x[*i]);
            sent_values.extend(some.iter().copied());
            if !self.send_to(port, now, target, (0, &some))? {
                return Ok(());
            }
            self.sent_at.insert(target, now);
            self.size += SIZE_GAIN * (count as f64 - self.size);
            let dirty = self.dirty.entry(target).or_default();
            for (i, _) in &some {
                dirty.remove(i);
            }
        }
    }

    /// Sends one message, of updates of a round, if the NIC has room and the gate is open.
    pub fn send_to(
        &mut self,
        port: &mut Port,
        now: Instant,
        to: NodeId,
        (round, some): (u32, &[(usize, f64)]),
    ) -> Result<bool, String> {
        let Some(slot) = self.free.last().copied() else { return Ok(false) };
        let bytes = message::updates(now, some);
        let is_paid = matches!(self.control, Control::Csend | Control::WarpCsend);
        if is_paid {
            match self.gates[&to].try_reserve(bytes.len() as u32 + HEADERS) {
                Ok(permit) => permit.spend(),
                Err(_) => return Ok(false),
            }
        }
        self.free.pop();
        let at = slot * MESSAGE_BYTES;
        self.memory.write(at, &bytes).map_err(|error| error.to_string())?;
        let range = self.memory.range(at, bytes.len()).expect("it fits into a slot");
        let send = match self.control {
            Control::None | Control::Static | Control::WarpPaper => messages::send,
            Control::Csend | Control::Warp | Control::WarpCsend => firmware::send,
        };
        let command = send(to, PORT, range, slot as u64);
        let flags = command.flags | if is_paid { PAID } else { 0 };
        let command =
            Command { flags, args: [u64::from(UPDATES.wrapping_add(round)), 0, 0], ..command };
        port.submit(&command).map_err(|error| error.to_string())?;
        Ok(true)
    }
}
