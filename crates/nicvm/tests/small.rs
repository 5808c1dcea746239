//! Small messages that wait for no token, compared with bulk ones that do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, RECEIVER};
use midplane_nicvm::coordination::{self, Uncontrolled};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::time::Instant;

const SMALL: usize = 200;
const BULK: usize = 10_240;
const END: Instant = Instant::from_nanos(1_000_000_000);

/// Small and large messages that were sent and received, and the times that the small ones took.
#[derive(Debug, Default)]
struct Seen {
    sent: [u64; 2],
    received: [u64; 2],
    small_us: Vec<u64>,
}

async fn bulk(host: SimHost, seen: Arc<Mutex<Seen>>) {
    let mut port = host.open_port().unwrap();
    let region = port.register(BULK).unwrap();
    let command = coordination::send(RECEIVER, PortId(0), region.whole(), 0);
    let mut under_way = 0;
    while host.now() < END || under_way > 0 {
        while under_way < 20 && host.now() < END {
            port.post(&command).unwrap();
            under_way += 1;
        }
        port.ring();
        assert_eq!(port.completion().await.unwrap().status, Status::Done);
        seen.lock().unwrap().sent[1] += 1;
        under_way -= 1;
    }
}

/// Sends small messages at random intervals, with the time of sending in each.
async fn small(host: SimHost, seen: Arc<Mutex<Seen>>) {
    let mut port = host.open_port().unwrap();
    let region = port.register(SMALL).unwrap();
    let mut rng = host.rng("small");
    while host.now() < END {
        let pause = rng.between(2_000_000, 20_000_000);
        host.sleep_until(host.now().plus_nanos(pause)).await;
        region.write(0, &host.now().as_nanos().to_le_bytes()).unwrap();
        port.submit(&coordination::send(RECEIVER, PortId(0), region.whole(), 0)).unwrap();
        assert_eq!(port.completion().await.unwrap().status, Status::Done);
        seen.lock().unwrap().sent[0] += 1;
    }
}

async fn receive(host: SimHost, seen: Arc<Mutex<Seen>>) {
    let mut port = host.open_port().unwrap();
    let regions: Vec<_> = (0..100).map(|_| port.register(BULK).unwrap()).collect();
    for (at, region) in regions.iter().enumerate() {
        port.post(&coordination::receive(region.whole(), at as u64)).unwrap();
    }
    port.ring();
    while let Ok(completion) = port.completion().await {
        let region = &regions[completion.cookie as usize];
        let large = usize::from(completion.length as usize == BULK);
        let mut stamp = [0; 8];
        region.read(0, &mut stamp).unwrap();
        {
            let mut seen = seen.lock().unwrap();
            seen.received[large] += 1;
            if large == 0 {
                let sent = Instant::from_nanos(u64::from_le_bytes(stamp));
                seen.small_us.push(host.now().nanos_since(sent) / 1000);
            }
        }
        port.submit(&coordination::receive(region.whole(), completion.cookie)).unwrap();
    }
}

fn run(uncontrolled: bool) -> (Seen, World<Unit>) {
    let senders = 8;
    let mut cluster = Cluster::ethernet(senders);
    if uncontrolled {
        let policy = Uncontrolled::for_buffer(1000, 32 << 10, usize::from(senders));
        cluster.config = cluster.config.uncontrolled(policy).reserve(20);
    }
    let mut world = cluster.world();
    let seen = Arc::new(Mutex::new(Seen::default()));
    world.spawn(RECEIVER, receive(world.host(RECEIVER), Arc::clone(&seen)));
    for sender in (1..=senders).map(NodeId) {
        world.spawn(sender, bulk(world.host(sender), Arc::clone(&seen)));
        world.spawn(sender, small(world.host(sender), Arc::clone(&seen)));
    }
    world.run_until(END + Duration::from_secs(2));
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, world)
}

#[test]
fn small_messages_pass_bulk_ones_and_nothing_is_lost() {
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (waiting, _) = run(false);
    let (free, world) = run(true);
    for seen in [&waiting, &free] {
        assert_eq!(seen.sent, seen.received);
        assert!(seen.sent[0] > 20 && seen.sent[1] > 1000, "{:?}", seen.sent);
    }
    assert!(free.sent[0] > 5 * waiting.sent[0], "{:?} and {:?}", free.sent, waiting.sent);
    assert_eq!(world.traffic().drops.total(), 0);
    let (waiting, free) = (median(waiting.small_us), median(free.small_us));
    println!("median and 99 %: {free:?} us, {waiting:?} us with the token");
    assert!(free.0 * 2 < waiting.0, "{free:?} and {waiting:?} us");
}
