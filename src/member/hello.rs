//! The description of itself that each node sends to its peers.

use midplane_simhw::seal::PublicKey;
use midplane_simhw::wire::{WireError, decode_first, encode};
use serde::{Deserialize, Serialize};

/// Version of the descriptions that nodes exchange, and of the frames between them.
///
/// Nodes of adjacent minor versions of this crate interoperate, so that a cluster is updated one node at a time:
///
/// - A minor version may append fields to the description. Older nodes ignore bytes behind the fields that they know;
///   newer ones take a missing field for its default.
/// - A new kind of frame is sent only to peers whose description states that they know it.
/// - A change that an older node would misread raises this number. The new version then also reads the version before, and
///   describes itself in it to peers that use it, for one minor version at least.
///
/// Tests pin the bytes of each frame; one that fails shows that a rule was broken.
pub(crate) const VERSION: u32 = 2;
/// Most services that a node may offer.
pub(crate) const MAX_SERVICES: usize = 64;
/// Most bytes of a node's or a service's name.
pub(crate) const MAX_NAME: usize = 100;

/// A node's description of itself.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// A random number that identifies this incarnation of the node.
    pub(crate) id: u64,
    /// Milliseconds of the system's clock at the node's start: of two nodes with one name, the later has the higher
    /// value.
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    /// The services that the node offers now.
    pub(crate) services: Vec<String>,
    /// The number of another living node that had the receiver's name before it; 0 if the sender knows of none.
    pub(crate) rival: u64,
    /// The cluster's name: nodes of different clusters do not connect. Empty if the sender is older than this field.
    pub(crate) cluster: String,
    /// The sender's own public key, which it proves over sealed sessions; zeros if it has none, or is older.
    pub(crate) key: [u8; 32],
    /// True if the sender's key is kept in a file: it has the same key after a restart.
    pub(crate) is_kept: bool,
    /// The reason why the sender refuses the receiver, by [`Refusal`]'s numbers; 0 if it does not.
    pub(crate) refusal: u8,
    /// The sender's provider of libfabric, a zero, and the name of its endpoint; empty if it has none, or is older.
    pub(crate) ofi: Vec<u8>,
}

/// Bytes of the fields that older nodes do not send, counted from the end: libfabric's empty endpoint; with the keys
/// and the refusal; with the empty name of a cluster as well.
const APPENDED: [usize; 3] = [8, 8 + 34, 8 + 34 + 8];
/// Most bytes of an endpoint of libfabric.
const MAX_OFI: usize = 600;

/// The reason why a node refuses another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// Its name is that of a node with another key.
    Name,
    /// It is at a place that is listed with another key.
    Place,
    /// It states a key that it has not proven.
    Unproven,
    /// A reason that this version does not know.
    Other(u8),
}

impl Refusal {
    /// Converts a number; `None` for 0.
    pub(crate) const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::Name,
            2 => Self::Place,
            3 => Self::Unproven,
            other => Self::Other(other),
        })
    }

    /// Returns the refusal's number.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Name => 1,
            Self::Place => 2,
            Self::Unproven => 3,
            Self::Other(other) => other,
        }
    }
}

/// The reason why the node at a place is not used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stranger {
    /// It speaks another version.
    Version(u32),
    /// It is of another cluster.
    Cluster(String),
    /// The node has this name, and this node refuses it because of its key.
    Key(String, Refusal),
    /// The node has this name, and refuses this node because of its key.
    Refuses(String, Refusal),
}

/// The reason why a description can't be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unreadable {
    /// Its sender speaks another version.
    Version(u32),
    /// The bytes are not a description that a correct node sends.
    Malformed,
}

impl Hello {
    pub(crate) fn emit(&self) -> Vec<u8> {
        encode(self).expect("names and their number are bounded")
    }

    /// Parses a description.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (version, _) = bytes.split_first_chunk().ok_or(Unreadable::Malformed)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let hello = Self::decode(bytes).map_err(|_| Unreadable::Malformed)?;
        let is_short = |name: &String| name.len() <= MAX_NAME;
        let fits = hello.services.len() <= MAX_SERVICES && is_short(&hello.name);
        let fits = fits
            && hello.ofi.len() <= MAX_OFI
            && is_short(&hello.cluster)
            && hello.services.iter().all(is_short);
        fits.then_some(hello).ok_or(Unreadable::Malformed)
    }

    /// Returns the key that the sender claims to have.
    pub(crate) fn key(&self) -> Option<PublicKey> {
        (self.key != [0; 32]).then_some(PublicKey::new(self.key))
    }

    /// Decodes a description. Fields that an older node does not send are zeros, their default.
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len() + APPENDED[2], 0);
        let hello: Self = decode_first(&padded)?;
        let missing = encode(&hello)?.len().saturating_sub(bytes.len());
        let [ofi, keys, cluster] = APPENDED;
        let is_oldest = missing == cluster && hello.cluster.is_empty();
        let is_older = hello.ofi.is_empty() && (missing == ofi || missing == keys || is_oldest);
        let is_whole = missing == 0 || is_older;
        if is_whole { Ok(hello) } else { Err(WireError::Malformed) }
    }
}

/// Explains to the reader of a failed test what changed golden bytes mean.
#[cfg(test)]
pub(crate) const CHANGED: &str =
    "bytes on the wire have changed: bump the version, and keep reading the old one";

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            id: 0x0102_0304_0506_0708,
            incarnation: 9,
            name: "orders-1".into(),
            services: vec!["orders".into(), "kv".into()],
            rival: 3,
            cluster: "a".into(),
            key: [5; 32],
            is_kept: true,
            refusal: 1,
            ofi: b"efa\0name".to_vec(),
        }
    }

    #[test]
    fn the_bytes_of_a_description_never_change() {
        let mut golden = vec![2, 0, 0, 0];
        golden.extend([8, 7, 6, 5, 4, 3, 2, 1]);
        golden.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend(b"\x08\0\0\0\0\0\0\0orders-1");
        golden.extend(b"\x02\0\0\0\0\0\0\0");
        golden.extend(b"\x06\0\0\0\0\0\0\0orders\x02\0\0\0\0\0\0\0kv");
        golden.extend([3, 0, 0, 0, 0, 0, 0, 0]);
        let former = Hello { ofi: Vec::new(), ..hello() };
        let older = Hello { key: [0; 32], is_kept: false, refusal: 0, ..former.clone() };
        let oldest = Hello { cluster: String::new(), ..older.clone() };
        assert_eq!(Hello::parse(&golden), Ok(oldest), "{CHANGED}");
        golden.extend(b"\x01\0\0\0\0\0\0\0a");
        assert_eq!(Hello::parse(&golden), Ok(older), "{CHANGED}");
        golden.extend([5; 32]);
        golden.extend([1, 1]);
        assert_eq!(Hello::parse(&golden), Ok(former), "{CHANGED}");
        golden.extend(b"\x08\0\0\0\0\0\0\0efa\0name");
        assert_eq!(hello().emit(), golden, "{CHANGED}");
        assert_eq!(Hello::parse(&golden), Ok(hello()), "{CHANGED}");
        let reasons = (0..=4).map(Refusal::of).collect::<Vec<_>>();
        let known = [Refusal::Name, Refusal::Place, Refusal::Unproven, Refusal::Other(4)];
        assert_eq!(reasons[1..], known.map(Some), "{CHANGED}");
        assert_eq!((reasons[0], known.map(Refusal::number)), (None, [1, 2, 3, 4]), "{CHANGED}");
    }

    #[test]
    fn a_description_that_ends_within_a_field_is_none() {
        let whole = hello().emit();
        let ofi = 8 + hello().ofi.len();
        let older = [whole.len() - ofi, whole.len() - ofi - 34, whole.len() - ofi - 34 - 9];
        for length in 0..whole.len() {
            let read = Hello::parse(&whole[..length]);
            assert_eq!(read.is_ok(), older.contains(&length), "{length} bytes: {read:?}");
        }
        let mut wrong = whole;
        let at = wrong.len() - ofi - 2;
        wrong[at] = 2;
        assert_eq!(Hello::parse(&wrong), Err(Unreadable::Malformed), "kept or not, nothing third");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_description_or_none(mut bytes: Vec<u8>, is_ours: bool) {
            if is_ours {
                bytes.splice(0..bytes.len().min(4), VERSION.to_le_bytes());
            }
            if let Ok(read) = Hello::parse(&bytes) {
                proptest::prop_assert!(read.name.len() <= MAX_NAME);
            }
        }
    }

    #[test]
    fn fields_that_a_later_version_appends_are_ignored() {
        let mut bytes = hello().emit();
        bytes.extend(b"a field of the next minor version");
        assert_eq!(Hello::parse(&bytes), Ok(hello()));
        bytes[0] = 3;
        assert_eq!(Hello::parse(&bytes), Err(Unreadable::Version(3)));
        assert_eq!(Hello::parse(&hello().emit()[..30]), Err(Unreadable::Malformed));
    }
}
