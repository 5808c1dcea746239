//! Tests ranks on simulated hosts: connections that break, processes that restart.

use std::time::Duration;

use midplane::via::message::communicator::Communicator;
use midplane::via::message::envelope::Tag;
use midplane::via::message::group::Rank;
use midplane::via::message::process::MessageError;
use midplane::via::message::request::Failure;
use midplane::{ErrorKind, Node, Sim, sim, time};

use crate::MS;

const RANKS: u32 = 3;
const ROUNDS: u32 = 400;

/// Sums numbers of all ranks, with a message round the ring before each sum.
async fn sums(world: &Communicator) -> sim::Result {
    let (own, ranks) = (world.rank().0, world.size());
    let (next, last) = (Rank((own + 1) % ranks), Rank((own + ranks - 1) % ranks));
    for round in 0..ROUNDS {
        let bytes = vec![round as u8; 1 + (round as usize * 997) % 40_000];
        let came = world.send_receive((next, Tag(round)), bytes.clone(), last, Tag(round)).await?;
        assert!(came.bytes == bytes, "{own}: round {round}");
        let sum =
            world.all_reduce(&[own + round], |sum: &mut u32, more: &u32| *sum += more).await?;
        assert_eq!(sum, [ranks * round + ranks * (ranks - 1) / 2]);
        time::sleep(MS).await;
    }
    Ok(())
}

async fn member(node: Node, rank: u32) -> sim::Result {
    let world = node.world("sums", rank, RANKS).await?;
    sums(&world).await?;
    world.finalize().await;
    node.shutdown().await;
    Ok(())
}

/// Runs the sums while pairs of hosts are partitioned for some time.
fn partitioned(seed: u64, partition: Duration) -> Result<sim::Report, sim::SimError> {
    Sim::builder().seed(seed).loss(0.01).check(|sim| {
        for rank in 0..RANKS {
            sim.client(move |node| member(node, rank));
        }
        for (at, a, b) in [(400, 1, 2), (430, 2, 3)] {
            let (a, b) = (format!("client-{a}"), format!("client-{b}"));
            sim.at(at * MS).partition(&a, &b);
            sim.at(at * MS + partition).heal(&a, &b);
        }
    })
}

#[test]
fn a_partition_that_heals_in_time_loses_no_message() {
    // After 30 s of silence a connection ends; within 2 s, another one continues its transfers.
    for (seed, partition) in [(1, 2_000), (2, 31_000)] {
        let report = partitioned(seed, partition * MS).unwrap();
        assert!(report.time >= partition * MS, "{report:?}");
    }
}

#[test]
fn a_longer_partition_is_reported_as_a_loss() {
    let error = partitioned(5, 40_000 * MS).unwrap_err();
    assert!(error.to_string().contains("was lost"), "{error}");
}

/// Echoes messages to the first rank, until an empty message ends the run.
async fn echoes(node: Node) -> sim::Result {
    let world = node.world("echo", 1, 2).await?;
    loop {
        let Ok(message) = world.receive(Rank(0), Tag(1)).await else { continue };
        if message.bytes.is_empty() {
            return Ok(());
        }
        // If the receiver is lost, the next receive fails.
        let _ = world.send(Rank(0), Tag(2), message.bytes).await;
    }
}

#[test]
fn a_rank_that_restarts_takes_its_place_again() {
    for seed in 0..4 {
        let report = Sim::builder().seed(seed).check(|sim| {
            sim.host("echo", echoes);
            sim.client(|node| async move {
                let world = node.world("echo", 0, 2).await?;
                let (mut answers, mut losses) = (0, 0);
                while answers < 300 {
                    let asked = async {
                        world.send(Rank(1), Tag(1), vec![answers as u8; 100]).await?;
                        world.receive(Rank(1), Tag(2)).await
                    };
                    match asked.await {
                        Ok(answer) => {
                            assert_eq!(answer.bytes, vec![answers as u8; 100]);
                            answers += 1;
                        }
                        Err(MessageError::Failed(
                            Failure::PeerLost(_) | Failure::PeerRestarted(_),
                        )) => losses += 1,
                        Err(error) => return Err(error.into()),
                    }
                    time::sleep(MS).await;
                }
                assert!(losses > 0);
                world.send(Rank(1), Tag(1), Vec::new()).await?;
                world.finalize().await;
                Ok(())
            });
            for at in [50, 700] {
                sim.at(at * MS).crash("echo");
                sim.at((at + 30) * MS).restart("echo");
            }
        });
        report.unwrap();
    }
}

/// Regression: two processes with the same rank took each other's place again and again, and both waited for ever.
#[test]
fn a_process_whose_rank_another_has_taken_loses_the_others() {
    for seed in 0..2 {
        let report = Sim::builder().seed(seed).check(|sim| {
            sim.host("zero", |node: Node| async move {
                let world = node.world("pairs", 0, 2).await?;
                loop {
                    // An error means that the process of rank 1 has ended, or another has taken its place.
                    match world.receive(Rank(1), Tag(1)).await {
                        Ok(message) => _ = world.send(Rank(1), Tag(2), message.bytes).await,
                        Err(_) => time::sleep(MS).await,
                    }
                }
            });
            // Asks rank 0 until that is lost, or a number of times.
            let ask = async |node: Node, times: u8| -> sim::Result {
                let world = node.world("pairs", 1, 2).await?;
                for round in 0..times {
                    world.send(Rank(0), Tag(1), vec![round]).await?;
                    assert_eq!(world.receive(Rank(0), Tag(2)).await?.bytes, [round]);
                    time::sleep(20 * MS).await;
                }
                world.finalize().await;
                Ok(())
            };
            sim.client(move |node| async move {
                let error = ask(node, u8::MAX).await.unwrap_err().to_string();
                assert!(error.contains("process 0") && error.contains("lost"), "{error}");
                Ok(())
            });
            sim.client(move |node| async move {
                time::sleep(100 * MS).await;
                ask(node, 100).await
            });
        });
        report.unwrap();
    }
}

/// Regression: a process was in a world for a moment longer than it had a handle of the communicator.
#[test]
fn processes_that_have_left_join_again_at_once() {
    let report = Sim::builder().check(|sim| {
        for rank in 0..2 {
            sim.client(move |node| async move {
                for round in 0..5_u32 {
                    let world = node.world("again", rank, 2).await?;
                    let values = world.all_gather_value(&(round + rank)).await?;
                    assert_eq!(values, [round, round + 1]);
                    world.finalize().await;
                }
                Ok(())
            });
        }
    });
    report.unwrap();
}

/// Regression: a process that had joined with another size was named long after it had joined with the right one.
#[test]
fn a_size_that_was_corrected_is_not_the_reason_why_another_rank_is_missing() {
    for (rank, size) in [(1, 2), (4, 5)] {
        let report = Sim::builder().check(|sim| {
            sim.client(|node| async move {
                let error = node.world("sizes", 0, 3).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NoService, "{error}");
                assert!(error.to_string().contains("have not joined: 2;"), "{error}");
                Ok(())
            });
            sim.client(move |node| async move {
                let joined = time::timeout(1_000 * MS, node.world("sizes", rank, size)).await;
                assert!(joined.is_err());
                let error = node.world("sizes", 1, 3).await.unwrap_err();
                assert!(error.to_string().contains("have not joined: 2;"), "{error}");
                Ok(())
            });
        });
        report.unwrap();
    }
}
