//! Datagrams that are longer than a packet: cut into fragments by their sender, and assembled by their receiver.
//!
//! The bounds are those of Linux. A datagram has 30 s to become complete (`ipfrag_time`). All incomplete datagrams of a
//! host take at most 4 MiB (`ipfrag_high_thresh`). A datagram is dropped if more than 64 other fragments of its sender
//! arrive between two of its own (`ipfrag_max_dist`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::label::{Arrived, Fragment, Label, Outgoing};
use crate::id::NodeId;
use crate::time::Instant;

/// Most bytes of a datagram, as of UDP over IPv4.
pub(super) const LONGEST_DATAGRAM: usize = 65_507;

/// Time that a datagram has to become complete.
const LIFETIME: Duration = Duration::from_secs(30);
/// Memory of all incomplete datagrams; the fragment that exceeds it is still kept.
const MEMORY_BYTES: usize = 4 << 20;
/// Most fragments of a sender that may arrive between two of one datagram.
const DISTANCE: u32 = 64;

/// Returns the memory that Linux takes for a fragment: a buffer and 256 bytes of `sk_buff`. The buffer also holds
/// headers and 320 bytes of `skb_shared_info`; its size is a power of two. A full packet takes 2,304 bytes.
const fn memory_of(bytes: usize) -> usize {
    (bytes + 64 + 320).next_power_of_two() + 256
}

/// Cuts a datagram into fragments of at most `mtu` bytes, in order. `id` is the datagram's number.
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

/// The key of a datagram: the sender's node, both ports, and the datagram's number.
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

/// The incomplete datagrams of a host.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partial: BTreeMap<Key, Partial>,
    /// The keys of `partial`, in the order of their first fragments.
    order: BTreeSet<(Instant, Key)>,
    /// Fragments that have arrived from each sender.
    counts: BTreeMap<NodeId, u32>,
    memory: usize,
    /// Fragments that were dropped, and not reported yet.
    dropped: usize,
}

impl Reassembly {
    /// Returns how many fragments were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }

    /// Drops the datagrams that are older than `LIFETIME`.
    fn expire(&mut self, now: Instant) {
        while let Some((since, key)) = self.order.first().copied() {
            if since + LIFETIME > now {
                break;
            }
            self.give_up(&key);
        }
    }

    fn give_up(&mut self, key: &Key) {
        self.dropped += self.remove(key).map_or(0, |partial| partial.has());
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partial.remove(key)?;
        self.order.remove(&(partial.since, *key));
        self.memory -= partial.memory();
        Some(partial)
    }

    /// Adds a fragment to its datagram; returns the datagram once it is whole.
    pub(super) fn add(
        &mut self,
        now: Instant,
        arrived: Arrived,
        fragment: Fragment,
    ) -> Option<Arrived> {
        self.expire(now);
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
            self.give_up(&key);
        }
        if !self.partial.contains_key(&key) {
            if self.memory > MEMORY_BYTES {
                self.dropped += 1;
                return None;
            }
            self.order.insert((now, key));
            let partial = Partial { since: now, seen, missing: parts, parts: vec![None; parts] };
            self.partial.insert(key, partial);
        }
        let partial = self.partial.get_mut(&key).expect("it was there, or was added");
        partial.seen = seen;
        let Some(part @ None) = partial.parts.get_mut(usize::from(fragment.index)) else {
            self.dropped += 1;
            return None;
        };
        self.memory += memory_of(arrived.bytes.len());
        *part = Some(arrived.bytes);
        partial.missing -= 1;
        if partial.missing > 0 {
            return None;
        }
        let whole = self.remove(&key).expect("it is there");
        let bytes = whole.parts.into_iter().flatten().flatten().collect();
        Some(Arrived { from: key.0, label: Label { fragment: None, ..label }, bytes })
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
    fn a_datagram_is_whole_in_any_order_and_duplicates_are_dropped() {
        for first in 0..3 {
            let mut reassembly = Reassembly::default();
            let mut parts = fragments(9);
            parts.rotate_left(first);
            let last = parts.pop().unwrap();
            for (arrived, fragment) in parts {
                let again = Arrived { from: arrived.from, label: arrived.label, bytes: Vec::new() };
                assert!(reassembly.add(Instant::ZERO, arrived, fragment).is_none());
                assert_eq!(reassembly.take_dropped(), 0);
                assert!(reassembly.add(Instant::ZERO, again, fragment).is_none());
                assert_eq!(reassembly.take_dropped(), 1);
            }
            let whole = reassembly.add(Instant::ZERO, last.0, last.1);
            assert_eq!(whole.expect("all fragments are there").bytes, [9; 2_500]);
            assert_eq!((reassembly.memory, reassembly.partial.len()), (0, 0));
            assert_eq!((reassembly.order.len(), reassembly.take_dropped()), (0, 0));
        }
    }

    #[test]
    fn incomplete_datagrams_fill_the_memory_until_they_are_too_old() {
        let mut reassembly = Reassembly::default();
        let mut taken = 0;
        for id in 0..5_000 {
            let (arrived, fragment) = fragments(id).remove(0);
            assert!(reassembly.add(Instant::ZERO, arrived, fragment).is_none());
            if reassembly.take_dropped() > 0 {
                break;
            }
            taken += 1;
        }
        assert_eq!(taken, MEMORY_BYTES / memory_of(1_000) + 1);
        reassembly.expire(Instant::ZERO + LIFETIME / 2);
        assert_eq!(reassembly.take_dropped(), 0);
        reassembly.expire(Instant::ZERO + LIFETIME);
        assert_eq!(reassembly.take_dropped(), taken);
        assert_eq!((reassembly.memory, reassembly.order.len()), (0, 0));
    }

    #[test]
    fn a_fragment_after_too_many_others_begins_its_datagram_again() {
        let mut reassembly = Reassembly::default();
        let mut old = fragments(0).into_iter();
        let (arrived, fragment) = old.next().unwrap();
        reassembly.add(Instant::ZERO, arrived, fragment);
        for id in 1..=22 {
            for (arrived, fragment) in fragments(id) {
                reassembly.add(Instant::ZERO, arrived, fragment);
            }
        }
        assert_eq!(reassembly.take_dropped(), 0);
        for (arrived, fragment) in old {
            assert!(reassembly.add(Instant::ZERO, arrived, fragment).is_none());
        }
        assert_eq!(reassembly.take_dropped(), 1);
        assert_eq!(reassembly.memory, memory_of(1_000) + memory_of(500));
    }
}
