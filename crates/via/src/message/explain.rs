//! Diagnosis of stalls: what each request waits for, and which messages have arrived without a receive.

use std::collections::BTreeMap;
use std::fmt;

use super::envelope::{Context, Peer, Tag};
use super::matching::{Key, Pattern};
use super::request::Request;

/// The event that a request waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Missing {
    /// A receive waits for a message that matches the pattern.
    Message(Pattern),
    /// A receive that has matched waits for the rest of the bytes.
    Rest {
        /// The message's source, tag and context.
        key: Key,
        /// Bytes that have arrived.
        filled: usize,
        /// Bytes that the receive accepts.
        length: usize,
    },
    /// A send waits for room at its receiver, or in the carrier.
    Window {
        /// The receiver.
        to: Peer,
        /// The message's context.
        context: Context,
        /// The message's tag.
        tag: Tag,
        /// The message's bytes.
        length: usize,
    },
    /// A send waits for its receive at the other process.
    Receive {
        /// The receiver.
        to: Peer,
        /// The message's context.
        context: Context,
        /// The message's tag.
        tag: Tag,
        /// The message's bytes.
        length: usize,
    },
}

/// Messages with one key that no receive has matched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Unmatched {
    /// Number of messages.
    pub messages: usize,
    /// Number of the messages of which only the RTS has arrived: their bytes are still at the sender.
    pub announced: usize,
    /// Bytes of all these messages together.
    pub bytes: u64,
}

/// A snapshot of what each request of a process waits for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Explanation {
    /// Requests in progress, and the event that each waits for.
    pub waiting: Vec<(Request, Missing)>,
    /// Messages that have arrived without a matching receive.
    pub unmatched: BTreeMap<Key, Unmatched>,
    /// Processes that were lost.
    pub lost: Vec<Peer>,
    /// The kind of wire that carries packets to each process, if the carrier has several kinds. A process that no wire
    /// reaches now is left out.
    pub wires: Vec<(Peer, &'static str)>,
}

impl Explanation {
    /// Returns the unmatched messages that differ from a pattern in one respect only: tag, source or context. A
    /// stuck receive most likely meant one of them.
    #[doc(hidden)]
    pub fn near(&self, pattern: Pattern) -> impl Iterator<Item = (Key, Unmatched, Difference)> {
        self.unmatched.iter().filter_map(move |(key, unmatched)| {
            Some((*key, *unmatched, Difference::between(&pattern, *key)?))
        })
    }
}

/// The one respect in which a message differs from a pattern.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The tag.
    Tag,
    /// The sender.
    Source,
    /// The context.
    Context,
}

impl Difference {
    fn between(pattern: &Pattern, key: Key) -> Option<Self> {
        let context = pattern.context != key.context;
        let source = pattern.source.is_some_and(|source| source != key.source);
        let tag = pattern.tag.is_some_and(|tag| tag != key.tag);
        match (context, source, tag) {
            (false, false, true) => Some(Self::Tag),
            (false, true, false) => Some(Self::Source),
            (true, false, false) => Some(Self::Context),
            _ => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => write!(f, "from {source}")?,
            None => write!(f, "from any process")?,
        }
        match self.tag {
            Some(tag) => write!(f, " with tag {tag}")?,
            None => write!(f, " with any tag")?,
        }
        write!(f, " in context {}", self.context)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} with tag {} in context {}", self.source, self.tag, self.context)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(pattern) => write!(f, "a receive waits for a message {pattern}"),
            Self::Rest { key, filled, length } => {
                write!(f, "a receive has {filled} of {length} bytes of a message {key}")
            }
            Self::Window { to, context, tag, length } => write!(
                f,
                "a send of {length} bytes with tag {tag} in context {context} waits for room at {to}"
            ),
            Self::Receive { to, context, tag, length } => write!(
                f,
                "a send of {length} bytes with tag {tag} in context {context} waits for its receive at {to}"
            ),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (_, missing) in &self.waiting {
            writeln!(f, "{missing}")?;
            let Missing::Message(pattern) = missing else { continue };
            for (key, unmatched, difference) in self.near(*pattern) {
                let messages = unmatched.messages;
                let other = match difference {
                    Difference::Tag => "another tag",
                    Difference::Source => "another source",
                    Difference::Context => "another context",
                };
                writeln!(f, "  {messages} unmatched have {other}: {key}")?;
            }
        }
        for (key, Unmatched { messages, announced, bytes }) in &self.unmatched {
            writeln!(f, "unmatched {key}: {messages} ({announced} announced), {bytes} bytes")?;
        }
        for (peer, wire) in &self.wires {
            writeln!(f, "process {peer} is reached by {wire}")?;
        }
        for peer in &self.lost {
            writeln!(f, "process {peer} was lost")?;
        }
        Ok(())
    }
}
