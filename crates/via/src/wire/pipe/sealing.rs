//! Keys of one connection: agreed on by a Noise handshake; each packet number is used once.
//!
//! The patterns are those of the Noise Protocol Framework, revision 34. `NNpsk0` (sections 7.5 and 9) proves
//! that both ends have the cluster's key. `IXpsk0` proves that too, and also which node's own key each end has,
//! in two messages as well. The dialer's key is sent under the cluster's key in the first; `se` and `es` of the
//! second bind both keys to everything sealed afterwards (payload properties `2 3`, then `2 5`, in section
//! 7.7). So an acceptor knows the dialer's identity once the dialer's first packet opens, for which a
//! connection waits in any case. `XX` would hide the dialer's identity from an attacker that learns the
//! cluster's key later, but needs a third message, which must be sent again if it is lost.
//!
//! A dialer with a key of its own offers both handshakes. An acceptor that knows `IXpsk0` answers that one; an
//! older one answers the other. An attacker that changes the dial on its way can force the weaker handshake.
//! Therefore a node ends the session if its peer claims to have a key of its own and has not proven it.

use std::fmt;

use midplane_simhw::seal::{Key, PublicKey, SecretKey};
use snow::{Builder, HandshakeState};

pub(crate) use super::cipher::Cipher;
use super::cipher::{Opening, Sealing};
use super::packet::{IDENTIFIED_BYTES, NOISE_BYTES};

/// The handshake of nodes that share a key: two messages, the key mixed in before the first.
const SHARED: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The handshake of nodes that also have keys of their own: each message carries its sender's.
const IDENTIFIED: &str = "Noise_IXpsk0_25519_ChaChaPoly_BLAKE2s";

/// A Noise message of the handshake.
pub(crate) type Message = Vec<u8>;

/// The secrets of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secrets<'a> {
    /// The key that all nodes of the cluster share.
    pub(crate) key: &'a Key,
    /// The node's own key, if this handshake uses it.
    pub(crate) own: Option<&'a SecretKey>,
    /// The cipher that this end computes fastest.
    pub(crate) cipher: Cipher,
}

impl<'a> Secrets<'a> {
    /// Returns the secrets of an end with these keys.
    pub(crate) fn new(key: &'a Key, own: Option<&'a SecretKey>) -> Self {
        Self { key, own, cipher: Cipher::fastest() }
    }

    fn builder(self, prologue: &'a [u8]) -> Option<Builder<'a>> {
        let pattern = if self.own.is_some() { IDENTIFIED } else { SHARED };
        let builder = Builder::new(pattern.parse().ok()?);
        let builder = builder.psk(0, self.key.secret()).ok()?.prologue(prologue).ok()?;
        match self.own {
            Some(own) => builder.local_private_key(own.bytes()).ok(),
            None => Some(builder),
        }
    }

    /// Returns the bytes of a message without a payload.
    const fn bytes(self) -> usize {
        if self.own.is_some() { IDENTIFIED_BYTES } else { NOISE_BYTES }
    }
}

/// The protocol and its version: a handshake of one label is invalid for any other.
pub(crate) type Label = [u8; 15];
/// The label of connections over datagrams.
pub(crate) const DATAGRAMS: &Label = b"midplane wire 1";

/// Makes the prologue, which binds the protocol and the dialer's id to the handshake.
fn prologue(label: &Label, dialer: u64) -> [u8; 23] {
    let mut bytes = [0; 23];
    bytes[..15].copy_from_slice(label);
    bytes[15..].copy_from_slice(&dialer.to_le_bytes());
    bytes
}

/// Seals and opens bytes, so that only the two ends can read, make or change them.
pub(crate) struct Seal {
    seals: Sealing,
    opens: Opening,
    peer: Option<PublicKey>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Seal {
    /// Makes the keys of a handshake that has ended: those of its two directions (Noise, section 5.2).
    fn new(mut handshake: HandshakeState, cipher: Cipher) -> Self {
        let peer = handshake.get_remote_static().and_then(|key| key.try_into().ok());
        let is_dialer = handshake.is_initiator();
        let (forth, back) = handshake.dangerously_get_raw_split();
        let (seals, opens) = if is_dialer { (forth, back) } else { (back, forth) };
        Self {
            seals: Sealing::new(cipher, seals),
            opens: Opening::new(cipher, opens),
            peer: peer.map(PublicKey::new),
        }
    }

    /// Seals the bytes of `out` from `begin` on, and appends their tag. The caller counts `number` up.
    pub(crate) fn seal(&mut self, number: u64, out: &mut Vec<u8>, begin: usize) {
        self.seals.seal(number, out, begin);
    }

    /// Returns the peer's own key, if it has one. The peer has proven it; to an acceptor, only once the first
    /// packet opens.
    pub(crate) const fn peer(&self) -> Option<PublicKey> {
        self.peer
    }

    /// Opens `sealed` in place; returns the plain bytes, or `None` if it is not authentic.
    pub(crate) fn open<'a>(&mut self, number: u64, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        self.opens.open(number, sealed)
    }
}

/// The dialer's half of a handshake.
#[derive(Debug)]
pub(crate) struct Begun {
    handshake: HandshakeState,
    cipher: Cipher,
    /// The acceptor's id, once its answer was read. A copy of the answer may come first, with another id in the clear.
    acceptor: Option<u64>,
}

impl Begun {
    /// Starts a handshake; returns `None` if the system has no random numbers.
    pub(crate) fn new(secrets: Secrets<'_>, label: &Label, dialer: u64) -> Option<(Self, Message)> {
        let prologue = prologue(label, dialer);
        let mut handshake = secrets.builder(&prologue)?.build_initiator().ok()?;
        let mut message = vec![0; secrets.bytes()];
        handshake.write_message(&[], &mut message).ok()?;
        Some((Self { handshake, cipher: secrets.cipher, acceptor: None }, message))
    }

    /// Finishes the handshake with the answer of an end that has chosen `cipher`; returns itself if the answer is
    /// of another key or another id.
    pub(crate) fn finish(
        mut self,
        acceptor: u64,
        cipher: Cipher,
        message: &[u8],
    ) -> Result<Seal, Box<Self>> {
        if self.acceptor.is_none() {
            let mut said = [0; 8];
            let read = self.handshake.read_message(message, &mut said);
            self.acceptor = (read == Ok(said.len())).then(|| u64::from_le_bytes(said));
        }
        if self.acceptor != Some(acceptor) {
            return Err(Box::new(self));
        }
        Ok(Seal::new(self.handshake, self.cipher.with(cipher)))
    }
}

/// The handshakes that a dialer offers; the acceptor answers one.
#[derive(Debug)]
pub(crate) struct Offers {
    shared: Option<Begun>,
    identified: Option<Begun>,
    /// Their messages; the second is empty without a key of the dialer's own.
    pub(crate) messages: [Message; 2],
}

impl Offers {
    /// Starts them; returns `None` if the system has no random numbers.
    pub(crate) fn new(secrets: Secrets<'_>, label: &Label, dialer: u64) -> Option<Self> {
        let (shared, message) = Begun::new(Secrets { own: None, ..secrets }, label, dialer)?;
        let mut this =
            Self { shared: Some(shared), identified: None, messages: [message, Message::new()] };
        if secrets.own.is_some() {
            let (identified, message) = Begun::new(secrets, label, dialer)?;
            (this.identified, this.messages[1]) = (Some(identified), message);
        }
        Some(this)
    }

    /// Finishes with the answer to either; returns `None` if it answers neither.
    pub(crate) fn finish(&mut self, acceptor: u64, cipher: Cipher, message: &[u8]) -> Option<Seal> {
        let is_identified = message.len() == IDENTIFIED_BYTES + 8;
        let offer = if is_identified { &mut self.identified } else { &mut self.shared };
        match offer.take()?.finish(acceptor, cipher, message) {
            Ok(seal) => Some(seal),
            Err(begun) => {
                *offer = Some(*begun);
                None
            }
        }
    }
}

/// Answers a dialer's message, and seals with `secrets.cipher`, which the dialer has offered; returns `None` if
/// the message is of another key.
pub(crate) fn answer(
    secrets: Secrets<'_>,
    label: &Label,
    dialer: u64,
    acceptor: u64,
    message: &[u8],
) -> Option<(Seal, Message)> {
    let prologue = prologue(label, dialer);
    let mut handshake = secrets.builder(&prologue)?.build_responder().ok()?;
    handshake.read_message(message, &mut []).ok()?;
    let mut answer = vec![0; secrets.bytes() + 8];
    handshake.write_message(&acceptor.to_le_bytes(), &mut answer).ok()?;
    Some((Seal::new(handshake, secrets.cipher), answer))
}

#[cfg(test)]
mod tests {
    use snow::params::{CipherChoice, DHChoice, HashChoice};
    use snow::resolvers::{CryptoResolver, DefaultResolver};
    use snow::types::{Dh, Hash, Random};

    use super::*;

    fn own(byte: u8) -> SecretKey {
        format!("{byte:02x}").repeat(32).parse().unwrap()
    }

    #[test]
    fn an_answer_to_either_offer_makes_keys_and_the_longer_one_proves_identities() {
        let key = Key::new(1, [7; 32]);
        let (dialer, acceptor) = (own(1), own(2));
        for with in [None, Some(&acceptor)] {
            let secrets = Secrets::new(&key, Some(&dialer));
            let mut offers = Offers::new(secrets, DATAGRAMS, 5).unwrap();
            let message = offers.messages[usize::from(with.is_some())].clone();
            let secrets = Secrets::new(&key, with);
            let (mut theirs, answer) = answer(secrets, DATAGRAMS, 5, 6, &message).unwrap();
            let lengths = (message.len(), answer.len());
            assert_eq!(lengths, if with.is_some() { (96, 104) } else { (48, 56) });
            let mut forged = answer.clone();
            forged[40] ^= 1;
            assert!(
                offers.finish(6, Cipher::fastest(), &forged).is_none()
                    && offers.finish(6, Cipher::fastest(), &answer[1..]).is_none()
                    && offers.finish(7, Cipher::fastest(), &answer).is_none()
            );
            let mut ours = offers
                .finish(6, Cipher::fastest(), &answer)
                .expect("forged answers before change nothing");
            let mut sealed = b"head hello".to_vec();
            ours.seal(0, &mut sealed, 5);
            assert!(sealed[..5] == *b"head " && sealed[5..10] != *b"hello");
            for number in [1, 0] {
                let opened = theirs.open(number, &mut sealed.clone()[5..]).map(<[u8]>::to_vec);
                assert_eq!(opened.as_deref(), (number == 0).then_some(&b"hello"[..]));
            }
            sealed[12] ^= 1;
            assert_eq!(theirs.open(0, &mut sealed[5..]), None);
            assert_eq!(theirs.open(0, &mut []), None);
            assert_eq!(ours.peer(), with.map(SecretKey::public));
            assert_eq!(theirs.peer(), with.map(|_| dialer.public()));
        }
    }

    #[test]
    fn ends_of_any_two_versions_use_a_cipher_that_both_know() {
        let key = Key::new(1, [7; 32]);
        for (ours, theirs) in [(Cipher::Aes, Cipher::ChaCha), (Cipher::ChaCha, Cipher::Aes)] {
            let secrets = |cipher| Secrets { cipher, ..Secrets::new(&key, None) };
            let (begun, message) = Begun::new(secrets(ours), DATAGRAMS, 5).unwrap();
            let both = theirs.with(ours);
            let (mut acceptor, answer) = answer(secrets(both), DATAGRAMS, 5, 6, &message).unwrap();
            // Even if the answer names a cipher that was not offered.
            let mut dialer = begun.finish(6, theirs, &answer).ok().unwrap();
            let mut sealed = b"hello".to_vec();
            dialer.seal(0, &mut sealed, 0);
            assert_eq!(acceptor.open(0, &mut sealed), Some(&b"hello"[..]));
        }
    }

    /// A curve that claims the static key of another node.
    struct Liar {
        curve: Box<dyn Dh>,
        claimed: Option<PublicKey>,
        is_static: bool,
    }

    impl Dh for Liar {
        fn name(&self) -> &'static str {
            self.curve.name()
        }
        fn pub_len(&self) -> usize {
            self.curve.pub_len()
        }
        fn priv_len(&self) -> usize {
            self.curve.priv_len()
        }
        fn set(&mut self, secret: &[u8]) {
            self.is_static = true;
            self.curve.set(secret);
        }
        fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
            self.curve.generate(random)
        }
        fn pubkey(&self) -> &[u8] {
            let claimed = self.claimed.as_ref().filter(|_| self.is_static);
            claimed.map_or_else(|| self.curve.pubkey(), |claimed| claimed.bytes())
        }
        fn privkey(&self) -> &[u8] {
            self.curve.privkey()
        }
        fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
            self.curve.dh(public, out)
        }
    }

    struct Lies(PublicKey);

    impl CryptoResolver for Lies {
        fn resolve_rng(&self) -> Option<Box<dyn Random>> {
            DefaultResolver.resolve_rng()
        }
        fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
            let curve = DefaultResolver.resolve_dh(choice)?;
            Some(Box::new(Liar { curve, claimed: Some(self.0), is_static: false }))
        }
        fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
            DefaultResolver.resolve_hash(choice)
        }
        fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn snow::types::Cipher>> {
            DefaultResolver.resolve_cipher(choice)
        }
    }

    /// The handshake of a holder of the cluster's key who claims a key whose secret it does not have.
    fn thief<'a>(
        key: &'a Key,
        own: &'a SecretKey,
        prologue: &'a [u8],
        of: PublicKey,
    ) -> Builder<'a> {
        let builder = Builder::with_resolver(IDENTIFIED.parse().unwrap(), Box::new(Lies(of)));
        let builder = builder.psk(0, key.secret()).unwrap().prologue(prologue).unwrap();
        builder.local_private_key(own.bytes()).unwrap()
    }

    #[test]
    fn an_end_that_claims_a_key_without_its_secret_completes_no_handshake() {
        let key = Key::new(1, [7; 32]);
        let (victim, honest, own) = (own(1).public(), own(2), own(3));
        let secrets = Secrets::new(&key, Some(&honest));
        let prologue = prologue(DATAGRAMS, 5);
        let mut dials = thief(&key, &own, &prologue, victim).build_initiator().unwrap();
        let mut message = vec![0; IDENTIFIED_BYTES];
        dials.write_message(&[], &mut message).unwrap();
        let (acceptor, reply) = answer(secrets, DATAGRAMS, 5, 6, &message).unwrap();
        assert_eq!(acceptor.peer(), Some(victim), "claimed, and confirmed by no packet");
        assert!(dials.read_message(&reply, &mut [0; 8]).is_err());

        let mut offers = Offers::new(secrets, DATAGRAMS, 5).unwrap();
        let mut answers = thief(&key, &own, &prologue, victim).build_responder().unwrap();
        answers.read_message(&offers.messages[1], &mut []).unwrap();
        let mut reply = vec![0; IDENTIFIED_BYTES + 8];
        answers.write_message(&6_u64.to_le_bytes(), &mut reply).unwrap();
        assert!(offers.finish(6, Cipher::fastest(), &reply).is_none());
    }

    #[test]
    fn no_message_of_any_length_is_an_answer_or_panics() {
        let key = Key::new(1, [7; 32]);
        let own = own(1);
        let secrets = Secrets::new(&key, Some(&own));
        let mut offers = Offers::new(secrets, DATAGRAMS, 5).unwrap();
        for length in 0..300 {
            let bytes = vec![length as u8; length];
            assert!(offers.finish(6, Cipher::fastest(), &bytes).is_none());
            assert!(answer(secrets, DATAGRAMS, 5, 6, &bytes).is_none());
            assert!(answer(Secrets { own: None, ..secrets }, DATAGRAMS, 5, 6, &bytes).is_none());
        }
    }
}
