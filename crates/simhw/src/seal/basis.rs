//! The keys of a handshake: the fabric's, those of the two nodes, or both.

use snow::Builder;

use super::noise::noise;
use super::{Identity, Key};
use crate::id::NodeId;

/// The handshake between holders of one key: two messages, with the key mixed in before the first.
const SHARED: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The handshake between two nodes that also know each other's public keys. No key is sent, so that its
/// messages are as long as those of [`SHARED`].
const NAMED: &str = "Noise_KKpsk0_25519_ChaChaPoly_BLAKE2s";

/// The secrets of one handshake between this node and another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis<'a> {
    pub(super) key: &'a Key,
    /// This node's identity and the other node, if nodes have identities.
    pub(super) named: Option<(&'a Identity, NodeId)>,
}

impl<'a> Basis<'a> {
    /// Builds a handshake that is bound to `prologue`; `None` if the list does not name the other node.
    pub(super) fn builder(self, prologue: &'a [u8]) -> Option<Builder<'a>> {
        let pattern = if self.named.is_some() { NAMED } else { SHARED };
        let builder = noise(pattern)?;
        let builder = builder.psk(0, &self.key.secret).ok()?.prologue(prologue).ok()?;
        let Some((own, other)) = self.named else { return Some(builder) };
        let builder = builder.local_private_key(own.secret().bytes()).ok()?;
        builder.remote_public_key(own.peer(other)?.bytes()).ok()
    }
}
