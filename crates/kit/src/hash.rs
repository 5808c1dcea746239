//! Hashes bytes: the same in every build, and no protection against forged ones.

/// The FNV-1a hash of no bytes.
pub const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues an FNV-1a hash with more bytes.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_published_test_vectors() {
        assert_eq!(fnv1a(EMPTY, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(EMPTY, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(fnv1a(EMPTY, b"foo"), b"bar"), 0x8594_4171_f739_67e8);
    }
}
