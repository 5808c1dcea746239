use std::collections::BTreeSet;

use super::seals::{GIVE_UP, HELD_BYTES};
use super::*;
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::rng::Rng;
use crate::time::Instant;
use proptest::prelude::*;

const PLAIN: usize = 65_536;

fn key(id: u32) -> Key {
    Key::new(id, [id as u8; 32])
}

/// Two nodes that have each other's keys.
fn identities() -> [Identity; 2] {
    let secrets = [0, 1].map(|_| SecretKey::generate().unwrap());
    let list = secrets.each_ref().map(SecretKey::public).to_vec();
    let [first, second] = secrets;
    let of = |node, secret| Identity::new(NodeId(node), secret, list.clone()).unwrap();
    [of(0, first), of(1, second)]
}

/// Functions that make a pair with the fabric's key, and a pair with identities.
fn pairs() -> [fn() -> Pair; 2] {
    [Pair::new, Pair::identified]
}

/// Two nodes and all datagrams ever sent between them.
struct Pair {
    nodes: [Seals; 2],
    keys: [Vec<Key>; 2],
    /// Set if the nodes have identities.
    identities: Option<[Identity; 2]>,
    now: Instant,
    /// Datagrams in flight, each with its receiver.
    wire: Vec<(usize, Vec<u8>)>,
    /// All datagrams sent so far.
    record: Vec<(usize, Vec<u8>)>,
    /// Frames that each node has received.
    received: [Vec<Vec<u8>>; 2],
    drops: Vec<DropCause>,
}

impl Pair {
    fn new() -> Self {
        Self::with_keys([vec![key(1)], vec![key(1)]])
    }

    fn with_keys(keys: [Vec<Key>; 2]) -> Self {
        Self::of(keys, None)
    }

    /// Creates nodes with identities and without a key of the fabric.
    fn identified() -> Self {
        Self::of([vec![], vec![]], Some(identities()))
    }

    fn of(keys: [Vec<Key>; 2], identities: Option<[Identity; 2]>) -> Self {
        let node = |node: usize| Self::node(node, &keys[node], identities.as_ref());
        Self {
            nodes: [node(0), node(1)],
            keys,
            identities,
            now: Instant::from_nanos(1),
            wire: Vec::new(),
            record: Vec::new(),
            received: [Vec::new(), Vec::new()],
            drops: Vec::new(),
        }
    }

    fn node(node: usize, keys: &[Key], identities: Option<&[Identity; 2]>) -> Seals {
        let id = NodeId(u16::try_from(node).unwrap());
        match identities {
            Some(all) => Seals::identified(id, 2, keys.to_vec(), all[node].clone()).unwrap(),
            None => Seals::new(id, 2, keys.to_vec()).unwrap(),
        }
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node] = Self::node(node, &self.keys[node], self.identities.as_ref());
    }

    fn send(&mut self, from: usize, frame: &[u8]) {
        let to = NodeId(u16::try_from(1 - from).unwrap());
        let mut out = Vec::new();
        match self.nodes[from].seal(to, (9, false), frame, &mut out) {
            Verdict::Sealed => self.put(1 - from, out),
            Verdict::Hold => {
                self.nodes[from].hold(self.now, to, false, frame.to_vec());
                self.drain(from);
            }
        }
    }

    fn put(&mut self, to: usize, datagram: Vec<u8>) {
        self.record.push((to, datagram.clone()));
        self.wire.push((to, datagram));
    }

    fn drain(&mut self, node: usize) {
        let mut out = Vec::new();
        while let Some((to, _)) = self.nodes[node].poll_transmit(&mut out) {
            assert_eq!(to.index(), 1 - node);
            self.put(1 - node, std::mem::take(&mut out));
        }
    }

    fn deliver(&mut self, to: usize, datagram: &[u8]) {
        let mut plain = vec![0; PLAIN];
        let opened = match Envelope::parse(datagram) {
            Ok((envelope, body)) => self.nodes[to].open(self.now, &envelope, body, &mut plain),
            Err(_) => Err(DropCause::Malformed),
        };
        match opened {
            Ok(Opened::Frame(length)) => self.received[to].push(plain[..length].to_vec()),
            Ok(Opened::Handshake) => {}
            Err(cause) => self.drops.push(cause),
        }
        self.drain(to);
    }

    fn advance(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
        for node in 0..2 {
            if self.nodes[node].poll_timeout() <= self.now {
                self.nodes[node].handle_timeout(self.now);
                self.drain(node);
            }
        }
    }

    /// Delivers all datagrams in flight, and those sent in response.
    fn settle(&mut self) {
        while !self.wire.is_empty() {
            let (to, datagram) = self.wire.remove(0);
            self.deliver(to, &datagram);
        }
    }
}

#[test]
fn frames_that_wait_for_keys_arrive_in_order_and_later_ones_after_them() {
    let mut pair = Pair::new();
    for frame in [b"a", b"b", b"c"] {
        pair.send(0, frame);
    }
    assert_eq!(pair.wire.len(), 1, "one handshake");
    pair.settle();
    pair.send(0, b"d");
    pair.send(1, b"e");
    pair.settle();
    assert_eq!(pair.received[1], [b"a", b"b", b"c", b"d"]);
    assert_eq!(pair.received[0], [b"e"]);
    assert_eq!(pair.drops, []);
}

#[test]
fn both_may_begin_at_once() {
    let mut pair = Pair::new();
    pair.send(0, b"a");
    pair.send(1, b"b");
    pair.settle();
    pair.send(0, b"c");
    pair.send(1, b"d");
    pair.settle();
    assert_eq!(pair.received, [[b"b", b"d"], [b"a", b"c"]]);
    assert_eq!(pair.drops, []);
}

#[test]
fn a_lost_handshake_is_sent_again_and_an_unanswered_one_is_given_up() {
    let mut pair = Pair::new();
    pair.send(0, b"a");
    pair.wire.clear();
    pair.advance(RETRY);
    pair.settle();
    assert_eq!(pair.received[1], [b"a"]);
    pair.restart(0);
    pair.send(0, b"b");
    for _ in 0..GIVE_UP / RETRY {
        pair.advance(RETRY);
        pair.wire.clear();
    }
    assert!(!pair.nodes[0].is_handshaking());
    assert_eq!(pair.nodes[0].take_given_up(), 1);
    assert_eq!(pair.nodes[0].poll_timeout(), Instant::FAR_FUTURE);
}

#[test]
fn a_lost_answer_or_a_slow_one_makes_one_session() {
    let mut pair = Pair::new();
    pair.send(0, b"a");
    let (_, begin) = pair.wire.remove(0);
    pair.deliver(1, &begin);
    pair.wire.clear();
    // The handshake is sent again before its answer has arrived: the answer is the same, so that either one will do.
    pair.deliver(1, &begin);
    pair.deliver(1, &begin);
    assert_eq!(pair.wire[0], pair.wire[1]);
    pair.settle();
    assert_eq!(pair.received[1], [b"a"]);
}

#[test]
fn frames_of_a_restarted_node_are_accepted() {
    for (restarted, new) in [(0, pairs()[0]), (1, pairs()[0]), (0, pairs()[1]), (1, pairs()[1])] {
        let mut pair = new();
        pair.send(0, b"a");
        pair.settle();
        pair.restart(restarted);
        pair.advance(SILENCE + 1);
        // If a frame is sealed with keys that its receiver has lost, the receiver begins a handshake.
        pair.send(0, b"b");
        pair.settle();
        pair.send(0, b"c");
        pair.settle();
        assert_eq!(pair.received[1].last().unwrap(), b"c", "{restarted} restarted");
    }
}

#[test]
fn replays_of_any_datagram_are_dropped() {
    pairs().into_iter().for_each(|new| replay_all(new()));
}

fn replay_all(mut pair: Pair) {
    for frame in [b"a", b"b"] {
        pair.send(0, frame);
        pair.settle();
    }
    let record = pair.record.clone();
    pair.drops.clear();
    for (to, datagram) in &record {
        pair.deliver(*to, datagram);
    }
    assert_eq!(pair.drops.len(), record.len(), "{:?}", pair.drops);
    let replayed = pair.drops.iter().filter(|cause| **cause == DropCause::Replayed).count();
    // All but the answer, which no node awaits.
    assert_eq!(replayed, record.len() - 1);
    pair.restart(1);
    for (to, datagram) in record.iter().filter(|(to, _)| *to == 1) {
        pair.deliver(*to, datagram);
    }
    assert_eq!(pair.received[1].len(), 2);
}

#[test]
fn a_first_message_of_an_earlier_run_does_not_displace_a_handshake() {
    let mut pair = Pair::new();
    pair.send(0, b"a");
    pair.settle();
    let (_, old) = pair.record[0].clone();
    pair.restart(0);
    pair.restart(1);
    pair.send(0, b"b");
    let (_, begin) = pair.wire.remove(0);
    pair.deliver(1, &begin);
    pair.deliver(1, &old);
    pair.settle();
    assert_eq!(pair.received[1], [b"a", b"b"]);
}

#[test]
fn damage_is_detected_anywhere_but_in_the_hop_limit() {
    const HOP_LIMIT: usize = 3;
    // The firmware's own header repeats this bit.
    const URGENT: usize = 12;
    let mut pair = Pair::new();
    pair.send(0, b"a");
    pair.settle();
    pair.send(0, b"payload");
    let (to, datagram) = pair.wire.remove(0);
    for bit in 0..datagram.len() * 8 {
        let mut damaged = datagram.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let before = pair.received[1].len();
        if bit / 8 == HOP_LIMIT || bit == URGENT * 8 {
            continue;
        }
        pair.deliver(to, &damaged);
        assert_eq!(pair.received[1].len(), before, "bit {bit}");
    }
    pair.deliver(to, &datagram);
    assert_eq!(pair.received[1].last().unwrap(), b"payload");
}

#[test]
fn other_keys_open_no_frame_and_new_ones_are_added_node_by_node() {
    let mut pair = Pair::with_keys([vec![key(1)], vec![key(2)]]);
    pair.send(0, b"a");
    pair.settle();
    assert_eq!(pair.received[1], [b""; 0]);
    assert_eq!(pair.drops, [DropCause::Unsealed]);
    // The same key number with another secret.
    let mut pair = Pair::with_keys([vec![key(1)], vec![Key::new(1, [9; 32])]]);
    pair.send(0, b"a");
    pair.settle();
    assert_eq!(pair.drops, [DropCause::Unsealed]);
    for keys in [[vec![1], vec![1, 2]], [vec![2, 1], vec![1, 2]], [vec![2, 1], vec![2]]] {
        let mut pair = Pair::with_keys(keys.map(|ids| ids.into_iter().map(key).collect()));
        pair.send(0, b"a");
        pair.send(1, b"b");
        pair.settle();
        assert_eq!(pair.received[1], [b"a"]);
        assert_eq!(pair.received[0], [b"b"]);
    }
}

#[test]
fn frames_that_wait_for_keys_are_bounded() {
    let mut pair = Pair::new();
    let to = NodeId(1);
    let big = vec![0; HELD_BYTES / 4];
    for _ in 0..4 {
        assert!(pair.nodes[0].hold(pair.now, to, false, big.clone()));
    }
    assert!(!pair.nodes[0].hold(pair.now, to, false, vec![0]));
}

#[test]
fn a_key_is_read_from_text_and_never_shown() {
    let text = format!("7:{}", "0a".repeat(32));
    let key: Key = format!(" {text}\n").parse().unwrap();
    assert_eq!(key, Key::new(7, [10; 32]));
    assert_eq!(format!("{key:?}"), "Key { id: 7, .. }");
    for wrong in ["", "7", "7:", ":00", &text[..60], &format!("{text}0"), &text.replace('a', "g")] {
        assert_eq!(wrong.parse::<Key>(), Err(KeyError), "{wrong}");
    }
    let not_ascii = format!("7:{}", "é".repeat(32));
    assert_eq!(not_ascii.parse::<Key>(), Err(KeyError));
}

#[test]
fn an_error_of_a_key_is_readable_if_main_returns_it() {
    assert_eq!(format!("{KeyError:?}"), KeyError.to_string());
    assert_eq!(format!("{NodeKeyError:?}"), NodeKeyError.to_string());
}

#[test]
fn the_bytes_of_an_envelope_are_frozen() {
    let envelope = Envelope {
        kind: EnvelopeKind::Frame,
        hop_limit: 2,
        source: NodeId(0x0304),
        destination: NodeId(0x0506),
        session: 0x0708_090A,
        urgent: true,
        counter: 0x0B0C_0D0E_0F10_1112,
    };
    let expected = [
        0x53, 1, 0, 2, 4, 3, 6, 5, 10, 9, 8, 7, 1, 0, 0, 0, 0x12, 0x11, 0x10, 0xF, 0xE, 0xD, 0xC,
        0xB,
    ];
    assert_eq!(envelope.emit(), expected);
}

proptest! {
    #[test]
    fn any_bytes_are_an_envelope_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = bytes;
        for magic in [None, Some(0x53)] {
            if let (Some(magic), Some(first)) = (magic, bytes.first_mut()) {
                *first = magic;
            }
            if let Ok((envelope, body)) = Envelope::parse(&bytes) {
                prop_assert_eq!(&envelope.emit()[..], &bytes[..ENVELOPE_BYTES]);
                prop_assert_eq!(body, &bytes[ENVELOPE_BYTES..]);
            }
        }
    }
}

/// Runs two nodes over a network that an attacker controls.
fn run_hostile(mut pair: Pair, seed: u64, steps: usize, unique: bool) -> Pair {
    let mut rng = Rng::new(seed, "hostile");
    for step in 0..steps {
        let node = rng.below(2) as usize;
        match rng.below(12) {
            0..5 => {
                let text = if unique { format!("{node} {step}") } else { "same".into() };
                pair.send(node, text.as_bytes());
            }
            // One of the datagrams in flight arrives, is lost, or arrives twice.
            choice @ 5..9 if !pair.wire.is_empty() => {
                let at = rng.below(pair.wire.len() as u64) as usize;
                let (to, datagram) = pair.wire.remove(at);
                for _ in 0..[1, 1, 0, 2][choice as usize - 5] {
                    pair.deliver(to, &datagram);
                }
            }
            // An old datagram arrives again, perhaps damaged, perhaps at its sender.
            9 if !pair.record.is_empty() => {
                let at = rng.below(pair.record.len() as u64) as usize;
                let (to, mut datagram) = pair.record[at].clone();
                if rng.below(3) == 0 {
                    let at = rng.below(datagram.len() as u64) as usize;
                    datagram[at] ^= 1 << rng.below(8);
                }
                pair.deliver(if rng.below(4) == 0 { 1 - to } else { to }, &datagram);
            }
            10 if rng.below(6) == 0 => pair.restart(node),
            _ => pair.advance(rng.below(2 * RETRY)),
        }
    }
    pair
}

/// Counts the frames that two nodes received; checks that each arrived at most once and unchanged.
fn check_received(seed: u64) -> usize {
    let pair = run_hostile(pairs()[seed as usize % 2](), seed, 300, true);
    for (to, frames) in pair.received.iter().enumerate() {
        let once: BTreeSet<_> = frames.iter().collect();
        assert_eq!(once.len(), frames.len(), "seed {seed}");
        for frame in frames {
            let text = str::from_utf8(frame).unwrap();
            assert!(text.starts_with(&format!("{} ", 1 - to)), "seed {seed}: {text}");
        }
    }
    pair.received.iter().map(Vec::len).sum()
}

#[test]
fn every_frame_is_received_once_at_most_and_as_its_peer_sent_it() {
    let received: usize = (0..30).map(check_received).sum();
    assert!(received > 500, "{received} frames prove little");
}

/// Adds the bodies sealed in a run to those of other runs. Two equal bodies would mean that a key and counter were used
/// twice.
fn check_sealed(seed: u64, sealed: &mut BTreeSet<Vec<u8>>) {
    for (_, datagram) in run_hostile(pairs()[seed as usize % 2](), seed, 300, false).record {
        let (envelope, body) = Envelope::parse(&datagram).unwrap();
        if envelope.kind == EnvelopeKind::Frame {
            assert!(sealed.insert(body.to_vec()), "seed {seed}");
        }
    }
}

#[test]
fn equal_frames_have_different_bodies_across_restarts() {
    let mut sealed = BTreeSet::new();
    (0..15).for_each(|seed| check_sealed(seed, &mut sealed));
    assert!(sealed.len() > 500, "{} frames prove little", sealed.len());
}

fn check_heals(seed: u64) {
    let mut pair = run_hostile(pairs()[seed as usize % 2](), seed, 300, true);
    pair.settle();
    for _ in 0..10 {
        pair.send(0, b"ping");
        pair.send(1, b"pong");
        pair.settle();
        pair.advance(100_000_000);
        pair.settle();
    }
    for (to, frame) in [(0, b"pong"), (1, b"ping")] {
        assert_eq!(pair.received[to].last().unwrap(), frame, "seed {seed}");
    }
}

#[test]
fn both_receive_within_a_second_once_the_network_has_no_faults() {
    (0..30).for_each(check_heals);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn every_frame_is_received_once_at_most_from_new_seeds(seed: u64) {
        check_received(seed);
    }

    #[test]
    fn both_receive_within_a_second_from_new_seeds(seed: u64) {
        check_heals(seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]
    #[test]
    fn equal_frames_have_different_bodies_from_new_seeds(seeds: [u64; 15]) {
        let (mut sealed, seeds) = (BTreeSet::new(), BTreeSet::from(seeds));
        seeds.into_iter().for_each(|seed| check_sealed(seed, &mut sealed));
    }
}

/// Returns node 0 of `pair` as an attacker would run it that has every key except node 0's own.
fn impostor(pair: &Pair) -> Seals {
    let secret = SecretKey::generate().unwrap();
    let other = *pair.identities.as_ref().unwrap()[1].peer(NodeId(1)).unwrap();
    // The attacker makes its own list.
    let identity = Identity::new(NodeId(0), secret.clone(), vec![secret.public(), other]).unwrap();
    Seals::identified(NodeId(0), 2, pair.keys[0].clone(), identity).unwrap()
}

#[test]
fn no_node_begins_a_handshake_as_another() {
    for keys in [vec![], vec![key(1)]] {
        let mut pair = Pair::of([keys.clone(), keys], Some(identities()));
        pair.nodes[0] = impostor(&pair);
        pair.send(0, b"as node 0");
        pair.settle();
        assert_eq!(pair.received[1], [b""; 0]);
        assert_eq!(pair.drops, [DropCause::Unsealed]);
        // While the attacker tries, the peer still serves the real node 0.
        pair.restart(0);
        pair.send(0, b"node 0");
        pair.settle();
        assert_eq!(pair.received[1], [b"node 0"]);
    }
}

#[test]
fn no_node_answers_a_handshake_as_another() {
    let mut pair = Pair::identified();
    pair.nodes[0] = impostor(&pair);
    pair.send(1, b"for node 0");
    pair.settle();
    assert_eq!(pair.received[0], [b""; 0]);
    assert_eq!(pair.drops, [DropCause::Unsealed]);
}

#[test]
fn the_fabrics_key_alone_joins_nothing_where_nodes_have_their_own() {
    for named in 0..2 {
        let mut pair = Pair::of([vec![key(1)], vec![key(1)]], Some(identities()));
        let other = 1 - named;
        pair.nodes[other] = Pair::node(other, &[key(1)], None);
        pair.send(other, b"a");
        pair.send(named, b"b");
        pair.settle();
        assert_eq!(pair.received, [Vec::<Vec<u8>>::new(), Vec::new()]);
        assert_eq!(pair.drops, [DropCause::Unsealed; 2]);
    }
}

/// Checks that a frame that one node has sealed does not open under a third node's name.
#[test]
fn a_sealed_frame_opens_under_its_senders_name_only() {
    let secrets: Vec<SecretKey> = (0..3).map(|_| SecretKey::generate().unwrap()).collect();
    let list: Vec<PublicKey> = secrets.iter().map(SecretKey::public).collect();
    let mut nodes: Vec<Seals> = (0..3)
        .map(|node| {
            let id = NodeId(node);
            let secret = secrets[usize::from(node)].clone();
            let identity = Identity::new(id, secret, list.clone()).unwrap();
            Seals::identified(id, 3, vec![key(1)], identity).unwrap()
        })
        .collect();
    let (now, mut plain) = (Instant::from_nanos(1), vec![0; PLAIN]);
    let mut record: Vec<(usize, Vec<u8>)> = Vec::new();
    // Nodes 0 and 2 each send to node 1.
    for from in [0, 2] {
        assert!(nodes[from].hold(now, NodeId(1), false, vec![from as u8]));
        loop {
            let mut sent = Vec::new();
            for node in &mut nodes {
                let mut out = Vec::new();
                while let Some((to, _)) = node.poll_transmit(&mut out) {
                    sent.push((to.index(), std::mem::take(&mut out)));
                }
            }
            for (to, datagram) in &sent {
                let (envelope, body) = Envelope::parse(datagram).unwrap();
                nodes[*to].open(now, &envelope, body, &mut plain).unwrap();
            }
            if sent.is_empty() {
                break;
            }
            record.extend(sent);
        }
    }
    // Node 2 claims that its frame is from node 0, with each datagram ever sent.
    let mut out = Vec::new();
    assert_eq!(nodes[2].seal(NodeId(1), (9, false), b"lie", &mut out), Verdict::Sealed);
    record.push((1, out));
    for (to, datagram) in record.iter().filter(|(to, _)| *to == 1) {
        let (envelope, body) = Envelope::parse(datagram).unwrap();
        let claimed = Envelope { source: NodeId(2 - envelope.source.0), ..envelope };
        let opened = nodes[*to].open(now, &claimed, body, &mut plain);
        assert_eq!(opened, Err(DropCause::Unsealed), "{envelope:?}");
    }
}

#[test]
fn keys_of_another_node_or_number_of_nodes_are_refused() {
    let [first, _] = identities();
    for (node, peers) in [(1, 2), (0, 3)] {
        let made = Seals::identified(NodeId(node), peers, vec![], first.clone());
        let error = SealConfigError::Identity {
            named: NodeId(0),
            keys: 2,
            node: NodeId(node),
            nodes: peers,
        };
        assert_eq!(made.map(drop), Err(error));
    }
}
