//! On arbitrary frames and commands, a unit neither panics nor quarantines the extensions that ship with it.

use crate::harness::{Harness, memory};
use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::coordination::{
    self, COORDINATION, Coordination, CoordinationConfig, Uncontrolled,
};
use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::Command;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Frame(Header, Vec<u8>),
    Command(Command),
    Pass(u64),
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Data),
        Just(Kind::Control),
        Just(Kind::Acknowledge),
        Just(Kind::Hello),
        Just(Kind::Welcome),
    ]
}

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..4, any::<u32>(), u32::MAX - 3..=u32::MAX]
}

fn any_word() -> impl Strategy<Value = u64> {
    (any_number(), any_number()).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

prop_compose! {
    fn any_header()(
        kind in any_kind(), extension in 0_u8..4, nodes in (0_u16..5, 0_u16..3),
        lives in (0_u32..3, 0_u32..3), port in 0_u16..3, numbers in (any_number(), any_number()),
        flags in 0_u8..8, words in (any_word(), any_word()),
    ) -> Header {
        Header {
            kind,
            extension: ExtensionId(extension),
            source: NodeId(nodes.0),
            destination: NodeId(nodes.1),
            incarnation: Incarnation(lives.0),
            destination_incarnation: Incarnation(lives.1),
            port: PortId(port),
            sequence: numbers.0,
            acknowledgement: numbers.1,
            flags,
            words: [words.0, words.1],
            ..Header::default()
        }
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..120),
        proptest::collection::vec(0_u8..12, 0..100),
    ];
    let command = (0_u8..4, 0_u8..5, 0_u16..4, any_number(), any_word()).prop_map(
        |(extension, opcode, node, length, argument)| Command {
            extension: ExtensionId(extension),
            opcode,
            node: NodeId(node),
            region: memory(PortId(0), length % 100_000),
            args: [argument; 3],
            ..Command::default()
        },
    );
    prop_oneof![
        4 => (any_header(), bytes).prop_map(|(header, bytes)| Op::Frame(header, bytes)),
        1 => command.prop_map(Op::Command),
        1 => (0_u64..50_000_000).prop_map(Op::Pass),
    ]
}

fn unit(buffers: bool) -> Unit {
    let mut config =
        CoordinationConfig::star(&[NodeId(0), NodeId(1)], &[NodeId(1), NodeId(2), NodeId(3)]);
    config = config
        .genesis(true)
        .buffers(buffers)
        .uncontrolled(Uncontrolled::for_buffer(100, 10_000, 3));
    let mut unit = Unit::new(ControlConfig::default());
    unit.install(MESSAGES, Messages::new()).unwrap();
    unit.install(COORDINATION, Coordination::new(config).unwrap()).unwrap();
    unit
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_frame_and_no_command_traps_a_unit(
        buffers in any::<bool>(), ops in proptest::collection::vec(any_op(), 1..120),
    ) {
        let mut harness = Harness::new(unit(buffers));
        for op in ops {
            match op {
                Op::Frame(header, bytes) => harness.frame(header, &bytes),
                Op::Command(command) => harness.post(PortId(0), command),
                Op::Pass(nanos) => harness.pass(nanos),
            }
        }
        prop_assert_eq!(harness.unit.counters().traps, 0);
        prop_assert_eq!(harness.unit.failure(), None);
    }
}

#[test]
fn a_message_of_the_greatest_length_traps_no_unit() {
    let mut harness = Harness::new(unit(false));
    let region = memory(PortId(0), u32::MAX);
    harness.post(PortId(0), coordination::send(NodeId(0), PortId(0), region, 1));
    assert_eq!(harness.unit.counters().traps, 0);
}
