//! Tests that coherent writes wait once many updates are queued for a node with a slow link.

use super::*;

/// Makes a star of three hosts with Mermera alone. The link of node 2 is slow.
fn world() -> World<Unit> {
    let link = |mbps| LinkProfile::ethernet(LineRate::mbps(mbps), Duration::from_micros(1));
    let mut topology = Topology::new();
    let switch = topology.add_switch(SwitchProfile::new(Buffer::Bytes(32 << 10)));
    for mbps in [100, 100, 2] {
        topology.add_host(switch, link(mbps));
    }
    World::new(&topology, NicProfile::MODERN, 1, |_, _| {
        let all = [NodeId(0), NodeId(1), NodeId(2)];
        let mut unit = Unit::default();
        unit.install(MERMERA, Mermera::new(MermeraConfig::new(&all, DELAY))).unwrap();
        unit
    })
}

/// Returns how many coherent writes node 2 has applied.
fn applied(world: &mut World<Unit>) -> u64 {
    let host = world.host(NodeId(2));
    let read = async move {
        let mut memory = MemoryHandle::<String>::open(&host).unwrap();
        memory.read_origin(1).await.unwrap()
    };
    let seen = world.block_on(NodeId(2), read).expect("reads end");
    seen.map_or(0, |(_, origin)| origin.order)
}

/// Node 0, the sequencer, and node 1 are a majority, so that no write needs node 2.
#[test]
fn coherent_writes_wait_for_a_slow_node() {
    // 16,384 parts of updates wait in the extension, 1,024 in the NIC; each write takes ten.
    const MOST: u64 = 2_000;
    let mut world = world();
    let written = Arc::new(Mutex::new(0));
    for node in [0, 0, 0, 0, 1, 1, 1, 1] {
        let (host, count) = (world.host(NodeId(node)), Arc::clone(&written));
        world.spawn(NodeId(node), async move {
            let mut memory = MemoryHandle::<String>::open(&host).unwrap();
            let value = "x".repeat(950);
            loop {
                memory.co_write(1, &value).await.unwrap();
                *count.lock().unwrap() += 1;
            }
        });
    }
    let mut last = 0;
    for second in 1..5 {
        world.run_until(at(second * 1_000));
        let now = *written.lock().unwrap();
        let arrived = applied(&mut world);
        assert!(now > last, "the writes do not continue after {now}");
        assert!(now < arrived + MOST, "{now} writes are made, of which {arrived} have arrived");
        last = now;
    }
    assert!(last > MOST / 2, "{last} writes did not fill the queue");
}
