//! Random programs over several channels, on links that block like Myrinet's: PM's Ack/Nack does not deadlock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::job::network::Network;
use crate::job::{TIGHT, open};
use midplane_gang::channel::Channel;
use midplane_gang::firmware::Gang;
use midplane_gang::names::{ChannelAddress, ChannelId, JobId, Rank};
use midplane_gang::{GANG, GangConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

/// Creates a switch with small port buffers, and NICs with slightly larger ones; none of them drops a frame.
fn myrinet(nodes: u16, seed: u64) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1280), Duration::from_nanos(125));
    let discard = DiscardPolicy::BackPressure;
    let switch = SwitchProfile { discard, ..SwitchProfile::new(Buffer::Bytes(512)) };
    let profile = NicProfile { receive_memory: 1 << 10, transmit_slots: 2, ..NicProfile::MODERN };
    World::new(&Topology::star(nodes, link, switch), profile, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default())).unwrap();
        unit
    })
}

/// A message of a program: its channel, sender and receiver.
type Planned = (usize, u16, u16);

/// Generates programs that end if channels are independent. All messages have one order, in which each process sends
/// and receives its own. A process that waits for a message receives only from that message's channel.
fn plan(seed: u64) -> (u16, usize, Vec<Planned>) {
    let mut dice = Rng::new(seed, "plan");
    let (nodes, channels) = (dice.between(2, 4) as u16, dice.between(2, 3) as usize);
    let mut messages = Vec::new();
    while messages.len() < 60 {
        let channel = dice.below(channels as u64) as usize;
        let (from, to) = (dice.below(nodes.into()) as u16, dice.below(nodes.into()) as u16);
        // Bursts, so that FIFOs fill.
        let burst = dice.between(1, 16);
        messages.extend((0..burst).filter(|_| from != to).map(|_| (channel, from, to)));
    }
    (nodes, channels, messages)
}

async fn process(
    host: SimHost,
    mut channels: Vec<Channel>,
    messages: Arc<Vec<Planned>>,
    ended: Arc<Mutex<u16>>,
) {
    let own = host.node().0;
    let mut came: Vec<BTreeMap<u16, u32>> = vec![BTreeMap::new(); channels.len()];
    let mut taken = came.clone();
    for (number, &(channel, from, to)) in messages.iter().enumerate() {
        if from == own {
            let bytes = [(number as u32).to_le_bytes(), [7; 4], [8; 4]].concat();
            channels[channel].send(Rank(to), &bytes).await.unwrap();
        }
        if to == own {
            let wanted = taken[channel].entry(from).or_default();
            *wanted += 1;
            while came[channel].get(&from).copied().unwrap_or(0) < *wanted {
                let (sender, _) = channels[channel].receive().await.unwrap();
                *came[channel].entry(sender.0).or_default() += 1;
            }
        }
    }
    *ended.lock().unwrap() += 1;
    std::future::pending().await
}

async fn start(
    hosts: Vec<SimHost>,
    channels: usize,
    messages: Vec<Planned>,
    ended: Arc<Mutex<u16>>,
) -> Vec<Network> {
    let (mut networks, messages) = (Vec::new(), Arc::new(messages));
    let mut ends: Vec<Vec<Channel>> = hosts.iter().map(|_| Vec::new()).collect();
    for number in 0..channels as u16 {
        let place =
            |host: &SimHost| ChannelAddress { node: host.node(), channel: ChannelId(number) };
        let places: Vec<ChannelAddress> = hosts.iter().map(place).collect();
        let job = JobId(1 + u32::from(number));
        let mut network = open(&hosts, job, &places, TIGHT, false).await;
        network.run(&hosts[0]).await.unwrap();
        for (held, (host, ends)) in network.ranks().iter().zip(hosts.iter().zip(&mut ends)) {
            let descriptor = held.controller.descriptor(held.context);
            ends.push(Channel::attach(host, descriptor).await.unwrap());
        }
        networks.push(network);
    }
    for (host, channels) in hosts.iter().zip(ends) {
        host.spawn(process(host.clone(), channels, Arc::clone(&messages), Arc::clone(&ended)));
    }
    networks
}

/// Returns whether all processes of a plan end.
fn ends(seed: u64) -> bool {
    let (nodes, channels, messages) = plan(seed);
    let mut world = myrinet(nodes, seed);
    let hosts: Vec<SimHost> = (0..nodes).map(|node| world.host(NodeId(node))).collect();
    let ended = Arc::new(Mutex::new(0));
    let task = start(hosts, channels, messages, Arc::clone(&ended));
    world.spawn(NodeId(0), async move {
        let _kept = task.await;
        std::future::pending().await
    });
    // Every step takes some microseconds, so processes that have not ended by then never will.
    for _ in 0..20 {
        world.run_until(world.now() + Duration::from_millis(2));
        if *ended.lock().unwrap() == nodes {
            assert_eq!(
                world.traffic().drops.total(),
                0,
                "seed {seed}: links that wait lose nothing"
            );
            return true;
        }
    }
    false
}

#[test]
fn ack_and_nack_never_deadlock_at_the_pinned_seeds() {
    for seed in 0..150 {
        assert!(ends(seed), "seed {seed}: Ack/Nack is stuck");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(75))]
    #[test]
    fn ack_and_nack_never_deadlock_from_new_seeds(seed: u64) {
        assert!(ends(seed), "seed {seed}: Ack/Nack is stuck");
    }
}

/// A daemon's order to resume the process of channel 1, whose FIFO is full, arrives on channel 0.
#[test]
fn an_order_behind_a_full_channel_arrives() {
    let mut world = myrinet(2, 1);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let arrived = Arc::new(Mutex::new(false));
    let done = Arc::clone(&arrived);
    world.spawn(NodeId(0), async move {
        let mut kept = Vec::new();
        for (number, count) in [(1, 20), (0, 1)] {
            let place = |node| ChannelAddress { node: NodeId(node), channel: ChannelId(number) };
            let places = [place(0), place(1)];
            let job = JobId(1 + u32::from(number));
            let mut network = open(&hosts, job, &places, TIGHT, false).await;
            network.run(&hosts[0]).await.unwrap();
            let mut ends = Vec::new();
            for (held, host) in network.ranks().iter().zip(&hosts) {
                let descriptor = held.controller.descriptor(held.context);
                ends.push(Channel::attach(host, descriptor).await.unwrap());
            }
            for _ in 0..count {
                if ends[0].try_send(Rank(1), &[number as u8; 60]).is_err() {
                    break;
                }
                hosts[0].sleep_until(hosts[0].now() + Duration::from_micros(20)).await;
            }
            if number == 0 {
                ends[1].receive().await.unwrap();
                *done.lock().unwrap() = true;
            }
            kept.push((network, ends));
        }
        std::future::pending::<()>().await;
    });
    world.run_until(world.now() + Duration::from_millis(50));
    assert!(*arrived.lock().unwrap(), "it waits behind messages that wait for it");
}
