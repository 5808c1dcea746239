//! Large worlds: many hosts with light traffic, many idle nodes.

use std::time::Duration;

use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::port::{Command, PortOptions};
use midplane::simhw::profile::NicProfile;
use midplane::simhw::sim::{SimHost, World};
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::LineRate;
use midplane::simhw::topology::Topology;

use midplane_benches::raw::{RECEIVE, Raw};
use midplane_benches::work::load::HANDLER;

/// Bytes of a message of the light traffic.
const MESSAGE: usize = 100;
/// Nanoseconds between two messages of one host.
const INTERVAL: u64 = 10_000_000;

fn star(hosts: u16) -> Topology {
    let link = LinkProfile::ethernet(LineRate::mbps(10_000), Duration::from_nanos(500));
    Topology::star(hosts, link, SwitchProfile::new(Buffer::Bytes(256 << 10)))
}

/// Creates hosts of which the first `busy` each send their neighbour 100 bytes every 10 ms, and receive as many.
pub(crate) fn light(hosts: u16, busy: u16) -> World<Raw> {
    let mut world = World::new(&star(hosts), NicProfile::MODERN, 1, |_, _| Raw::new(HANDLER));
    for node in (0..busy).map(NodeId) {
        let host = world.host(node);
        world.spawn(node, chat(host, NodeId((node.0 + 1) % busy)));
    }
    world
}

async fn chat(host: SimHost, to: NodeId) {
    let mut port = host.open_port().expect("the NIC is up");
    let (out, into) = (port.register(MESSAGE), port.register(MESSAGE));
    let (out, into) = (out.expect("a small region"), into.expect("a small region"));
    let receive =
        Command { opcode: RECEIVE, cookie: 1, region: into.whole(), ..Command::default() };
    let send = Command { node: to, region: out.whole(), ..Command::default() };
    let mut next = host.now().plus_nanos(u64::from(host.node().0) * 1_000);
    port.submit(&receive).expect("there is room");
    loop {
        host.sleep_until(next).await;
        next = next.plus_nanos(INTERVAL);
        port.submit(&send).expect("there is room");
        while let Some(completion) = port.poll() {
            if completion.cookie == 1 {
                port.submit(&receive).expect("there is room");
            }
        }
    }
}

/// Creates nodes with idle firmware; with `depth`, each also has a sleeping task and a port of that depth.
pub(crate) fn idle(nodes: u16, depth: Option<usize>) -> World<Raw> {
    let mut world = World::new(&star(nodes), NicProfile::MODERN, 1, |_, _| Raw::new(HANDLER));
    for node in (0..nodes).map(NodeId) {
        let host = world.host(node);
        let Some(depth) = depth else { continue };
        world.spawn(node, async move {
            let port = host.open_port_with(PortOptions::default().depth(depth));
            let port = port.expect("the NIC is up");
            host.sleep_until(host.now().plus_nanos(1 << 60)).await;
            drop(port);
        });
    }
    world
}
