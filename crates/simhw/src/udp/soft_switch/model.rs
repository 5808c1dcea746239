//! The switch between the datagrams: what arrives when, what fits, what leaves when.
//!
//! Time is an argument. An event that is due at t is carried out at t, however late the process
//! wakes up for it: what is lost depends on when frames arrived, not on the scheduler.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::drops::{DropCause, Drops};
use crate::link::{Framing, LinkProfile};
use crate::rng::Rng;
use crate::switch::{Departure, Forwarding, Output, Piece, SwitchProfile};
use crate::time::{Instant, Serializer, nanos};

/// What happens next. At one instant, places become free before pieces want them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// An output has sent a piece.
    Sent { port: u16 },
    /// A piece stands before its output.
    Arrived { ingress: u16 },
    /// A frame has reached the end of its wire.
    Delivered { frame: u32 },
}

/// One host's line into the switch.
#[derive(Debug)]
struct Ingress {
    line: Serializer,
    /// On the line and before it, the first partly taken in.
    frames: Waiting,
    /// Urgent ones, which pass between two pieces of others.
    urgent: Waiting,
    /// Whether the piece on the line is an urgent frame's.
    urgent_on_line: bool,
    /// Bytes of all of them.
    held: usize,
    /// When the piece before reached its output.
    arrived: Instant,
}

/// Frames before a line.
#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<u32>,
    /// The next piece of the first.
    piece: u32,
}

impl Ingress {
    /// The frames of which the piece on the line is.
    const fn on_line(&mut self) -> &mut Waiting {
        if self.urgent_on_line { &mut self.urgent } else { &mut self.frames }
    }
}

/// One host's line out of the switch.
#[derive(Debug)]
struct Egress {
    output: Output,
    sending: Option<Piece>,
}

#[derive(Debug)]
struct InFlight {
    bytes: Vec<u8>,
    source: u16,
    destination: u16,
    /// When its first bit is ready to enter the line.
    ready: Instant,
    pieces: u32,
    passed: u32,
    dropped: u32,
    cause: Option<DropCause>,
    last_dropped: bool,
}

/// A frame that leaves the switch.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) to: u16,
    pub(super) bytes: Vec<u8>,
}

/// Frames and pieces so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) frames: u64,
    pub(super) delivered: u64,
    pub(super) drops: Drops,
    pub(super) pieces: u64,
    pub(super) pieces_passed: u64,
}

/// A switch of which each port is a host's.
#[derive(Debug)]
pub(super) struct Model {
    link: LinkProfile,
    profile: SwitchProfile,
    memory: usize,
    jitter: u64,
    rng: Rng,
    ingresses: Vec<Ingress>,
    egresses: Vec<Egress>,
    frames: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// With cells: whether the receiver of a pair still waits for the last cell of a packet, so
    /// that the next packet's cells are taken for its rest. Row by source.
    merging: Vec<bool>,
    events: BinaryHeap<Reverse<(Instant, Event, u64)>>,
    sequence: u64,
    reached: Instant,
    pub(super) outbound: VecDeque<Outbound>,
    pub(super) tally: Tally,
}

impl Model {
    pub(super) fn new(
        ports: usize,
        link: LinkProfile,
        profile: SwitchProfile,
        memory: usize,
        jitter: (Duration, Rng),
    ) -> Self {
        let ingress = || Ingress {
            line: Serializer::new(link.rate),
            frames: Waiting::default(),
            urgent: Waiting::default(),
            urgent_on_line: false,
            held: 0,
            arrived: Instant::ZERO,
        };
        let egress = || Egress { output: Output::from_profile(link.rate, &profile), sending: None };
        let cells = matches!(link.framing, Framing::Cells);
        Self {
            link,
            profile,
            memory,
            jitter: nanos(jitter.0),
            rng: jitter.1,
            ingresses: (0..ports).map(|_| ingress()).collect(),
            egresses: (0..ports).map(|_| egress()).collect(),
            frames: Vec::new(),
            free: Vec::new(),
            merging: if cells { vec![false; ports * ports] } else { Vec::new() },
            events: BinaryHeap::new(),
            sequence: 0,
            reached: Instant::ZERO,
            outbound: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// A frame has come from host `source` at `now`, for host `destination`; whether it is urgent.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        (source, destination): (u16, u16),
        urgent: bool,
        bytes: Vec<u8>,
    ) {
        self.tally.frames += 1;
        let ingress = &mut self.ingresses[usize::from(source)];
        if ingress.held + bytes.len() > self.memory {
            self.tally.drops.add(DropCause::System);
            return;
        }
        ingress.held += bytes.len();
        let length = u32::try_from(bytes.len()).expect("a datagram");
        let frame = InFlight {
            bytes,
            source,
            destination,
            // What is past is past, also for a frame that was seen late.
            ready: now.max(self.reached),
            pieces: self.link.framing.pieces(length),
            passed: 0,
            dropped: 0,
            cause: None,
            last_dropped: false,
        };
        let slot = self.store(frame);
        let ingress = &mut self.ingresses[usize::from(source)];
        let waiting = if urgent { &mut ingress.urgent } else { &mut ingress.frames };
        waiting.frames.push_back(slot);
        if ingress.urgent.frames.len() + ingress.frames.frames.len() == 1 {
            self.begin_piece(source);
        }
    }

    /// Carries out what is due by `now`, at most `budget` events of it; whether that was all.
    pub(super) fn advance(&mut self, now: Instant, budget: usize) -> bool {
        for _ in 0..budget {
            match self.events.peek() {
                Some(Reverse((at, _, _))) if *at <= now => {}
                _ => {
                    self.reached = self.reached.max(now);
                    return true;
                }
            }
            let Some(Reverse((at, event, _))) = self.events.pop() else { return true };
            self.reached = self.reached.max(at);
            match event {
                Event::Sent { port } => self.on_sent(at, port),
                Event::Arrived { ingress } => self.on_arrived(at, ingress),
                Event::Delivered { frame } => self.on_delivered(frame),
            }
        }
        false
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Instant {
        self.events.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, _, _))| *at)
    }

    /// Frames that are neither delivered nor lost.
    pub(super) fn in_flight(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    /// Pieces dropped by the outputs, by cause.
    pub(super) fn piece_drops(&self) -> Drops {
        let mut drops = Drops::default();
        for egress in &self.egresses {
            drops += *egress.output.drops();
        }
        drops
    }

    /// The most that each output's buffer ever held, in its unit.
    pub(super) fn peaks(&self) -> impl Iterator<Item = u32> {
        self.egresses.iter().map(|egress| egress.output.peak())
    }

    fn store(&mut self, frame: InFlight) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.frames[slot as usize] = Some(frame);
                slot
            }
            None => {
                self.frames.push(Some(frame));
                u32::try_from(self.frames.len() - 1).expect("memory for fewer frames")
            }
        }
    }

    fn frame(&mut self, slot: u32) -> &mut InFlight {
        self.frames[slot as usize].as_mut().expect("its pieces are still under way")
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, event, self.sequence)));
        self.sequence += 1;
    }

    /// Puts the next piece of an ingress on its line, where there is one.
    fn begin_piece(&mut self, source: u16) {
        let ingress = &mut self.ingresses[usize::from(source)];
        ingress.urgent_on_line = !ingress.urgent.frames.is_empty();
        let waiting = ingress.on_line();
        let Some(slot) = waiting.frames.front() else { return };
        let index = waiting.piece;
        let frame = self.frames[*slot as usize].as_ref().expect("not yet taken in");
        let length = u32::try_from(frame.bytes.len()).expect("a datagram");
        let bytes = self.link.framing.piece_bytes(length, index);
        let begins = ingress.line.free_at().max(frame.ready);
        let ends = ingress.line.send(frame.ready, bytes);
        let known = match self.profile.forwarding {
            Forwarding::StoreAndForward => ends,
            Forwarding::CutThrough { header } => {
                begins.plus_nanos(self.link.rate.nanos_for(u64::from(header.min(bytes))))
            }
        };
        let jitter = self.rng.between(0, self.jitter);
        let nominal = known + self.link.propagation + self.profile.latency;
        // Pieces of one line do not overtake each other.
        let at = nominal.plus_nanos(jitter).max(ingress.arrived);
        ingress.arrived = at;
        self.schedule(at, Event::Arrived { ingress: source });
    }

    fn on_arrived(&mut self, now: Instant, source: u16) {
        let ingress = &mut self.ingresses[usize::from(source)];
        let waiting = ingress.on_line();
        let slot = *waiting.frames.front().expect("a piece of it has arrived");
        let index = waiting.piece;
        let frame = self.frames[slot as usize].as_mut().expect("a piece of it has arrived");
        let length = frame.bytes.len();
        let piece = Piece {
            frame: slot,
            index: u16::try_from(index).unwrap_or(u16::MAX),
            last: index + 1 == frame.pieces,
            bytes: self.link.framing.piece_bytes(u32::try_from(length).expect("a datagram"), index),
        };
        if piece.last {
            waiting.frames.pop_front();
            waiting.piece = 0;
            ingress.held -= length;
        } else {
            waiting.piece += 1;
        }
        self.tally.pieces += 1;
        let port = frame.destination;
        match self.egresses[usize::from(port)].output.accept(now, piece) {
            Ok(Some(departure)) => self.on_departure(port, departure),
            Ok(None) => {}
            Err(cause) => {
                frame.dropped += 1;
                frame.cause.get_or_insert(cause);
                frame.last_dropped |= piece.last;
                self.settle(now, slot);
            }
        }
        self.begin_piece(source);
    }

    fn on_departure(&mut self, port: u16, departure: Departure) {
        self.egresses[usize::from(port)].sending = Some(departure.piece);
        self.schedule(departure.ends, Event::Sent { port });
    }

    fn on_sent(&mut self, now: Instant, port: u16) {
        let egress = &mut self.egresses[usize::from(port)];
        let piece = egress.sending.take().expect("its last bit has just left");
        if let Some(departure) = egress.output.next(now) {
            self.on_departure(port, departure);
        }
        self.tally.pieces_passed += 1;
        self.frame(piece.frame).passed += 1;
        self.settle(now, piece.frame);
    }

    /// Decides a frame's fate, once nothing of it is under way.
    fn settle(&mut self, now: Instant, slot: u32) {
        let ports = self.egresses.len();
        let frame = self.frames[slot as usize].as_mut().expect("something of it was under way");
        if frame.passed + frame.dropped < frame.pieces {
            return;
        }
        let pair = usize::from(frame.source) * ports + usize::from(frame.destination);
        if frame.passed > 0
            && let Some(merging) = self.merging.get_mut(pair)
        {
            let merged = std::mem::replace(merging, frame.last_dropped);
            if merged {
                frame.cause.get_or_insert(DropCause::Merged);
            }
        }
        match frame.cause {
            Some(cause) => {
                self.tally.drops.add(cause);
                self.forget(slot);
            }
            None => self.schedule(now + self.link.propagation, Event::Delivered { frame: slot }),
        }
    }

    fn on_delivered(&mut self, slot: u32) {
        if let Some(frame) = self.forget(slot) {
            self.tally.delivered += 1;
            self.outbound.push_back(Outbound { to: frame.destination, bytes: frame.bytes });
        }
    }

    fn forget(&mut self, slot: u32) -> Option<InFlight> {
        self.free.push(slot);
        self.frames[slot as usize].take()
    }
}

#[cfg(test)]
mod tests;
