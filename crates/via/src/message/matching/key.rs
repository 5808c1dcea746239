//! Keys of messages, and patterns of receives.

use crate::message::envelope::{Context, Envelope, LEFT, Peer, Tag};

/// The parts of an envelope that matching compares.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// The context of the message.
    pub context: Context,
    /// The sender of the message.
    pub source: Peer,
    /// The tag of the message.
    pub tag: Tag,
}

impl Key {
    /// Returns the key of an envelope.
    #[must_use]
    pub const fn of(envelope: &Envelope) -> Self {
        Self { context: envelope.context, source: envelope.source, tag: envelope.tag }
    }

    /// Returns whether it is the key of a notice that a process has left a collective operation or revoked a
    /// communicator. Such messages match no receive.
    #[inline]
    pub(in crate::message) fn is_notice(self) -> bool {
        self.tag == LEFT && (self.context.is_collective() || self.context.is_recovery())
    }
}

/// The messages that a receive or a probe accepts; `None` is a wildcard. The context has no wildcard.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pattern {
    /// The context of the messages.
    pub context: Context,
    /// The sender of the messages, or `None` for any.
    pub source: Option<Peer>,
    /// The tag of the messages, or `None` for any.
    pub tag: Option<Tag>,
}

impl Pattern {
    /// Returns whether a message with this key matches.
    #[must_use]
    pub fn accepts(&self, key: Key) -> bool {
        self.context == key.context
            && self.source.is_none_or(|source| source == key.source)
            && self.tag.is_none_or(|tag| tag == key.tag)
    }

    /// Returns which of source and tag are wildcards.
    #[inline]
    pub(super) const fn shape(&self) -> Shape {
        Shape(self.source.is_none() as usize | (self.tag.is_none() as usize) << 1)
    }

    /// Returns the parts of the key that all matching messages share.
    #[inline]
    pub(super) fn common(&self) -> Common {
        self.shape().common(Key {
            context: self.context,
            source: self.source.unwrap_or_default(),
            tag: self.tag.unwrap_or_default(),
        })
    }
}

/// One of the four combinations of wildcards: bit 0 any source, bit 1 any tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape(usize);

impl Shape {
    pub(super) const COUNT: usize = 4;
    pub(super) const ALL: [Self; Self::COUNT] = [Self(0), Self(1), Self(2), Self(3)];

    pub(super) const EXACT: Self = Self(0);

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0
    }

    /// Returns the parts of a key that a pattern of this shape fixes.
    #[inline]
    pub(super) const fn common(self, key: Key) -> Common {
        let source = if self.0 & 1 == 0 { key.source.0 } else { 0 };
        let tag = if self.0 & 2 == 0 { key.tag.0 } else { 0 };
        Common { context: key.context.0, source_and_tag: (source as u64) << 32 | tag as u64 }
    }
}

/// Names a queue among those of its shape.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Common {
    context: u32,
    source_and_tag: u64,
}
