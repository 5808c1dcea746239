//! Tests properties of a switch output, for every queue bound, discard policy and load.

use std::collections::BTreeMap;

use midplane_simhw::drops::DropCause;
use midplane_simhw::link::{CELL_BYTES, Framing};
use midplane_simhw::switch::{Buffer, Departure, DiscardPolicy, Output, Piece, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use proptest::prelude::*;

const RATE: LineRate = LineRate::mbps(155);

/// An output, and all that it has sent and dropped.
struct Bench {
    output: Output,
    capacity: u32,
    /// The piece being sent.
    sending: Option<Departure>,
    departures: Vec<Departure>,
    accepted: Vec<Piece>,
    offered: u64,
    dropped: BTreeMap<(u32, u16), DropCause>,
}

impl Bench {
    fn new(buffer: Buffer, discard: DiscardPolicy) -> Self {
        let (Buffer::Bytes(capacity) | Buffer::Cells(capacity)) = buffer;
        let profile = SwitchProfile { discard, ..SwitchProfile::new(buffer) };
        Self {
            output: Output::from_profile(RATE, &profile),
            capacity,
            sending: None,
            departures: Vec::new(),
            accepted: Vec::new(),
            offered: 0,
            dropped: BTreeMap::new(),
        }
    }

    fn begin(&mut self, departure: Option<Departure>) {
        self.departures.extend(departure);
        self.sending = departure;
    }

    /// Sends the pieces that have left by `now`.
    fn run_until(&mut self, now: Instant) {
        while let Some(ends) = self.sending.map(|departure| departure.ends)
            && ends <= now
        {
            let next = self.output.next(ends);
            self.begin(next);
            self.check();
        }
    }

    fn offer(&mut self, now: Instant, piece: Piece) {
        self.run_until(now);
        self.offered += 1;
        match self.output.accept(now, piece) {
            Ok(departure) => {
                self.accepted.push(piece);
                if departure.is_some() {
                    assert!(self.sending.is_none(), "the line carries one piece at a time");
                    self.begin(departure);
                }
            }
            Err(cause) => {
                self.dropped.insert((piece.frame, piece.index), cause);
            }
        }
        self.check();
    }

    fn finish(&mut self) {
        self.run_until(Instant::FAR_FUTURE);
        assert_eq!(self.output.used(), 0);
        assert_eq!(self.departures.len(), self.accepted.len());
    }

    fn check(&self) {
        assert!(self.output.used() <= self.capacity, "the buffer holds more than it has");
        assert!(self.output.peak() <= self.capacity);
        let dropped = self.output.drops().total();
        assert_eq!(dropped, self.dropped.len() as u64);
        let waiting = self.accepted.len() - self.departures.len();
        let inside = waiting as u64 + u64::from(self.sending.is_some());
        let gone = self.departures.len() as u64 - u64::from(self.sending.is_some());
        assert_eq!(self.offered, gone + dropped + inside);
        assert_eq!(self.output.used() == 0, inside == 0);
    }

    /// Returns the number of pieces of each frame that left.
    fn passed(&self) -> BTreeMap<u32, u32> {
        let mut passed = BTreeMap::new();
        for departure in &self.departures {
            *passed.entry(departure.piece.frame).or_default() += 1;
        }
        passed
    }
}

/// One frame of a sender: nanoseconds after the frame before it, and bytes.
type Sent = (u64, u32);

/// Returns all pieces of all senders' frames, interleaved in the order in which they arrive. Frame numbers count up
/// over all senders.
fn arrivals(senders: &[Vec<Sent>], framing: Framing) -> Vec<(Instant, Piece)> {
    let mut pieces = Vec::new();
    let mut frame = 0;
    for sender in senders {
        let mut at = Instant::ZERO;
        for (gap, bytes) in sender {
            at = at.plus_nanos(*gap);
            let count = framing.pieces(*bytes);
            for index in 0..count {
                let bytes = framing.piece_bytes(*bytes, index);
                at = at.plus_nanos(RATE.nanos_for(u64::from(bytes)));
                let last = index + 1 == count;
                let index = u16::try_from(index).unwrap();
                pieces.push((at, Piece { frame, index, last, bytes }));
            }
            frame += 1;
        }
    }
    pieces.sort_by_key(|(at, piece)| (*at, piece.frame));
    pieces
}

fn framing_of(buffer: Buffer) -> Framing {
    match buffer {
        Buffer::Bytes(_) => Framing::ETHERNET,
        Buffer::Cells(_) => Framing::Cells,
    }
}

fn any_senders() -> impl Strategy<Value = Vec<Vec<Sent>>> {
    let frame = (0_u64..300_000, 48_u32..10_000);
    proptest::collection::vec(proptest::collection::vec(frame, 1..20), 1..5)
}

fn any_buffer() -> impl Strategy<Value = Buffer> {
    prop_oneof![(1_600_u32..40_000).prop_map(Buffer::Bytes), (1_u32..600).prop_map(Buffer::Cells)]
}

fn any_discard() -> impl Strategy<Value = DiscardPolicy> {
    prop_oneof![
        Just(DiscardPolicy::Tail),
        Just(DiscardPolicy::Partial),
        (1_u16..1_000).prop_map(|threshold| DiscardPolicy::Early { threshold }),
    ]
}

proptest! {
    #[test]
    fn pieces_are_conserved_bounded_in_order_and_paced(
        senders in any_senders(), buffer in any_buffer(), discard in any_discard(),
    ) {
        let mut bench = Bench::new(buffer, discard);
        for (now, piece) in arrivals(&senders, framing_of(buffer)) {
            bench.offer(now, piece);
        }
        bench.finish();
        let left: Vec<Piece> = bench.departures.iter().map(|departure| departure.piece).collect();
        prop_assert_eq!(&left, &bench.accepted, "first come, first served");
        // Whichever piece a window begins with, no more has left by the window's end than the rate allows.
        for first in 0..bench.departures.len() {
            let mut bytes = 0;
            for departure in bench.departures[first..].iter().take(64) {
                bytes += u64::from(departure.piece.bytes);
                let window = departure.ends.nanos_since(bench.departures[first].begins);
                // A fraction of a nanosecond may precede the window.
                prop_assert!(RATE.bytes_in(window + 1) >= bytes);
            }
        }
    }

    #[test]
    fn after_early_discard_with_enough_slack_no_partial_frame_leaves(
        senders in any_senders(), early in 1_u16..700,
    ) {
        // Above the threshold there is space for a frame begun by each sender, and one piece.
        let slack = 4 * Framing::Cells.pieces(10_000) + 1;
        let capacity = slack * 1_000 / (1_000 - u32::from(early)) + 2;
        let discard = DiscardPolicy::Early { threshold: early };
        let mut bench = Bench::new(Buffer::Cells(capacity), discard);
        let load = arrivals(&senders, Framing::Cells);
        let mut lengths = BTreeMap::new();
        for (now, piece) in &load {
            bench.offer(*now, *piece);
            lengths.insert(piece.frame, u32::from(piece.index) + 1);
        }
        bench.finish();
        for (frame, passed) in bench.passed() {
            prop_assert_eq!(passed, lengths[&frame], "frame {}", frame);
        }
        prop_assert!(bench.dropped.values().all(|cause| *cause == DropCause::EarlyDiscard));
    }

    #[test]
    fn partial_discard_keeps_nothing_of_a_broken_frame_but_its_last_piece(
        senders in any_senders(), capacity in 1_u32..400,
    ) {
        let mut bench = Bench::new(Buffer::Cells(capacity), DiscardPolicy::Partial);
        let load = arrivals(&senders, Framing::Cells);
        for (now, piece) in &load {
            bench.offer(*now, *piece);
        }
        bench.finish();
        let mut broken_at = BTreeMap::new();
        for (frame, index) in bench.dropped.keys() {
            let first = broken_at.entry(*frame).or_insert(*index);
            *first = (*first).min(*index);
        }
        for Departure { piece, .. } in &bench.departures {
            let before_the_loss = broken_at.get(&piece.frame).is_none_or(|at| piece.index < *at);
            prop_assert!(before_the_loss || piece.last, "{:?}", piece);
        }
        // A last piece is dropped only if the buffer is full.
        for (_, piece) in load.iter().filter(|(_, piece)| piece.last) {
            let cause = bench.dropped.get(&(piece.frame, piece.index));
            prop_assert!(matches!(cause, None | Some(DropCause::BufferFull)));
        }
    }
}

/// Returns the number of complete frames delivered. `senders` hosts each send 40 frames of 100 cells, all at once and
/// at the output's own rate, through a buffer of 500 cells.
fn goodput(senders: u64, discard: DiscardPolicy) -> usize {
    let bytes = 100 * 48 - 8;
    // Slightly offset, so that the senders' cells do not alternate in one order forever.
    let load: Vec<Vec<Sent>> =
        (0..senders).map(|sender| vec![(sender * 37_003 + 1, bytes); 40]).collect();
    let mut bench = Bench::new(Buffer::Cells(500), discard);
    for (now, piece) in arrivals(&load, Framing::Cells) {
        bench.offer(now, piece);
    }
    bench.finish();
    bench.passed().values().filter(|pieces| **pieces == 100).count()
}

#[test]
fn early_discard_carries_more_than_partial_and_that_more_than_tail_drop() {
    for senders in 2..=8 {
        let [tail, partial, early] =
            [DiscardPolicy::Tail, DiscardPolicy::Partial, DiscardPolicy::EARLY]
                .map(|discard| goodput(senders, discard));
        assert!(early >= partial && partial >= tail, "{senders}: {early}, {partial}, {tail}");
        assert!(senders < 3 || early > tail, "{senders}: {early}, {tail}");
    }
}

/// Fills a buffer of two cells by frame 9, and then sends the cells of frame 1. All but the first and those in `gaps`
/// arrive when it is full.
fn squeeze(discard: DiscardPolicy, cells: u16, gaps: &[u16]) -> Bench {
    let mut bench = Bench::new(Buffer::Cells(2), discard);
    let cell = RATE.nanos_for(u64::from(CELL_BYTES)) + 1;
    let mut now = Instant::ZERO;
    let piece = |frame, index, last| Piece { frame, index, last, bytes: CELL_BYTES };
    bench.offer(now, piece(1, 0, false));
    bench.offer(now, piece(9, 0, false));
    for index in 1..cells {
        if gaps.contains(&index) {
            now = now.plus_nanos(3 * cell);
        }
        bench.offer(now, piece(1, index, index + 1 == cells));
    }
    bench.finish();
    bench
}

#[test]
fn tail_drop_loses_a_last_cell_that_does_not_fit() {
    let bench = squeeze(DiscardPolicy::Tail, 4, &[1]);
    // Cells 1 and 2 found space, the last did not.
    assert_eq!(bench.dropped, BTreeMap::from([((1, 3), DropCause::BufferFull)]));
}

#[test]
fn partial_discard_drops_the_rest_of_a_broken_frame_and_keeps_its_last_cell() {
    let bench = squeeze(DiscardPolicy::Partial, 4, &[2]);
    // Cell 1 is dropped. Then there is space: cell 2 is useless, the last ends the packet.
    let lost = [((1, 1), DropCause::BufferFull), ((1, 2), DropCause::PartialDiscard)];
    assert_eq!(bench.dropped, BTreeMap::from(lost));
    let tail = squeeze(DiscardPolicy::Tail, 4, &[2]);
    assert_eq!(tail.dropped, BTreeMap::from([((1, 1), DropCause::BufferFull)]));
}

#[test]
fn early_discard_refuses_a_whole_frame_and_not_the_next() {
    let threshold = DiscardPolicy::Early { threshold: 500 };
    let mut bench = Bench::new(Buffer::Cells(4), threshold);
    let piece = |frame, index, last| Piece { frame, index, last, bytes: CELL_BYTES };
    for index in 0..2 {
        bench.offer(Instant::ZERO, piece(1, index, index == 1));
    }
    for index in 0..3 {
        bench.offer(Instant::ZERO, piece(2, index, index == 2));
    }
    bench.offer(Instant::from_nanos(1_000_000), piece(3, 0, true));
    bench.finish();
    assert_eq!(bench.passed(), BTreeMap::from([(1, 2), (3, 1)]));
    assert!(bench.dropped.values().all(|cause| *cause == DropCause::EarlyDiscard));
}
