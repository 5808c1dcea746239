//! Frames that can't leave, because of their peer or their port, delay no others.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::harness::{Effect, command};
use crate::transmit::{MINE, PEER, PORT, Scripted, harness, message};
use midplane_nicvm::transmit::{FlowId, Message, Packet};
use midplane_simhw::frame::Kind;
use midplane_simhw::hardware::Firmware;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion};

/// Returns the numbers of hellos, packets and messages that have left to a node.
fn left(effects: &[Effect], to: NodeId) -> [usize; 3] {
    let mut left = [0; 3];
    for effect in effects {
        match effect {
            Effect::Sent(header) if header.destination != to => {}
            Effect::Sent(header) if header.kind == Kind::Hello => left[0] += 1,
            Effect::Sent(header) => left[if header.sequence == 1 { 1 } else { 2 }] += 1,
            _ => {}
        }
    }
    left
}

#[test]
fn a_peer_without_room_delays_no_frame_to_another() {
    let reading = NodeId(3);
    let script = Scripted::new(move |nic, _| {
        for node in [PEER, reading] {
            nic.send_control(node, b"hello").unwrap();
            nic.send_packet(&Packet { sequence: 1, ..Packet::to(node) }).unwrap();
            nic.send(Message { node, flow: FlowId(1), ..message(false, 10, 0) });
        }
    });
    let mut harness = harness([(MINE, script)]);
    harness.hw.full = Some(PEER);
    for round in 0..3 {
        harness.post(PORT, command(MINE, round));
    }
    let effects = harness.take();
    assert_eq!((left(&effects, PEER), left(&effects, reading)), ([0, 0, 0], [1, 3, 3]));
    // The peer is tried again, and takes its frames in the end.
    harness.pass(10_000);
    assert_eq!(left(&harness.take(), PEER), [0, 0, 0]);
    harness.hw.full = None;
    harness.pass(10_000);
    let effects = harness.take();
    assert_eq!((left(&effects, PEER), left(&effects, reading)), ([1, 3, 3], [0, 0, 0]));
    assert!(harness.hw.alarms[0] > harness.hw.now.plus_nanos(100_000), "nothing waits for a peer");
}

#[test]
fn a_message_beside_those_of_a_suspended_port_is_reported_as_held() {
    let script = Scripted::new(|nic, command| match command.opcode {
        1 => {
            let port = command.port;
            let completion = Some((port, Completion::default()));
            nic.send(Message { flow: FlowId(port.0), completion, ..message(true, 10, 0) });
        }
        _ => nic.suspend_port(PORT),
    });
    let held = Arc::clone(&script.held);
    let mut harness = harness([(MINE, script.starting(|nic, _| nic.control_gate().unwrap()))]);
    let other = PortId(4);
    harness.post(PORT, Command { port: PORT, ..command(MINE, 1) });
    harness.post(other, Command { port: other, ..command(MINE, 1) });
    harness.post(PORT, command(MINE, 2));
    assert_eq!(held.load(Relaxed), 1);
    // The message that could leave is withdrawn, and the next one is reported anew.
    harness.turn(|unit, hw| unit.on_port_closed(hw, other));
    harness.post(other, Command { port: other, ..command(MINE, 1) });
    assert_eq!(held.load(Relaxed), 2);
}
