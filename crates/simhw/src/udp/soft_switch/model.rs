//! The model of the switch without I/O: arrivals, buffers and departures.
//!
//! Time is an argument. An event due at t is handled with the time t, even if the process wakes up later. Losses
//! therefore depend on when frames arrived, and not on the scheduler.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::drops::{DropCause, Drops};
use crate::frame::{HEADER_BYTES, Header};
use crate::id::NodeId;
use crate::link::{Framing, LinkProfile};
use crate::rng::Rng;
use crate::switch::{Forwarding, Output, Piece, SwitchProfile};
use crate::time::{Instant, LineRate, Serializer, nanos};

/// The next events. At the same instant, space becomes free before pieces need it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// An output has sent a piece.
    Sent { port: u16 },
    /// A piece has reached its output.
    Arrived { ingress: u16 },
    /// A frame has reached the end of its wire.
    Delivered { frame: u32 },
}

/// One host's line to the switch.
#[derive(Debug)]
struct Ingress {
    line: Serializer,
    /// Frames on the line and waiting for it; the first may be partly received.
    frames: Waiting,
    /// Urgent frames, which leave between two pieces of others.
    urgent: Waiting,
    /// True if the piece on the line belongs to an urgent frame.
    urgent_on_line: bool,
    /// Bytes of all these frames.
    held: usize,
    /// When the previous piece reached its output.
    arrived: Instant,
}

/// Frames that wait for a line.
#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<u32>,
    /// Index of the next piece of the first frame.
    piece: u32,
}

impl Ingress {
    /// Returns the queue of the frame whose piece is on the line.
    const fn on_line(&mut self) -> &mut Waiting {
        if self.urgent_on_line { &mut self.urgent } else { &mut self.frames }
    }
}

#[derive(Debug)]
struct InFlight {
    bytes: Vec<u8>,
    source: u16,
    destination: u16,
    /// When its first bit is ready to enter the line.
    ready: Instant,
    pieces: u32,
    /// True if its hop limit ends at this switch.
    ends_here: bool,
    passed: u32,
    dropped: u32,
    cause: Option<DropCause>,
    last_dropped: bool,
}

/// A frame that has arrived.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) urgent: bool,
    /// True if its hop limit ends at this switch.
    pub(super) ends_here: bool,
    pub(super) bytes: Vec<u8>,
}

/// A frame that leaves the switch.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) to: u16,
    pub(super) bytes: Vec<u8>,
}

/// Counts of frames and pieces so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) frames: u64,
    pub(super) delivered: u64,
    pub(super) drops: Drops,
    pub(super) pieces: u64,
    pub(super) pieces_passed: u64,
}

/// A switch with one host on each port.
#[derive(Debug)]
pub(super) struct Model {
    link: LinkProfile,
    /// The rate of the lines to the switch.
    rate_in: LineRate,
    /// Framing of outgoing frames, if it differs from that of incoming ones.
    recut: Option<Framing>,
    profile: SwitchProfile,
    memory: usize,
    jitter: u64,
    rng: Rng,
    ingresses: Vec<Ingress>,
    /// The hosts' lines from the switch.
    outputs: Vec<Output>,
    frames: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// With cells, for each pair of nodes, by source: true if the receiver still waits for the last cell of a
    /// packet, and takes the next packet's cells for its rest.
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
        let output = |_| Output::from_profile(link.rate, &profile);
        let cells = matches!(link.framing, Framing::Cells);
        Self {
            link,
            rate_in: link.rate,
            recut: None,
            profile,
            memory,
            jitter: nanos(jitter.0),
            rng: jitter.1,
            ingresses: (0..ports).map(|_| ingress()).collect(),
            outputs: (0..ports).map(output).collect(),
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

    /// Sets another rate for the lines to the switch.
    pub(super) fn rate_in(mut self, rate: Option<LineRate>) -> Self {
        if let Some(rate) = rate {
            self.rate_in = rate;
            self.ingresses.iter_mut().for_each(|ingress| ingress.line = Serializer::new(rate));
        }
        self
    }

    /// Cuts frames anew on their way out.
    pub(super) fn recut(mut self, framing: Option<Framing>) -> Self {
        if let Some(Framing::Cells) = framing {
            self.merging = vec![false; self.outputs.len() * self.outputs.len()];
        } else if framing.is_some() {
            self.merging = Vec::new();
        }
        self.recut = framing;
        self
    }

    /// Adds a frame that has arrived at `now`.
    pub(super) fn offer(&mut self, now: Instant, offered: Offered) {
        let Offered { source, destination, urgent, ends_here, bytes } = offered;
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
            // A frame that was noticed late cannot enter the line in the past.
            ready: now.max(self.reached),
            pieces: self.link.framing.pieces(length),
            ends_here,
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

    /// Handles the events due by `now`, at most `budget` of them; returns whether those were all.
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

    /// Returns when the next event is due.
    pub(super) fn next_due(&self) -> Instant {
        self.events.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, _, _))| *at)
    }

    /// Returns the number of frames that are neither delivered nor dropped.
    pub(super) fn in_flight(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    /// Returns the pieces that the outputs have dropped, by cause.
    pub(super) fn piece_drops(&self) -> Drops {
        let mut drops = Drops::default();
        self.outputs.iter().for_each(|output| drops += *output.drops());
        drops
    }

    /// Iterates over the highest occupancy of each output's buffer, in its unit.
    pub(super) fn peaks(&self) -> impl Iterator<Item = u32> {
        self.outputs.iter().map(Output::peak)
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
        self.frames[slot as usize].as_mut().expect("its pieces are still in flight")
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, event, self.sequence)));
        self.sequence += 1;
    }

    /// Puts the next piece of an ingress on its line, if there is one.
    fn begin_piece(&mut self, source: u16) {
        let ingress = &mut self.ingresses[usize::from(source)];
        ingress.urgent_on_line = !ingress.urgent.frames.is_empty();
        let waiting = ingress.on_line();
        let Some(slot) = waiting.frames.front() else { return };
        let index = waiting.piece;
        let frame = self.frames[*slot as usize].as_ref().expect("not yet received");
        let length = u32::try_from(frame.bytes.len()).expect("a datagram");
        let bytes = self.link.framing.piece_bytes(length, index);
        let begins = ingress.line.free_at().max(frame.ready);
        let ends = ingress.line.send(frame.ready, bytes);
        let known = match self.profile.forwarding {
            Forwarding::CutThrough { header } if self.recut.is_none() => {
                // A slower outgoing line may begin at once; a faster one would underrun.
                let whole = if self.rate_in < self.link.rate { bytes } else { header.min(bytes) };
                begins.plus_nanos(self.rate_in.nanos_for(u64::from(whole)))
            }
            Forwarding::CutThrough { .. } | Forwarding::StoreAndForward => ends,
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
        let is_to_all = frame.destination == NodeId::BROADCAST.0;
        match (frame.ends_here, self.recut) {
            (false, None) if !is_to_all => self.queue(now, piece),
            // These frames wait until they are complete.
            _ if !piece.last => {}
            (true, _) => self.send_back(now, slot),
            (false, _) if is_to_all => self.copy_to_all(now, slot),
            (false, None) => self.queue(now, piece),
            (false, Some(framing)) => self.cut_anew(now, slot, framing),
        }
        self.begin_piece(source);
    }

    /// Copies a complete broadcast frame to each port except its sender's; each copy counts as a frame.
    fn copy_to_all(&mut self, now: Instant, slot: u32) {
        let Some(frame) = self.forget(slot) else { return };
        let Ok((header, _)) = Header::parse(&frame.bytes) else {
            // A sealed frame is for one node, with whose key it is sealed.
            return self.tally.drops.add(DropCause::Malformed);
        };
        let framing = self.recut.unwrap_or(self.link.framing);
        self.tally.frames -= 1;
        for port in (0..self.outputs.len() as u16).filter(|port| *port != frame.source) {
            let mut bytes = frame.bytes.clone();
            let header = Header { destination: NodeId(port), ..header };
            bytes[..HEADER_BYTES].copy_from_slice(&header.emit());
            self.tally.frames += 1;
            let copy = self.store(InFlight { bytes, destination: port, ..frame });
            self.cut_anew(now, copy, framing);
        }
    }

    /// Cuts a complete frame anew; all its pieces reach the output at once.
    fn cut_anew(&mut self, now: Instant, slot: u32, framing: Framing) {
        let frame = self.frame(slot);
        let length = u32::try_from(frame.bytes.len()).expect("a datagram");
        let pieces = framing.pieces(length);
        frame.pieces = pieces;
        for index in 0..pieces {
            let piece = Piece {
                frame: slot,
                index: u16::try_from(index).unwrap_or(u16::MAX),
                last: index + 1 == pieces,
                bytes: framing.piece_bytes(length, index),
            };
            self.queue(now, piece);
        }
    }

    /// Passes a piece to its output.
    fn queue(&mut self, now: Instant, piece: Piece) {
        self.tally.pieces += 1;
        let frame = self.frames[piece.frame as usize].as_mut().expect("a piece of it is here");
        let port = frame.destination;
        match self.outputs[usize::from(port)].accept(now, piece) {
            Ok(Some(departure)) => self.schedule(departure.ends, Event::Sent { port }),
            Ok(None) => {}
            Err(cause) => {
                frame.dropped += 1;
                frame.cause.get_or_insert(cause);
                frame.last_dropped |= piece.last;
                self.settle(now, piece.frame);
            }
        }
    }

    /// Returns the header of a complete frame whose hop limit ends here to its sender, bypassing the buffer of
    /// the sender's port.
    fn send_back(&mut self, now: Instant, slot: u32) {
        self.tally.drops.add(DropCause::HopLimit);
        let Some(frame) = self.forget(slot) else { return };
        let header = Header::parse(&frame.bytes).ok();
        let Some(back) = header.and_then(|(header, _)| header.returned(now.as_nanos())) else {
            return;
        };
        self.tally.frames += 1;
        let back = InFlight {
            bytes: back.emit().to_vec(),
            source: frame.destination,
            destination: frame.source,
            ready: now,
            ends_here: false,
            pieces: 1,
            passed: 0,
            dropped: 0,
            cause: None,
            last_dropped: false,
        };
        let bytes = self.link.framing.wire_bytes(HEADER_BYTES as u32);
        let slot = self.store(back);
        // The returned header takes its time on the line but no queueing: it is small, and must not distort the
        // measurement.
        let takes = self.link.rate.nanos_for(u64::from(bytes));
        let at = now.plus_nanos(takes) + self.link.propagation;
        self.schedule(at, Event::Delivered { frame: slot });
    }

    fn on_sent(&mut self, now: Instant, port: u16) {
        let output = &mut self.outputs[usize::from(port)];
        let piece = output.sending().expect("its last bit has just left");
        if let Some(departure) = output.next(now) {
            self.schedule(departure.ends, Event::Sent { port });
        }
        self.tally.pieces_passed += 1;
        self.frame(piece.frame).passed += 1;
        self.settle(now, piece.frame);
    }

    /// Decides the outcome of a frame once none of its pieces is in flight.
    fn settle(&mut self, now: Instant, slot: u32) {
        let ports = self.outputs.len();
        let frame = self.frames[slot as usize].as_mut().expect("a piece of it was in flight");
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
