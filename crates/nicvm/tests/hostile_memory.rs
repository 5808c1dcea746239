//! What a peer says of the frames of a large write decides neither how much memory its table takes,
//! nor whether honest frames are taken.

use crate::desk::{Desk, Effect, Peer, memory};
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
/// The head of a message that says that a large write comes, and of one that says all was sent.
const WRITE_MANY: u8 = 0x13;
const SENT: u8 = 0x30;
/// The head of a message that carries a small write, and of one that asks for frames of a large write again.
const WRITE: u8 = 0x12;
const LACKING: u8 = 0x40;

/// A unit whose memory a peer may write.
fn desk() -> (Desk, Capability) {
    let mut unit = Unit::default();
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut desk = Desk::new(unit);
    desk.post(PortId(0), space::grant(memory(PortId(0), BYTES), CapabilityRights::WRITE, 1));
    let given = space::granted(&desk.completions()[0].1);
    (desk, given)
}

fn announce(desk: &mut Desk, peer: &mut Peer, capability: &Capability, number: u32) {
    let mut message = vec![WRITE_MANY];
    message.extend(number.to_le_bytes());
    message.extend(capability.to_words().iter().flat_map(|word| word.to_le_bytes()));
    peer.say(desk, TO, &message);
}

fn frame(desk: &mut Desk, number: u32, at: u32, chunk: u32, total: u32, bytes: u32) {
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
    desk.frame(header, &vec![5; bytes as usize]);
}

fn arriving(desk: &Desk) -> usize {
    desk.unit.extension::<Memory>(MEMORY).unwrap().arriving()
}

#[test]
fn a_frame_of_one_byte_makes_no_table_and_spoils_no_write() {
    let (mut desk, capability) = desk();
    let mut peer = Peer::new(PEER);
    announce(&mut desk, &mut peer, &capability, 3);
    assert_eq!(arriving(&desk), 1);
    for chunk in [0, 1, 63] {
        frame(&mut desk, 3, 0, chunk, BYTES, chunk);
    }
    frame(&mut desk, 3, 0, 4_096, BYTES, 4_096);
    frame(&mut desk, 3, 4_096, 4_096, BYTES, BYTES - 4_096);
    let sent: Vec<u8> = std::iter::once(SENT).chain(3_u32.to_le_bytes()).collect();
    peer.say(&mut desk, TO, &sent);
    assert_eq!(arriving(&desk), 0, "the honest frames were refused");
    assert_eq!(desk.unit.extension::<Memory>(MEMORY).unwrap().counters().served, 1);
}

#[test]
fn writes_that_are_announced_and_never_come_are_bounded() {
    let (mut desk, capability) = desk();
    let mut peer = Peer::new(PEER);
    for number in 0..ARRIVING as u32 + 100 {
        announce(&mut desk, &mut peer, &capability, number);
    }
    assert_eq!(arriving(&desk), ARRIVING);
    assert_eq!(desk.unit.extension::<Memory>(MEMORY).unwrap().counters().denied, 100);
}

fn retransmitted(desk: &Desk) -> u64 {
    desk.unit.extension::<Memory>(MEMORY).unwrap().counters().retransmitted
}

/// A receiver that no frame has reached asks for all frames, however many they are.
#[test]
fn frames_that_are_sent_again_are_counted_one_by_one_and_only_for_the_owner() {
    let (mut desk, _) = desk();
    let theirs = Capability { node: PEER, length: BYTES, ..Capability::default() };
    desk.post(PortId(0), space::access(space::WRITE, &theirs, memory(PortId(0), BYTES), 1));
    desk.take();
    let lacking = [&[LACKING][..], &[0; 8], &u32::MAX.to_le_bytes()].concat();
    let frames = |effects: Vec<Effect>| {
        let is_frame = |e: &&Effect| matches!(e, Effect::Sent(h) if h.kind == Kind::Data);
        effects.iter().filter(is_frame).count()
    };
    let mut stranger = Peer::new(NodeId(3));
    assert_eq!(frames(stranger.say(&mut desk, TO, &lacking)), 0, "they are not for this node");
    assert_eq!(retransmitted(&desk), 0);
    let mut owner = Peer::new(PEER);
    assert_eq!(frames(owner.say(&mut desk, TO, &lacking)), 2);
    assert_eq!(retransmitted(&desk), 2);
}

#[test]
fn words_that_a_peer_changes_faster_than_they_reach_memory_are_bounded() {
    let mut unit = Unit::default();
    unit.install(MEMORY, Memory::new()).unwrap();
    let mut desk = Desk::new(unit);
    let mut peer = Peer::new(PEER);
    desk.post(PortId(0), space::grant(memory(PortId(0), 1 << 20), CapabilityRights::WRITE, 1));
    let given = space::granted(&desk.completions()[0].1);
    let write = |desk: &mut Desk, peer: &mut Peer, number: u32| {
        let part = given.part(number * 64, 64).unwrap();
        let mut message = vec![WRITE];
        message.extend(number.to_le_bytes());
        message.extend(part.to_words().iter().flat_map(|word| word.to_le_bytes()));
        message.extend([7; 64]);
        peer.say(desk, TO, &message);
        while peer.control.poll_event().is_some() {}
    };
    let most = WORDS as u32 / 8;
    for number in 0..most + 100 {
        write(&mut desk, &mut peer, number);
    }
    let counters = |desk: &Desk| desk.unit.extension::<Memory>(MEMORY).unwrap().counters();
    assert_eq!((counters(&desk).served, counters(&desk).denied), (most.into(), 100));
    // They have reached memory after a millisecond.
    desk.pass(1_000_000);
    for number in 0..most {
        write(&mut desk, &mut peer, number);
    }
    assert_eq!((counters(&desk).served, counters(&desk).denied), (2 * u64::from(most), 100));
}
