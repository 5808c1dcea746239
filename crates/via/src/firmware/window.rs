//! Frames that were sent and may have to be sent again: go back to the first that is missing.
//!
//! A connection's frames are numbered; the receiver takes them in order only, names the next that it
//! expects in every frame of its own, and says at once when one is missing. Silence may as well mean
//! that the receiver is slow: then one frame goes again, and what is heard of it decides on the rest.

use std::collections::VecDeque;

use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

use super::frame::Fields;

/// Most frames under way: with half as many, 1 MiB takes a half longer between hosts whose packets have 1,500 bytes
/// (`benches/netns/pingpong.sh`), and twice as many gain nothing.
pub(crate) const FRAMES: usize = 128;
/// Most bytes under way: what the buffers of real sockets take.
const BYTES: usize = 1 << 20;

/// A frame that is under way, or was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) fields: Fields,
    pub(super) source: Option<RegionRef>,
    /// Whether a descriptor of the send queue ends with it.
    pub(super) ends: bool,
}

impl Flight {
    fn bytes(&self) -> usize {
        self.source.map_or(0, |source| source.length as usize)
    }
}

/// What arrived, as an acknowledgement tells.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Arrived {
    pub(super) frames: usize,
    /// Descriptors of the send queue whose last frame is among them.
    pub(super) ended: usize,
}

/// The sender's half of a connection.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Number of the first frame that is not acknowledged.
    base: u32,
    flights: VecDeque<Flight>,
    bytes: usize,
    /// The next of them to be sent again; their number if none is.
    resend: usize,
    /// When it last went on, or anything was sent into an empty one.
    pub(super) progress_at: Instant,
    /// When it last went back.
    resent_at: Instant,
    /// Times that it has gone back for want of an answer, since it last went on.
    pub(super) silent: u32,
    /// Only the first frame goes again, and nothing new, until anything is heard.
    on_trial: bool,
}

impl SendWindow {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            base: 0,
            flights: VecDeque::new(),
            bytes: 0,
            resend: 0,
            progress_at: now,
            resent_at: Instant::ZERO,
            silent: 0,
            on_trial: false,
        }
    }

    /// As it was elsewhere: frame `base` is the first that is not acknowledged.
    pub(super) fn restored(now: Instant, base: u32, flights: VecDeque<Flight>) -> Self {
        let (bytes, resend) = (flights.iter().map(Flight::bytes).sum(), flights.len());
        Self { base, flights, bytes, resend, ..Self::new(now) }
    }

    /// The number of the first frame that is not acknowledged.
    pub(super) const fn base(&self) -> u32 {
        self.base
    }

    /// The frames that are not acknowledged.
    pub(super) const fn flights(&self) -> &VecDeque<Flight> {
        &self.flights
    }

    pub(super) fn has_room(&self) -> bool {
        !self.on_trial && self.flights.len() < FRAMES && self.bytes < BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// The number of the next new frame.
    pub(super) fn next_sequence(&self) -> u32 {
        self.base.wrapping_add(self.flights.len() as u32)
    }

    /// Remembers a frame that is being sent; returns its number.
    pub(super) fn push(&mut self, now: Instant, flight: Flight) -> u32 {
        if self.flights.is_empty() {
            self.progress_at = now;
        }
        let sequence = self.next_sequence();
        self.bytes += flight.bytes();
        self.flights.push_back(flight);
        self.resend = self.flights.len();
        sequence
    }

    /// The next frame to be sent again, with its number.
    pub(super) fn next_resend(&mut self) -> Option<(u32, Flight)> {
        if self.on_trial && self.resend > 0 {
            return None;
        }
        let flight = *self.flights.get(self.resend)?;
        let sequence = self.base.wrapping_add(self.resend as u32);
        self.resend += 1;
        Some((sequence, flight))
    }

    /// The receiver expects `next`; `None` if it never can have.
    pub(super) fn on_acknowledgement(&mut self, now: Instant, next: u32) -> Option<Arrived> {
        let frames = next.wrapping_sub(self.base) as usize;
        if frames > self.flights.len() {
            // Late and of the past, or of no frame of ours.
            return None;
        }
        let mut arrived = Arrived { frames, ended: 0 };
        for flight in self.flights.drain(..frames) {
            self.bytes -= flight.bytes();
            arrived.ended += usize::from(flight.ends);
        }
        self.base = next;
        // More than what went again: they were only late, and so are those behind them.
        let late = self.on_trial && frames > self.resend;
        self.resend = if late { self.flights.len() } else { self.resend.saturating_sub(frames) };
        if frames > 0 {
            self.on_trial = false;
            self.progress_at = now;
            self.silent = 0;
        }
        Some(arrived)
    }

    /// The receiver misses the first of them: all are sent again, if they were not just now.
    pub(super) fn on_gap(&mut self, now: Instant, pause_ns: u64) {
        if now >= self.resent_at.plus_nanos(pause_ns) {
            self.go_back(now);
        }
    }

    /// No answer for too long: the first of them is sent again.
    pub(super) const fn on_silence(&mut self, now: Instant) {
        self.silent += 1;
        self.go_back(now);
        self.on_trial = true;
    }

    /// Nothing was sent or heard for a while, on purpose: all is sent again.
    pub(super) const fn on_pause(&mut self, now: Instant) {
        self.silent = 0;
        self.progress_at = now;
        self.go_back(now);
    }

    const fn go_back(&mut self, now: Instant) {
        self.resend = 0;
        self.resent_at = now;
        self.on_trial = false;
    }

    /// When it last sent everything again, or went on.
    pub(super) fn last_try(&self) -> Instant {
        self.resent_at.max(self.progress_at)
    }
}

/// What a frame's number says of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrival {
    Next,
    /// It has come before.
    Again,
    /// One before it is missing.
    Early,
}

/// Frames after which an acknowledgement goes alone.
const FRAMES_PER_ACKNOWLEDGEMENT: u32 = 16;
/// Bytes after which an acknowledgement goes alone: half of what may be under way, so that a message that is no
/// longer is acknowledged by its answer.
const BYTES_PER_ACKNOWLEDGEMENT: usize = BYTES / 2;

/// Where answers follow questions, an acknowledgement waits for the next so long at least: an alarm for
/// each message costs more than the message. As TCP's delayed acknowledgements do; it is less than
/// what senders wait before they send again.
pub(super) const CONVERSATION_NS: u64 = 500_000;

/// The receiver's half of a connection.
#[derive(Debug, Default)]
pub(super) struct ReceiveWindow {
    expected: u32,
    /// Since an acknowledgement last left.
    frames: u32,
    bytes: usize,
    /// Since when an acknowledgement is owed.
    owed_since: Option<Instant>,
    urgent: bool,
    /// The last one left with a frame of ours: answers follow questions here.
    converses: bool,
    /// The sender knows that this one is missing.
    complained: Option<u32>,
}

impl ReceiveWindow {
    /// As it was elsewhere.
    pub(super) fn restored(expected: u32) -> Self {
        Self { expected, ..Self::default() }
    }

    pub(super) const fn expected(&self) -> u32 {
        self.expected
    }

    pub(super) fn place(&mut self, sequence: u32) -> Arrival {
        match sequence.wrapping_sub(self.expected) {
            0 => Arrival::Next,
            ahead if ahead < 1 << 31 => {
                // Once for each that is missing: the rest of the window follows.
                self.urgent |= self.complained.replace(self.expected) != Some(self.expected);
                Arrival::Early
            }
            _ => {
                self.urgent = true;
                Arrival::Again
            }
        }
    }

    /// The next frame was taken.
    pub(super) fn on_taken(&mut self, now: Instant, bytes: usize, urgent: bool) {
        self.expected = self.expected.wrapping_add(1);
        self.frames += 1;
        self.bytes += bytes;
        self.urgent |= urgent
            || self.frames >= FRAMES_PER_ACKNOWLEDGEMENT
            || self.bytes >= BYTES_PER_ACKNOWLEDGEMENT;
        self.owed_since.get_or_insert(now);
    }

    /// Frames before this one are lost and nobody minds.
    pub(super) const fn skip_to(&mut self, sequence: u32) {
        self.expected = sequence;
        self.urgent = false;
        self.complained = None;
    }

    /// The sender asks for an answer.
    pub(super) const fn ask(&mut self) {
        self.urgent = true;
    }

    /// Whether an acknowledgement must leave now, alone if need be.
    pub(super) const fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// When an acknowledgement must leave, alone if need be, if one is owed.
    pub(super) fn due(&self, delay_ns: u64) -> Option<Instant> {
        let delay_ns = if self.converses { delay_ns.max(CONVERSATION_NS) } else { delay_ns };
        self.owed_since.map(|since| since.plus_nanos(delay_ns))
    }

    /// Whether a frame that has come was not the next: what an acknowledgement tells now.
    pub(super) fn has_gap(&self) -> bool {
        self.complained == Some(self.expected)
    }

    /// An acknowledgement leaves, alone or with a frame; the number that it names.
    pub(super) const fn on_transmit(&mut self) -> u32 {
        self.converses |= self.owed_since.is_some();
        self.frames = 0;
        self.bytes = 0;
        self.owed_since = None;
        self.urgent = false;
        self.expected
    }

    /// It has left alone.
    pub(super) const fn on_alone(&mut self) {
        self.converses = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::FrameKind;
    use super::*;
    use proptest::prelude::*;

    fn flight(ends: bool) -> Flight {
        Flight { fields: Fields::new(FrameKind::Send, 0), source: None, ends }
    }

    proptest! {
        /// Whatever the network loses, doubles and reorders: what is taken is what was sent, in order.
        #[test]
        fn frames_are_taken_once_and_in_order(
            losses in proptest::collection::vec(0_u8..4, 400), total in 1_u32..150,
        ) {
            let now = Instant::from_nanos(1);
            let (mut sender, mut receiver) = (SendWindow::new(now), ReceiveWindow::default());
            let (mut taken, mut sent, mut ended) = (0, 0, 0);
            let mut wire: VecDeque<u32> = VecDeque::new();
            let mut fates = losses.into_iter();
            for step in 1..10_000_u64 {
                let now = Instant::from_nanos(step * 1000);
                while let Some((sequence, _)) = sender.next_resend() {
                    wire.push_back(sequence);
                }
                while sent < total && sender.has_room() {
                    wire.push_back(sender.push(now, flight(sent % 3 == 0)));
                    sent += 1;
                }
                if let Some(sequence) = wire.pop_front() {
                    match fates.next().unwrap_or(3) {
                        0 => {}
                        1 => wire.push_back(sequence),
                        2 => wire.extend([sequence, sequence]),
                        _ => {
                            if receiver.place(sequence) == Arrival::Next {
                                prop_assert_eq!(sequence, taken);
                                taken += 1;
                                receiver.on_taken(now, 0, false);
                            }
                        }
                    }
                } else {
                    sender.on_silence(now);
                }
                if receiver.is_urgent() || receiver.due(5_000).is_some_and(|due| due <= now) {
                    let gap = receiver.has_gap();
                    let next = receiver.on_transmit();
                    receiver.on_alone();
                    if let Some(arrived) = sender.on_acknowledgement(now, next) {
                        ended += arrived.ended;
                    }
                    if gap {
                        sender.on_gap(now, 1);
                    }
                }
                if taken == total && sender.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(taken, total);
            prop_assert!(sender.is_empty());
            prop_assert_eq!(ended as u32, total.div_ceil(3));
        }

        /// However often a slow receiver is taken for a silent one: one frame goes again each time.
        #[test]
        fn a_receiver_that_is_slow_is_not_sent_everything_again(
            total in 2_usize..FRAMES, silences in 1_usize..6, acknowledged in 2_usize..FRAMES,
        ) {
            let now = Instant::from_nanos(1);
            let mut window = SendWindow::new(now);
            for _ in 0..total {
                window.push(now, flight(true));
            }
            let mut again = 0;
            for _ in 0..silences {
                window.on_silence(now);
                again += std::iter::from_fn(|| window.next_resend()).count();
                prop_assert!(!window.has_room());
            }
            prop_assert_eq!(again, silences);
            let acknowledged = acknowledged.min(total) as u32;
            window.on_acknowledgement(now, acknowledged);
            prop_assert!(window.next_resend().is_none());
            prop_assert!(window.has_room());
        }

        /// Where all were lost, all go again once the first has arrived.
        #[test]
        fn what_was_lost_behind_the_first_goes_again(total in 1_usize..FRAMES) {
            let now = Instant::from_nanos(1);
            let mut window = SendWindow::new(now);
            for _ in 0..total {
                window.push(now, flight(true));
            }
            window.on_silence(now);
            prop_assert_eq!(std::iter::from_fn(|| window.next_resend()).count(), 1);
            window.on_acknowledgement(now, 1);
            prop_assert_eq!(std::iter::from_fn(|| window.next_resend()).count(), total - 1);
        }

        #[test]
        fn no_number_confuses_a_window(numbers: Vec<u32>) {
            let now = Instant::from_nanos(1);
            let mut window = SendWindow::new(now);
            window.push(now, flight(true));
            let mut arrived = 0;
            for number in numbers {
                arrived += window.on_acknowledgement(now, number).map_or(0, |news| news.frames);
            }
            prop_assert!(arrived <= 1);
        }
    }
}
