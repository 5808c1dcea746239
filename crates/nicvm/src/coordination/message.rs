//! The control messages of sender coordination: the paper's four, under their names, and those for recovery and receive
//! buffers.

use std::cmp::Ordering;

use midplane_simhw::id::Incarnation;
use midplane_simhw::wire::{self, WireError};
use serde::{Deserialize, Serialize};

use super::member::{Parties, Party};
use crate::control::MAX_MESSAGE;

/// Waiting senders that one grant carries; the others are sent before it, in `UNI_REQ_LINK` messages to the same node.
pub(crate) const QUEUE_IN_GRANT: usize = 20;
/// Requesters that one `UNI_REQ_LINK` carries.
pub(crate) const REQUESTERS: usize = 64;

/// The number of a link's valid token: the witness counts them, with its incarnation in the upper half. 0 if none is
/// known.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A later epoch is greater. Incarnations wrap around, so those of two epochs must be less than half their range apart.
impl Ord for Epoch {
    fn cmp(&self, other: &Self) -> Ordering {
        let [ours, theirs] = [self, other].map(|epoch| Incarnation((epoch.0 >> 32) as u32));
        match ours == theirs {
            true => self.0.cmp(&other.0),
            false if ours.is_newer_than(theirs) => Ordering::Greater,
            false => Ordering::Less,
        }
    }
}

impl PartialOrd for Epoch {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Epoch {
    /// The token that exists from the start, if all nodes start together.
    pub(crate) const GENESIS: Self = Self(1);

    /// Returns the epoch before the first one that a witness makes in this incarnation.
    pub(crate) fn base(incarnation: Incarnation) -> Self {
        Self(u64::from(incarnation.0) << 32)
    }
}

/// A token on its way to the next holder.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Grant {
    pub(crate) epoch: Epoch,
    /// Number of this grant, counted by its granter from 1.
    pub(crate) number: u32,
    /// Evidence on the receiver's clock, in ns: all supporters confirmed this epoch at this instant or later. 0 if
    /// unknown.
    pub(crate) evidence: u64,
    /// Microseconds since a holder last asked all supporters.
    pub(crate) asked_us: u32,
    /// The senders that take part in this epoch.
    pub(crate) live: Parties,
    /// Messages that the receiver has had buffers for, and messages sent, since the epoch began. Both wrap around.
    pub(crate) buffers: u32,
    pub(crate) consumed: u32,
    /// Bytes that each holder sends while others wait.
    pub(crate) quantum: u32,
    /// Nanoseconds from this message's `clock` until its sender's last bit leaves.
    pub(crate) line_busy_ns: u32,
    /// The next holders, in order.
    pub(crate) queue: Vec<Party>,
}

/// A control message about one link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Body {
    /// `UNI_REQ_LINK`: requests the token for these parties from the presumed holder.
    UniReqLink { epoch: Epoch, requesters: Vec<Party> },
    /// `BCAST_REQ_LINK`: requests the token for this party from whichever party holds it.
    BcastReqLink { epoch: Epoch, requester: Party },
    /// `GRANT_LINK`: passes the token.
    GrantLink(Grant),
    /// `OWN_LINK_HINT`: names the holder of the token.
    OwnLinkHint { epoch: Epoch, holder: Party, live: Parties },
    /// Asks whether the receiver still supports this epoch.
    AskSupport { epoch: Epoch, round: u32 },
    /// Answers that the sender supports this epoch.
    Support { epoch: Epoch, round: u32 },
    /// Reports to the witness that this epoch's token is lost, or unusable because `suspect` does not answer.
    /// `gave_up`: the sender no longer supports this epoch and those before it.
    RecoverLink { epoch: Epoch, suspect: Option<Party>, gave_up: bool },
    /// From the witness: all epochs up to this one must be given up; tokens of its former incarnations are void.
    GiveUp { epoch: Epoch },
    /// Announces an orderly departure: the sender supports no epoch and takes no grant until its next incarnation.
    /// `taken`: the number of the receiver's last grant that reached the sender, 0 for none.
    Leave { epoch: Epoch, taken: u32 },
    /// To the receiver: all buffers are used; `consumed` messages were sent in this epoch.
    NeedBuffers { epoch: Epoch, consumed: u32 },
    /// From the receiver: there are buffers for the messages of this epoch up to number `limit`.
    AddBuffers { epoch: Epoch, limit: u32 },
}

/// A control message about one link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct LinkMessage {
    pub(crate) link: u16,
    /// The sender's clock, in ns.
    pub(crate) clock: u64,
    pub(crate) body: Body,
}

impl LinkMessage {
    /// Writes the message's bytes and returns their number.
    pub(crate) fn emit(&self, buffer: &mut [u8; MAX_MESSAGE]) -> usize {
        wire::encode_into(self, buffer).expect("every message fits the buffer")
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        wire::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissector;

    #[test]
    fn the_longest_messages_fit_a_control_message() {
        let grant = Grant {
            epoch: Epoch(u64::MAX),
            number: u32::MAX,
            evidence: u64::MAX,
            asked_us: u32::MAX,
            live: Parties::first(127),
            buffers: u32::MAX,
            consumed: u32::MAX,
            quantum: u32::MAX,
            line_busy_ns: u32::MAX,
            queue: vec![Party(9); QUEUE_IN_GRANT],
        };
        let requesters = vec![Party(9); REQUESTERS];
        for body in [Body::GrantLink(grant), Body::UniReqLink { epoch: Epoch(1), requesters }] {
            let message = LinkMessage { link: u16::MAX, clock: u64::MAX, body };
            let mut buffer = [0; MAX_MESSAGE];
            let length = message.emit(&mut buffer);
            assert_eq!(LinkMessage::parse(&buffer[..length]), Ok(message));
        }
    }

    #[test]
    fn epochs_of_later_incarnations_are_greater_across_the_wrap() {
        let last = Epoch::base(Incarnation(u32::MAX));
        let wrapped = Epoch::base(Incarnation::FIRST);
        assert!(Epoch(last.0 + 7) < wrapped && wrapped < Epoch(wrapped.0 + 1));
        assert!(Epoch::default() < Epoch::GENESIS && Epoch::GENESIS < last);
    }

    #[test]
    fn the_dissector_knows_all_messages() {
        // The paper's spelling: UNI_REQ_LINK is UniReqLink here.
        let shout = |name: &String| {
            let word = |(at, letter): (usize, char)| match letter.is_ascii_uppercase() && at > 0 {
                true => format!("_{letter}"),
                false => letter.to_ascii_uppercase().to_string(),
            };
            name.char_indices().map(word).collect::<String>()
        };
        let variants = dissector::variants::<Body>();
        let shouted: dissector::Names =
            variants.iter().map(|(number, name)| (*number, shout(name))).collect();
        assert_eq!(dissector::table("bodies"), shouted);
    }
}
