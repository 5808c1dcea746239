//! Messages over Virtual Interfaces in virtual time: processes on nodes of their own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pair;
use crate::pair::job::{join, join_at, run, run_in};
use crate::pair::{Setting, pattern, pause, world};
use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::trace::Record;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::wait_all;
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::request::Mode;
use midplane_via::rdma::{RdmaConfig, Registration};
use proptest::prelude::*;

fn setting(nodes: u16) -> Setting {
    Setting { nodes, ..Setting::default() }
}

/// Rank 0 sends messages of these lengths to rank 1, which sends each back.
fn echo(setting: Setting, config: RdmaConfig, lengths: Vec<usize>) {
    run(setting, config, move |all, _| {
        let lengths = lengths.clone();
        async move {
            for (number, length) in lengths.into_iter().enumerate() {
                let (tag, bytes) = (Tag(number as u32), pattern(number as u32, length));
                if all.rank() == Rank(0) {
                    all.send(Rank(1), tag, bytes.clone()).await.unwrap();
                    let back = all.receive(Rank(1), tag).await.unwrap();
                    assert!(back.bytes == bytes, "message {number} of {length} bytes");
                } else if all.rank() == Rank(1) {
                    let received = all.receive(None, tag).await.unwrap();
                    all.send(Rank(0), tag, received.bytes).await.unwrap();
                }
            }
        }
    });
}

#[test]
fn messages_of_all_sizes_come_back_as_they_were() {
    let lengths = vec![0, 1, 8, 64, 1000, 4096, 16_384, 65_536, 300_000, 1 << 20];
    echo(setting(2), RdmaConfig::default(), lengths);
}

#[test]
fn every_registration_carries_messages_of_all_sizes() {
    for how in [Registration::Copied, Registration::Cached, Registration::Registered] {
        let lengths =
            vec![9_000, 8_193, 65_536, 1, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20, 70_000];
        echo(setting(2), RdmaConfig::default().registration(how), lengths);
    }
}

/// Sends more at once, in both directions, than there is registered memory for.
#[test]
fn long_messages_wait_for_registered_memory() {
    for how in [Registration::Cached, Registration::Registered] {
        run(setting(2), RdmaConfig::default().registration(how), move |all, _| async move {
            let other = Rank(1 - all.rank().0);
            let message = |number: u32| pattern(number, 100_000 + 10_000 * number as usize);
            let received: Vec<_> =
                (0..24).map(|number| all.ireceive(other, Tag(number)).unwrap()).collect();
            let sent: Vec<_> = (0..24)
                .map(|number| {
                    all.isend(Mode::Standard, other, Tag(number), message(number)).unwrap()
                })
                .collect();
            for (number, received) in wait_all(received).await.into_iter().enumerate() {
                assert!(received.unwrap().bytes == message(number as u32), "message {number}");
            }
            assert!(wait_all(sent).await.iter().all(Result::is_ok));
        });
    }
}

#[test]
fn small_areas_and_few_descriptors_carry_messages_of_all_sizes() {
    let config = RdmaConfig::default().area(4096).descriptors(8);
    echo(setting(2), config, vec![0, 900, 1, 5_000, 100_000]);
}

#[test]
fn two_processes_on_one_node_have_messages_for_each_other() {
    const HERE: NodeId = NodeId(0);
    let mut world = world(setting(2));
    let done = Arc::new(Mutex::new(0));
    for rank in 0..2 {
        let (host, done) = (world.host(HERE), Arc::clone(&done));
        world.spawn(HERE, async move {
            let all = join_at(&host, rank, &[HERE; 2], RdmaConfig::default()).await;
            let (other, bytes) = (Rank(1 - u32::from(rank)), pattern(0, 20_000));
            for _ in 0..3 {
                let to = (other, Tag(1));
                let received = all.send_receive(to, bytes.clone(), other, Tag(1)).await.unwrap();
                assert!(received.bytes == bytes);
            }
            all.barrier().await.unwrap();
            *done.lock().unwrap() += 1;
            // The other process may still be working.
            pause(&host, Duration::from_secs(5)).await;
        });
    }
    world.run_until(world.now() + Duration::from_secs(1));
    assert_eq!(*done.lock().unwrap(), 2, "they never meet");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn messages_survive_a_network_that_loses(
        seed in 0_u64..1_000_000, lengths in proptest::collection::vec(0_usize..40_000, 1..12),
    ) {
        let faults = Faults { loss: 0.03, duplicate: 0.03, reorder: 0.05, ..Faults::NONE };
        let config = RdmaConfig::default().area(16_384).descriptors(12);
        echo(Setting { seed, faults, ..setting(2) }, config, lengths);
    }
}

/// Sends in one direction only: credits are returned although no message is.
#[test]
fn a_flood_in_one_direction_never_stalls() {
    const MESSAGES: u32 = 3_000;
    let config = RdmaConfig::default().area(8192).descriptors(10);
    let counts = run(setting(2), config, |all, host| async move {
        let mut count = 0;
        for number in 0..MESSAGES {
            if all.rank() == Rank(0) {
                all.send(Rank(1), Tag(7), pattern(number, 100)).await.unwrap();
            } else {
                let received = all.receive(Rank(0), Tag(7)).await.unwrap();
                assert!(received.bytes == pattern(number, 100), "message {number}");
                if number % 500 == 0 {
                    // Now and then, the receiver pauses.
                    pause(&host, Duration::from_millis(3)).await;
                }
            }
            count += 1;
        }
        count
    });
    assert_eq!(counts.into_values().collect::<Vec<u32>>(), [MESSAGES, MESSAGES]);
}

/// A receiver publishes posted descriptors when its sender requests it, and no message waits for them.
#[test]
fn posted_descriptors_are_published_at_the_low_water_mark() {
    const MESSAGES: u32 = 600;
    // Bytes of the published words; no other frame here has as many.
    const PUBLISHED: usize = 40;
    let mut world = world(setting(2));
    let news = Arc::new(Mutex::new([0; 2]));
    let counted = Arc::clone(&news);
    world.observe(move |record| {
        if let Record::Sent { node, frame, .. } = record
            && frame.payload.len() == PUBLISHED
        {
            counted.lock().unwrap()[node.index()] += 1;
        }
    });
    let config = RdmaConfig::default().descriptors(64);
    run_in(&mut world, 2, config, |all, host| async move {
        for number in 0..MESSAGES {
            if all.rank() == Rank(0) {
                all.send(Rank(1), Tag(7), pattern(number, 8)).await.unwrap();
                pause(&host, Duration::from_micros(20)).await;
            } else {
                all.receive(Rank(0), Tag(7)).await.unwrap();
            }
        }
    });
    // Each answer lets 32 more messages be sent. Reports of each quarter, without a request, would be twice as many.
    let [requests, answers] = *news.lock().unwrap();
    assert!((1..=answers + 1).contains(&requests), "{requests} requests, {answers} answers");
    assert!((MESSAGES / 64..=MESSAGES / 24).contains(&answers), "{answers} answers");
}

#[test]
fn all_to_all_and_all_reduce_over_five_nodes() {
    let sums = run(setting(5), RdmaConfig::default(), |all, _| async move {
        let own = u64::from(all.rank().0);
        let blocks: Vec<_> =
            (0..all.size()).map(|to| vec![own as u8 * 16 + to as u8; 2000].into()).collect();
        let received = all.all_to_all(blocks).await.unwrap();
        for (from, block) in received.iter().enumerate() {
            assert_eq!(block[..], vec![from as u8 * 16 + own as u8; 2000]);
        }
        all.barrier().await.unwrap();
        let sum = all.all_reduce(&[own, own * own], Operation::Sum).await.unwrap();
        (sum[0], sum[1])
    });
    assert!(sums.values().all(|sum| *sum == (10, 30)), "{sums:?}");
}

#[test]
fn the_crash_of_a_process_ends_receives_from_it() {
    let mut world = world(setting(2));
    let (survivor, victim) = (world.host(NodeId(0)), world.host(NodeId(1)));
    world.spawn(NodeId(1), async move {
        let all = join(&victim, 1, 2, RdmaConfig::default()).await;
        all.send(Rank(0), Tag(1), vec![1]).await.unwrap();
        std::future::pending::<()>().await;
    });
    let outcome = Arc::new(Mutex::new(None));
    let place = Arc::clone(&outcome);
    world.spawn(NodeId(0), async move {
        let all = join(&survivor, 0, 2, RdmaConfig::default()).await;
        all.receive(Rank(1), Tag(1)).await.unwrap();
        let lost = all.receive(Rank(1), Tag(2)).await;
        *place.lock().unwrap() = Some(lost.is_err());
    });
    world.run_until(pair::at(300_000_000));
    world.crash(NodeId(1));
    world.run_until(pair::at(3_000_000_000));
    assert_eq!(*outcome.lock().unwrap(), Some(true));
}
