//! Frames of updates, and the acknowledgements that wait for one.

use std::collections::VecDeque;

use midplane_simhw::wire;

use super::{LENGTH, MAX_ACK_BYTES, MAX_VALUE};
use crate::memory::{Coherence, Update};

/// Returns true if no value of the update is longer than a member can write. Only then every update
/// that carries the value further is short enough to be encoded.
pub(super) fn has_short_values(update: &Update<Vec<u8>>) -> bool {
    let is_short = |value: &Vec<u8>| value.len() <= MAX_VALUE;
    match update {
        Update::Slow { value, .. } | Update::Pram { value, .. } => is_short(value),
        Update::Coherent(Coherence::Request(entry) | Coherence::Place { entry, .. }) => {
            is_short(&entry.value)
        }
        Update::Coherent(Coherence::Known { log, .. } | Coherence::View { log, .. }) => {
            log.iter().all(|(_, entry)| is_short(&entry.value))
        }
        Update::SlowAck { .. } | Update::Coherent(_) => true,
    }
}

/// Waiting acknowledgements, encoded, and their bytes with the length fields.
#[derive(Debug, Default)]
pub(super) struct Acks {
    updates: VecDeque<Vec<u8>>,
    pub(super) bytes: usize,
}

impl Acks {
    /// Adds an acknowledgement. One that finds no room is dropped: later copies of a slow write are
    /// acknowledged again, and the refusal of a PRAM write is lost.
    pub(super) fn push(&mut self, update: Vec<u8>) {
        if self.bytes + LENGTH + update.len() <= MAX_ACK_BYTES {
            self.bytes += LENGTH + update.len();
            self.updates.push_back(update);
        }
    }

    /// Moves the oldest acknowledgements to a frame, up to a frame length of `most` bytes.
    pub(super) fn move_to(&mut self, frame: &mut Vec<u8>, most: usize) {
        while let Some(update) = self.updates.front()
            && frame.len() + LENGTH + update.len() <= most
        {
            self.bytes -= LENGTH + update.len();
            add(frame, update);
            self.updates.pop_front();
        }
    }
}

/// Adds an update to a frame: its length, then its bytes.
pub(super) fn add(frame: &mut Vec<u8>, update: &[u8]) {
    let length = u16::try_from(update.len()).expect("an update is shorter than 64 KiB");
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(update);
}

/// Decodes the updates of a frame, up to the first invalid one.
pub(super) fn updates(mut bytes: &[u8]) -> impl Iterator<Item = Update<Vec<u8>>> + '_ {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (update, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        bytes = rest;
        wire::decode(update).ok()
    })
}
