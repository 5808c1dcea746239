//! The description of itself that each node sends its peers.

use midplane_simhw::wire::{WireError, decode_first, encode};
use serde::{Deserialize, Serialize};

/// Version of what nodes describe to each other, and of the frames between them.
///
/// Nodes of adjacent minor versions of this crate interoperate, so that a cluster is updated one node at a time:
///
/// - A minor version may append fields to the description. Older nodes ignore bytes behind the fields that they know;
///   newer ones take a missing field for its default.
/// - A new kind of frame is sent only to peers whose description says that they know it.
/// - What an older node would misread raises this number. The new version then reads the one before as well, and
///   describes itself in it to peers that speak it, for one minor version at least.
///
/// Tests pin the bytes of each frame; one that fails shows that a rule was broken.
pub(crate) const VERSION: u32 = 2;
/// Services that a node may offer.
pub(crate) const MOST_SERVICES: usize = 64;
/// Bytes of a node's or a service's name.
pub(crate) const MOST_NAME: usize = 100;

/// A node, as it describes itself.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// A random number that tells the node from all others, and from its former self.
    pub(crate) id: u64,
    /// Milliseconds of the system's clock at its start: of two nodes of one name, the later one is higher.
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    /// Services that it offers now.
    pub(crate) services: Vec<String>,
    /// The number of another living node that had the receiver's name before it; 0 if the sender knows of none.
    pub(crate) rival: u64,
    /// The cluster's name: nodes of others do not meet. Empty if the sender is older than this field.
    pub(crate) cluster: String,
}

/// The fields that each node of the version sends.
#[derive(Deserialize)]
struct First(u32, u64, u64, String, Vec<String>, u64);

/// Tells why the node at a place is none of this node's cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stranger {
    /// It speaks another version.
    Version(u32),
    /// It is of another cluster.
    Cluster(String),
}

/// Why a description can't be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unreadable {
    /// Its sender speaks another version.
    Version(u32),
    /// No correct node sends it.
    Malformed,
}

impl Hello {
    pub(crate) fn emit(&self) -> Vec<u8> {
        encode(self).expect("names and their number are bounded")
    }

    /// Reads a description.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (version, _) = bytes.split_first_chunk().ok_or(Unreadable::Malformed)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let hello = Self::decode(bytes).map_err(|_| Unreadable::Malformed)?;
        let is_short = |name: &String| name.len() <= MOST_NAME;
        let fits = hello.services.len() <= MOST_SERVICES && is_short(&hello.name);
        let fits = fits && is_short(&hello.cluster) && hello.services.iter().all(is_short);
        fits.then_some(hello).ok_or(Unreadable::Malformed)
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let First(version, id, incarnation, name, services, rival) = decode_first(bytes)?;
        let cluster = String::new();
        let hello = Self { version, id, incarnation, name, services, rival, cluster };
        // An empty text is its length alone.
        let first = encode(&hello)?.len() - size_of::<u64>();
        if bytes.len() == first { Ok(hello) } else { decode_first(bytes) }
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
        let older = Hello { cluster: String::new(), ..hello() };
        assert_eq!(Hello::parse(&golden), Ok(older), "{CHANGED}");
        golden.extend(b"\x01\0\0\0\0\0\0\0a");
        assert_eq!(hello().emit(), golden, "{CHANGED}");
        assert_eq!(Hello::parse(&golden), Ok(hello()), "{CHANGED}");
        assert_eq!(Hello::parse(&golden[..golden.len() - 1]), Err(Unreadable::Malformed));
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
