//! Frames that were sent and may have to be sent again: go-back-N.
//!
//! A connection's frames are numbered. The receiver accepts them in order only, names the next expected one in every
//! frame of its own, and reports a gap at once. A missing answer can also mean a slow receiver. So only the first frame
//! is then sent again, and its acknowledgement decides about the rest.

mod receive;

use std::collections::VecDeque;

use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

use super::frame::Fields;

pub(super) use receive::{Arrival, CONVERSATION_NS, ReceiveWindow};

/// Most frames under way. With half as many, 1 MiB takes half as long again between hosts whose packets have
/// 1,500 bytes (`benches/netns/pingpong.sh`); twice as many gain nothing.
pub(crate) const FRAMES: usize = 128;
/// Most bytes under way: as many as the buffers of real sockets hold.
const BYTES: usize = 1 << 20;

/// A frame that is under way or was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) fields: Fields,
    pub(super) source: Option<RegionRef>,
    /// True if a descriptor of the send queue completes with the frame, and has not completed before, as a read may.
    pub(super) ends: bool,
}

impl Flight {
    fn bytes(&self) -> usize {
        self.source.map_or(0, |source| source.length as usize)
    }
}

/// The frames that an acknowledgement covers.
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
    /// Index in `flights` of the next frame to be sent again; its length if there is none.
    resend: usize,
    /// When an acknowledgement last made progress, or a frame was sent while none was under way.
    pub(super) progress_at: Instant,
    /// The time of the last go-back.
    resent_at: Instant,
    /// Number of go-backs for lack of an answer since the last progress.
    pub(super) silent: u32,
    /// True if only the first frame is sent again, and nothing new, until an answer arrives.
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

    /// Restores a saved window: frame `base` is the first that is not acknowledged.
    pub(super) fn restored(now: Instant, base: u32, flights: VecDeque<Flight>) -> Self {
        let (bytes, resend) = (flights.iter().map(Flight::bytes).sum(), flights.len());
        Self { base, flights, bytes, resend, ..Self::new(now) }
    }

    /// Returns the number of the first frame that is not acknowledged.
    pub(super) const fn base(&self) -> u32 {
        self.base
    }

    /// Returns the frames that are not acknowledged.
    pub(super) const fn flights(&self) -> &VecDeque<Flight> {
        &self.flights
    }

    pub(super) fn has_room(&self) -> bool {
        !self.on_trial && self.flights.len() < FRAMES && self.bytes < BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Returns the bytes of the frames that were not acknowledged.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the next new frame.
    pub(super) fn next_sequence(&self) -> u32 {
        self.base.wrapping_add(self.flights.len() as u32)
    }

    /// Adds a frame that is being sent; returns its number.
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

    /// Returns the next frame to be sent again, with its number.
    pub(super) fn next_resend(&mut self) -> Option<(u32, Flight)> {
        if self.on_trial && self.resend > 0 {
            return None;
        }
        let flight = *self.flights.get(self.resend)?;
        let sequence = self.base.wrapping_add(self.resend as u32);
        self.resend += 1;
        Some((sequence, flight))
    }

    /// Clears the first frame's mark that a descriptor completes with it, because that descriptor has completed.
    pub(super) fn forget_end(&mut self) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.ends) {
            flight.ends = false;
        }
    }

    /// Handles an acknowledgement: the receiver expects `next`. Returns `None` if that number is impossible.
    pub(super) fn on_acknowledgement(&mut self, now: Instant, next: u32) -> Option<Arrived> {
        let frames = next.wrapping_sub(self.base) as usize;
        if frames > self.flights.len() {
            // An old acknowledgement that arrives late, or one for a frame never sent.
            return None;
        }
        let mut arrived = Arrived { frames, ended: 0 };
        for flight in self.flights.drain(..frames) {
            self.bytes -= flight.bytes();
            arrived.ended += usize::from(flight.ends);
        }
        self.base = next;
        // If more is acknowledged than was sent again, the frames were only late, not lost.
        let late = self.on_trial && frames > self.resend;
        self.resend = if late { self.flights.len() } else { self.resend.saturating_sub(frames) };
        if frames > 0 {
            self.on_trial = false;
            self.progress_at = now;
            self.silent = 0;
        }
        Some(arrived)
    }

    /// Handles a gap report: sends all frames again, unless that was done less than `pause_ns` ago.
    pub(super) fn on_gap(&mut self, now: Instant, pause_ns: u64) {
        if now >= self.resent_at.plus_nanos(pause_ns) {
            self.go_back(now);
        }
    }

    /// Handles the lack of an answer: sends the first frame again.
    pub(super) const fn on_silence(&mut self, now: Instant) {
        self.silent += 1;
        self.go_back(now);
        self.on_trial = true;
    }

    /// Handles the end of a deliberate pause: sends all frames again.
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

    /// Returns the time of the last go-back or progress.
    pub(super) fn last_try(&self) -> Instant {
        self.resent_at.max(self.progress_at)
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
        /// Checks for any loss, duplication and reordering, and for both ends saved and restored at any step. The
        /// accepted frames are the sent ones, in order, and an acknowledged frame is in memory.
        #[test]
        fn frames_are_taken_once_in_order_and_acknowledged_from_memory(
            losses in proptest::collection::vec(0_u8..4, 400), total in 1_u32..150,
            saves in proptest::collection::btree_set(1_u64..2_000, 0..20), writes_take: bool,
        ) {
            let now = Instant::from_nanos(1);
            let (mut sender, mut receiver) = (SendWindow::new(now), ReceiveWindow::default());
            let (mut taken, mut sent, mut ended) = (0, 0, 0);
            // Frames in memory, and those that are once the fence under way is reported.
            let (mut written, mut fenced) = (0, 0);
            let mut wire: VecDeque<u32> = VecDeque::new();
            let mut fates = losses.into_iter();
            for step in 1..10_000_u64 {
                let now = Instant::from_nanos(step * 1000);
                if saves.contains(&step) {
                    // Frames of the former connection are void. The checkpointer sees the saved state once all
                    // writes before it are in memory.
                    wire.clear();
                    sender = SendWindow::restored(now, sender.base(), sender.flights().clone());
                    receiver = ReceiveWindow::restored(receiver.expected());
                    written = taken;
                    let arrived = sender.on_acknowledgement(now, receiver.expected());
                    ended += arrived.map_or(0, |arrived| arrived.ended);
                    sender.on_pause(now);
                }
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
                                receiver.on_taken(0, false);
                            }
                        }
                    }
                } else {
                    sender.on_silence(now);
                }
                if step % 7 == 0 {
                    written = written.max(fenced);
                    receiver.on_written(now);
                }
                receiver.settle(now, || {
                    fenced = taken;
                    if !writes_take {
                        written = taken;
                    }
                    writes_take
                });
                if receiver.is_urgent() || receiver.due(5_000).is_some_and(|due| due <= now) {
                    let gap = receiver.has_gap();
                    let next = receiver.on_transmit();
                    prop_assert!(next <= written);
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

        /// A slow receiver may count as silent repeatedly: only one frame is sent again each time.
        #[test]
        fn a_slow_receiver_gets_only_the_first_frame_again(
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

        /// If all frames were lost, they are sent again once the first has arrived.
        #[test]
        fn frames_lost_behind_the_first_are_sent_again(total in 1_usize..FRAMES) {
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
                arrived += window.on_acknowledgement(now, number).map_or(0, |arrived| arrived.frames);
            }
            prop_assert!(arrived <= 1);
        }
    }
}
