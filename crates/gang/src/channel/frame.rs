//! Frames between channels: what the fields that a data frame's header leaves free say.
//!
//! | field | message | answer | fence |
//! |---|---|---|---|
//! | port | channel of the receiver of this frame | the same | the same |
//! | flags | 0 | 1, with 4 if the rest of the round is refused, 8 if the context is not there | 2 |
//! | sequence | the message's | all before are answered | first that is not taken |
//! | acknowledgement | 0 | all before are taken | 0 |
//! | word 0 | job, epoch | the same | the same |
//! | word 1 | round, sending rank, receiving rank | the same, the round that it answers | the same |

use midplane_simhw::frame::Header;

use super::ack::Answer;
use crate::names::{ChannelId, Epoch, JobId, Rank};

const ANSWER: u8 = 1;
const FENCE: u8 = 2;
const REFUSED: u8 = 4;
const ABSENT: u8 = 8;
/// Bits that say something.
const KNOWN: u8 = 15;

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Body {
    Message { round: u16, sequence: u32 },
    Fence { round: u16, sequence: u32 },
    Answer(Answer),
}

/// A frame's header, as far as it is ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PmFrame {
    pub(crate) channel: ChannelId,
    pub(crate) job: JobId,
    pub(crate) epoch: Epoch,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) body: Body,
}

/// What a packet is given of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fields {
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    pub(crate) words: [u64; 2],
}

impl PmFrame {
    pub(crate) fn fields(&self) -> Fields {
        let (flags, sequence, acknowledgement, round) = match self.body {
            Body::Message { round, sequence } => (0, sequence, 0, round),
            Body::Fence { round, sequence } => (FENCE, sequence, 0, round),
            Body::Answer(Answer { round, expected, seen, refused }) => {
                let absent = if expected.is_none() { ABSENT } else { 0 };
                let refused = if refused { REFUSED } else { 0 };
                (ANSWER | refused | absent, seen, expected.unwrap_or(0), round)
            }
        };
        let ranks = u64::from(self.from.0) << 16 | u64::from(self.to.0) << 32;
        Fields {
            flags,
            sequence,
            acknowledgement,
            words: [
                u64::from(self.job.0) | u64::from(self.epoch.0) << 32,
                u64::from(round) | ranks,
            ],
        }
    }

    /// Reads a header; `None` if nobody of ours has written it.
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(crate) fn parse(header: &Header) -> Option<Self> {
        let [names, ranks] = header.words;
        let (round, sequence) = (ranks as u16, header.sequence);
        let flags = header.flags;
        let body = match flags & (ANSWER | FENCE) {
            0 if flags == 0 => Body::Message { round, sequence },
            FENCE if flags == FENCE && header.length == 0 => Body::Fence { round, sequence },
            ANSWER if flags & !KNOWN == 0 && header.length == 0 => Body::Answer(Answer {
                round,
                expected: (flags & ABSENT == 0).then_some(header.acknowledgement),
                seen: sequence,
                refused: flags & REFUSED != 0,
            }),
            _ => return None,
        };
        (ranks >> 48 == 0).then_some(Self {
            channel: ChannelId(header.port.0),
            job: JobId(names as u32),
            epoch: Epoch((names >> 32) as u32),
            from: Rank((ranks >> 16) as u16),
            to: Rank((ranks >> 32) as u16),
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use midplane_simhw::id::PortId;
    use proptest::prelude::*;

    fn any_body() -> impl Strategy<Value = Body> {
        prop_oneof![
            any::<(u16, u32)>().prop_map(|(round, sequence)| Body::Message { round, sequence }),
            any::<(u16, u32)>().prop_map(|(round, sequence)| Body::Fence { round, sequence }),
            any::<(u16, Option<u32>, u32, bool)>().prop_map(|(round, expected, seen, refused)| {
                Body::Answer(Answer { round, expected, seen, refused })
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_frame_survives_its_header(
            names in any::<(u16, u32, u32, u16, u16)>(), body in any_body(),
        ) {
            let (channel, job, epoch, from, to) = names;
            let frame = PmFrame {
                channel: ChannelId(channel), job: JobId(job), epoch: Epoch(epoch),
                from: Rank(from), to: Rank(to), body,
            };
            let Fields { flags, sequence, acknowledgement, words } = frame.fields();
            let port = PortId(channel);
            let header =
                Header { port, flags, sequence, acknowledgement, words, ..Header::default() };
            prop_assert_eq!(PmFrame::parse(&header), Some(frame));
        }

        #[test]
        fn any_header_is_read_or_refused(
            flags: u8, length: u16, words: [u64; 2], sequence: u32,
        ) {
            let header = Header { flags, length, words, sequence, ..Header::default() };
            if let Some(frame) = PmFrame::parse(&header) {
                prop_assert_eq!(frame.fields().words, words);
            }
        }
    }
}
