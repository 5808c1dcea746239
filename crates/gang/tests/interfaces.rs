//! A process's other resources on its NIC are suspended and resumed, too: interfaces, messages, turns on a link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_gang::firmware::Gang;
use midplane_gang::port_suspender::PortSuspender;
use midplane_gang::process::SuspendHandle;
use midplane_gang::{GANG, GangConfig};
use midplane_nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::rdma::{RdmaCarrier, RdmaConfig};
use proptest::prelude::*;

const PORT_SUSPENDER: PortId = PortId(1_024);

fn world(nodes: u16, seed: u64, faults: Faults) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(100), Duration::from_nanos(500));
    let topology = Topology::star(nodes, link, SwitchProfile::new(Buffer::Bytes(4 << 20)));
    let senders: Vec<NodeId> = (1..nodes).map(NodeId).collect();
    let mut world = World::new(&topology, NicProfile::MODERN, seed, move |_, incarnation| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default().port_suspender(PORT_SUSPENDER)))
            .unwrap();
        let config = ViaConfig::default().dead_after(Duration::from_millis(200));
        unit.install(VIA, Via::new(config)).unwrap();
        let mut config = CoordinationConfig::star(&[NodeId(0)], &senders);
        config = config.genesis(incarnation == midplane_simhw::id::Incarnation::FIRST);
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit.install(COORDINATION, Coordination::new(config).unwrap()).unwrap();
        unit
    });
    world.set_faults(faults);
    world
}

async fn pause(host: &SimHost, time: Duration) {
    host.sleep_until(host.now() + time).await;
}

/// Two processes exchange messages over Virtual Interfaces. Both are repeatedly suspended, each time for longer than
/// the time after which a silent connection breaks.
fn echo_under_stops(seed: u64, faults: Faults, one_side: bool) -> u32 {
    const MESSAGES: u32 = 400;
    let mut world = world(2, seed, faults);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let suspend_handle: Vec<SuspendHandle> = (0..2).map(|_| SuspendHandle::new()).collect();
    let done = Arc::new(Mutex::new(0));
    for rank in 0..2_u32 {
        let (host, place) = (hosts[rank as usize].clone(), Arc::clone(&done));
        let program = async move {
            let places = [NodeId(0), NodeId(1)];
            let carrier =
                RdmaCarrier::open(&host, Peer(rank), &places, RdmaConfig::default()).await.unwrap();
            let engine = Engine::new(carrier, Config::default());
            let all = Communicator::world(engine, 2).unwrap();
            for number in 0..MESSAGES {
                let bytes = vec![number as u8; (number as usize * 37) % 3000];
                let receive = all.ireceive(Rank(1 - rank), Tag(number)).unwrap();
                all.send(Rank(1 - rank), Tag(number), bytes.clone()).await.unwrap();
                assert!(receive.await.unwrap().bytes == bytes, "message {number}");
            }
            all.finalize().await;
            *place.lock().unwrap() += 1;
            // The other process may still be running.
            pause(&host, Duration::from_secs(5)).await;
        };
        hosts[rank as usize].spawn(suspend_handle[rank as usize].hold(program));
    }
    let (ended, stops) = (Arc::clone(&done), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&stops);
    world.spawn(NodeId(0), async move {
        let mut port_suspenders: Vec<PortSuspender> =
            hosts.iter().map(|host| PortSuspender::open(host, PORT_SUSPENDER).unwrap()).collect();
        let mut dice = Rng::new(seed, "stops");
        pause(&hosts[0], Duration::from_millis(3)).await;
        while *ended.lock().unwrap() < 2 {
            pause(&hosts[0], Duration::from_nanos(dice.between(1, 4_000_000))).await;
            let sides = if one_side { 0..1 } else { 0..2 };
            for side in sides.clone() {
                suspend_handle[side].suspend(hosts[0].now());
                port_suspenders[side].suspend(PortId(0)).await.unwrap();
            }
            pause(&hosts[0], Duration::from_nanos(dice.between(1, 600_000_000))).await;
            for side in sides {
                port_suspenders[side].resume(PortId(0)).await.unwrap();
                suspend_handle[side].resume(hosts[0].now());
            }
            *count.lock().unwrap() += 1;
        }
    });
    let limit = Instant::from_nanos(600_000_000_000);
    while *done.lock().unwrap() < 2 && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    assert_eq!(*done.lock().unwrap(), 2, "seed {seed}: they do not come to their end");
    *stops.lock().unwrap()
}

fn check_both_stopped(seed: u64) {
    let stops = echo_under_stops(seed, Faults::NONE, false);
    assert!(stops > 3, "seed {seed}: {stops} stops");
}

fn check_one_stopped(seed: u64) {
    echo_under_stops(seed, Faults::NONE, true);
}

fn check_stops_and_losses(seed: u64) {
    let faults = Faults { loss: 0.01, duplicate: 0.01, reorder: 0.02, ..Faults::NONE };
    echo_under_stops(seed, faults, seed.is_multiple_of(2));
}

#[test]
fn interfaces_survive_suspensions_longer_than_their_timeouts() {
    (0..6).for_each(check_both_stopped);
}

#[test]
fn a_running_peer_takes_a_suspended_one_neither_for_dead_nor_for_broken() {
    (0..6).for_each(check_one_stopped);
}

#[test]
fn stops_and_losses_together_lose_nothing() {
    (0..6).for_each(check_stops_and_losses);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn interfaces_survive_long_stops_from_new_seeds(seed: u64) {
        check_both_stopped(seed);
    }

    #[test]
    fn a_stopped_peer_is_neither_dead_nor_broken_from_new_seeds(seed: u64) {
        check_one_stopped(seed);
    }

    #[test]
    fn stops_and_losses_together_lose_nothing_from_new_seeds(seed: u64) {
        check_stops_and_losses(seed);
    }
}

/// Node 1 and node 2 take turns on the link to node 0. The process on node 1 is suspended in the middle of its
/// messages: those of node 2 continue at the link's full rate, as if node 1 had none.
#[test]
fn a_suspended_process_returns_its_turn_on_a_link() {
    let mut world = world(3, 1, Faults::NONE);
    let received = Arc::new(Mutex::new([0_u32; 3]));
    let (host, counts) = (world.host(NodeId(0)), Arc::clone(&received));
    world.spawn(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        let regions: Vec<_> = (0..64).map(|_| port.register(10_000).unwrap()).collect();
        for (number, region) in (0..).zip(&regions) {
            port.submit(&coordination::receive(region.whole(), number)).unwrap();
        }
        loop {
            let completion = port.completion().await.unwrap();
            counts.lock().unwrap()[completion.node.index()] += 1;
            let region = &regions[completion.cookie as usize];
            port.submit(&coordination::receive(region.whole(), completion.cookie)).unwrap();
        }
    });
    for node in 1..3 {
        let host = world.host(NodeId(node));
        world.spawn(NodeId(node), async move {
            let mut port = host.open_port().unwrap();
            let memory = port.register(10_000).unwrap();
            loop {
                while port.outstanding() < 16 {
                    let send = coordination::send(NodeId(0), PortId(0), memory.whole(), 0);
                    port.submit(&send).unwrap();
                }
                port.completion().await.unwrap();
            }
        });
    }
    let count = |received: &Mutex<[u32; 3]>| *received.lock().unwrap();
    let run = |world: &mut World<Unit>, milliseconds| {
        let before = count(&received);
        world.run_until(world.now() + Duration::from_millis(milliseconds));
        let after = count(&received);
        [after[1] - before[1], after[2] - before[2]]
    };
    run(&mut world, 100);
    let [first, second] = run(&mut world, 100);
    assert!(first > 40 && second > 40, "both have turns: {first} {second}");
    let host = world.host(NodeId(1));
    let mut port_suspender = PortSuspender::open(&host, PORT_SUSPENDER).unwrap();
    let port_suspender = world
        .block_on(NodeId(1), async move {
            port_suspender.suspend(PortId(0)).await.unwrap();
            port_suspender
        })
        .unwrap();
    run(&mut world, 2);
    let [stopped, alone] = run(&mut world, 100);
    assert_eq!(stopped, 0, "nothing of a stopped process leaves");
    // 100 Mb/s are 121 messages of 10,000 bytes and their headers in 100 ms.
    assert!(alone >= 112, "the other has the link: {alone} messages");
    let mut port_suspender = port_suspender;
    world
        .block_on(NodeId(1), async move { port_suspender.resume(PortId(0)).await.unwrap() })
        .unwrap();
    run(&mut world, 20);
    let [first, second] = run(&mut world, 100);
    assert!(first > 40 && second > 40, "both have turns again: {first} {second}");
}

/// Messages of one and of several frames that arrive for a suspended process: its memory is not written, and it
/// receives no completion. When the process is resumed, it has all of them, once and in order.
#[test]
fn messages_on_the_nic_for_a_suspended_port_are_delivered_when_it_is_resumed() {
    const LENGTHS: [usize; 4] = [3, 9_000, 700, 20_000];
    let mut world = world(2, 1, Faults::NONE);
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let [near, far] = hosts;
        let (mut receiver, mut sender) = (near.open_port().unwrap(), far.open_port().unwrap());
        let buffers = LENGTHS.map(|_| receiver.register(LENGTHS[3]).unwrap());
        let source = sender.register(LENGTHS[3]).unwrap();
        let port = receiver.id();
        let mut port_suspender = PortSuspender::open(&near, PORT_SUSPENDER).unwrap();
        let mut dice = Rng::new(5, "stops");
        for round in 0..30_u8 {
            for (number, buffer) in (0..).zip(&buffers) {
                buffer.write(0, &[0xEE; LENGTHS[3]]).unwrap();
                receiver.submit(&messages::receive(buffer.whole(), number)).unwrap();
            }
            pause(&near, Duration::from_micros(20)).await;
            // Before the messages arrive, or in the middle of one.
            let mut send = async |number: usize| {
                source.write(0, &vec![16 * (round % 8) + number as u8; LENGTHS[number]]).unwrap();
                let message = source.range(0, LENGTHS[number]).unwrap();
                sender.submit(&messages::send(NodeId(0), port, message, 0)).unwrap();
                sender.completion().await.unwrap();
            };
            send(0).await;
            send(1).await;
            pause(&near, Duration::from_nanos(dice.between(0, 1_500_000))).await;
            port_suspender.suspend(port).await.unwrap();
            let here = || {
                buffers.each_ref().map(|buffer| {
                    let mut bytes = vec![0; LENGTHS[3]];
                    buffer.read(0, &mut bytes).unwrap();
                    bytes
                })
            };
            let mut completions = Vec::new();
            completions.extend(std::iter::from_fn(|| receiver.poll()));
            let before = here();
            send(2).await;
            send(3).await;
            pause(&near, Duration::from_millis(20)).await;
            assert!(receiver.poll().is_none() && here() == before, "round {round}");
            port_suspender.resume(port).await.unwrap();
            while completions.len() < LENGTHS.len() {
                completions.push(receiver.completion().await.unwrap());
            }
            for (number, (completion, bytes)) in completions.iter().zip(here()).enumerate() {
                let length = LENGTHS[number];
                assert_eq!((completion.cookie, completion.length), (number as u64, length as u64));
                assert!(
                    bytes[..length].iter().all(|byte| *byte == 16 * (round % 8) + number as u8)
                );
                assert!(bytes[length..].iter().all(|byte| *byte == 0xEE), "beyond its end");
            }
            assert!(receiver.poll().is_none(), "reported twice");
        }
    };
    world.block_on(NodeId(0), task).expect("all of them come");
}
