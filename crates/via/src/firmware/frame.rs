//! A Virtual Interface's data frames: the use of the header's free fields.
//!
//! | field | content |
//! |---|---|
//! | port | the Virtual Interface that it is for |
//! | flags 0-2 | kind |
//! | flags 3-6 | first, last, immediate, urgent |
//! | sequence | number of the frame within the connection |
//! | acknowledgement | number of the frame that is expected next |
//! | word 0 | connection (16 bits), region slot (16 bits), region generation or message length (32 bits) |
//! | word 1 | offset (32 bits), immediate data or length of a read (32 bits) |

use midplane_simhw::frame::Header;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum FrameKind {
    Send = 0,
    Write = 1,
    ReadRequest = 2,
    ReadResponse = 3,
    /// Only an acknowledgement; takes no number.
    Acknowledge = 4,
}

const FIRST: u8 = 1 << 3;
const LAST: u8 = 1 << 4;
const IMMEDIATE: u8 = 1 << 5;
const URGENT: u8 = 1 << 6;

/// The contents of a frame's header, except the frame numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fields {
    pub(super) kind: FrameKind,
    /// True for the first and for the last frame of a message.
    pub(super) first: bool,
    pub(super) last: bool,
    /// True if `value` is immediate data.
    pub(super) immediate: bool,
    /// True for an acknowledgement if a frame is missing; for any other frame, if it is to be acknowledged at once.
    pub(super) urgent: bool,
    /// The receiver's number of the connection.
    pub(super) connection: u16,
    pub(super) slot: u16,
    /// Generation of the region; for a send, bytes of the whole message.
    pub(super) generation: u32,
    pub(super) offset: u32,
    pub(super) value: u32,
}

impl Fields {
    pub(super) const fn new(kind: FrameKind, connection: u16) -> Self {
        Self {
            kind,
            first: false,
            last: false,
            immediate: false,
            urgent: false,
            connection,
            slot: 0,
            generation: 0,
            offset: 0,
            value: 0,
        }
    }

    pub(super) const fn flags(&self) -> u8 {
        let mut flags = self.kind as u8;
        if self.first {
            flags |= FIRST;
        }
        if self.last {
            flags |= LAST;
        }
        if self.immediate {
            flags |= IMMEDIATE;
        }
        if self.urgent {
            flags |= URGENT;
        }
        flags
    }

    pub(super) const fn words(&self) -> [u64; 2] {
        let handle =
            self.connection as u64 | (self.slot as u64) << 16 | (self.generation as u64) << 32;
        [handle, self.offset as u64 | (self.value as u64) << 32]
    }

    pub(super) fn immediate_data(&self) -> Option<u32> {
        self.immediate.then_some(self.value)
    }

    /// Reads the fields of a frame; returns `None` if its kind is unknown.
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(super) const fn of(header: &Header) -> Option<Self> {
        let kind = match header.flags & 7 {
            0 => FrameKind::Send,
            1 => FrameKind::Write,
            2 => FrameKind::ReadRequest,
            3 => FrameKind::ReadResponse,
            4 => FrameKind::Acknowledge,
            _ => return None,
        };
        let [handle, place] = header.words;
        Some(Self {
            kind,
            first: header.flags & FIRST != 0,
            last: header.flags & LAST != 0,
            immediate: header.flags & IMMEDIATE != 0,
            urgent: header.flags & URGENT != 0,
            connection: handle as u16,
            slot: (handle >> 16) as u16,
            generation: (handle >> 32) as u32,
            offset: place as u32,
            value: (place >> 32) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissector;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_header_is_some_fields_that_survive_or_none(flags in 0_u8..128, words: [u64; 2]) {
            let header = Header { flags, words, ..Header::default() };
            if let Some(fields) = Fields::of(&header) {
                prop_assert_eq!((fields.flags(), fields.words()), (flags, words));
            } else {
                prop_assert!(flags & 7 > 4);
            }
        }
    }

    #[test]
    fn the_dissector_knows_all_frames_and_messages() {
        let of = |flags: u8| Fields::of(&Header { flags, ..Header::default() });
        let kinds = (0..8).filter_map(of).map(|fields| fields.kind);
        let kinds: dissector::Names =
            kinds.map(|kind| (kind as u64, dissector::variant(&kind))).collect();
        assert_eq!(dissector::table("via_kinds"), kinds);
        let flags =
            [(FIRST, "first"), (LAST, "last"), (IMMEDIATE, "immediate"), (URGENT, "urgent")];
        assert_eq!(dissector::table("via_flags"), dissector::names(flags));
        // Sets all bits: no field may be lost.
        let all = flags.iter().fold(FrameKind::Acknowledge as u8, |all, (flag, _)| all | flag);
        assert_eq!(of(!3).map(|fields| fields.flags()), Some(all));
        let messages = dissector::variants::<crate::firmware::message::Message>();
        assert_eq!(dissector::table("via_messages"), messages);
    }
}
