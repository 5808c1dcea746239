//! Received packet numbers, and when they are acknowledged.

use std::ops::Range;

use midplane_simhw::time::Instant;

use super::body::Acknowledgement;
use super::ranges::Ranges;

/// Most ranges of numbers that are stored; numbers before them count as received.
const MAX_REMEMBERED: usize = 64;
/// Packets that request an acknowledgement, after which one is sent at once.
const PACKETS: u32 = 8;
/// Bytes of such packets after which an acknowledgement is sent at once: two packets of the loopback interface.
const BYTES: usize = 96 << 10;
/// Nanoseconds that the acknowledgement of a large packet may wait: more packets will follow.
const DELAY: u64 = 1_000_000;
/// Nanoseconds that the acknowledgement of a small packet may wait: an answer that carries it is likely.
const SMALL_DELAY: u64 = 20_000_000;
/// Bytes of pipe data from which on a packet counts as large. One without such bytes counts as large too.
const LARGE_BYTES: usize = 1_000;

/// The packet numbers received from the peer.
#[derive(Debug)]
pub(super) struct Acks {
    received: Ranges,
    /// Numbers before it count as received, since they are too old to be stored.
    floor: u64,
    /// Ranges that end at or before it are not acknowledged again: the peer has the acknowledgement of a later number
    /// (RFC 9000, section 13.2.4).
    settled: u64,
    largest_at: Instant,
    /// Packets and bytes that request an acknowledgement and have none yet.
    packets: u32,
    bytes: usize,
    /// When the acknowledgement must be sent; far in the future if none is due.
    due: Instant,
}

impl Acks {
    pub(super) fn new() -> Self {
        Self {
            received: Ranges::default(),
            floor: 0,
            settled: 0,
            largest_at: Instant::ZERO,
            packets: 0,
            bytes: 0,
            due: Instant::FAR_FUTURE,
        }
    }

    /// Returns whether `number` was received, or is too old to be stored.
    pub(super) fn has_received(&self, number: u64) -> bool {
        number < self.floor || number == u64::MAX || self.received.contains(number)
    }

    /// Returns one past the largest received number.
    pub(super) fn end(&self) -> u64 {
        self.received.newest_first().next().map_or(0, |range| range.1)
    }

    /// Records packets that were not received before, with `bytes` of pipe data together and at most `longest` each.
    pub(super) fn on_received(
        &mut self,
        now: Instant,
        numbers: Range<u64>,
        (bytes, longest): (usize, usize),
        asks: bool,
    ) {
        let end = self.end();
        self.received.insert(numbers.start, numbers.end);
        if self.received.count() > MAX_REMEMBERED
            && let Some((_, end)) = self.received.pop_first()
        {
            self.floor = end;
        }
        if numbers.end > end {
            self.largest_at = now;
        }
        // A late packet is acknowledged, too.
        self.settled = self.settled.min(numbers.start);
        if !asks {
            return;
        }
        self.packets = self.packets.saturating_add((numbers.end - numbers.start) as u32);
        self.bytes += bytes;
        // The sender waits for the report of a gap, and of a packet that fills one.
        if numbers.start != end || self.packets >= PACKETS || self.bytes >= BYTES {
            self.due = now;
        } else {
            let is_small = (1..LARGE_BYTES).contains(&longest);
            let delay = if is_small { SMALL_DELAY } else { DELAY };
            self.due = self.due.min(now.plus_nanos(delay));
        }
    }

    /// Handles the receipt of an acknowledgement by the peer; `end` is one past its largest number.
    pub(super) fn on_acknowledged(&mut self, end: u64) {
        self.settled = self.settled.max(end.saturating_sub(1));
    }

    /// Makes an acknowledgement due at once.
    pub(super) fn make_due(&mut self, now: Instant) {
        self.due = now;
    }

    /// Returns whether an acknowledgement must be sent now, alone if necessary.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    /// Returns whether the next packet should carry an acknowledgement.
    pub(super) fn is_wanted(&self) -> bool {
        self.due != Instant::FAR_FUTURE
    }

    pub(super) const fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Makes the acknowledgement; then none is due any more.
    pub(super) fn take(&mut self, now: Instant, window: u64) -> Option<Acknowledgement> {
        self.packets = 0;
        self.bytes = 0;
        self.due = Instant::FAR_FUTURE;
        let delay = now.nanos_since(self.largest_at) / 1_000;
        let delay = u32::try_from(delay).unwrap_or(u32::MAX);
        let ranges = self.received.newest_first().take_while(|range| range.1 > self.settled);
        Acknowledgement::new(ranges, delay, window)
    }
}
