//! The implementations of the functions of the Noise protocol.

use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

/// Has `ring` seal and open bytes. All else is in Rust.
struct Functions;

impl CryptoResolver for Functions {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        DefaultResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// Begins to build a handshake with a pattern of the Noise Protocol Framework; returns `None` if the name of the pattern is
/// malformed.
pub(super) fn noise<'a>(pattern: &str) -> Option<Builder<'a>> {
    Some(Builder::with_resolver(pattern.parse().ok()?, Box::new(Functions)))
}
