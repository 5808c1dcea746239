//! The streams between two processes over one wire: their received bytes, credit and wakers.
//!
//! It performs no I/O and reads no clock. After each call that changes it, take its events and wakers, and call
//! [`Core::flush`] in the same turn.

mod dialing;
mod moving;
mod receiving;
mod waking;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::task::Waker;

use midplane_simhw::shm::rings::WakeSet;

use super::due::{done, next_due};
use super::flow::{FIRST_WINDOW, Flow, MIN_WINDOW, wait};
use super::frame::{Header, Incoming, Kind, MAX_CONTROL, Reason};
use super::parts::Parts;
use super::stats::Counted;
use super::wire::{Peer, Wire};
use waking::Round;

/// Most streams that a peer may have open.
const MAX_STREAMS: usize = 16 * 1024;
/// Most bytes of all streams that the peer of a session may send before they are read; [`MIN_WINDOW`] of each stream
/// comes on top.
const BUDGET: u64 = 256 << 20;
/// Most frames that one call handles.
const FRAMES_PER_TURN: usize = 256;
/// Most calls that handle the remaining frames of a wire whose peer has exited. The largest wire holds 16 MiB. Each
/// call handles 256 frames, or all before a frame of 16 KiB, which the next call handles.
const LAST_TURNS: usize = 16_384;

/// An event that a session reports to its node.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// The peer has described itself.
    Hello(Vec<u8>),
    /// The peer has opened a stream to a service.
    Opened { stream: u32, service: String },
    /// The peer opens no more streams, and accepts none.
    Goodbye,
    /// The session has ended: no further event follows.
    Ended(Ended),
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// The peer's process has exited, or has dropped the session.
    Gone,
    /// The peer has violated the protocol.
    Violation,
    /// This node has ended it.
    Closed,
}

/// The buffer of a reader that takes bytes directly from the wire.
pub(super) struct Direct<'a, 'b> {
    pub(super) stream: u32,
    pub(super) into: &'a mut tokio::io::ReadBuf<'b>,
}

/// The streams of a session.
#[derive(Debug)]
pub(super) struct Core {
    wire: Wire,
    flows: BTreeMap<u32, Flow>,
    next: u32,
    /// Streams with frames that are due.
    queued: VecDeque<u32>,
    /// Streams whose writers wait for room on the wire.
    awaiting_room: VecDeque<u32>,
    /// The last round of wake-ups because there is room.
    round: Round,
    /// A description that the wire has not accepted yet; only the newest one counts.
    hello: Option<Vec<u8>>,
    goodbye: bool,
    /// Bytes that the peer may send before they are read.
    committed: u64,
    opened_by_peer: usize,
    pub(super) events: VecDeque<Event>,
    /// Tasks to wake once the lock is released.
    pub(super) wakers: Vec<Waker>,
    /// Replaced wakers, to be dropped once the lock is released.
    pub(super) replaced: Vec<Waker>,
    pub(super) ended: Option<Ended>,
    /// True if a flush has something to do.
    pub(super) is_dirty: bool,
    pub(super) counted: Counted,
    /// Counts the frames that were handled, and the parts of frames that were read.
    pub(super) handled: u64,
    /// Counts writes of streams.
    pub(super) written: u64,
    /// Counts those of these parts after which more of the frame was left.
    pub(super) parts: u64,
    /// True if streams may move to connections of their own.
    pub(super) may_move: bool,
    /// Streams for which a connection of their own is to be made.
    pub(super) moving: Vec<u32>,
    /// The stream of the last data in this turn of the driver (0 if none), and whether there were data of several streams.
    turn: (u32, bool),
}

impl Core {
    /// Makes a session over a wire; the two ends differ in `is_first`.
    pub(super) fn new(wire: Wire, is_first: bool) -> Self {
        Self {
            wire,
            flows: BTreeMap::new(),
            next: if is_first { 2 } else { 1 },
            queued: VecDeque::new(),
            awaiting_room: VecDeque::new(),
            round: Round::default(),
            hello: None,
            goodbye: false,
            committed: 0,
            opened_by_peer: 0,
            events: VecDeque::new(),
            wakers: Vec::new(),
            replaced: Vec::new(),
            ended: None,
            is_dirty: false,
            counted: Counted::default(),
            handled: 0,
            written: 0,
            parts: 0,
            may_move: false,
            moving: Vec::new(),
            turn: (0, false),
        }
    }

    /// Adds the peer's wake-ups to a set.
    pub(super) fn watch(&self, wakes: &WakeSet, number: u64) -> io::Result<()> {
        self.wire.watch(wakes, number)
    }

    /// Describes this node to the peer.
    pub(super) fn send_hello(&mut self, hello: Vec<u8>) {
        debug_assert!(hello.len() <= MAX_CONTROL);
        self.hello = Some(hello);
        self.is_dirty = true;
    }

    /// Reports to the peer that this node opens and accepts no more streams.
    pub(super) const fn send_goodbye(&mut self) {
        self.goodbye = true;
        self.is_dirty = true;
    }

    /// Opens a stream to a service of the peer; returns `None` if the wire has no room now.
    pub(super) fn open(&mut self, service: &str) -> Option<u32> {
        self.wire.room().filter(|room| *room >= service.len())?;
        while self.flows.contains_key(&self.next) {
            self.next = self.next.wrapping_add(2);
        }
        let stream = self.next;
        self.next = self.next.wrapping_add(2);
        let window = self.first_window();
        self.committed += window;
        self.flows.insert(stream, Flow::new(window, 0, false));
        let header = Header::new(Kind::Open, stream, window);
        self.wire.push(header.words(), &[IoSlice::new(service.as_bytes())]);
        self.counted.opened += 1;
        self.is_dirty = true;
        Some(stream)
    }

    /// Accepts a stream that the peer has opened, unless that was done or the stream has ended.
    pub(super) fn accept(&mut self, stream: u32) {
        let is_new = |flow: &&mut Flow| !flow.is_accepted && flow.reset.is_none();
        if let Some(flow) = self.flows.get_mut(&stream).filter(is_new) {
            flow.is_accepted = true;
            flow.due.accepted = true;
            self.counted.accepted += 1;
            self.queue(stream);
        }
    }

    /// Ends a stream in both directions.
    pub(super) fn reset(&mut self, stream: u32, reason: Reason) {
        if reason == Reason::Dropped && stream % 2 != self.next % 2 {
            // The service already has the stream, though the driver may not have accepted it yet.
            self.accept(stream);
        }
        if let Some(flow) = self.flows.get_mut(&stream)
            && flow.reset.is_none()
        {
            flow.reset = Some(reason);
            flow.due.reset = Some(reason);
            self.counted.refused += u64::from(reason != Reason::Dropped);
            self.wakers.extend(flow.take_wakers());
            self.queue(stream);
        }
    }

    pub(super) fn flow(&mut self, stream: u32) -> Option<&mut Flow> {
        self.flows.get_mut(&stream)
    }

    /// Returns the number of streams that are open at either end.
    pub(super) fn streams(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of streams that bytes may still cross.
    pub(super) fn streams_in_use(&self) -> usize {
        self.flows.values().filter(|flow| flow.is_in_use()).count()
    }

    /// Returns whether all that was written has left this process.
    pub(super) fn is_flushed(&self) -> bool {
        let is_written = self.ended.is_some() || self.queued.is_empty();
        is_written && self.wire.is_flushed()
    }

    /// Drops a stream for the application: bytes written before still arrive; received bytes are discarded.
    pub(super) fn drop_stream(&mut self, stream: u32) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        flow.is_dropped = true;
        flow.receive.is_finished |= flow.receive.end.is_some();
        let bytes = flow.receive.held.clear();
        flow.receive.consumed += bytes;
        self.committed = self.committed.saturating_sub(bytes);
        self.replaced.extend(flow.take_wakers());
        if flow.reset.is_none() {
            if !flow.send.is_finished {
                flow.send.is_finished = true;
                flow.due.fin = true;
            }
            flow.due.stop = !flow.receive.is_finished;
        }
        self.queue(stream);
    }

    /// Ends the application's direction of a stream.
    pub(super) fn finish(&mut self, stream: u32) {
        if let Some(flow) = self.flows.get_mut(&stream)
            && !flow.send.is_finished
        {
            flow.send.is_finished = true;
            flow.due.fin = true;
            self.queue(stream);
        }
    }

    /// Sends as much of `parts` as credit, wire and the writers that have waited longer allow; returns how many bytes.
    /// If it is 0, the writer is woken once there may be room or credit.
    pub(super) fn write(&mut self, stream: u32, parts: &[IoSlice<'_>], waker: &Waker) -> usize {
        let Self { wire, flows, awaiting_room, replaced, round, .. } = self;
        let Some(flow) = flows.get_mut(&stream) else { return 0 };
        let is_alone = awaiting_room.iter().all(|waiting| *waiting == stream);
        let share = round.share(&flow.send, is_alone);
        let mut cursor = Parts::new(parts);
        let mut credit;
        loop {
            credit = usize::try_from(flow.send.limit - flow.send.sent).unwrap_or(usize::MAX);
            let most = credit.min(share - cursor.taken);
            let room = wire.room().filter(|room| *room >= MIN_PIECE);
            let Some(room) = room.filter(|_| most > 0 && !cursor.is_empty()) else { break };
            let header = Header::new(Kind::Data, stream, 0);
            let taken = cursor.take(room.min(most), |pieces| wire.push(header.words(), pieces));
            flow.send.sent += taken as u64;
            if cursor.taken > EARLY {
                // The peer can read the first bytes while the next are written.
                wire.flush();
            }
        }
        let was_woken = std::mem::replace(&mut flow.send.was_woken, false);
        flow.send.share.1 =
            if cursor.taken == 0 { 0 } else { flow.send.share.1.saturating_sub(cursor.taken) };
        if cursor.taken == 0 && !cursor.is_empty() {
            wait(&mut flow.send.waker, waker, replaced);
            let is_long = flow.send.sent >= MOVE_AFTER && matches!(wire, Wire::Piped(_));
            // The peer makes the stream's own connection, if it has dialed the session.
            let is_first = is_long && !std::mem::replace(&mut flow.send.is_long, is_long);
            if credit == 0 || is_first {
                flow.due.blocked = true;
                self.queue(stream);
            }
            if is_long {
                self.ask_to_move(stream);
            }
            if credit == 0 {
                return 0;
            }
            let Self { flows, awaiting_room, .. } = self;
            let Some(flow) = flows.get_mut(&stream) else { return 0 };
            // The driver checks for room while it polls, and requests a wake-up when it parks.
            if !std::mem::replace(&mut flow.send.awaits_room, true) {
                if was_woken {
                    // Others have taken the room meanwhile.
                    awaiting_room.push_front(stream);
                } else {
                    awaiting_room.push_back(stream);
                }
            }
            self.is_dirty = true;
            return 0;
        }
        if std::mem::take(&mut flow.send.awaits_room) {
            awaiting_room.retain(|waiting| *waiting != stream);
        }
        self.is_dirty = true;
        self.counted.bytes_sent += cursor.taken as u64;
        self.written = self.written.wrapping_add(1);
        cursor.taken
    }

    /// Sends the frames that are due, and makes them visible to the peer.
    pub(super) fn flush(&mut self) {
        self.is_dirty = false;
        self.send_own();
        while let Some(stream) = self.queued.front().copied() {
            if self.send_due(stream) {
                self.queued.pop_front();
            } else {
                break;
            }
        }
        self.wire.flush();
    }

    fn send_own(&mut self) {
        let room = self.wire.room();
        if let Some(hello) =
            self.hello.take_if(|hello| room.is_some_and(|room| room >= hello.len()))
        {
            self.wire.push(Header::new(Kind::Hello, 0, 0).words(), &[IoSlice::new(&hello)]);
        }
        if self.goodbye && self.wire.room().is_some() {
            self.goodbye = false;
            self.wire.push(Header::new(Kind::Goodbye, 0, 0).words(), &[]);
        }
        self.is_dirty |= self.hello.is_some() || self.goodbye;
    }

    /// Sends a stream's due frames; returns `false` if the wire has no room for all.
    fn send_due(&mut self, stream: u32) -> bool {
        let Self { wire, flows, .. } = self;
        let Some(flow) = flows.get_mut(&stream) else { return true };
        while let Some(header) = next_due(stream, flow) {
            if wire.room().is_none() {
                return false;
            }
            wire.push(header.words(), &[]);
            done(header, flow);
        }
        if flow.reset.is_some() {
            // Nothing is sent after the reset. What was marked since would keep the stream.
            flow.due = Default::default();
        }
        flow.is_queued = false;
        self.forget_if_over(stream);
        true
    }

    fn queue(&mut self, stream: u32) {
        self.is_dirty = true;
        if let Some(flow) = self.flows.get_mut(&stream)
            && !std::mem::replace(&mut flow.is_queued, true)
        {
            self.queued.push_back(stream);
        }
    }

    fn forget_if_over(&mut self, stream: u32) {
        if let Some(flow) = self.flows.get(&stream)
            && flow.is_over()
        {
            self.committed = self.committed.saturating_sub(flow.committed());
            self.opened_by_peer -= usize::from(stream % 2 != self.next % 2);
            self.flows.remove(&stream);
        }
    }

    fn first_window(&self) -> u64 {
        (BUDGET.saturating_sub(self.committed) / 64).clamp(MIN_WINDOW, FIRST_WINDOW)
    }

    /// Counts bytes of a stream as read; grants more credit once half the window is free.
    pub(super) fn consumed(&mut self, stream: u32, bytes: u64) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        let receive = &mut flow.receive;
        receive.consumed += bytes;
        self.committed = self.committed.saturating_sub(bytes);
        let left = receive.granted - receive.consumed;
        if left <= receive.window / 2 && !receive.is_finished {
            self.committed += receive.window - left;
            receive.granted += receive.window - left;
            flow.due.credit = true;
            self.queue(stream);
        }
    }

    /// Handles received frames, at most a batch; bytes for the stream of `direct` go into its buffer. Returns
    /// whether there were any.
    pub(super) fn pump(&mut self, mut direct: Option<Direct<'_, '_>>) -> bool {
        let mut any = false;
        for _ in 0..FRAMES_PER_TURN {
            if self.ended.is_some() {
                break;
            }
            let incoming = match self.wire.peek() {
                Ok(Some(incoming)) => incoming,
                Ok(None) => break,
                Err(_) => {
                    self.end(Ended::Violation);
                    break;
                }
            };
            if self.is_left_to_reader(incoming, direct.as_ref()) {
                break;
            }
            any = true;
            let is_full = direct.as_ref().is_some_and(|direct| direct.into.remaining() == 0);
            if is_full {
                break;
            }
            self.handled = self.handled.wrapping_add(1);
            if self.handle(incoming, direct.as_mut()).is_none() {
                self.end(Ended::Violation);
                break;
            }
        }
        any
    }

    /// Returns whether the reader of another stream than `direct`'s takes the next frame: it is awake, or is
    /// woken.
    fn is_left_to_reader(&mut self, incoming: Incoming, direct: Option<&Direct<'_, '_>>) -> bool {
        let Some(header) = Header::parse(incoming.words) else { return false };
        if header.kind != Kind::Data || direct.is_some_and(|direct| direct.stream == header.stream)
        {
            return false;
        }
        let flow = self.flows.get_mut(&header.stream);
        flow.is_some_and(|flow| flow.is_left_to_reader(incoming.left, &mut self.wakers))
    }

    /// Stops leaving the frames of the next frame's stream to its reader, which has not taken this one. They are left
    /// to the reader again once it waits for bytes.
    pub(super) fn stop_leaving_frames(&mut self) {
        let Ok(Some(incoming)) = self.wire.peek() else { return };
        let flow =
            Header::parse(incoming.words).and_then(|header| self.flows.get_mut(&header.stream));
        if let Some(flow) = flow {
            flow.receive.reads_directly = false;
            self.wakers.extend(flow.receive.waker.take());
        }
    }

    /// Ends the session, and resets all its streams.
    pub(super) fn end(&mut self, why: Ended) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why);
        for flow in self.flows.values_mut() {
            flow.reset.get_or_insert(Reason::Dropped);
            self.wakers.extend(flow.take_wakers());
        }
        // Dropping the wire notifies the peer, which can still read frames sent before.
        self.wire = Wire::Closed;
        self.events.push_back(Event::Ended(why));
    }

    /// Requests wake-ups from the peer: by the next frame, and by room if a task waits for that. Returns `false` if the
    /// frame or the room is there already.
    pub(super) fn park(&mut self) -> bool {
        // A description that no empty wire has room for would keep the driver from parking.
        let fits = |hello: &Vec<u8>| hello.len() <= self.wire.longest();
        let has_own = self.goodbye || self.hello.as_ref().is_some_and(fits);
        let needs_room = has_own || !self.awaiting_room.is_empty() || !self.queued.is_empty();
        if needs_room {
            self.wire.await_room();
        }
        let has_room = needs_room && self.wire.has_room();
        !has_room && !self.wire.park()
    }

    /// Returns whether frames wait because the wire has not accepted them.
    pub(super) fn is_behind(&self) -> bool {
        !self.queued.is_empty() || self.hello.is_some() || self.goodbye
    }

    /// Starts to poll on `processor`. Returns where the peer polls.
    pub(super) fn unpark(&self, processor: usize) -> Peer {
        self.wire.unpark(processor)
    }

    /// Returns whether the system has accepted no bytes for a second although some wait; only over TCP.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(&self.wire, Wire::Piped(piped) if piped.is_stuck())
    }

    /// Handles the end of the wire, by loss or by the peer: received frames are still handled.
    pub(super) fn on_wire_ended(&mut self) {
        // A hostile peer may end its channel and continue to write: the turns are bounded.
        for _ in 0..LAST_TURNS {
            self.stop_leaving_frames();
            if !self.pump(None) {
                break;
            }
        }
        self.end(Ended::Gone);
    }
}

/// Bytes of room below which a writer waits: short frames cost as much as long ones.
const MIN_PIECE: usize = 2_048;
/// Bytes of a stream before it moves because its writer waits: so many that its reader has read most of them.
const MOVE_AFTER: u64 = 4 * FIRST_WINDOW;
/// Bytes of one write after which the peer is woken before the write ends.
const EARLY: usize = 32 * 1024;
