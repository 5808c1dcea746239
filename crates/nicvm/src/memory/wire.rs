//! The wire messages of the distributed address space.

use midplane_simhw::port::Status;

use super::Capability;
use crate::control::MAX_MESSAGE;

/// Most bytes that an access carries in its message; larger ones travel in frames.
pub(crate) const INLINE: usize = 64;

/// The kind of an access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Access {
    Read = 1,
    Write = 2,
    WriteMany = 3,
    Swap = 4,
    Add = 5,
    /// Requests lost frames of a large read again; two words give the first and the count.
    ReadPart = 6,
}

impl Access {
    const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::WriteMany, Self::Swap, Self::Add, Self::ReadPart];
}

const ASK: u8 = 0x10;
const ANSWER: u8 = 0x20;
const SENT: u8 = 0x30;
const LACKING: u8 = 0x40;

/// One message; `number` is the access's number at the requesting node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Message<'a> {
    /// Requests an access.
    Ask { number: u32, access: Access, capability: Capability, inline: &'a [u8] },
    /// The outcome of an access; for a large read, all its frames were sent.
    Answer { number: u32, status: Status, bytes: &'a [u8] },
    /// Reports that all frames of a large write were sent.
    Sent { number: u32 },
    /// Requests frames of a large write that have not arrived.
    Lacking { number: u32, first: u32, count: u32 },
}

impl<'a> Message<'a> {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_MESSAGE);
        match *self {
            Self::Ask { number, access, capability, inline } => {
                bytes.push(ASK | access as u8);
                bytes.extend(number.to_le_bytes());
                for word in capability.to_words() {
                    bytes.extend(word.to_le_bytes());
                }
                bytes.extend(inline);
            }
            Self::Answer { number, status, bytes: with } => {
                bytes.push(ANSWER | status as u8);
                bytes.extend(number.to_le_bytes());
                bytes.extend(with);
            }
            Self::Sent { number } => {
                bytes.push(SENT);
                bytes.extend(number.to_le_bytes());
            }
            Self::Lacking { number, first, count } => {
                bytes.push(LACKING);
                for word in [number, first, count] {
                    bytes.extend(word.to_le_bytes());
                }
            }
        }
        bytes
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first()?;
        let (number, rest) = word(rest)?;
        Some(match head & 0xF0 {
            ASK => {
                let access = Access::ALL.into_iter().find(|access| *access as u8 == head & 0xF)?;
                let (words, inline) = rest.split_first_chunk::<24>()?;
                let mut capability = [0; 3];
                for (word, bytes) in capability.iter_mut().zip(words.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().ok()?);
                }
                let capability = Capability::from_words(capability);
                (inline.len() <= INLINE).then_some(Self::Ask {
                    number,
                    access,
                    capability,
                    inline,
                })?
            }
            ANSWER => {
                let status = Status::from_number(head & 0xF)?;
                (rest.len() <= INLINE).then_some(Self::Answer { number, status, bytes: rest })?
            }
            SENT if rest.is_empty() && *head == SENT => Self::Sent { number },
            LACKING if *head == LACKING => {
                let (first, rest) = word(rest)?;
                let (count, rest) = word(rest)?;
                rest.is_empty().then_some(Self::Lacking { number, first, count })?
            }
            _ => return None,
        })
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsed_messages_encode_to_the_same_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..=MAX_MESSAGE),
        ) {
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.emit(), bytes);
            }
        }
    }

    #[test]
    fn the_largest_access_fits_a_control_message() {
        let (capability, inline) = (Capability::default(), &[0; INLINE][..]);
        let ask = Message::Ask { number: 7, access: Access::Write, capability, inline };
        assert!(ask.emit().len() <= MAX_MESSAGE);
        assert_eq!(Message::parse(&ask.emit()), Some(ask));
    }
}
