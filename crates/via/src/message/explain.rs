//! Why nothing happens: what waits for what, and what has come that nobody asked for.

use std::collections::BTreeMap;
use std::fmt;

use super::envelope::{Context, Peer, Tag};
use super::matching::{Key, Pattern};
use super::request::Request;

/// What a request waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Missing {
    /// A receive: a message that the pattern asks for.
    Message(Pattern),
    /// A receive that has met its message: its other bytes.
    Rest {
        /// What the message is matched by.
        key: Key,
        /// Bytes that are here.
        filled: usize,
        /// Bytes that the receive takes.
        length: usize,
    },
    /// A send: room for the message at its receiver, or in what carries it there.
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
    /// A send: its receive at the other process.
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

/// Messages with one key that nobody has asked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Unmatched {
    /// How many.
    pub messages: usize,
    /// How many of them were announced only.
    pub announced: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What waits for what, in one process, at one moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Explanation {
    /// Requests that are under way.
    pub waiting: Vec<(Request, Missing)>,
    /// Messages that have come and met no receive.
    pub unmatched: BTreeMap<Key, Unmatched>,
    /// Processes that are gone.
    pub lost: Vec<Peer>,
}

impl Explanation {
    /// Unmatched messages that a pattern fails to ask for by one thing only: its tag, its source or
    /// its context. They are what a stuck receive most likely meant.
    pub fn near(&self, pattern: Pattern) -> impl Iterator<Item = (Key, Unmatched, Difference)> {
        self.unmatched.iter().filter_map(move |(key, unmatched)| {
            Some((*key, *unmatched, Difference::between(&pattern, *key)?))
        })
    }
}

/// The one thing that keeps a message from meeting a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// Another tag.
    Tag,
    /// Another sender.
    Source,
    /// Another context.
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
        for peer in &self.lost {
            writeln!(f, "process {peer} is gone")?;
        }
        Ok(())
    }
}
