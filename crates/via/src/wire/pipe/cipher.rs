//! Ciphers of a connection, and the keys of one direction of it.
//!
//! Each end says in its handshake whether its processor has instructions for AES; if both have, they use
//! AES-256-GCM, which is then two to three times as fast as ChaCha20-Poly1305. That choice is not authenticated. An
//! attacker who changes it on its way has both ends use ChaCha20-Poly1305, or different ciphers; then no packet opens.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};

/// Binary logarithm of the packets or records that one key of AES-256-GCM seals: half as many as its limit for
/// packets of 64 KiB (RFC 9001, section 6.6 and appendix B: 2^23).
const PERIOD: u32 = 22;

/// The cipher of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cipher {
    /// ChaCha20-Poly1305, which every version knows. One key seals all packets.
    ChaCha,
    /// AES-256-GCM. Each key seals 2^22 packets, and the next one is derived from it.
    Aes,
}

impl Cipher {
    /// Returns the cipher that this processor computes fastest.
    pub(crate) fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        let is_fast = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let is_fast = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let is_fast = false;
        if is_fast { Self::Aes } else { Self::ChaCha }
    }

    /// Returns the cipher of a byte of a handshake. Unknown ones are those of later versions, as if not said.
    pub(crate) const fn of(byte: u8) -> Self {
        if byte == 1 { Self::Aes } else { Self::ChaCha }
    }

    /// Returns the byte of a handshake.
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::ChaCha => 0,
            Self::Aes => 1,
        }
    }

    /// Returns the cipher that an end uses with one whose fastest cipher is `other`.
    pub(crate) fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::ChaCha }
    }

    /// Returns the number of the key that seals a packet.
    const fn key_of(self, packet: u64) -> u64 {
        match self {
            Self::ChaCha => 0,
            Self::Aes => packet >> PERIOD,
        }
    }
}

/// The secret that a key and the next secret are derived from.
#[derive(Clone, Copy)]
struct Secret([u8; 32]);

impl Secret {
    fn derive(self, label: &[u8]) -> [u8; 32] {
        let mut bytes = [0; 32];
        let secret = Prk::new_less_safe(HKDF_SHA256, &self.0);
        let derived = secret.expand(&[label], HKDF_SHA256).and_then(|okm| okm.fill(&mut bytes));
        derived.expect("a hash of 32 bytes makes 32 bytes");
        bytes
    }

    fn key(self, cipher: Cipher) -> LessSafeKey {
        let (algorithm, bytes) = match cipher {
            Cipher::ChaCha => (&CHACHA20_POLY1305, self.0),
            Cipher::Aes => (&AES_256_GCM, self.derive(b"midplane key")),
        };
        LessSafeKey::new(UnboundKey::new(algorithm, &bytes).expect("both have keys of 32 bytes"))
    }

    fn next(self) -> Self {
        Self(self.derive(b"midplane next"))
    }
}

/// Returns the nonce of a packet or record (Noise, section 12.3).
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// The keys that seal one direction.
pub(super) struct Sealing {
    cipher: Cipher,
    secret: Secret,
    key: LessSafeKey,
    /// Number of `key`, which counts the keys of this direction from 0.
    at: u64,
}

impl Sealing {
    pub(super) fn new(cipher: Cipher, secret: [u8; 32]) -> Self {
        let secret = Secret(secret);
        Self { cipher, secret, key: secret.key(cipher), at: 0 }
    }

    /// Seals the bytes of `out` from `begin` on, and appends their tag. The caller never seals two with one number,
    /// and none with a number of an earlier key.
    pub(super) fn seal(&mut self, number: u64, out: &mut Vec<u8>, begin: usize) {
        while self.at < self.cipher.key_of(number) {
            self.secret = self.secret.next();
            self.key = self.secret.key(self.cipher);
            self.at += 1;
        }
        let tag =
            self.key.seal_in_place_separate_tag(nonce(number), Aad::empty(), &mut out[begin..]);
        out.extend_from_slice(tag.expect("the bytes are fewer than a cipher can seal").as_ref());
    }
}

/// The keys that open one direction: packets are reordered, so the previous and the next one open as well. No packet
/// has an earlier or a later key: a connection has far fewer packets in flight than a key seals (8 MiB in datagrams of
/// 1,200 bytes are 7,000).
pub(super) struct Opening {
    cipher: Cipher,
    /// The secret of `next`.
    secret: Secret,
    previous: Option<LessSafeKey>,
    key: LessSafeKey,
    /// Made before it is used, so that forged packets cost no derivation.
    next: Option<LessSafeKey>,
    /// Number of `key`, which counts the keys of this direction from 0.
    at: u64,
}

impl Opening {
    pub(super) fn new(cipher: Cipher, secret: [u8; 32]) -> Self {
        let secret = Secret(secret);
        let (key, next) = (secret.key(cipher), secret.next());
        let mut this = Self { cipher, secret: next, previous: None, key, next: None, at: 0 };
        this.next = (cipher == Cipher::Aes).then(|| next.key(cipher));
        this
    }

    /// Opens `sealed` in place; returns the plain bytes, or `None` if it is not authentic.
    pub(super) fn open<'a>(&mut self, number: u64, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let wanted = self.cipher.key_of(number);
        let is_next = wanted == self.at + 1;
        let key = match wanted {
            wanted if wanted == self.at => &self.key,
            _ if is_next => self.next.as_ref()?,
            wanted if wanted + 1 == self.at => self.previous.as_ref()?,
            _ => return None,
        };
        let opened = key.open_in_place(nonce(number), Aad::empty(), sealed).ok()?;
        if is_next {
            self.advance();
        }
        Some(opened)
    }

    fn advance(&mut self) {
        self.secret = self.secret.next();
        let next = self.next.replace(self.secret.key(self.cipher)).expect("it has opened a packet");
        self.previous = Some(std::mem::replace(&mut self.key, next));
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(keys: &mut Sealing, number: u64) -> Vec<u8> {
        let mut bytes = b"hello".to_vec();
        keys.seal(number, &mut bytes, 0);
        bytes
    }

    fn opens(keys: &mut Opening, number: u64, bytes: &[u8]) -> bool {
        keys.open(number, &mut bytes.to_vec()).is_some_and(|plain| plain == b"hello")
    }

    #[test]
    fn keys_of_aes_change_and_open_what_arrives_late_and_no_more() {
        const KEY: u64 = 1 << PERIOD;
        let mut seals = Sealing::new(Cipher::Aes, [7; 32]);
        let mut keys = Opening::new(Cipher::Aes, [7; 32]);
        let numbers = [0, KEY - 1, KEY, KEY + 1, 2 * KEY, 3 * KEY, u64::MAX];
        let packets = numbers[..6].iter().map(|&number| sealed(&mut seals, number));
        let packets: Vec<_> = packets.collect();
        assert!(opens(&mut keys, 0, &packets[0]));
        assert!(!opens(&mut keys, 2 * KEY, &packets[4]), "two keys ahead");
        assert!(!opens(&mut keys, u64::MAX, &packets[0]));
        assert!(!opens(&mut keys, KEY, &packets[3]), "a forged packet of the next key");
        assert!(opens(&mut keys, 0, &packets[0]), "and it has changed nothing");
        assert!(opens(&mut keys, KEY, &packets[2]));
        assert!(opens(&mut keys, KEY - 1, &packets[1]), "overtaken");
        assert!(opens(&mut keys, 2 * KEY, &packets[4]));
        assert!(opens(&mut keys, KEY + 1, &packets[3]));
        assert!(!opens(&mut keys, 0, &packets[0]), "two keys behind");
        assert!(opens(&mut keys, 3 * KEY, &packets[5]));
    }

    #[test]
    fn one_key_of_chacha_seals_all_packets() {
        let mut seals = Sealing::new(Cipher::ChaCha, [7; 32]);
        let mut keys = Opening::new(Cipher::ChaCha, [7; 32]);
        for number in [0, 1 << PERIOD, u64::MAX, 5] {
            let packet = sealed(&mut seals, number);
            assert!(opens(&mut keys, number, &packet) && !opens(&mut keys, 4, &packet));
        }
    }

    /// The bytes are those of another implementation: Python's `hmac`, and `cryptography`.
    #[test]
    fn the_bytes_of_sealed_packets_never_change() {
        let changed =
            "bytes on the wire have changed: bump the version, and keep reading the old one";
        let first =
            |cipher, number| sealed(&mut Sealing::new(cipher, [7; 32]), number)[..5].to_vec();
        let all = [(Cipher::ChaCha, 0), (Cipher::Aes, 0), (Cipher::Aes, 1 << PERIOD)];
        let all = all.map(|(cipher, number)| first(cipher, number));
        assert_eq!(all.map(hex), ["5fe145600f", "3ddcf3a7ac", "66567bca7c"], "{changed}");
        assert_eq!([Cipher::ChaCha, Cipher::Aes].map(Cipher::byte), [0, 1], "{changed}");
    }

    fn hex(bytes: Vec<u8>) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn ends_agree_on_a_cipher_that_both_know() {
        use Cipher::{Aes, ChaCha};
        for (one, other, both) in [(Aes, Aes, Aes), (Aes, ChaCha, ChaCha), (ChaCha, Aes, ChaCha)] {
            assert_eq!(one.with(other), both);
        }
        assert_eq!((0..4).map(Cipher::of).collect::<Vec<_>>(), [ChaCha, Aes, ChaCha, ChaCha]);
    }
}
