//! The same detector run by hosts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::nicvm::messages;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::sim::{SimHost, World};

use crate::detector::extension::Known;

/// Each host's state of all others.
pub(crate) type Table = Arc<Mutex<Vec<Vec<Known>>>>;

/// Starts the detector on every host.
pub(crate) fn start(world: &mut World<Unit>, nodes: u16, period: Duration) -> Table {
    let table: Table = Arc::new(Mutex::new(vec![vec![Known::NEVER; nodes.into()]; nodes.into()]));
    for node in (0..nodes).map(NodeId) {
        world.spawn(node, listen(world.host(node), nodes, Arc::clone(&table)));
        world.spawn(node, beat(world.host(node), nodes, period, Arc::clone(&table)));
    }
    table
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
        let (own, from) = (host.node().index(), done.node.index());
        table.lock().expect("no task panics with it locked")[own][from].on_heartbeat(host.now());
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
        let mut table = table.lock().expect("no task panics with it locked");
        for (_, known) in
            table[own.index()].iter_mut().enumerate().filter(|(of, _)| *of != own.index())
        {
            known.check(host.now(), period);
        }
    }
}
