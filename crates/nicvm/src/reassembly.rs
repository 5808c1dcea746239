//! Reassembly of messages from their data frames: each frame counts once.

use std::collections::BTreeMap;

use midplane_simhw::id::Incarnation;

use crate::planted::{self, Bug};
use crate::transmit::Fragment;

/// Frames of one message that may arrive ahead of a gap: more than any path reorders, and a bound on the memory that a
/// broken peer can take.
const MAX_ISLANDS: usize = 64;

/// A message that has begun to arrive, and the target that its bytes are written to.
#[derive(Debug)]
pub(crate) struct Assembly<T> {
    message: u32,
    total: u32,
    pub(crate) target: T,
    /// All bytes before this one have arrived.
    prefix: u32,
    /// Ranges that have arrived beyond it: first byte, and the byte after the last.
    islands: Vec<(u32, u32)>,
}

impl<T> Assembly<T> {
    pub(crate) const fn new(fragment: Fragment, target: T) -> Self {
        let Fragment { message, total, .. } = fragment;
        Self { message, total, target, prefix: 0, islands: Vec::new() }
    }

    /// Returns whether a frame of `length` bytes belongs to this message and is new, and notes it.
    pub(crate) fn take(&mut self, fragment: Fragment, length: u32) -> bool {
        let (start, end) = (fragment.offset, fragment.offset.saturating_add(length));
        let known = start < self.prefix && !planted::is(Bug::LateRewinds);
        if fragment.total != self.total || known || (length == 0 && self.total > 0) {
            return false;
        }
        if start > self.prefix && planted::is(Bug::GapIgnored) {
            self.prefix = end;
            return true;
        }
        if start > self.prefix {
            let known = self.islands.iter().any(|(first, _)| *first == start);
            if known || self.islands.len() == MAX_ISLANDS {
                return false;
            }
            self.islands.push((start, end));
            return true;
        }
        self.prefix = end;
        while let Some(at) = self.islands.iter().position(|(first, _)| *first == self.prefix) {
            self.prefix = self.islands.swap_remove(at).1;
        }
        true
    }

    pub(crate) const fn is_whole(&self) -> bool {
        self.prefix == self.total
    }
}

/// The classification of a frame in its sender's stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// Part of the message that is being assembled.
    Open,
    /// The first frame of a message that is newer than all before it.
    Newer,
    /// A whole message that newer ones have overtaken.
    Overtaken,
    /// Of a message that is completed or lost, or of a former incarnation.
    Void,
}

/// A stream of messages of one sender. The sender numbers them upwards, with gaps.
#[derive(Debug)]
pub(crate) struct Stream<T> {
    incarnation: Incarnation,
    newest: u32,
    /// Bit n: message `newest` - n has begun or is completed.
    begun: u64,
    /// The message that is being assembled, at most one.
    pub(crate) open: Option<Assembly<T>>,
    /// The value of [`Streams::frames`] at its last frame.
    touched: u64,
}

impl<T> Stream<T> {
    /// Creates a stream that begins with a frame of `message`.
    const fn new(incarnation: Incarnation, message: u32) -> Self {
        Self { incarnation, newest: message, begun: 0, open: None, touched: 0 }
    }

    /// Restarts the stream if its sender has restarted. Returns the target of the message that was being assembled.
    pub(crate) fn on_incarnation(&mut self, incarnation: Incarnation, message: u32) -> Option<T> {
        if !incarnation.is_newer_than(self.incarnation) {
            return None;
        }
        let former = std::mem::replace(
            self,
            Self { touched: self.touched, ..Self::new(incarnation, message) },
        );
        former.open.map(|open| open.target)
    }

    /// Classifies a frame, and notes that its message has begun.
    pub(crate) fn place(
        &mut self,
        incarnation: Incarnation,
        fragment: Fragment,
        length: u32,
    ) -> Place {
        if incarnation != self.incarnation {
            return Place::Void;
        }
        let message = fragment.message;
        let ahead = message.wrapping_sub(self.newest);
        if ahead != 0 && ahead < 1 << 31 {
            self.newest = message;
            self.begun = self.begun.checked_shl(ahead).unwrap_or(0) | 1;
            return Place::Newer;
        }
        let age = self.newest.wrapping_sub(message);
        if age >= u64::BITS {
            return Place::Void;
        }
        if self.begun >> age & 1 == 1 {
            let open = self.open.as_ref().is_some_and(|open| open.message == message);
            if !open && length == fragment.total && planted::is(Bug::MessageTwice) {
                return Place::Overtaken;
            }
            return if open { Place::Open } else { Place::Void };
        }
        self.begun |= 1 << age;
        match age {
            0 => Place::Newer,
            _ if length == fragment.total => Place::Overtaken,
            _ => Place::Void,
        }
    }
}

/// The streams of many senders, bounded in number: each assembles one message at a time.
#[derive(Debug)]
pub(crate) struct Streams<K, T> {
    streams: BTreeMap<K, Stream<T>>,
    most: usize,
    /// Frames received in all streams.
    frames: u64,
}

impl<K: Copy + Ord, T> Streams<K, T> {
    /// Creates a table that remembers `most` streams. Those with a partly received message count in addition.
    pub(crate) const fn new(most: usize) -> Self {
        Self { streams: BTreeMap::new(), most, frames: 0 }
    }

    pub(crate) const fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the stream of a frame. If it is new, it begins with `message`, and the older half of the streams without
    /// a partly received message is dropped if there are too many.
    #[inline]
    pub(crate) fn stream(
        &mut self,
        key: K,
        incarnation: Incarnation,
        message: u32,
    ) -> &mut Stream<T> {
        if self.streams.len() >= self.most && !self.streams.contains_key(&key) {
            self.prune();
        }
        self.frames += 1;
        let stream = self.streams.entry(key).or_insert_with(|| Stream::new(incarnation, message));
        stream.touched = self.frames;
        stream
    }

    fn prune(&mut self) {
        let idle = self.streams.values().filter(|stream| stream.open.is_none());
        let mut touched: Vec<_> = idle.map(|stream| stream.touched).collect();
        touched.sort_unstable();
        let Some(&last) = touched.get(touched.len() / 2) else { return };
        self.streams.retain(|_, stream| stream.open.is_some() || stream.touched > last);
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut Stream<T>> {
        self.streams.get_mut(&key)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut Stream<T>)> {
        self.streams.iter_mut().map(|(key, stream)| (*key, stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INCARNATION: Incarnation = Incarnation::FIRST;

    fn fragment(message: u32, offset: u32, total: u32) -> Fragment {
        Fragment { message, offset, total, tag: 0 }
    }

    #[test]
    fn a_message_that_was_overtaken_arrives_once() {
        let mut stream = Stream::<()>::new(INCARNATION, 5);
        assert_eq!(stream.place(INCARNATION, fragment(5, 0, 9), 9), Place::Newer);
        assert_eq!(stream.place(INCARNATION, fragment(3, 0, 9), 9), Place::Overtaken);
        assert_eq!(stream.place(INCARNATION, fragment(3, 0, 9), 9), Place::Void);
        assert_eq!(stream.place(INCARNATION, fragment(4, 0, 9), 8), Place::Void);
        assert_eq!(stream.place(INCARNATION, fragment(105, 0, 9), 9), Place::Newer);
        assert_eq!(stream.place(INCARNATION, fragment(6, 0, 9), 9), Place::Void);
        assert_eq!(stream.place(INCARNATION.next(), fragment(106, 0, 9), 9), Place::Void);
    }

    #[test]
    fn message_numbers_wrap_around() {
        let mut stream = Stream::<()>::new(INCARNATION, u32::MAX);
        for message in [u32::MAX, 0, 1] {
            assert_eq!(stream.place(INCARNATION, fragment(message, 0, 9), 9), Place::Newer);
        }
        assert_eq!(stream.place(INCARNATION, fragment(u32::MAX, 0, 9), 9), Place::Void);
    }

    proptest! {
        #[test]
        fn a_message_is_whole_once_each_byte_has_arrived(
            order in proptest::collection::vec(0_u32..12, 0..60),
        ) {
            let total = 12 * 7 - 3;
            let mut assembly = Assembly::new(fragment(1, 0, total), ());
            let mut seen = std::collections::BTreeSet::new();
            for piece in order {
                let length = (total - piece * 7).min(7);
                let new = assembly.take(fragment(1, piece * 7, total), length);
                prop_assert_eq!(new, seen.insert(piece));
                prop_assert_eq!(assembly.is_whole(), seen.len() == 12);
            }
        }

        #[test]
        fn bytes_that_overlap_never_make_a_message_whole_too_early(
            pieces in proptest::collection::vec((0_u32..40, 0_u32..40), 0..60),
        ) {
            let mut assembly = Assembly::new(fragment(1, 0, 40), ());
            let mut seen = std::collections::BTreeSet::new();
            for (start, length) in pieces {
                let length = length.min(40 - start);
                if assembly.take(fragment(1, start, 40), length) {
                    seen.extend(start..start + length);
                }
                prop_assert!(!assembly.is_whole() || seen.len() == 40);
            }
        }
    }
}
