//! Identities of nodes: a key pair for each node, and the list of all public keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use thiserror::Error;

use crate::id::NodeId;

/// Bytes of a Curve25519 key.
const BYTES: usize = 32;

/// A node's secret key, with which it proves its identity: a private key of X25519.
///
/// Its text form is 64 hexadecimal digits. Keep it in a file that only the node's user can read.
#[derive(Clone, Eq, PartialEq)]
pub struct SecretKey([u8; BYTES]);

/// A node's public key, which identifies it to its peers. Its text form is 64 hexadecimal digits.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PublicKey([u8; BYTES]);

/// The error of making a key without a source of randomness.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the system has no random numbers to make a key of")]
pub struct NoRandom;

/// The error of a text that is not a node's key. Its `Debug` text is readable as well: `main` may return it.
#[derive(Clone, Copy, Eq, Error, PartialEq)]
#[error("a node's key is 64 hexadecimal digits")]
pub struct NodeKeyError;

impl fmt::Debug for NodeKeyError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// The reason why a node's keys do not match.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum IdentityError {
    /// The list has no entry for the node.
    #[error("node {node} is outside the list of {keys} keys; give one a node")]
    Outside {
        /// The node.
        node: NodeId,
        /// Number of keys.
        keys: usize,
    },
    /// The list has another key for the node than that of its secret.
    #[error(
        "the list has key {listed} for node {node}, whose own is {own}; correct the list or the secret key"
    )]
    NotOwn {
        /// The node.
        node: NodeId,
        /// The public key on the list.
        listed: PublicKey,
        /// The public key of the node's secret.
        own: PublicKey,
    },
    /// Two nodes have the same key, and could impersonate each other.
    #[error("nodes {first} and {second} have one key; make one for each")]
    Shared {
        /// The first of the two.
        first: NodeId,
        /// The second.
        second: NodeId,
    },
}

impl SecretKey {
    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// [`NoRandom`] if the system has none.
    pub fn generate() -> Result<Self, NoRandom> {
        let mut bytes = [0; BYTES];
        let mut random = DefaultResolver.resolve_rng().ok_or(NoRandom)?;
        random.try_fill_bytes(&mut bytes).map_err(|_| NoRandom)?;
        Ok(Self(bytes))
    }

    /// Returns the public key that identifies the node to its peers.
    ///
    /// # Panics
    /// Never panics: this build has Curve25519.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("it is built in");
        curve.set(&self.0);
        let mut public = [0; BYTES];
        public.copy_from_slice(&curve.pubkey()[..BYTES]);
        PublicKey(public)
    }

    /// Returns the secret as text, for a key file. Anyone who can read it can impersonate the node.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.0)
    }

    /// Returns the secret, for handshakes of other layers. Never print it.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl FromStr for SecretKey {
    type Err = NodeKeyError;

    fn from_str(text: &str) -> Result<Self, NodeKeyError> {
        unhex(text.trim()).map(Self).ok_or(NodeKeyError)
    }
}

/// Prints the public key only.
impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretKey").field("public", &self.public()).finish_non_exhaustive()
    }
}

impl PublicKey {
    /// Creates a key from the bytes that a node has sent or proven to own.
    #[must_use]
    pub const fn new(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes of the key.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = NodeKeyError;

    fn from_str(text: &str) -> Result<Self, NodeKeyError> {
        unhex(text.trim()).map(Self).ok_or(NodeKeyError)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hex(bytes: &[u8; BYTES]) -> String {
    use fmt::Write as _;

    bytes.iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn unhex(digits: &str) -> Option<[u8; BYTES]> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; BYTES];
    if pairs.len() != BYTES {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(bytes)
}

/// A node's identity: its secret key, and the list of all nodes' public keys.
///
/// A node with a key that is not on the list is refused, and a key is valid for its own node only.
#[derive(Clone)]
pub struct Identity(Arc<Parts>);

struct Parts {
    node: NodeId,
    secret: SecretKey,
    peers: Vec<PublicKey>,
}

impl Identity {
    /// Creates the identity of `node`; `peers[i]` is the public key of node `i`, including this one's.
    ///
    /// # Errors
    /// [`IdentityError`] says which key is wrong.
    pub fn new(
        node: NodeId,
        secret: SecretKey,
        peers: Vec<PublicKey>,
    ) -> Result<Self, IdentityError> {
        let keys = peers.len();
        let listed = *peers.get(node.index()).ok_or(IdentityError::Outside { node, keys })?;
        let own = secret.public();
        if listed != own {
            return Err(IdentityError::NotOwn { node, listed, own });
        }
        let mut sorted: Vec<(PublicKey, u16)> = peers.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        if let Some(two) = sorted.windows(2).find(|two| two[0].0 == two[1].0) {
            let (first, second) = (NodeId(two[0].1), NodeId(two[1].1));
            return Err(IdentityError::Shared { first, second });
        }
        Ok(Self(Arc::new(Parts { node, secret, peers })))
    }

    /// Returns the node of this identity.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns the number of nodes on the list.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.0.peers.len()
    }

    pub(super) fn secret(&self) -> &SecretKey {
        &self.0.secret
    }

    /// Returns the public key of a node, if it is on the list.
    pub(super) fn peer(&self, node: NodeId) -> Option<&PublicKey> {
        self.0.peers.get(node.index())
    }
}

/// Prints public keys only.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { node, peers, .. } = &*self.0;
        f.debug_struct("Identity").field("node", node).field("peers", peers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> SecretKey {
        SecretKey([byte; BYTES])
    }

    #[test]
    fn keys_are_read_from_text_and_secrets_never_shown() {
        let (own, other) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        assert!(own != other && own.public() != other.public());
        assert_eq!(format!("{}\n", own.to_text()).parse(), Ok(own.clone()));
        assert_eq!(own.public().to_string().parse(), Ok(own.public()));
        let identity = Identity::new(NodeId(0), own.clone(), vec![own.public()]).unwrap();
        let shown = format!("{own:?} {identity:?}");
        assert!(shown.contains(&own.public().to_string()) && !shown.contains(&own.to_text()));
        let text = "0a".repeat(32);
        for wrong in ["", "0a", &text[1..], &format!("{text}00"), &text.replace('a', "g")] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(NodeKeyError), "{wrong}");
            assert_eq!(wrong.parse::<SecretKey>(), Err(NodeKeyError), "{wrong}");
        }
        assert_eq!("é".repeat(32).parse::<PublicKey>(), Err(NodeKeyError));
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused_with_the_entry() {
        let list =
            |bytes: &[u8]| bytes.iter().map(|byte| secret(*byte).public()).collect::<Vec<_>>();
        let made = |node, byte, peers: &[u8]| {
            Identity::new(NodeId(node), secret(byte), list(peers)).map(|identity| identity.node())
        };
        assert_eq!(made(1, 2, &[1, 2, 3]), Ok(NodeId(1)));
        let outside = IdentityError::Outside { node: NodeId(3), keys: 3 };
        assert_eq!(made(3, 1, &[1, 2, 3]), Err(outside));
        let (listed, own) = (secret(2).public(), secret(3).public());
        assert_eq!(
            made(1, 3, &[1, 2, 3]),
            Err(IdentityError::NotOwn { node: NodeId(1), listed, own })
        );
        let shared = IdentityError::Shared { first: NodeId(0), second: NodeId(2) };
        assert_eq!(made(1, 2, &[1, 2, 1]), Err(shared));
    }
}
