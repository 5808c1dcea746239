//! Received packet numbers, and when the peer is to be told of them.

use midplane_simhw::time::Instant;

use super::packet::Acknowledgement;
use super::ranges::Ranges;

/// Ranges of numbers that are remembered; numbers before them count as received.
const MOST_REMEMBERED: usize = 64;
/// Packets that ask for an acknowledgement, after which one is due at once.
const PACKETS: u32 = 8;
/// Bytes of such packets, after which one is due at once: two packets of a host's own interface.
const BYTES: usize = 96 << 10;
/// Nanoseconds that an acknowledgement of a large packet may wait: more of them follow.
const DELAY: u64 = 1_000_000;
/// Nanoseconds for one of a small packet: an answer that carries it along is likely.
const SMALL_DELAY: u64 = 20_000_000;
/// Bytes of a packet that is large, or none if it asks for nothing else.
const LARGE_BYTES: usize = 1_000;

/// Received packet numbers.
#[derive(Debug)]
pub(super) struct Acks {
    received: Ranges,
    /// Numbers before it count as received: they are too old to tell.
    floor: u64,
    largest_at: Instant,
    /// Packets and bytes that ask for an acknowledgement and have none.
    packets: u32,
    bytes: usize,
    /// When the acknowledgement leaves; far in the future if none is due.
    due: Instant,
}

impl Acks {
    pub(super) fn new() -> Self {
        Self {
            received: Ranges::default(),
            floor: 0,
            largest_at: Instant::ZERO,
            packets: 0,
            bytes: 0,
            due: Instant::FAR_FUTURE,
        }
    }

    /// Returns whether `number` was received, or is too old to tell.
    pub(super) fn has_received(&self, number: u64) -> bool {
        number < self.floor || number == u64::MAX || self.received.contains(number)
    }

    /// Takes note of a packet that was not received before.
    pub(super) fn on_received(&mut self, now: Instant, number: u64, bytes: usize, asks: bool) {
        let largest = self.received.newest_first().next().map_or(0, |range| range.1);
        self.received.insert(number, number + 1);
        if self.received.count() > MOST_REMEMBERED
            && let Some((_, end)) = self.received.pop_first()
        {
            self.floor = end;
        }
        if number >= largest {
            self.largest_at = now;
        }
        if !asks {
            return;
        }
        self.packets += 1;
        self.bytes += bytes;
        // A gap, and what fills one, is news that the sender waits for.
        if number != largest || self.packets >= PACKETS || self.bytes >= BYTES {
            self.due = now;
        } else {
            let is_small = (1..LARGE_BYTES).contains(&bytes);
            let delay = if is_small { SMALL_DELAY } else { DELAY };
            self.due = self.due.min(now.plus_nanos(delay));
        }
    }

    /// An acknowledgement is due at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due = now;
    }

    /// Returns whether one leaves now even alone.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    /// Returns whether one is wanted with the next packet.
    pub(super) fn is_wanted(&self) -> bool {
        self.due != Instant::FAR_FUTURE
    }

    pub(super) const fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Makes the acknowledgement; nothing is due any more.
    pub(super) fn take(&mut self, now: Instant, window: u64) -> Option<Acknowledgement> {
        self.packets = 0;
        self.bytes = 0;
        self.due = Instant::FAR_FUTURE;
        let delay = now.nanos_since(self.largest_at) / 1_000;
        let delay = u32::try_from(delay).unwrap_or(u32::MAX);
        Acknowledgement::new(self.received.newest_first(), delay, window)
    }
}
