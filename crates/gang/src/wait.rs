//! Wait states: a process publishes what it waits for, and the scheduler reads that while the process is suspended.

use serde::{Deserialize, Serialize};

use crate::names::Rank;

/// Offset of the wait state in a channel's memory.
pub(crate) const WAIT_STATE: usize = 16;
/// Bytes of the wait state.
pub(crate) const WAIT_BYTES: usize = 16;
/// Offset of the owner's handle within the wait state.
const OWNER: usize = 8;

/// The events that end a wait on a channel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum News {
    /// The arrival of a message.
    Message,
    /// Room for another message.
    Room,
    /// A message or room, whichever comes first.
    Either,
}

/// The state of a process, as published by the process. A process that publishes nothing counts as computing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum WaitState {
    /// The process computes, and may send.
    #[default]
    Running,
    /// The process does nothing until any message arrives.
    Idle,
    /// The process does nothing until a matching message arrives, except that it consumes other messages, so that
    /// their senders find room.
    Receive {
        /// The sending rank; `None` for any.
        from: Option<Rank>,
        /// The tag; `None` for any.
        tag: Option<u32>,
    },
    /// The process does nothing until any message arrives: it waits for a result of its message layer.
    Message {
        /// The rank that the message layer waits for, if it is a single one. This describes the wait, but proves
        /// nothing: the process may wait for another rank as well.
        from: Option<Rank>,
    },
    /// The process does nothing until there is room for a message to this rank.
    Send {
        /// The receiving rank.
        to: Rank,
    },
}

impl WaitState {
    /// Encodes the state. `owner` is the handle of the publishing context, because several contexts may share the
    /// memory.
    pub(crate) fn emit(self, owner: u64) -> [u8; WAIT_BYTES] {
        let mut bytes = [0; WAIT_BYTES];
        bytes[OWNER..].copy_from_slice(&owner.to_le_bytes());
        let rank = |bytes: &mut [u8; WAIT_BYTES], rank: Rank| {
            bytes[2..4].copy_from_slice(&rank.0.to_le_bytes());
        };
        match self {
            Self::Running => {}
            Self::Idle => bytes[0] = 1,
            Self::Receive { from, tag } => {
                bytes[0] = 2;
                bytes[1] = u8::from(from.is_some()) | u8::from(tag.is_some()) << 1;
                rank(&mut bytes, from.unwrap_or_default());
                bytes[4..8].copy_from_slice(&tag.unwrap_or(0).to_le_bytes());
            }
            Self::Send { to } => {
                bytes[0] = 3;
                rank(&mut bytes, to);
            }
            Self::Message { from } => {
                bytes[0] = 4;
                bytes[1] = u8::from(from.is_some());
                rank(&mut bytes, from.unwrap_or_default());
            }
        }
        bytes
    }

    /// Returns whether the context `owner` has published the state.
    pub(crate) fn is_of(owner: u64, bytes: &[u8; WAIT_BYTES]) -> bool {
        bytes[OWNER..] == owner.to_le_bytes()
    }

    /// Decodes a state; invalid bytes count as [`WaitState::Running`].
    pub(crate) fn parse(bytes: [u8; WAIT_BYTES]) -> Self {
        let [kind, given, a, b, c, d, e, f, ..] = bytes;
        let rank = Rank(u16::from_le_bytes([a, b]));
        match kind {
            1 => Self::Idle,
            2 => Self::Receive {
                from: (given & 1 != 0).then_some(rank),
                tag: (given & 2 != 0).then(|| u32::from_le_bytes([c, d, e, f])),
            },
            3 => Self::Send { to: rank },
            4 => Self::Message { from: (given & 1 != 0).then_some(rank) },
            _ => Self::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_wait_state_is_read_as_it_was_written(from: Option<u16>, tag: Option<u32>, to: u16, owner: u64) {
            let states = [
                WaitState::Running,
                WaitState::Idle,
                WaitState::Receive { from: from.map(Rank), tag },
                WaitState::Send { to: Rank(to) },
                WaitState::Message { from: from.map(Rank) },
            ];
            for state in states {
                prop_assert_eq!(WaitState::parse(state.emit(owner)), state);
                prop_assert!(WaitState::is_of(owner, &state.emit(owner)));
                prop_assert!(!WaitState::is_of(!owner, &state.emit(owner)));
            }
        }
    }
}
