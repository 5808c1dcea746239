//! What a process waits for: said by the process itself, read while it stands still.

use serde::{Deserialize, Serialize};

use crate::names::Rank;

/// Where it lies in a channel's memory.
pub(crate) const WAIT_STATE: usize = 16;
/// Its bytes.
pub(crate) const WAIT_BYTES: usize = 16;
/// Position of the context's handle among the words.
const OWNER: usize = 8;

/// What a process is doing. Processes that poll look like ones that run, so they say it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum WaitState {
    /// It computes: it may send.
    #[default]
    Running,
    /// It has nothing to do until a message comes, whatever it is.
    Idle,
    /// It does nothing before such a message has come, but take other messages out of its FIFO as they
    /// come: so whoever sends to it finds room.
    Receive {
        /// From whom; from anyone, if `None`.
        from: Option<Rank>,
        /// With what tag; with any, if `None`.
        tag: Option<u32>,
    },
    /// It does nothing before there is room for a message to this rank.
    Send {
        /// To whom.
        to: Rank,
    },
}

impl WaitState {
    /// Encodes the state for memory that several contexts use in turn: `owner` is the handle of the publishing one.
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
        }
        bytes
    }

    /// Returns whether a context published the words.
    pub(crate) fn is_of(owner: u64, bytes: &[u8; WAIT_BYTES]) -> bool {
        bytes[OWNER..] == owner.to_le_bytes()
    }

    /// Any bytes are some state: what makes no sense is taken for one that runs.
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
        fn what_a_process_says_is_what_is_read(from: Option<u16>, tag: Option<u32>, to: u16, owner: u64) {
            let states = [
                WaitState::Running,
                WaitState::Idle,
                WaitState::Receive { from: from.map(Rank), tag },
                WaitState::Send { to: Rank(to) },
            ];
            for state in states {
                prop_assert_eq!(WaitState::parse(state.emit(owner)), state);
                prop_assert!(WaitState::is_of(owner, &state.emit(owner)));
                prop_assert!(!WaitState::is_of(!owner, &state.emit(owner)));
            }
        }
    }
}
