//! Records as bytes of a pipe: a length, the two words, the payload.

use midplane_simhw::shm::{Corrupt, Record};

/// Bytes before the payload.
pub(super) const HEAD: usize = 4 + 16;
/// Most bytes of a payload; they fit a ring of an endpoint as one record.
const MOST: usize = 16 * 1024;

/// Returns the bytes before a record's payload.
pub(super) fn head(record: Record) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    let length = u32::try_from(record.length).expect("a record is shorter than its ring");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    for (word, out) in record.words.iter().zip(bytes[4..].chunks_exact_mut(8)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Parses a record's head; `None` if there are too few bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Record>, Corrupt> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let (length, words) = head.split_first_chunk::<4>().expect("four of twenty");
    let length = u32::from_le_bytes(*length) as usize;
    let (words, _) = words.as_chunks::<8>();
    let words = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
    if length > MOST { Err(Corrupt) } else { Ok(Some(Record { words, length })) }
}
