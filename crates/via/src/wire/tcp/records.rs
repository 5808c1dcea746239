//! Sealed records of a byte stream.

use midplane_simhw::seal::PublicKey;

use crate::wire::buffer::Buffer;
use crate::wire::pipe::packet::TAG_BYTES;
use crate::wire::pipe::sealing::Seal;

/// Bytes of a record before its sealed bytes.
const HEAD: usize = 2;
/// Most bytes that one record seals.
const MOST: usize = 16 * 1024;

/// A record that no holder of the key has sealed, or one out of order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BadRecord;

/// Bytes of the memory of received records: a long one has room behind a part of another.
const INBOX: usize = 64 * 1024;

/// Seals the bytes of one direction of a stream, and opens those of the other.
#[derive(Debug)]
pub(crate) struct Records {
    seal: Seal,
    /// Records of each direction so far: the nonce of the next one.
    sealed: u64,
    opened: u64,
    /// Received bytes. The first `partial` are the beginning of a record whose end has not arrived.
    inbox: Buffer,
    partial: usize,
}

impl Records {
    /// Bytes of a record that seals no bytes.
    pub(crate) const EMPTY: usize = HEAD + TAG_BYTES;

    pub(crate) fn new(seal: Seal) -> Self {
        Self { seal, sealed: 0, opened: 0, inbox: Buffer::new(INBOX), partial: 0 }
    }

    /// Returns the peer's own key, which it has proven to have, if it has one.
    pub(crate) const fn peer(&self) -> Option<PublicKey> {
        self.seal.peer()
    }

    /// Appends records with these bytes to `out`; for no bytes, one empty record.
    pub(crate) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        loop {
            let (record, after) = rest.split_at(rest.len().min(MOST));
            let length = (record.len() + TAG_BYTES) as u16;
            out.extend_from_slice(&length.to_le_bytes());
            let begin = out.len();
            out.extend_from_slice(record);
            self.seal.seal(self.sealed, out, begin);
            self.sealed += 1;
            rest = after;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Returns memory for received bytes, at least a record's. [`Records::open`] opens them.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.inbox[self.partial..]
    }

    /// Accepts the first `received` bytes of the room, cut anywhere; passes on the contents of complete records.
    pub(crate) fn open(
        &mut self,
        received: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), BadRecord> {
        let end = self.partial + received;
        let mut rest = &mut self.inbox[..end];
        while let Some(head) = rest.first_chunk::<HEAD>() {
            let length = usize::from(u16::from_le_bytes(*head));
            if !(TAG_BYTES..=MOST + TAG_BYTES).contains(&length) {
                return Err(BadRecord);
            }
            if rest.len() < HEAD + length {
                break;
            }
            let (record, after) = rest.split_at_mut(HEAD + length);
            each(self.seal.open(self.opened, &mut record[HEAD..]).ok_or(BadRecord)?);
            self.opened += 1;
            rest = after;
        }
        self.partial = rest.len();
        self.inbox.copy_within(end - self.partial..end, 0);
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
        let secrets = Secrets::new(&key, None);
        let (begun, message) = Begun::new(secrets, STREAMS, 7).unwrap();
        let (acceptor, message) = answer(secrets, STREAMS, 7, 8, &message).unwrap();
        [begun.finish(8, secrets.cipher, &message).unwrap(), acceptor].map(Records::new)
    }

    /// Has the records open bytes that arrive in pieces of at most `cut` bytes.
    fn open(records: &mut Records, bytes: &[u8], cut: usize) -> Result<Vec<u8>, BadRecord> {
        let mut read = Vec::new();
        for piece in bytes.chunks(cut) {
            records.room()[..piece.len()].copy_from_slice(piece);
            records.open(piece.len(), |plain| read.extend_from_slice(plain))?;
        }
        Ok(read)
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
            let read = open(&mut other, &sealed, cut);
            prop_assert!(read.as_deref() == Ok(&sent) && other.partial == 0);
            let [_, mut stranger] = ends();
            prop_assert_eq!(open(&mut stranger, &sealed, cut), Err(BadRecord));
            let [mut one, mut other] = ends();
            sealed.clear();
            one.seal(&sent, &mut sealed);
            let at = at.index(sealed.len());
            sealed[at] ^= 1;
            // With a changed length, the reader may wait for bytes that never arrive; it accepts no changed bytes.
            let read = open(&mut other, &sealed, cut).unwrap_or_default();
            prop_assert!(sent.starts_with(&read) && (read.len() < sent.len() || sent.is_empty()));
        }
    }

    #[test]
    fn lengths_beyond_the_bound_are_refused() {
        for length in [0, TAG_BYTES - 1, MOST + TAG_BYTES + 1, 65_535] {
            let [mut one, _] = ends();
            assert_eq!(open(&mut one, &(length as u16).to_le_bytes(), 1), Err(BadRecord));
        }
    }
}
