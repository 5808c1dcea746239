//! Tests that a sender has feedback at once after it or its receiver has restarted, with Warp alone:
//! no control message reports the restart.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Command;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use midplane_warp::firmware::{self, CONTROLLER_STATE, WARP, Warp, WarpConfig};

const RECEIVER: NodeId = NodeId(0);
const SENDER: NodeId = NodeId(1);
const MESSAGE: usize = 10_240;
const RATE: LineRate = LineRate::mbps(100);

fn world() -> World<Unit> {
    let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
    let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(64 << 10)));
    World::new(&topology, NicProfile::MODERN, 1, |node, _| {
        let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
        let mut unit = Unit::default();
        unit.install(WARP, Warp::new(WarpConfig::new(to, RATE, 16 << 10, 1)).0).unwrap();
        unit
    })
}

/// Starts a process that always has messages to send.
fn send(world: &mut World<Unit>) {
    let host = world.host(SENDER);
    world.spawn(SENDER, async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(MESSAGE).unwrap();
        loop {
            while port.outstanding() < 16 {
                port.submit(&firmware::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
            }
            port.completion().await.unwrap();
        }
    });
}

fn run(world: &mut World<Unit>, millis: u64) {
    world.run_until(world.now() + Duration::from_millis(millis));
}

/// Asserts that the sender's rate is above 0.9 of the line.
#[track_caller]
fn assert_fast(world: &mut World<Unit>, what: &str) {
    let host = world.host(SENDER);
    let ask = async move {
        let mut port = host.open_port().unwrap();
        let (extension, opcode, node) = (WARP, CONTROLLER_STATE, RECEIVER);
        port.submit(&Command { extension, opcode, node, ..Command::default() }).unwrap();
        port.completion().await.unwrap().args[0]
    };
    let rate = world.block_on(SENDER, ask).expect("Warp completes the command");
    let line = RATE.bits_per_second() as f64 / 8.0;
    assert!(rate as f64 > 0.9 * line, "{rate} bytes/s of {line}: {what}");
}

#[test]
fn a_restarted_sender_gets_feedback_at_once() {
    let mut world = world();
    send(&mut world);
    run(&mut world, 1_000);
    assert_fast(&mut world, "before the restart");
    world.crash(SENDER);
    world.restart(SENDER);
    send(&mut world);
    run(&mut world, 200);
    assert_fast(&mut world, "after the restart");
}

#[test]
fn a_restarted_receiver_gives_feedback_at_once() {
    let mut world = world();
    send(&mut world);
    run(&mut world, 1_000);
    assert_fast(&mut world, "before the restart");
    world.crash(RECEIVER);
    world.restart(RECEIVER);
    run(&mut world, 200);
    assert_fast(&mut world, "after the restart");
}
