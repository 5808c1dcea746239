//! Tests ranks on nodes: messages and collective operations over each transport, and ranks that rejoin.

use std::time::Duration;

use midplane::{ErrorKind, Node, NodeBuilder};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::Failure;
use tokio::time::timeout;

use crate::node::{Over, nodes, over_each};

const SOON: Duration = Duration::from_secs(20);

/// Exchanges messages of many sizes between two ranks, under several tags at once, and sums.
async fn exchange(world: Communicator) {
    let other = Rank(1 - world.rank().0);
    let bytes = |round: u32, from: Rank| {
        vec![(round + from.0) as u8; (7_919 * round as usize * round as usize) % 300_000]
    };
    for round in 0..40 {
        let own = world.rank();
        let (even, odd) = ((other, Tag(2 * round)), (other, Tag(2 * round + 1)));
        let (even, odd) = tokio::join!(
            world.send_receive(even, bytes(round, own), even.0, even.1),
            world.send_receive(odd, bytes(round + 1, own), odd.0, odd.1),
        );
        assert!(even.unwrap().bytes == bytes(round, other));
        assert!(odd.unwrap().bytes == bytes(round + 1, other));
    }
    assert_eq!(world.all_gather_value(&world.rank().0).await.unwrap(), [0, 1]);
}

/// Returns the name of the wire to the other rank.
fn wire(world: &Communicator) -> String {
    let wires = world.explain().wires;
    assert!(wires.iter().all(|(peer, _)| *peer == Peer(1 - world.rank().0)));
    wires.first().map_or("none", |(_, wire)| wire).to_owned()
}

over_each! {
    async fn two_ranks_exchange_messages_of_any_size(over) {
        let (first, second) = nodes("world", over);
        let ranks = [first, second].into_iter().zip(0..).map(|(builder, rank)| {
            tokio::spawn(async move {
                let node = builder.start().await.unwrap();
                let world = node.world("exchange", rank, 2).await.unwrap();
                exchange(world.clone()).await;
                let agreed = world.all_gather_value(&wire(&world)).await.unwrap();
                let expected = if matches!(over, Over::Shm) { "memory" } else { "stream" };
                assert_eq!(agreed, [expected, expected], "{}", world.explain());
                world.finalize().await;
                node.shutdown().await;
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            timeout(SOON, rank).await.expect("it ends").unwrap();
        }
    }

    async fn a_rank_that_has_ended_is_reported_and_may_be_replaced(over) {
        let (first, second) = nodes("world", over);
        let node = first.start().await.unwrap();
        let join = async |restart: u8| {
            let node = second.clone().name(format!("life-{restart}")).start().await.unwrap();
            let world = node.world("lives", 1, 2).await.unwrap();
            world.send(Rank(0), Tag(1), vec![restart]).await.unwrap();
            let answer = world.receive(Rank(0), Tag(2)).await.unwrap();
            assert_eq!(answer.bytes, [restart]);
            // Dropped without a shutdown, as when a process is killed.
            drop((world, node));
        };
        let serve = async {
            let world = node.world("lives", 0, 2).await.unwrap();
            let (mut received, mut losses) = (Vec::new(), 0);
            while received.len() < 3 {
                match world.receive(Rank(1), Tag(1)).await {
                    Ok(message) => {
                        world.send(Rank(1), Tag(2), message.bytes.clone()).await.unwrap();
                        received.extend(message.bytes);
                    }
                    Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {
                        losses += 1;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(received, [0, 1, 2]);
            assert!(losses >= 2, "{losses}");
        };
        let restarts = async {
            for restart in 0..3 {
                join(restart).await;
            }
        };
        timeout(2 * SOON, async { tokio::join!(serve, restarts) }).await.expect("it ends");
    }
}

#[tokio::test]
async fn many_ranks_of_a_host_share_their_values() {
    const RANKS: u32 = 5;
    let builder = Node::builder().cluster(format!("ranks-{}", std::process::id()));
    let ranks = (0..RANKS).map(|rank| {
        let builder = builder.clone();
        tokio::spawn(async move {
            let node = builder.start().await.unwrap();
            let world = node.world("gather", rank, RANKS).await.unwrap();
            for round in 0..50 {
                let values = world.all_gather_value(&(rank + round)).await.unwrap();
                assert_eq!(values, (round..round + RANKS).collect::<Vec<_>>());
            }
            world.finalize().await;
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        timeout(SOON, rank).await.expect("it ends").unwrap();
    }
}

#[tokio::test]
async fn errors_of_a_world_name_the_problem() {
    let builder = Node::builder().cluster(format!("wrong-{}", std::process::id()));
    let node = builder.connect_timeout(Duration::from_millis(100)).start().await.unwrap();
    let error = node.world("x", 2, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = node.world("x", 1, 4).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService);
    assert!(error.to_string().contains("0, 2, 3"), "{error}");
    let world = node.world("x", 0, 1).await.unwrap();
    assert_eq!(node.world("x", 0, 1).await.unwrap_err().kind(), ErrorKind::InUse);
    assert_eq!(world.size(), 1);
}

/// Regression: a process that had failed to join, or had given up, was in the world for a moment longer.
#[tokio::test]
async fn a_process_that_has_not_joined_may_try_again_at_once() {
    let builder = Node::builder().cluster(format!("retry-{}", std::process::id()));
    let node = builder.connect_timeout(Duration::from_millis(100)).start().await.unwrap();
    for _ in 0..3 {
        let error = node.world("x", 1, 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoService, "{error}");
        // Dropped before it has joined.
        assert!(timeout(Duration::from_millis(10), node.world("x", 1, 2)).await.is_err());
    }
}

/// Regression: a process was in a world for a moment longer than it had a handle of the communicator.
#[tokio::test]
async fn a_process_that_has_left_may_join_again_at_once() {
    let builder = Node::builder().cluster(format!("leave-{}", std::process::id()));
    let node = builder.start().await.unwrap();
    for _ in 0..3 {
        let world = node.world("x", 0, 1).await.unwrap();
        drop(world.clone());
        assert_eq!(node.world("x", 0, 1).await.unwrap_err().kind(), ErrorKind::InUse);
        drop(world);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_rank_of_a_live_process_of_the_host_is_taken() {
    let builder = Node::builder().cluster(format!("taken-{}", std::process::id()));
    let nodes = ["first", "second", "third"].map(|name| builder.clone().name(name).start());
    let [first, second, third] = nodes;
    let (first, second, third) = tokio::join!(first, second, third);
    let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
    let (zero, one) = tokio::join!(first.world("x", 0, 2), second.world("x", 1, 2));
    let worlds = (zero.unwrap(), one.unwrap());
    let error = timeout(SOON, third.world("x", 1, 2)).await.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("taken by the node \"second\""), "{error}");
    tokio::join!(exchange(worlds.0), exchange(worlds.1));
}

#[tokio::test]
async fn both_processes_learn_that_they_have_joined_with_different_sizes() {
    join_with_different_sizes(1, 3).await;
}

/// Regression: the process of the smaller world ignored a rank that its world does not have.
#[tokio::test]
async fn a_process_of_a_larger_world_with_a_high_rank_is_named() {
    join_with_different_sizes(3, 4).await;
}

/// Joins as rank 0 of 2, and with another process as `rank` of `size`: the error of each names the other.
async fn join_with_different_sizes(rank: u32, size: u32) {
    let builder = Node::builder().cluster(format!("sizes-{size}-{}", std::process::id()));
    let builder = builder.connect_timeout(Duration::from_secs(1));
    let nodes = ["first", "second"].map(|name| builder.clone().name(name).start());
    let [first, second] = nodes;
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first.unwrap(), second.unwrap());
    let joined = async { tokio::join!(first.world("x", 0, 2), second.world("x", rank, size)) };
    let (two, larger) = timeout(SOON, joined).await.expect("it ends");
    for (joined, other, size) in [(two, "second", size), (larger, "first", 2)] {
        let error = joined.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let why = format!("{other} has joined a world of {size}");
        assert!(error.to_string().contains(&why), "{error}");
    }
}

/// Regression: the documented ending was `finalize` alone, after which the node had not sent the last messages yet.
#[test]
fn a_rank_that_ends_after_its_shutdown_loses_no_message() {
    const MESSAGES: u32 = 8;
    let (first, second) = nodes("world-end", Over::Udp);
    let ranks = [(first, 0), (second, 1)].map(|(builder, rank)| {
        std::thread::spawn(move || {
            let program = async move {
                let node = builder.start().await.unwrap();
                let world = node.world("end", rank, 2).await.unwrap();
                for number in 0..MESSAGES {
                    let bytes = vec![number as u8; 1_000];
                    if rank == 0 {
                        world.send(Rank(1), Tag(number), bytes).await.unwrap();
                    } else {
                        let message = world.receive(Rank(0), Tag(number)).await.unwrap();
                        assert_eq!(message.bytes, bytes);
                    }
                }
                world.finalize().await;
                node.shutdown().await;
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async { timeout(SOON, program).await.expect("it ends") });
        })
    });
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// Regression: a process that had joined in a runtime of its own accepted no other once that had ended.
#[test]
fn a_rank_is_reached_after_the_runtime_in_which_it_joined_has_ended() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let main = runtime();
    let (first, second) = nodes("world-runtimes", Over::Udp);
    let start = async |builder: &NodeBuilder| builder.clone().start().await.unwrap();
    let (zero, one) = main.block_on(async { (start(&first).await, start(&second).await) });
    let brief = runtime();
    let joined = async { tokio::join!(zero.world("x", 0, 2), one.world("x", 1, 2)) };
    let (world, left) = brief.block_on(joined);
    drop((brief, left.unwrap(), one));
    main.block_on(async {
        let again = start(&second).await;
        let joined = timeout(SOON, again.world("x", 1, 2)).await.expect("it ends");
        assert_eq!((world.unwrap().rank(), joined.unwrap().rank()), (Rank(0), Rank(1)));
    });
}
