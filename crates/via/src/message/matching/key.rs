//! What messages carry and what receives ask for.

use crate::message::envelope::{Context, Envelope, Peer, Tag};

/// What a message is matched by.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// Its context.
    pub context: Context,
    /// Its sender.
    pub source: Peer,
    /// Its tag.
    pub tag: Tag,
}

impl Key {
    /// What an envelope is matched by.
    #[must_use]
    pub const fn of(envelope: &Envelope) -> Self {
        Self { context: envelope.context, source: envelope.source, tag: envelope.tag }
    }
}

/// What a receive or a probe asks for; `None` is a wildcard. There is none for contexts.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pattern {
    /// Messages of this context,
    pub context: Context,
    /// of this sender, or of any,
    pub source: Option<Peer>,
    /// with this tag, or with any.
    pub tag: Option<Tag>,
}

impl Pattern {
    /// Whether a message with this key is what it asks for.
    #[must_use]
    pub fn accepts(&self, key: Key) -> bool {
        self.context == key.context
            && self.source.is_none_or(|source| source == key.source)
            && self.tag.is_none_or(|tag| tag == key.tag)
    }

    /// Which of the four ways to leave something open this is.
    #[inline]
    pub(super) const fn shape(&self) -> Shape {
        Shape(self.source.is_none() as usize | (self.tag.is_none() as usize) << 1)
    }

    /// What all messages that it asks for have in common.
    #[inline]
    pub(super) fn common(&self) -> Common {
        self.shape().common(Key {
            context: self.context,
            source: self.source.unwrap_or_default(),
            tag: self.tag.unwrap_or_default(),
        })
    }
}

/// One of the four ways to leave source and tag open: bit 0 any source, bit 1 any tag.
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

    /// What a message has in common with the others that a pattern of this shape would accept.
    #[inline]
    pub(super) const fn common(self, key: Key) -> Common {
        let source = if self.0 & 1 == 0 { key.source.0 } else { 0 };
        let tag = if self.0 & 2 == 0 { key.tag.0 } else { 0 };
        Common { context: key.context.0, source_and_tag: (source as u64) << 32 | tag as u64 }
    }
}

/// The name of one queue among those of its shape.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Common {
    context: u32,
    source_and_tag: u64,
}
