//! Datagrams that are longer than a packet: cut into fragments by their sender, and assembled by their receiver.
//!
//! The bounds are those of Linux: a datagram has 30 s to become complete (`ipfrag_time`), all incomplete ones of a host take at
//! most 4 MiB (`ipfrag_high_thresh`), and a datagram of which 64 further fragments of the same sender arrive before its next
//! one is given up (`ipfrag_max_dist`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::label::{Arrived, Fragment, Label, Outgoing};
use crate::id::NodeId;
use crate::time::Instant;

/// Most bytes of a datagram, as of UDP over IPv4.
pub(super) const LONGEST_DATAGRAM: usize = 65_507;

/// Time that a datagram has to become complete.
const LIFETIME: Duration = Duration::from_secs(30);
/// Memory of all incomplete datagrams; the one that passes it is still taken.
const MEMORY_BYTES: usize = 4 << 20;
/// Fragments of a sender that may arrive between two of a datagram.
const DISTANCE: u32 = 64;

/// Returns the memory that Linux takes for a fragment: a buffer of a power of two that also holds headers and 320 bytes of
/// `skb_shared_info`, and 256 bytes of `sk_buff`. A full packet takes 2,304 bytes.
const fn memory_of(bytes: usize) -> usize {
    (bytes + 64 + 320).next_power_of_two() + 256
}

/// Cuts a datagram into fragments of at most `mtu` bytes, in their order. `id` is the datagram's.
pub(super) fn cut(
    to: NodeId,
    label: Label,
    id: u32,
    bytes: &[u8],
    mtu: usize,
) -> impl Iterator<Item = Outgoing> {
    let count = bytes.len().div_ceil(mtu) as u8;
    bytes.chunks(mtu).zip(0..).map(move |(bytes, index)| {
        let fragment = Some(Fragment { index, count });
        Outgoing { to, label: Label { sequence: id, fragment, ..label }, bytes: bytes.to_vec() }
    })
}

/// The ends and the number of a datagram.
type Key = (NodeId, u16, u16, u32);

/// A datagram of which fragments are missing.
#[derive(Debug)]
struct Partial {
    since: Instant,
    /// The sender's count of fragments when the last one of this datagram arrived.
    seen: u32,
    missing: usize,
    parts: Vec<Option<Vec<u8>>>,
}

impl Partial {
    fn has(&self) -> usize {
        self.parts.len() - self.missing
    }

    fn memory(&self) -> usize {
        self.parts.iter().flatten().map(|part| memory_of(part.len())).sum()
    }
}

/// The result of a fragment's arrival.
#[derive(Debug)]
pub(super) enum Assembled {
    /// The datagram is complete.
    Whole(Arrived),
    /// Fragments are missing.
    Partial,
    /// The fragment is dropped.
    Refused,
}

/// The incomplete datagrams of a host.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partial: BTreeMap<Key, Partial>,
    /// The same, in the order of their first fragments.
    order: BTreeSet<(Instant, Key)>,
    /// Fragments that have arrived from each sender.
    counts: BTreeMap<NodeId, u32>,
    memory: usize,
}

impl Reassembly {
    /// Gives up the datagrams that are too old; returns how many fragments they had.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let mut fragments = 0;
        while let Some((since, key)) = self.order.first().copied() {
            if since + LIFETIME > now {
                break;
            }
            fragments += self.remove(&key).map_or(0, |partial| partial.has());
        }
        fragments
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partial.remove(key)?;
        self.order.remove(&(partial.since, *key));
        self.memory -= partial.memory();
        Some(partial)
    }

    /// Adds a fragment to its datagram.
    pub(super) fn add(&mut self, now: Instant, arrived: Arrived, fragment: Fragment) -> Assembled {
        let label = arrived.label;
        let Label { from, to, sequence, .. } = label;
        let key = (arrived.from, from, to, sequence);
        let seen = self.counts.entry(arrived.from).or_default();
        *seen = seen.wrapping_add(1);
        let (seen, parts) = (*seen, usize::from(fragment.count));
        let is_stale = |partial: &Partial| {
            seen.wrapping_sub(partial.seen) > DISTANCE || partial.parts.len() != parts
        };
        if self.partial.get(&key).is_some_and(is_stale) {
            self.remove(&key);
        }
        if !self.partial.contains_key(&key) {
            if self.memory > MEMORY_BYTES {
                return Assembled::Refused;
            }
            self.order.insert((now, key));
            let partial = Partial { since: now, seen, missing: parts, parts: vec![None; parts] };
            self.partial.insert(key, partial);
        }
        let partial = self.partial.get_mut(&key).expect("it was there, or was added");
        partial.seen = seen;
        let Some(part @ None) = partial.parts.get_mut(usize::from(fragment.index)) else {
            return Assembled::Refused;
        };
        self.memory += memory_of(arrived.bytes.len());
        *part = Some(arrived.bytes);
        partial.missing -= 1;
        if partial.missing > 0 {
            return Assembled::Partial;
        }
        let whole = self.remove(&key).expect("it is there");
        let bytes = whole.parts.into_iter().flatten().flatten().collect();
        Assembled::Whole(Arrived { from: key.0, label, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::super::label::Kind;
    use super::*;

    const LABEL: Label = Label {
        kind: Kind::Datagram,
        from: 5,
        to: 7,
        ecn: 0,
        is_loopback: false,
        sequence: 0,
        fragment: None,
    };

    /// Cuts a datagram of `id` into three fragments.
    fn fragments(id: u32) -> Vec<(Arrived, Fragment)> {
        cut(NodeId(1), LABEL, id, &[id as u8; 2_500], 1_000)
            .map(|Outgoing { label, bytes, .. }| {
                let fragment = label.fragment.expect("it is a fragment");
                (Arrived { from: NodeId(0), label, bytes }, fragment)
            })
            .collect()
    }

    #[test]
    fn a_datagram_is_whole_in_any_order_and_duplicates_are_refused() {
        for first in 0..3 {
            let mut reassembly = Reassembly::default();
            let mut parts = fragments(9);
            parts.rotate_left(first);
            let last = parts.pop().unwrap();
            for (arrived, fragment) in parts {
                let again = Arrived { from: arrived.from, label: arrived.label, bytes: Vec::new() };
                let added = reassembly.add(Instant::ZERO, arrived, fragment);
                assert!(matches!(added, Assembled::Partial));
                let added = reassembly.add(Instant::ZERO, again, fragment);
                assert!(matches!(added, Assembled::Refused));
            }
            let Assembled::Whole(whole) = reassembly.add(Instant::ZERO, last.0, last.1) else {
                panic!("all fragments are there");
            };
            assert_eq!(whole.bytes, [9; 2_500]);
            assert_eq!((reassembly.memory, reassembly.partial.len()), (0, 0));
        }
    }

    #[test]
    fn incomplete_datagrams_fill_the_memory_until_they_are_too_old() {
        let mut reassembly = Reassembly::default();
        let mut taken = 0;
        for id in 0..5_000 {
            let (arrived, fragment) = fragments(id).remove(0);
            match reassembly.add(Instant::ZERO, arrived, fragment) {
                Assembled::Partial => taken += 1,
                Assembled::Refused => break,
                Assembled::Whole(_) => panic!("two fragments are missing"),
            }
        }
        assert_eq!(taken, MEMORY_BYTES / memory_of(1_000) + 1);
        assert_eq!(reassembly.expire(Instant::ZERO + LIFETIME / 2), 0);
        assert_eq!(reassembly.expire(Instant::ZERO + LIFETIME), taken);
        assert_eq!((reassembly.memory, reassembly.order.len()), (0, 0));
    }

    #[test]
    fn a_datagram_whose_next_fragment_comes_too_late_begins_again() {
        let mut reassembly = Reassembly::default();
        let mut old = fragments(0).into_iter();
        let (arrived, fragment) = old.next().unwrap();
        reassembly.add(Instant::ZERO, arrived, fragment);
        for id in 1..=22 {
            for (arrived, fragment) in fragments(id) {
                reassembly.add(Instant::ZERO, arrived, fragment);
            }
        }
        for (arrived, fragment) in old {
            assert!(matches!(reassembly.add(Instant::ZERO, arrived, fragment), Assembled::Partial));
        }
        assert_eq!(reassembly.memory, memory_of(1_000) + memory_of(500));
    }
}
