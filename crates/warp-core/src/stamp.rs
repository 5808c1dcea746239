//! The paper's two protocols: the sender stamps each message, and the receiver reads the stamps
//! (Heddaya and Park 1994, section 5.2).

use std::collections::BTreeMap;

use midplane_simhw::time::Instant;

/// Bytes that a stamp takes in a message.
pub const STAMP_BYTES: usize = 16;

/// The stamp that a sender writes into each message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp {
    /// Sequence number of the message among those of one sender to one destination, from 0.
    pub sequence: u64,
    /// When the sender sent the message, by the sender's clock.
    pub sent: Instant,
}

impl Stamp {
    /// Encodes the stamp for the wire: little-endian, sequence first.
    #[must_use]
    pub fn emit(&self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sent.as_nanos().to_le_bytes());
        bytes
    }

    /// Decodes the stamp at the start of `bytes`. Returns `None` if there are fewer than
    /// [`STAMP_BYTES`].
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (sequence, rest) = bytes.split_first_chunk::<8>()?;
        let (sent, _) = rest.split_first_chunk::<8>()?;
        let sent = Instant::from_nanos(u64::from_le_bytes(*sent));
        Some(Self { sequence: u64::from_le_bytes(*sequence), sent })
    }
}

/// The message encoding protocol, for one destination.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    next: u64,
}

impl Encoder {
    /// Makes the next stamp, for a message that is sent at `now`.
    pub const fn stamp(&mut self, now: Instant) -> Stamp {
        let sequence = self.next;
        self.next += 1;
        Stamp { sequence, sent: now }
    }
}

/// The paper's message decoding protocol: one ratio a message, from the times of each sender's last
/// message.
///
/// For study: the ratio of two single gaps is noisy. The laws use
/// [`Estimator`](crate::estimate::Estimator) instead.
#[derive(Clone, Debug)]
pub struct Decoder<K> {
    history: BTreeMap<K, History>,
}

#[derive(Clone, Copy, Debug)]
struct History {
    last_in: Instant,
    last_out: Instant,
}

impl<K: Ord> Default for Decoder<K> {
    fn default() -> Self {
        Self { history: BTreeMap::new() }
    }
}

impl<K: Ord> Decoder<K> {
    /// Returns the warp of a message from `sender`: the gap before it at the receiver over the gap
    /// at the sender.
    ///
    /// Returns `None` for the first message, and if the gap at the sender is zero or negative.
    pub fn on_message(&mut self, sender: K, stamp: Stamp, now: Instant) -> Option<f64> {
        let this = History { last_in: now, last_out: stamp.sent };
        let last = self.history.insert(sender, this)?;
        let gap_out = stamp.sent.nanos_since(last.last_out);
        let gap_in = now.nanos_since(last.last_in);
        (gap_out > 0).then(|| gap_in as f64 / gap_out as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn a_gap_that_arrives_ten_times_as_long_is_a_warp_of_ten() {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        assert_eq!(decoder.on_message(1, encoder.stamp(at(0)), at(5)), None);
        assert_eq!(decoder.on_message(1, encoder.stamp(at(10)), at(105)), Some(10.0));
        assert_eq!(decoder.on_message(1, encoder.stamp(at(20)), at(115)), Some(1.0));
        assert_eq!(decoder.on_message(2, encoder.stamp(at(30)), at(120)), None, "another sender");
    }

    #[test]
    fn two_messages_of_one_instant_have_no_warp() {
        let mut decoder = Decoder::default();
        let stamp = Stamp { sequence: 0, sent: at(7) };
        decoder.on_message((), stamp, at(8));
        assert_eq!(decoder.on_message((), stamp, at(9)), None);
    }

    proptest! {
        #[test]
        fn parsing_is_the_inverse_of_emitting(sequence: u64, sent: u64) {
            let stamp = Stamp { sequence, sent: Instant::from_nanos(sent) };
            prop_assert_eq!(Stamp::parse(&stamp.emit()), Some(stamp));
            prop_assert_eq!(Stamp::parse(&stamp.emit()[..15]), None);
        }

        #[test]
        fn any_stamps_give_a_finite_warp(
            stamps in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..50),
        ) {
            let mut decoder = Decoder::default();
            for (sent, now) in stamps {
                let stamp = Stamp { sequence: 0, sent: Instant::from_nanos(sent) };
                if let Some(warp) = decoder.on_message((), stamp, Instant::from_nanos(now)) {
                    prop_assert!(warp.is_finite() && warp >= 0.0);
                }
            }
        }
    }
}
