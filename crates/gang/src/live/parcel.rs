//! What is too long for one message of a link, in parts: a rank's state, and what its channel held.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Most bytes of a part.
pub(super) const PART: usize = 1 << 20;
/// Most bytes of what is put together of one rank.
pub(super) const LONGEST: usize = 1 << 30;

/// What a part is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// A process's state, in its own words.
    State,
    /// A channel's context, encoded.
    Context,
}

/// A part of something.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Of what.
    pub what: What,
    /// The bytes after those before.
    pub bytes: Bytes,
    /// There are no more.
    pub is_last: bool,
}

/// Cuts something into parts, at least one.
pub(super) fn cut(what: What, bytes: Bytes) -> impl Iterator<Item = Part> {
    let count = bytes.len().div_ceil(PART).max(1);
    (0..count).map(move |number| {
        let end = bytes.len().min((number + 1) * PART);
        Part { what, bytes: bytes.slice(number * PART..end), is_last: number + 1 == count }
    })
}

#[derive(Clone, Debug, Default)]
struct Pile {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// What has come of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Parcel {
    state: Pile,
    context: Pile,
}

impl Parcel {
    /// Adds a part, in order; `false` if it is one too many.
    pub(super) fn add(&mut self, part: &Part) -> bool {
        let pile = match part.what {
            What::State => &mut self.state,
            What::Context => &mut self.context,
        };
        if pile.is_whole || pile.bytes.len() + part.bytes.len() > LONGEST {
            return false;
        }
        pile.bytes.extend_from_slice(&part.bytes);
        pile.is_whole = part.is_last;
        true
    }

    /// Forgets the bytes, and not what is whole.
    pub(super) fn clear(&mut self) {
        (self.state.bytes, self.context.bytes) = (Vec::new(), Vec::new());
    }

    /// Bytes that it holds.
    pub(super) const fn len(&self) -> u64 {
        (self.state.bytes.len() + self.context.bytes.len()) as u64
    }

    /// The state, once it is whole.
    pub(super) fn take_state(&mut self) -> Option<Vec<u8>> {
        self.has_state().then(|| std::mem::take(&mut self.state).bytes)
    }

    pub(super) const fn has_state(&self) -> bool {
        self.state.is_whole
    }

    /// The context, once it is whole.
    pub(super) fn context(&self) -> Option<&[u8]> {
        self.context.is_whole.then_some(&self.context.bytes[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_is_put_together_and_nothing_more() {
        for length in [0, 1, PART - 1, PART, PART + 1, 3 * PART] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut parcel = Parcel::default();
            for part in cut(What::State, bytes.clone().into()) {
                assert!(!parcel.has_state() && part.bytes.len() <= PART);
                assert!(parcel.add(&part));
            }
            let more = Part { what: What::State, bytes: Bytes::new(), is_last: true };
            assert!(!parcel.add(&more) && parcel.context().is_none());
            assert_eq!(parcel.take_state(), Some(bytes));
            assert_eq!(parcel.take_state(), None);
        }
    }
}
