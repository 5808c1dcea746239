//! The doorbells of one NIC's ports. Ringing one mostly costs one atomic operation.

use crate::id::PortId;
use crate::sync::{AtomicU64, Ordering};

/// Bits of a word.
const WORD: usize = 64;

/// The set of ports that were rung since the NIC last took it: one bit a port, and a summary bit for each word
/// that is not zero.
#[derive(Debug)]
pub(crate) struct Bells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Bells {
    /// Creates doorbells for port numbers below `ports`.
    pub(crate) fn new(ports: usize) -> Self {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let count = ports.div_ceil(WORD);
        Self { words: words(count), summary: words(count.div_ceil(WORD)) }
    }

    /// Rings a doorbell. Returns `true` if the caller must notify the NIC: no ringer has done so since the NIC
    /// last took the doorbells.
    ///
    /// If the bit is set already, the thread that set it notifies the NIC, and the NIC polls the port after it
    /// has cleared the bit. The atomic operations order earlier posts before it.
    pub(crate) fn ring(&self, port: PortId) -> bool {
        let (word, bit) = (port.index() / WORD, port.index() % WORD);
        if self.words[word].fetch_or(1 << bit, Ordering::AcqRel) & 1 << bit != 0 {
            return false;
        }
        self.summary[word / WORD].fetch_or(1 << (word % WORD), Ordering::AcqRel) == 0
    }

    /// Returns whether no doorbell is rung.
    pub(crate) fn is_silent(&self) -> bool {
        self.summary.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Takes all rung doorbells, in the order of port numbers.
    pub(crate) fn take(&self, mut each: impl FnMut(PortId)) {
        for (high, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for middle in bits(summary.swap(0, Ordering::AcqRel)) {
                let word = high * WORD + middle;
                for bit in bits(self.words[word].swap(0, Ordering::AcqRel)) {
                    let port = u16::try_from(word * WORD + bit);
                    each(PortId(port.expect("as many bells as ports at most")));
                }
            }
        }
    }
}

/// Iterates over the positions of the set bits.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = word.trailing_zeros() as usize;
        let is_any = word != 0;
        word &= word.wrapping_sub(1);
        is_any.then_some(place)
    })
}

#[cfg(all(test, not(midplane_models)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_rung_bell_is_taken_once(
            ops in proptest::collection::vec(proptest::option::weighted(0.8, any::<u16>()), 0..200),
        ) {
            let bells = Bells::new(1 << 16);
            let mut model = BTreeSet::new();
            for op in ops {
                prop_assert_eq!(bells.is_silent(), model.is_empty());
                if let Some(port) = op {
                    let was_silent = model.is_empty();
                    let must_notify = bells.ring(PortId(port));
                    prop_assert!(must_notify || !was_silent, "the first ringer notifies the NIC");
                    model.insert(PortId(port));
                } else {
                    let mut taken = Vec::new();
                    bells.take(|port| taken.push(port));
                    prop_assert_eq!(taken, std::mem::take(&mut model).into_iter().collect::<Vec<_>>());
                }
            }
        }
    }
}
