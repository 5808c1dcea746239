//! Frames between channels: the meaning of the data frame header's free fields.
//!
//! | field | message | answer | fence |
//! |---|---|---|---|
//! | port | the receiving rank's channel | the same | the same |
//! | flags | 0, or 16 if it carries an answer | 1; 4 if the rest of the round is refused; 8 if the context is absent | 2 |
//! | sequence | the message's number | all transmissions before it are answered | the first message not accepted |
//! | acknowledgement | with 16: all messages before it are accepted | all messages before it are accepted | 0 |
//! | word 0 | job, epoch | the same | the same |
//! | word 1 | round, sending rank, receiving rank; with 16: answered round | answered round, both ranks | round, both ranks |

use midplane_simhw::frame::Header;
use midplane_simhw::id::PortId;

use super::ack::{Answer, PiggybackedAck};
use crate::names::{ChannelId, Epoch, JobId, Rank};

const ANSWER: u8 = 1;
const FENCE: u8 = 2;
const REFUSED: u8 = 4;
const ABSENT: u8 = 8;
const CARRIES: u8 = 16;
/// The flags that an answer may have.
const KNOWN: u8 = 15;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Body {
    Message { round: u16, sequence: u32, taken: Option<PiggybackedAck> },
    Fence { round: u16, sequence: u32 },
    Answer(Answer),
}

/// The parsed header of a channel's frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PmFrame {
    pub(crate) channel: ChannelId,
    pub(crate) job: JobId,
    pub(crate) epoch: Epoch,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) body: Body,
}

impl PmFrame {
    /// Returns the frame's header, without the fields that the NIC sets.
    pub(crate) fn header(&self) -> Header {
        let ranks = u64::from(self.from.0) << 16 | u64::from(self.to.0) << 32;
        let names = u64::from(self.job.0) | u64::from(self.epoch.0) << 32;
        let port = PortId(self.channel.0);
        let fields = |flags, sequence, acknowledgement, rounds: u64| {
            let words = [names, rounds | ranks];
            Header { port, flags, sequence, acknowledgement, words, ..Header::default() }
        };
        match self.body {
            Body::Message { round, sequence, taken: None } => fields(0, sequence, 0, round.into()),
            Body::Message { round, sequence, taken: Some(taken) } => {
                let rounds = u64::from(round) | u64::from(taken.round) << 48;
                fields(CARRIES, sequence, taken.expected, rounds)
            }
            Body::Fence { round, sequence } => fields(FENCE, sequence, 0, round.into()),
            Body::Answer(Answer { round, expected, seen, refused }) => {
                let absent = if expected.is_none() { ABSENT } else { 0 };
                let refused = if refused { REFUSED } else { 0 };
                fields(ANSWER | refused | absent, seen, expected.unwrap_or(0), round.into())
            }
        }
    }

    /// Parses a header; `None` if no channel sends such frames.
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(crate) fn parse(header: &Header) -> Option<Self> {
        let [names, ranks] = header.words;
        let (round, answered) = (ranks as u16, (ranks >> 48) as u16);
        let (sequence, expected, flags) = (header.sequence, header.acknowledgement, header.flags);
        let is_empty = header.length == 0 && answered == 0;
        let body = match flags {
            0 if answered == 0 => Body::Message { round, sequence, taken: None },
            CARRIES => {
                let taken = Some(PiggybackedAck { round: answered, expected });
                Body::Message { round, sequence, taken }
            }
            FENCE if is_empty => Body::Fence { round, sequence },
            _ if flags & (ANSWER | FENCE) == ANSWER && flags & !KNOWN == 0 && is_empty => {
                Body::Answer(Answer {
                    round,
                    expected: (flags & ABSENT == 0).then_some(expected),
                    seen: sequence,
                    refused: flags & REFUSED != 0,
                })
            }
            _ => return None,
        };
        Some(Self {
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
    use crate::dissector;
    use proptest::prelude::*;

    fn any_body() -> impl Strategy<Value = Body> {
        prop_oneof![
            any::<(u16, u32, Option<(u16, u32)>)>().prop_map(|(round, sequence, taken)| {
                let taken = taken.map(|(round, expected)| PiggybackedAck { round, expected });
                Body::Message { round, sequence, taken }
            }),
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
            prop_assert_eq!(PmFrame::parse(&frame.header()), Some(frame));
        }

        #[test]
        fn any_header_is_read_or_refused(
            flags: u8, length: u16, words: [u64; 2], sequence: u32,
        ) {
            let header = Header { flags, length, words, sequence, ..Header::default() };
            if let Some(frame) = PmFrame::parse(&header) {
                prop_assert_eq!(frame.header().words, words);
            }
        }
    }

    #[test]
    fn the_dissector_knows_all_flags() {
        let flags = [
            (ANSWER, "answer"),
            (FENCE, "fence"),
            (REFUSED, "refused"),
            (ABSENT, "absent"),
            (CARRIES, "carries an answer"),
        ];
        assert_eq!(dissector::table("gang_flags"), dissector::names(flags));
        let known = flags.iter().fold(0, |all, (flag, _)| all | flag);
        for flags in 0..=u8::MAX {
            let is_frame = PmFrame::parse(&Header { flags, ..Header::default() }).is_some();
            assert!(!is_frame || flags & !known == 0, "{flags:#x}");
        }
    }
}
