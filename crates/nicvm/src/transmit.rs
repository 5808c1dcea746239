//! The one transmit scheduler: messages wait here, are cut into frames, and leave when they may.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, HEADER_BYTES, Header, Kind};
use midplane_simhw::hardware::{Hardware, Source, TransmitRefused};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use crate::admission::{Admission, CONTROLLED, Gate, Verdict};
use crate::extension::TransmitNews;

/// Frames that one pump may hand over: a turn's work is bounded.
const FRAMES_PER_PUMP: usize = 64;

/// A message of an extension to the same extension of another node.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The extension that is handed its frames.
    pub extension: ExtensionId,
    /// The node that it is for.
    pub node: NodeId,
    /// The port that it is for, or what the extension makes of it.
    pub port: PortId,
    /// Its bytes; they are read when they are sent.
    pub source: RegionRef,
    /// The extension's own: comes with every frame.
    pub tag: u32,
    /// Whether the gate decides when it leaves.
    pub controlled: bool,
    /// Most bytes of its first frame: what may go ahead of the rest. 0 for no such limit.
    pub first: u32,
    /// Completes a command once all bytes have been read.
    pub completion: Option<(PortId, Completion)>,
}

/// How much of what waits is asked for: as many whole messages as pass `bytes`, at most `messages`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BacklogLimit {
    /// Bytes of frames, headers included.
    pub bytes: u64,
    /// Messages.
    pub messages: u32,
}

/// What waits for the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// Bytes of its frames, headers included.
    pub bytes: u64,
    /// Messages.
    pub messages: u32,
}

/// Where a frame lies in its message: what the scheduler puts into a data frame's words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Number of the message, counted by its sender.
    pub message: u32,
    /// First byte of the frame within the message.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// The sending extension's own.
    pub tag: u32,
}

impl Fragment {
    const fn words(self) -> [u64; 2] {
        [
            self.message as u64 | (self.offset as u64) << 32,
            self.total as u64 | (self.tag as u64) << 32,
        ]
    }

    /// Reads what [`Message`]'s sender wrote; any words are some fragment.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub const fn of(header: &Header) -> Self {
        let [first, second] = header.words;
        Self {
            message: first as u32,
            offset: (first >> 32) as u32,
            total: second as u32,
            tag: (second >> 32) as u32,
        }
    }
}

#[derive(Debug)]
struct Outgoing {
    message: Message,
    number: u32,
    sent: u32,
}

impl Outgoing {
    const fn next_length(&self, mtu: u32) -> u32 {
        let left = self.message.source.length - self.sent;
        let limit = if self.sent == 0 && self.message.first > 0 && self.message.first < mtu {
            self.message.first
        } else {
            mtu
        };
        if left < limit { left } else { limit }
    }

    /// Bytes of all frames that are left of it, headers included.
    fn cost(&self, mtu: u32) -> u64 {
        let left = u64::from(self.message.source.length - self.sent);
        let first = u64::from(self.next_length(mtu));
        let frames = 1 + (left - first).div_ceil(u64::from(mtu));
        left + frames * HEADER_BYTES as u64
    }
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Outgoing>,
    /// Whether the extension that steers the gate knows that something is held.
    told: bool,
    /// When the first and the last bit leave of what the gate has let through since it was opened.
    on_line: Option<(Instant, Instant)>,
}

/// What waits to leave a unit.
pub(crate) struct Transmit {
    /// By destination, and whether they are under flow control.
    queues: BTreeMap<(NodeId, bool), Queue>,
    /// Where the next pump begins, so that each destination has its turn.
    cursor: (NodeId, bool),
    next_number: u32,
    pub(crate) gate: Gate,
    pub(crate) admissions: Vec<Box<dyn Admission>>,
    /// When to pump again.
    retry: Instant,
    /// When the last data frame that was handed to the line leaves it.
    line_free_at: Instant,
    pub(crate) news: VecDeque<TransmitNews>,
}

impl std::fmt::Debug for Transmit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmit").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl Default for Transmit {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            cursor: (NodeId(0), false),
            next_number: 0,
            gate: Gate::default(),
            admissions: Vec::new(),
            retry: Instant::FAR_FUTURE,
            line_free_at: Instant::ZERO,
            news: VecDeque::new(),
        }
    }
}

/// What became of one attempt to send a frame.
enum Attempt {
    Sent,
    Held,
    /// The line takes nothing more now.
    Busy(Instant),
}

impl Transmit {
    pub(crate) fn enqueue(&mut self, message: Message) {
        let key = (message.node, message.controlled);
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let queue = self.queues.entry(key).or_default();
        queue.messages.push_back(Outgoing { message, number, sent: 0 });
    }

    /// What waits under flow control to `destination`, up to `limit`; `None` if nothing does.
    pub(crate) fn backlog(
        &self,
        destination: NodeId,
        mtu: usize,
        limit: BacklogLimit,
    ) -> Option<Backlog> {
        let queue = self.queues.get(&(destination, true))?;
        let mut backlog = Backlog { bytes: 0, messages: 0 };
        for outgoing in queue.messages.iter().take(limit.messages as usize) {
            backlog.bytes += outgoing.cost(mtu as u32);
            backlog.messages += 1;
            if backlog.bytes >= limit.bytes {
                break;
            }
        }
        (backlog.messages > 0).then_some(backlog)
    }

    /// Takes all messages to `destination` out, completing them with `status`.
    pub(crate) fn give_up(&mut self, hw: &mut dyn Hardware, destination: NodeId, status: Status) {
        self.withdraw(hw, status, |message| message.node == destination);
    }

    /// Takes out what `which` says, completing it with `status`.
    pub(crate) fn withdraw(
        &mut self,
        hw: &mut dyn Hardware,
        status: Status,
        which: impl Fn(&Message) -> bool,
    ) {
        let mut stopped = Vec::new();
        for (key, queue) in &mut self.queues {
            let before = queue.messages.len();
            queue.messages.retain(|outgoing| {
                let goes = which(&outgoing.message);
                if goes && let Some((port, completion)) = outgoing.message.completion {
                    hw.complete(port, &Completion { status, length: 0, ..completion });
                }
                !goes
            });
            if queue.messages.len() < before && self.gate.allowance(key.0) > 0 {
                stopped.push(*key);
            }
        }
        for key in stopped {
            self.tell_if_drained(hw, key);
        }
    }

    /// When to pump again: the line is taken until then.
    pub(crate) fn retry_at(&mut self, until: Instant) {
        self.retry = until;
    }

    /// When to pump again, if nothing else happens.
    pub(crate) const fn next(&self) -> Instant {
        self.retry
    }

    /// When the last data frame that was handed to the line leaves it.
    pub(crate) const fn line_free_at(&self) -> Instant {
        self.line_free_at
    }

    /// Hands over what may leave now, destinations in turn.
    pub(crate) fn pump(&mut self, hw: &mut dyn Hardware) {
        let mut frames = 0;
        let mut idle = 0;
        while idle < self.queues.len() {
            if frames == FRAMES_PER_PUMP {
                self.retry = hw.now();
                return;
            }
            let Some(key) = self.next_key() else { return };
            match self.attempt(hw, key) {
                Attempt::Sent => {
                    frames += 1;
                    idle = 0;
                }
                Attempt::Held => idle += 1,
                Attempt::Busy(until) => {
                    self.retry = self.retry.min(until);
                    return;
                }
            }
        }
    }

    /// The next destination's key in turn, after the cursor.
    fn next_key(&mut self) -> Option<(NodeId, bool)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let after = self.queues.range((Excluded(self.cursor), Unbounded)).next();
        let key = after.or_else(|| self.queues.iter().next()).map(|(key, _)| *key)?;
        self.cursor = key;
        Some(key)
    }

    fn attempt(&mut self, hw: &mut dyn Hardware, key: (NodeId, bool)) -> Attempt {
        let queue = self.queues.get_mut(&key).expect("a key of the queues");
        let Some(outgoing) = queue.messages.front() else {
            self.queues.remove(&key);
            return Attempt::Held;
        };
        let length = outgoing.next_length(hw.mtu() as u32);
        let header = data_header(hw, outgoing, length);
        let now = hw.now();
        match self.admit(now, &header) {
            Verdict::Now => self.send(hw, key, &header),
            Verdict::At(at) => {
                self.retry = self.retry.min(at);
                Attempt::Held
            }
            Verdict::Hold => {
                let queue = self.queues.get_mut(&key).expect("looked at above");
                if key.1 && !std::mem::replace(&mut queue.told, true) {
                    self.news.push_back(TransmitNews::Held { destination: key.0 });
                }
                Attempt::Held
            }
        }
    }

    fn admit(&mut self, now: Instant, header: &Header) -> Verdict {
        let mut verdict = self.gate.admit(now, header);
        for admission in &mut self.admissions {
            verdict = match (verdict, admission.admit(now, header)) {
                (Verdict::Hold, _) | (_, Verdict::Hold) => Verdict::Hold,
                (Verdict::At(a), Verdict::At(b)) => Verdict::At(a.max(b)),
                (Verdict::At(at), Verdict::Now) | (Verdict::Now, Verdict::At(at)) => {
                    Verdict::At(at)
                }
                (Verdict::Now, Verdict::Now) => Verdict::Now,
            };
        }
        verdict
    }

    fn send(&mut self, hw: &mut dyn Hardware, key: (NodeId, bool), header: &Header) -> Attempt {
        let queue = self.queues.get_mut(&key).expect("looked at before");
        let outgoing = queue.messages.front_mut().expect("looked at before");
        let part = outgoing.message.source.part(outgoing.sent, u32::from(header.length));
        let part = part.expect("frames are cut within their message");
        // A message without bytes needs no memory.
        let nothing = Source::Bytes(Payload::from(&[][..]));
        let source = if part.length == 0 { nothing } else { Source::Region(part) };
        match hw.transmit(header, source) {
            Ok(leaves) => {
                outgoing.sent += u32::from(header.length);
                let whole = outgoing.sent == outgoing.message.source.length;
                if whole && let Some(done) = queue.messages.pop_front() {
                    complete(hw, &done.message, Status::Done);
                }
                self.sent(hw, key, header, leaves);
                Attempt::Sent
            }
            Err(TransmitRefused::Busy { until }) => Attempt::Busy(until),
            // The application has withdrawn the memory: the rest of the message can't be sent.
            Err(_) => {
                let gone = queue.messages.pop_front().expect("looked at before");
                complete(hw, &gone.message, Status::Region);
                self.tell_if_drained(hw, key);
                Attempt::Sent
            }
        }
    }

    /// Tells the admissions, and whoever steers the gate when it is used up.
    fn sent(&mut self, hw: &dyn Hardware, key: (NodeId, bool), header: &Header, leaves: Instant) {
        let now = hw.now();
        self.line_free_at = self.line_free_at.max(leaves);
        self.gate.on_sent(now, header, leaves);
        for admission in &mut self.admissions {
            admission.on_sent(now, header, leaves);
        }
        let on_line = hw.line_rate().nanos_for(hw.wire_bytes(usize::from(header.length)).into());
        let first = Instant::from_nanos(leaves.as_nanos().saturating_sub(on_line));
        let queue = self.queues.get_mut(&key).expect("looked at before");
        let begins = queue.on_line.map_or(first, |(begins, _)| begins);
        queue.on_line = Some((begins, leaves));
        self.tell_if_drained(hw, key);
    }

    /// News for whoever steers the gate: nothing more passes it as it is.
    fn tell_if_drained(&mut self, hw: &dyn Hardware, key: (NodeId, bool)) {
        let (destination, controlled) = key;
        let Some(queue) = self.queues.get_mut(&key).filter(|_| controlled) else { return };
        let next = queue.messages.front().map(|next| next.next_length(hw.mtu() as u32));
        let allowance = self.gate.allowance(destination);
        if next.is_none_or(|next| u64::from(next) + HEADER_BYTES as u64 > allowance) {
            let (begins, leaves) = queue.on_line.take().unwrap_or_else(|| (hw.now(), hw.now()));
            queue.told = false;
            self.news.push_back(TransmitNews::Drained { destination, begins, leaves });
        }
    }
}

fn complete(hw: &mut dyn Hardware, message: &Message, status: Status) {
    if let Some((port, completion)) = message.completion {
        hw.complete(port, &Completion { status, ..completion });
    }
}

fn data_header(hw: &dyn Hardware, outgoing: &Outgoing, length: u32) -> Header {
    let message = &outgoing.message;
    let fragment = Fragment {
        message: outgoing.number,
        offset: outgoing.sent,
        total: message.source.length,
        tag: message.tag,
    };
    Header {
        kind: Kind::Data,
        extension: message.extension,
        source: hw.node(),
        destination: message.node,
        incarnation: hw.incarnation(),
        length: length as u16,
        port: message.port,
        flags: if message.controlled { CONTROLLED } else { 0 },
        hop_limit: DEFAULT_HOP_LIMIT,
        words: fragment.words(),
        ..Header::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_survives_its_header() {
        let fragment = Fragment { message: 7, offset: u32::MAX, total: 9, tag: u32::MAX - 1 };
        let header = Header { words: fragment.words(), ..Header::default() };
        assert_eq!(Fragment::of(&header), fragment);
    }

    #[test]
    fn the_cost_of_a_message_is_that_of_its_frames() {
        let source = RegionRef { length: 2500, ..RegionRef::default() };
        let message = Message {
            extension: ExtensionId(1),
            node: NodeId(1),
            port: PortId(0),
            source,
            tag: 0,
            controlled: true,
            first: 480,
            completion: None,
        };
        let outgoing = Outgoing { message, number: 0, sent: 0 };
        // 480, 1000, 1000 and 20 bytes.
        assert_eq!(outgoing.cost(1000), 2500 + 4 * 48);
        let begun = Outgoing { sent: 480, ..outgoing };
        assert_eq!(begun.cost(1000), 2020 + 3 * 48);
    }
}
