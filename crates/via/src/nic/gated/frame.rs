//! The frames that hosts write to each other's rings.

use midplane_simhw::peer_rings::WORDS;

use crate::command::Ends;

/// The words of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fields {
    pub(super) kind: Kind,
    /// The receiver's interface, and its number of the connection.
    pub(super) vi: u16,
    pub(super) connection: u16,
    /// Bytes of the message, and the offset in it of the payload.
    pub(super) total: u32,
    pub(super) offset: u32,
    pub(super) immediate: Option<u32>,
    /// The memory that the frame concerns, as a region's first word.
    pub(super) memory: u64,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A message, or a part of one.
    Send = 2,
    /// A request to map memory, in order to write it.
    MapRequest = 3,
    /// The answer that the memory can't be mapped.
    MapDenied = 4,
    /// A report that a write of that many bytes, with immediate data, is done.
    Written = 5,
}

impl Fields {
    /// Makes a frame to the other end of a connection.
    pub(super) const fn to(ends: &Ends, kind: Kind) -> Self {
        let (vi, connection) = (ends.remote_vi.0, ends.remote_connection);
        Self { kind, vi, connection, total: 0, offset: 0, immediate: None, memory: 0 }
    }

    #[inline]
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let to = u64::from(self.vi) | u64::from(self.connection) << 16;
        let immediate = self.immediate.map_or(0, |value| 1 << 32 | u64::from(value));
        let part = u64::from(self.total) | u64::from(self.offset) << 32;
        [to | (self.kind as u64) << 32, part, immediate, self.memory, 0]
    }

    /// Decodes any words; returns `None` if no correct host writes such a frame.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(super) fn of(words: [u64; WORDS]) -> Option<Self> {
        let [first, part, immediate, memory, _] = words;
        let kind = match first >> 32 {
            2 => Kind::Send,
            3 => Kind::MapRequest,
            4 => Kind::MapDenied,
            5 => Kind::Written,
            _ => return None,
        };
        Some(Self {
            kind,
            vi: first as u16,
            connection: (first >> 16) as u16,
            total: part as u32,
            offset: (part >> 32) as u32,
            immediate: (immediate >> 32 != 0).then_some(immediate as u32),
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_survive_and_any_words_are_some_or_none(
            vi: u16, connection: u16, total: u32, offset: u32, immediate: Option<u32>, memory: u64,
            any: [u64; WORDS],
        ) {
            let fields = Fields { kind: Kind::MapRequest, vi, connection, total, offset, immediate, memory };
            prop_assert_eq!(Fields::of(fields.to_words()), Some(fields));
            if let Some(fields) = Fields::of(any) {
                prop_assert_eq!(Fields::of(fields.to_words()), Some(fields));
            }
        }
    }
}
