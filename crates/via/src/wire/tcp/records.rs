//! Sealed records of a byte stream.

use midplane_simhw::seal::PublicKey;

use crate::wire::pipe::packet::TAG_BYTES;
use crate::wire::pipe::sealing::Seal;

/// Bytes of a record before its sealed bytes.
const HEAD: usize = 2;
/// Most bytes that one record seals.
const MOST: usize = 16 * 1024;

/// A record that no holder of the key has sealed, or one out of order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BadRecord;

/// Seals the bytes of one direction of a stream, and opens those of the other.
#[derive(Debug)]
pub(crate) struct Records {
    seal: Seal,
    /// Records of each direction so far: the nonce of the next one.
    sealed: u64,
    opened: u64,
    /// The beginning of a record whose end has not arrived.
    partial: Vec<u8>,
    plain: Vec<u8>,
}

impl Records {
    /// Bytes of a record that seals no bytes.
    pub(crate) const EMPTY: usize = HEAD + TAG_BYTES;

    pub(crate) const fn new(seal: Seal) -> Self {
        Self { seal, sealed: 0, opened: 0, partial: Vec::new(), plain: Vec::new() }
    }

    /// Returns the peer's own key, which it has proven to have, if it has one.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        self.seal.peer()
    }

    /// Appends records with these bytes to `out`; for no bytes, one empty record.
    pub(crate) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        loop {
            let (record, after) = rest.split_at(rest.len().min(MOST));
            let length = (record.len() + TAG_BYTES) as u16;
            out.extend_from_slice(&length.to_le_bytes());
            self.seal.seal(self.sealed, record, out);
            self.sealed += 1;
            rest = after;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Accepts received bytes, cut anywhere; passes on the contents of complete records.
    pub(crate) fn open(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), BadRecord> {
        self.partial.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.partial[at..].first_chunk::<HEAD>() {
            let length = usize::from(u16::from_le_bytes(*head));
            if !(TAG_BYTES..=MOST + TAG_BYTES).contains(&length) {
                return Err(BadRecord);
            }
            let Some(sealed) = self.partial.get(at + HEAD..at + HEAD + length) else { break };
            if !self.seal.open(self.opened, sealed, &mut self.plain) {
                return Err(BadRecord);
            }
            each(&self.plain[..length - TAG_BYTES]);
            self.opened += 1;
            at += HEAD + length;
        }
        self.partial.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use midplane_simhw::seal::Key;
    use proptest::prelude::*;

    use super::super::STREAMS;
    use super::*;
    use crate::wire::pipe::sealing::{Begun, Secrets, answer};

    fn ends() -> [Records; 2] {
        let key = Key::new(1, [3; 32]);
        let secrets = Secrets { key: &key, own: None };
        let (begun, message) = Begun::new(secrets, STREAMS, 7).unwrap();
        let (acceptor, message) = answer(secrets, STREAMS, 7, 8, &message).unwrap();
        [begun.finish(8, &message).unwrap(), acceptor].map(Records::new)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn bytes_cut_anywhere_are_read_and_none_that_was_changed(
            lengths in proptest::collection::vec(0_usize..40_000, 1..5),
            cut in 1_usize..30_000,
            at: proptest::sample::Index,
        ) {
            let [mut one, mut other] = ends();
            let (mut sent, mut sealed) = (Vec::new(), Vec::new());
            for (number, length) in lengths.into_iter().enumerate() {
                let bytes = vec![number as u8; length];
                one.seal(&bytes, &mut sealed);
                sent.extend(bytes);
            }
            let mut read = Vec::new();
            for piece in sealed.chunks(cut) {
                prop_assert_eq!(other.open(piece, |plain| read.extend(plain)), Ok(()));
            }
            prop_assert!(read == sent && other.partial.is_empty());
            let [_, mut stranger] = ends();
            prop_assert_eq!(stranger.open(&sealed, |plain| read.extend(plain)), Err(BadRecord));
            let [mut one, mut other] = ends();
            sealed.clear();
            one.seal(&sent, &mut sealed);
            let at = at.index(sealed.len());
            sealed[at] ^= 1;
            read.clear();
            // With a changed length, the reader may wait for bytes that never arrive; it accepts no changed bytes.
            let _ = other.open(&sealed, |plain| read.extend(plain));
            prop_assert!(read.len() <= sent.len() && sent.starts_with(&read));
            prop_assert!(read.len() < sent.len() || sent.is_empty());
        }
    }

    #[test]
    fn lengths_beyond_the_bound_are_refused() {
        for length in [0, TAG_BYTES - 1, MOST + TAG_BYTES + 1, 65_535] {
            let [mut one, _] = ends();
            let bytes = (length as u16).to_le_bytes();
            assert_eq!(one.open(&bytes, |_| ()), Err(BadRecord));
        }
    }
}
