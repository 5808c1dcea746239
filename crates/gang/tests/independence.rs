//! A stuck receiver of one channel delays no other channel, and stops wait for no receiver.

use std::sync::{Arc, Mutex};

use crate::job::network::Network;
use crate::job::{TIGHT, open, world};
use midplane_gang::channel::Channel;
use midplane_gang::names::{ChannelAddress, ChannelId, JobId, Rank};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::sim::SimHost;
use proptest::prelude::*;

async fn pair(hosts: &[SimHost], channel: u16, job: u32) -> (Network, Channel, Channel) {
    let places: Vec<ChannelAddress> = (0..2)
        .map(|node| ChannelAddress { node: NodeId(node), channel: ChannelId(channel) })
        .collect();
    let mut network = open(hosts, JobId(job), &places, TIGHT, false).await;
    network.run(&hosts[0]).await.unwrap();
    let mut ends = Vec::new();
    for (held, host) in network.ranks().iter().zip(hosts) {
        let descriptor = held.controller.descriptor(held.context);
        ends.push(Channel::attach(host, descriptor).await.unwrap());
    }
    let far = ends.pop().unwrap();
    (network, ends.pop().unwrap(), far)
}

/// Returns the nanoseconds that 200 messages take on channel 1, while `stuck` other channels are stuck.
fn beside_stuck(stuck: u16, seed: u64) -> u64 {
    let mut world = world(2, seed, Faults::NONE);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let task = async move {
        let mut kept = Vec::new();
        for channel in 0..stuck {
            let (network, mut near, far) = pair(&hosts, 2 + channel, 2 + u32::from(channel)).await;
            // Its receiver never polls: both FIFOs fill, and further messages are refused for ever.
            while near.try_send(Rank(1), &[9; 60]).is_ok() {}
            hosts[0].sleep_until(hosts[0].now().plus_nanos(300_000)).await;
            while near.try_send(Rank(1), &[9; 60]).is_ok() {}
            kept.push((network, near, far));
        }
        let (_network, mut near, mut far) = pair(&hosts, 1, 1).await;
        let began = hosts[0].now();
        let (host, done) = (hosts[1].clone(), Arc::new(Mutex::new(None)));
        let place = Arc::clone(&done);
        hosts[1].spawn(async move {
            for number in 0..200_u8 {
                assert_eq!(far.receive().await.unwrap().1, [number; 60]);
            }
            *place.lock().unwrap() = Some(host.now());
        });
        for number in 0..200_u8 {
            near.send(Rank(1), &[number; 60]).await.unwrap();
        }
        while !near.is_flushed() {
            near.room().await.unwrap();
        }
        drop(kept);
        let ended = done.lock().unwrap().expect("all messages were taken");
        ended.nanos_since(began)
    };
    world.block_on(NodeId(0), task).expect("the free channel comes to its end")
}

#[test]
fn stuck_receivers_leave_other_channels_their_speed() {
    let alone = beside_stuck(0, 1);
    for stuck in [1, 2, 8] {
        let beside = beside_stuck(stuck, 1);
        assert!(beside < alone * 3 / 2, "{stuck} stuck: {beside} ns, alone {alone} ns");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_stop_takes_at_most_two_round_trips_with_a_full_and_stopped_receiver(
        seed in 0_u64..100_000, length in 0_usize..200, wait in 0_u64..200_000,
    ) {
        let mut world = world(2, seed, Faults::NONE);
        let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
        let task = async move {
            let (mut network, mut near, mut far) = pair(&hosts, 1, 1).await;
            // The round trip of a whole message and its echo, with nothing else under way.
            let began = hosts[0].now();
            near.send(Rank(1), &[1; 200]).await.unwrap();
            far.receive().await.unwrap();
            far.send(Rank(0), &[1; 200]).await.unwrap();
            near.receive().await.unwrap();
            let round_trip = hosts[0].now().nanos_since(began);
            // `far` is not polled any more.
            let until = hosts[0].now().plus_nanos(wait);
            loop {
                while near.try_send(Rank(1), &vec![2; length]).is_ok() {}
                if hosts[0].now() >= until {
                    break;
                }
                hosts[0].sleep_until(hosts[0].now().plus_nanos(7_000).min(until)).await;
            }
            let began = hosts[0].now();
            network.freeze(&hosts[0]).await.unwrap();
            (hosts[0].now().nanos_since(began), round_trip)
        };
        let (stop, round_trip) = world.block_on(NodeId(0), task).expect("it becomes steady");
        prop_assert!(stop <= 2 * round_trip, "{stop} ns, a round trip takes {round_trip}");
    }
}
