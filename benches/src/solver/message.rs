//! Messages between ranks: updates, stamped as in the paper, and notes.

use midplane::simhw::id::PortId;
use midplane::simhw::time::Instant;
use serde::{Deserialize, Serialize};

/// The port of all messages.
pub const PORT: PortId = PortId(0);
/// The tag of updates, plus the number of their round if the iteration has rounds; notes have none.
pub const UPDATES: u32 = 1;
/// Bytes of an update: number of the unknown, and its value.
const UPDATE_BYTES: usize = 10;
/// Bytes before the updates of a message: the send time.
const STAMP_BYTES: usize = 8;
/// Largest number of updates in a message: it fits into one frame.
pub const MAX_UPDATES: usize = 128;
/// Bytes of the longest message of updates, and of the longest note.
pub const MESSAGE_BYTES: usize = length(MAX_UPDATES);
pub const NOTE_BYTES: usize = 1_300;
/// Values in one message of a report.
pub const REPORT_VALUES: usize = 150;

/// Notes between ranks and coordinator.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Note {
    /// A rank is alive.
    Alive,
    AtRest {
        round: u32,
    },
    Values {
        round: u32,
        first: u32,
        of: u32,
        values: Vec<f64>,
    },
    Hold {
        round: u32,
    },
    Resume {
        round: u32,
    },
    Stop,
    /// Values of this round are missing.
    Missing {
        round: u32,
    },
}

/// Counts of a rank.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Tally {
    /// Sent and received messages of updates.
    pub sent: u64,
    pub messages: u64,
    /// Number of received updates.
    pub updates: u64,
    /// Number of sweeps over the rank's unknowns.
    pub iterations: u64,
}

impl Tally {
    pub const fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.messages += other.messages;
        self.updates += other.updates;
        self.iterations += other.iterations;
    }
}

/// Returns the bytes of a message of `count` updates.
pub const fn length(count: usize) -> usize {
    STAMP_BYTES + count * UPDATE_BYTES
}

/// Returns the number of updates that fit into `bytes`.
pub const fn room(bytes: usize) -> usize {
    bytes.saturating_sub(STAMP_BYTES) / UPDATE_BYTES
}

/// Encodes a message of updates, sent at `now`.
pub fn updates(now: Instant, some: &[(usize, f64)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length(some.len()));
    bytes.extend_from_slice(&now.as_nanos().to_le_bytes());
    for (i, value) in some {
        let i = u16::try_from(*i).expect("systems are refused that have more unknowns");
        bytes.extend_from_slice(&i.to_le_bytes());
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Decodes a message's send time and its updates.
pub fn parse_updates(
    bytes: &[u8],
) -> Option<(Instant, impl ExactSizeIterator<Item = (usize, f64)> + '_)> {
    let (stamp, updates) = bytes.split_first_chunk::<STAMP_BYTES>()?;
    let update = |update: &[u8]| {
        let (i, value) = update.split_at(2);
        let i = u16::from_le_bytes(i.try_into().expect("two bytes"));
        let value = f64::from_le_bytes(value.try_into().expect("eight bytes"));
        (usize::from(i), value)
    };
    let sent = Instant::from_nanos(u64::from_le_bytes(*stamp));
    Some((sent, updates.chunks_exact(UPDATE_BYTES).map(update)))
}
