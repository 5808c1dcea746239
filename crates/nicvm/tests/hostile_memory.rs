//! A peer's false claims about the frames of a large write neither increase the memory of its table, nor prevent honest
//! frames from being accepted.

use crate::harness::{Effect, Harness, Peer, memory};
use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::control::Address;
use midplane_nicvm::extension::Epoch;
use midplane_nicvm::memory::{self as space, ARRIVING, MEMORY, Memory, WORDS};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId, PortId};

const PEER: NodeId = NodeId(2);
const BYTES: u32 = 6_000;
const TO: Address = Address { extension: MEMORY, epoch: Epoch::FIRST };
/// First byte of a message that begins a large write, and of one that reports all its frames as sent.
const WRITE_MANY: u8 = 0x13;
const SENT: u8 = 0x30;
/// First byte of a message that requests a read, of one that carries a small write, and of one that requests frames of
/// a large write again.
const READ: u8 = 0x11;
const WRITE: u8 = 0x12;
const LACKING: u8 = 0x40;

/// Creates a unit whose memory a peer may write, and the capability to that memory.
fn harness() -> (Harness, Capability) {
    let mut unit = Unit::default();
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut harness = Harness::new(unit);
    harness.post(PortId(0), space::grant(memory(PortId(0), BYTES), CapabilityRights::WRITE, 1));
    let given = space::granted(&harness.completions()[0].1);
    (harness, given)
}

fn announce(harness: &mut Harness, peer: &mut Peer, capability: &Capability, number: u32) {
    let mut message = vec![WRITE_MANY];
    message.extend(number.to_le_bytes());
    message.extend(capability.to_words().iter().flat_map(|word| word.to_le_bytes()));
    peer.send(harness, TO, &message);
}

fn frame(harness: &mut Harness, number: u32, at: u32, chunk: u32, total: u32, bytes: u32) {
    let header = Header {
        kind: Kind::Data,
        extension: MEMORY,
        source: PEER,
        destination: NodeId(1),
        incarnation: Incarnation::FIRST,
        sequence: number,
        words: [u64::from(at) | u64::from(chunk) << 32, total.into()],
        ..Header::default()
    };
    harness.frame(header, &vec![5; bytes as usize]);
}

fn arriving(harness: &Harness) -> usize {
    harness.unit.extension::<Memory>(MEMORY).unwrap().arriving()
}

#[test]
fn a_frame_of_one_byte_makes_no_table_and_spoils_no_write() {
    let (mut harness, capability) = harness();
    let mut peer = Peer::new(PEER);
    announce(&mut harness, &mut peer, &capability, 3);
    assert_eq!(arriving(&harness), 1);
    for chunk in [0, 1, 63] {
        frame(&mut harness, 3, 0, chunk, BYTES, chunk);
    }
    frame(&mut harness, 3, 0, 4_096, BYTES, 4_096);
    frame(&mut harness, 3, 4_096, 4_096, BYTES, BYTES - 4_096);
    let sent: Vec<u8> = std::iter::once(SENT).chain(3_u32.to_le_bytes()).collect();
    peer.send(&mut harness, TO, &sent);
    assert_eq!(arriving(&harness), 0, "the honest frames were refused");
    assert_eq!(harness.unit.extension::<Memory>(MEMORY).unwrap().counters().served, 1);
}

#[test]
fn writes_without_frames_are_bounded() {
    let (mut harness, capability) = harness();
    let mut peer = Peer::new(PEER);
    for number in 0..ARRIVING as u32 + 100 {
        announce(&mut harness, &mut peer, &capability, number);
    }
    assert_eq!(arriving(&harness), ARRIVING);
    assert_eq!(harness.unit.extension::<Memory>(MEMORY).unwrap().counters().denied, 100);
}

fn retransmitted(harness: &Harness) -> u64 {
    harness.unit.extension::<Memory>(MEMORY).unwrap().counters().retransmitted
}

/// A receiver that has received no frame requests all frames, however many they are.
#[test]
fn retransmitted_frames_are_counted_one_by_one_and_only_for_the_owner() {
    let (mut harness, _) = harness();
    let theirs = Capability { node: PEER, length: BYTES, ..Capability::default() };
    harness.post(PortId(0), space::access(space::WRITE, &theirs, memory(PortId(0), BYTES), 1));
    harness.take();
    let lacking = [&[LACKING][..], &[0; 8], &u32::MAX.to_le_bytes()].concat();
    let frames = |effects: Vec<Effect>| {
        let is_frame = |e: &&Effect| matches!(e, Effect::Sent(h) if h.kind == Kind::Data);
        effects.iter().filter(is_frame).count()
    };
    let mut stranger = Peer::new(NodeId(3));
    assert_eq!(frames(stranger.send(&mut harness, TO, &lacking)), 0, "they are not for this node");
    assert_eq!(retransmitted(&harness), 0);
    let mut owner = Peer::new(PEER);
    assert_eq!(frames(owner.send(&mut harness, TO, &lacking)), 2);
    assert_eq!(retransmitted(&harness), 2);
}

#[test]
fn words_that_a_peer_changes_faster_than_they_reach_memory_are_bounded() {
    let mut unit = Unit::default();
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut harness = Harness::new(unit);
    let mut peer = Peer::new(PEER);
    harness.post(PortId(0), space::grant(memory(PortId(0), 1 << 20), CapabilityRights::WRITE, 1));
    let given = space::granted(&harness.completions()[0].1);
    let write = |harness: &mut Harness, peer: &mut Peer, number: u32| {
        let part = given.part(number * 64, 64).unwrap();
        let mut message = vec![WRITE];
        message.extend(number.to_le_bytes());
        message.extend(part.to_words().iter().flat_map(|word| word.to_le_bytes()));
        message.extend([7; 64]);
        peer.send(harness, TO, &message);
        while peer.control.poll_event().is_some() {}
    };
    let most = WORDS as u32 / 8;
    for number in 0..most + 100 {
        write(&mut harness, &mut peer, number);
    }
    let counters = |harness: &Harness| harness.unit.extension::<Memory>(MEMORY).unwrap().counters();
    assert_eq!((counters(&harness).served, counters(&harness).denied), (most.into(), 100));
    // They have reached memory after a millisecond.
    harness.pass(1_000_000);
    for number in 0..most {
        write(&mut harness, &mut peer, number);
    }
    assert_eq!((counters(&harness).served, counters(&harness).denied), (2 * u64::from(most), 100));
}

/// A requester ends a write that takes too long, and no longer sends its frames. The owner forgets it then as well.
#[test]
fn a_large_write_that_its_requester_has_ended_is_forgotten() {
    let (mut harness, capability) = harness();
    let mut peer = Peer::new(PEER);
    announce(&mut harness, &mut peer, &capability, 7);
    let sent = [&[SENT][..], &7_u32.to_le_bytes()].concat();
    peer.send(&mut harness, TO, &sent);
    for _ in 0..40 {
        harness.pass(50_000_000);
        assert_eq!(arriving(&harness), 1);
        // The peer lives.
        peer.send(&mut harness, TO, &sent);
    }
    for _ in 0..20 {
        harness.pass(50_000_000);
        peer.send(&mut harness, TO, &sent);
    }
    assert_eq!(arriving(&harness), 0);
}

/// The requester requests the other frames later.
#[test]
fn a_read_of_much_memory_sends_a_bounded_number_of_frames_at_once() {
    let mut unit = Unit::default();
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut harness = Harness::new(unit);
    harness.post(PortId(0), space::grant(memory(PortId(0), 1 << 30), CapabilityRights::READ, 1));
    let given = space::granted(&harness.completions()[0].1);
    let mut message = vec![READ];
    message.extend(3_u32.to_le_bytes());
    message.extend(given.to_words().iter().flat_map(|word| word.to_le_bytes()));
    let effects = Peer::new(PEER).send(&mut harness, TO, &message);
    let is_frame = |e: &&Effect| matches!(e, Effect::Sent(h) if h.kind == Kind::Data);
    assert_eq!(effects.iter().filter(is_frame).count(), 65_536);
}
