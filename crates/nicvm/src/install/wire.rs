//! The installer's wire messages.

use std::fmt;

use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};

use super::Policy;
use crate::control::MAX_MESSAGE;
use crate::extension::Epoch;

/// Most members of a cluster.
pub(crate) const MAX_MEMBERS: usize = 256;
/// Bytes of a module in one message to a member that catches up.
pub(super) const PIECE: usize = MAX_MESSAGE - 37;

pub(super) const PREPARED: u8 = 0;
pub(super) const COMMITTED: u8 = 1;
pub(super) const ABORTED: u8 = 2;

/// The SHA-256 hash of a module.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names a change: its coordinator, and its number there.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct ChangeId {
    /// The coordinating node.
    pub coordinator: NodeId,
    /// The coordinator's incarnation, and the change's number in it in the low 16 bits: 48 bits.
    pub serial: u64,
}

impl ChangeId {
    /// Returns the name of change `number` of a coordinator's incarnation.
    pub(super) const fn new(coordinator: NodeId, incarnation: Incarnation, number: u16) -> Self {
        Self { coordinator, serial: (incarnation.0 as u64) << 16 | number as u64 }
    }

    /// Returns whether the coordinator began this change before this incarnation.
    pub(super) const fn is_before(self, incarnation: Incarnation) -> bool {
        incarnation.is_newer_than(Incarnation((self.serial >> 16) as u32))
    }
}

/// The version that a change is to install.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    pub(super) id: ChangeId,
    pub(super) number: ExtensionId,
    pub(super) epoch: Epoch,
    pub(super) hash: Hash,
    /// Bytes of the module that follow; 0 if the module should be present already.
    pub(super) length: u32,
    pub(super) policy: Policy,
    pub(super) members: [u8; 32],
}

/// A message between two installers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Message<'a> {
    Offer(Offer),
    /// Requests the module from byte `at` on.
    Want {
        id: ChangeId,
        at: u32,
    },
    Ready {
        id: ChangeId,
    },
    Refused {
        id: ChangeId,
        who: NodeId,
        why: u8,
    },
    Commit {
        id: ChangeId,
    },
    Abort {
        id: ChangeId,
        who: NodeId,
        why: u8,
    },
    Done {
        id: ChangeId,
    },
    Query {
        id: ChangeId,
    },
    Known {
        id: ChangeId,
        knows: u8,
    },
    What,
    Runs {
        number: ExtensionId,
        epoch: Epoch,
        hash: Hash,
        length: u32,
        policy: u8,
        /// True if it was taken down on all members.
        is_withdrawn: bool,
    },
    Fetch {
        hash: Hash,
    },
    Piece {
        hash: Hash,
        at: u32,
        bytes: &'a [u8],
    },
    Failed {
        number: ExtensionId,
        epoch: Epoch,
    },
    Withdraw {
        number: ExtensionId,
        epoch: Epoch,
    },
}

/// Decodes a message from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn id(&mut self) -> Option<ChangeId> {
        let coordinator = NodeId(self.short()?);
        let low = self.word()?;
        let high = self.short()?;
        Some(ChangeId { coordinator, serial: u64::from(low) | u64::from(high) << 32 })
    }

    fn hash(&mut self) -> Option<Hash> {
        self.take().map(Hash)
    }

    fn version(&mut self) -> Option<(ExtensionId, Epoch)> {
        Some((ExtensionId(self.byte()?), Epoch(self.short()?)))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Encodes a message from its front.
struct Writer(Vec<u8>);

impl Writer {
    fn of(kind: u8) -> Self {
        Self(Vec::with_capacity(MAX_MESSAGE)).byte(kind)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn byte(self, byte: u8) -> Self {
        self.bytes(&[byte])
    }

    fn short(self, number: u16) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn word(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn hash(self, hash: Hash) -> Self {
        self.bytes(&hash.0)
    }

    fn version(self, number: ExtensionId, epoch: Epoch) -> Self {
        self.byte(number.0).short(epoch.0)
    }
}

/// Encodes the front of a message about one change.
fn head(kind: u8, id: ChangeId) -> Writer {
    Writer::of(kind).short(id.coordinator.0).bytes(&id.serial.to_le_bytes()[..6])
}

impl<'a> Message<'a> {
    pub(super) fn emit(&self) -> Vec<u8> {
        match self {
            Self::Offer(offer) => head(1, offer.id)
                .version(offer.number, offer.epoch)
                .hash(offer.hash)
                .word(offer.length)
                .byte(offer.policy as u8)
                .bytes(&offer.members),
            Self::Want { id, at } => head(2, *id).word(*at),
            Self::Ready { id } => head(3, *id),
            Self::Refused { id, who, why } => head(4, *id).short(who.0).byte(*why),
            Self::Commit { id } => head(5, *id),
            Self::Abort { id, who, why } => head(6, *id).short(who.0).byte(*why),
            Self::Done { id } => head(7, *id),
            Self::Query { id } => head(8, *id),
            Self::Known { id, knows } => head(9, *id).byte(*knows),
            Self::What => Writer::of(10),
            Self::Runs { number, epoch, hash, length, policy, is_withdrawn } => Writer::of(11)
                .version(*number, *epoch)
                .hash(*hash)
                .word(*length)
                .byte(*policy)
                .byte(u8::from(*is_withdrawn)),
            Self::Fetch { hash } => Writer::of(12).hash(*hash),
            Self::Piece { hash, at, bytes } => Writer::of(13).hash(*hash).word(*at).bytes(bytes),
            Self::Failed { number, epoch } => Writer::of(14).version(*number, *epoch),
            Self::Withdraw { number, epoch } => Writer::of(15).version(*number, *epoch),
        }
        .0
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut read = Reader(bytes);
        let message = match read.byte()? {
            1 => Self::Offer(Offer {
                id: read.id()?,
                number: ExtensionId(read.byte()?),
                epoch: Epoch(read.short()?),
                hash: read.hash()?,
                length: read.word().filter(|length| *length as usize <= super::MAX_MODULE)?,
                policy: Policy::of(read.byte()?.into())?,
                members: read.take()?,
            }),
            2 => Self::Want { id: read.id()?, at: read.word()? },
            3 => Self::Ready { id: read.id()? },
            4 => Self::Refused { id: read.id()?, who: NodeId(read.short()?), why: read.byte()? },
            5 => Self::Commit { id: read.id()? },
            6 => Self::Abort { id: read.id()?, who: NodeId(read.short()?), why: read.byte()? },
            7 => Self::Done { id: read.id()? },
            8 => Self::Query { id: read.id()? },
            9 => Self::Known { id: read.id()?, knows: read.byte()? },
            10 => Self::What,
            11 => {
                let (number, epoch) = read.version()?;
                let (hash, length, policy) = (read.hash()?, read.word()?, read.byte()?);
                let is_withdrawn = read.flag()?;
                Self::Runs { number, epoch, hash, length, policy, is_withdrawn }
            }
            12 => Self::Fetch { hash: read.hash()? },
            13 => Self::Piece { hash: read.hash()?, at: read.word()?, bytes: read.rest() },
            kind @ (14 | 15) => {
                let (number, epoch) = read.version()?;
                match kind {
                    14 => Self::Failed { number, epoch },
                    _ => Self::Withdraw { number, epoch },
                }
            }
            _ => return None,
        };
        read.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsed_messages_encode_to_the_same_bytes(
            kind in 0..17_u8,
            bytes in prop::collection::vec(any::<u8>(), 0..MAX_MESSAGE),
        ) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.emit(), bytes);
            }
        }
    }

    #[test]
    fn the_largest_messages_fit_a_control_message() {
        let id = ChangeId::new(NodeId(1), Incarnation(u32::MAX), u16::MAX);
        let (hash, members) = (Hash([7; 32]), [0xFF; 32]);
        let (number, epoch) = (ExtensionId(16), Epoch(3));
        let policy = Policy::Restart;
        let bytes = &[5; MAX_MESSAGE][..];
        for message in [
            Message::Offer(Offer { id, number, epoch, hash, length: 9, policy, members }),
            Message::Want { id, at: 1 },
            Message::Piece { hash, at: 1, bytes: &bytes[..PIECE] },
        ] {
            assert!(message.emit().len() <= MAX_MESSAGE);
            assert_eq!(Message::parse(&message.emit()), Some(message));
        }
    }

    /// The incarnations of live NICs count 64 ms: half the range of 16 bits is 35 minutes.
    #[test]
    fn a_change_of_a_long_lived_coordinator_is_of_its_former_incarnation() {
        let former = Incarnation(7);
        let id = ChangeId::new(NodeId(1), former, u16::MAX);
        for later in [1, 32_767, 32_768, 40_000, 65_535, 65_536, 1 << 30] {
            assert!(id.is_before(Incarnation(former.0 + later)), "{later} later");
            let next = ChangeId::new(NodeId(1), Incarnation(former.0 + later), 1);
            assert!(!next.is_before(former) && !next.is_before(Incarnation(former.0 + later)));
        }
        assert!(!id.is_before(former));
    }
}
