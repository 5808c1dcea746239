//! The same detector run by hosts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::messages;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::sim::SimHost;
use midplane::simhw::time::Instant;

use crate::detector::extension::Known;
use crate::detector::{Arguments, Run};

type Table = Arc<Mutex<Vec<Vec<Known>>>>;

pub(crate) fn run(arguments: &Arguments) -> Run {
    let mut world = crate::detector::world(arguments);
    let (nodes, period) = (arguments.nodes, Duration::from_micros(arguments.period_us));
    let never = Known { heard_at: Instant::ZERO, suspected_at: None, mistakes: 0 };
    let table: Table = Arc::new(Mutex::new(vec![vec![never; nodes.into()]; nodes.into()]));
    for node in (0..nodes).map(NodeId) {
        world.spawn(node, listen(world.host(node), nodes, Arc::clone(&table)));
        world.spawn(node, beat(world.host(node), nodes, period, Arc::clone(&table)));
    }
    let (dead, at) = crate::detector::crash(arguments);
    world.run_until(at);
    world.crash(dead);
    world.run_until(at + period * 10);
    let table = table.lock().expect("nobody panics with it");
    let (mut mistakes, mut found) = (0, Some(0.0_f64));
    for (_, row) in table.iter().enumerate().filter(|(node, _)| *node != dead.index()) {
        for (of, known) in row.iter().enumerate() {
            mistakes += known.mistakes;
            if of == dead.index() {
                let periods =
                    known.suspected_at.map(|s| s.nanos_since(at) as f64 / period.as_nanos() as f64);
                found = found.zip(periods).map(|(most, periods)| most.max(periods));
            }
        }
    }
    crate::detector::run("host", arguments, mistakes, found)
}

/// Receives heartbeats on the host's first port; the second port sends them.
async fn listen(host: SimHost, nodes: u16, table: Table) {
    let mut port = host.open_port().expect("the NIC is up");
    let memory = port.register(8).expect("a small region");
    for slot in 0..4 * u64::from(nodes) {
        port.post(&messages::receive(memory.whole(), slot)).expect("the ring is long enough");
    }
    port.ring();
    while let Ok(done) = port.completion().await {
        let mut table = table.lock().expect("nobody panics with it");
        let known = &mut table[host.node().index()][done.node.index()];
        known.heard_at = host.now();
        known.mistakes += u64::from(known.suspected_at.take().is_some());
        drop(table);
        port.submit(&messages::receive(memory.whole(), done.cookie)).expect("one was taken");
    }
}

async fn beat(host: SimHost, nodes: u16, period: Duration, table: Table) {
    let mut port = host.open_port().expect("the NIC is up");
    let memory = port.register(8).expect("a small region");
    let own = host.node();
    loop {
        host.sleep_until(host.now() + period).await;
        for node in (0..nodes).map(NodeId).filter(|node| *node != own) {
            port.post(&messages::send(node, PortId(0), memory.whole(), 0))
                .expect("few are under way");
        }
        port.ring();
        for _ in 1..nodes {
            port.completion().await.expect("the NIC is up");
        }
        let now = host.now();
        for (of, known) in
            table.lock().expect("nobody panics with it")[own.index()].iter_mut().enumerate()
        {
            if of != own.index() && now > known.heard_at + period * 25 / 10 {
                known.suspected_at.get_or_insert(now);
            }
        }
    }
}
