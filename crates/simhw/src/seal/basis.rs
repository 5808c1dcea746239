//! The keys that a handshake uses: the fabric's, the two nodes' own, or both.

use snow::Builder;

use super::{Identity, Key};
use crate::id::NodeId;

/// The handshake of those who share a key: two messages, the key mixed in before the first.
const SHARED: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// That of two nodes who know each other's keys as well. Both are known beforehand, so none is sent: its
/// messages are as long as the other's.
const NAMED: &str = "Noise_KKpsk0_25519_ChaChaPoly_BLAKE2s";

/// The secrets of one handshake between this node and another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis<'a> {
    pub(super) key: &'a Key,
    /// This node's own keys and who the other is, where nodes are told apart.
    pub(super) named: Option<(&'a Identity, NodeId)>,
}

impl<'a> Basis<'a> {
    /// A handshake that is bound to `prologue`; `None` if the list does not name the other node.
    pub(super) fn builder(self, prologue: &'a [u8]) -> Option<Builder<'a>> {
        let pattern = if self.named.is_some() { NAMED } else { SHARED };
        let builder = Builder::new(pattern.parse().ok()?);
        let builder = builder.psk(0, &self.key.secret).ok()?.prologue(prologue).ok()?;
        let Some((own, other)) = self.named else { return Some(builder) };
        let builder = builder.local_private_key(own.secret().bytes()).ok()?;
        builder.remote_public_key(own.peer(other)?.bytes()).ok()
    }
}
