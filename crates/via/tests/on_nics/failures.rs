//! Processes that crash or leave, operations that are dropped, and NICs that take no part.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join3};
use midplane_nicvm::collective::{COLLECTIVES, Collectives};
use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::Status;
use midplane_simhw::time::Instant;
use midplane_via::message::collective::Operation;
use midplane_via::message::envelope::Peer;
use midplane_via::message::group::Rank;
use midplane_via::message::process::MessageError;
use midplane_via::message::request::Failure;
use midplane_via::rdma::RdmaConfig;

use crate::on_nics::job::{join as enter, run_in};
use crate::on_nics::{counters, fabric};
use crate::pair::{Setting, pause, world_with};

const LOST: MessageError = MessageError::Failed(Failure::PeerLost(Peer(2)));

fn setting() -> Setting {
    let faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.02, ..Faults::NONE };
    Setting { nodes: 4, faults, ..Setting::default() }
}

/// Polls a future once.
async fn waits<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[test]
fn a_process_that_dies_ends_the_operation_at_the_others() {
    let mut fabric = fabric(setting());
    let ends = Arc::new(Mutex::new(Vec::new()));
    for rank in 0..4 {
        let (host, ends) = (fabric.host(NodeId(rank)), Arc::clone(&ends));
        fabric.spawn(NodeId(rank), async move {
            let world = enter(&host, rank, 4, RdmaConfig::default()).await;
            let nics = world.on_nics(&host).await.unwrap();
            nics.barrier().await.unwrap();
            if rank == 2 {
                std::future::pending::<()>().await;
            }
            let ended = [nics.barrier().await, nics.barrier().await];
            ends.lock().unwrap().push(ended);
            pause(&host, Duration::from_secs(10)).await;
        });
    }
    fabric.run_until(Instant::ZERO + Duration::from_millis(500));
    assert!(ends.lock().unwrap().is_empty());
    fabric.crash(NodeId(2));
    fabric.run_until(Instant::ZERO + Duration::from_secs(5));
    let after = Err(MessageError::Abandoned);
    assert_eq!(*ends.lock().unwrap(), vec![[Err(LOST), after]; 3]);
}

/// The NIC of the process continues: operations that the process has contributed to succeed, even if others come late.
#[test]
fn a_process_that_leaves_is_lost_once_others_need_it() {
    for handles in [false, true] {
        let mut fabric = fabric(setting());
        run_in(&mut fabric, 4, RdmaConfig::default(), move |world, host| async move {
            let nics = world.on_nics(&host).await.unwrap();
            let own = world.rank();
            if own == Rank(2) {
                let sum = nics.reduce(Rank(0), &[2_u64], Operation::Sum).await;
                assert_eq!(sum, Ok(None));
                if handles {
                    // When the world is finalised, the process leaves, even if handles remain.
                    world.finalize().await;
                    pause(&host, Duration::from_millis(100)).await;
                    let run_down = nics.barrier().await.unwrap_err();
                    assert!(matches!(run_down, MessageError::Build(_)), "{run_down:?}");
                }
                return;
            }
            pause(&host, Duration::from_millis(20)).await;
            let sum = nics.reduce(Rank(0), &[u64::from(own.0)], Operation::Sum).await;
            assert_eq!(sum, Ok((own == Rank(0)).then(|| vec![6])));
            assert_eq!(nics.broadcast(Rank(1), vec![1]).await, Err(LOST));
            assert_eq!(nics.barrier().await, Err(MessageError::Abandoned));
            pause(&host, Duration::from_millis(100)).await;
        });
    }
}

/// The others get the event when its last handle is dropped; until then, the NIC has memory to write to.
#[test]
fn a_dropped_operation_abandons_its_communicator_and_the_nic_keeps_its_memory() {
    let mut fabric = fabric(setting());
    run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        if world.rank() == Rank(2) {
            let mut gather = Box::pin(nics.all_gather(vec![2]));
            assert!(waits(&mut gather).await);
            let mut queued = Box::pin(nics.barrier());
            assert!(waits(&mut queued).await);
            drop(gather);
            assert_eq!(queued.await, Err(MessageError::Abandoned));
            assert_eq!(nics.barrier().await, Err(MessageError::Abandoned));
            pause(&host, Duration::from_millis(50)).await;
        } else {
            pause(&host, Duration::from_millis(10)).await;
            let all: Vec<_> = (0..4).map(|rank| vec![rank]).collect();
            assert_eq!(nics.all_gather(vec![world.rank().0 as u8]).await.unwrap(), all);
            assert_eq!(nics.barrier().await, Err(LOST));
            pause(&host, Duration::from_millis(50)).await;
        }
        drop(nics);
        // Other communicators are not affected.
        world.barrier().await.unwrap();
        let anew = loop {
            // The handles are dropped everywhere, and the NICs may not have handled that yet.
            match world.on_nics(&host).await {
                Ok(anew) => break anew,
                Err(MessageError::Nics { status: Status::Refused, .. }) => {}
                Err(other) => panic!("{other}"),
            }
        };
        anew.barrier().await.unwrap();
    });
}

/// Has three processes wait for a fourth, which revokes instead of calling the barrier.
#[test]
fn a_revoked_communicator_ends_its_barrier_by_nics() {
    let mut fabric = fabric(setting());
    run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        if world.rank() == Rank(2) {
            pause(&host, Duration::from_millis(20)).await;
            nics.revoke();
        }
        let revoked = Err(MessageError::Failed(Failure::Revoked));
        assert_eq!(nics.barrier().await, revoked);
        assert!(nics.barrier().await.is_err());
        // Other communicators are not affected.
        world.barrier().await.unwrap();
    });
}

/// Of three operations at once, the second is dropped while it waits for its turn: the third is abandoned.
#[test]
fn an_operation_dropped_in_the_queue_abandons_those_behind_it() {
    let mut fabric = fabric(setting());
    run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        if world.rank() != Rank(2) {
            nics.barrier().await.unwrap();
            assert_eq!(nics.barrier().await, Err(LOST));
            pause(&host, Duration::from_millis(50)).await;
            return;
        }
        let mut first = Box::pin(nics.barrier());
        let mut dropped = Some(Box::pin(nics.barrier()));
        assert!(waits(&mut first).await);
        assert!(waits(dropped.as_mut().unwrap()).await);
        let third = nics.barrier();
        let ends = join3(first, third, async { drop(dropped.take()) }).await;
        assert_eq!((ends.0, ends.1), (Ok(()), Err(MessageError::Abandoned)));
        pause(&host, Duration::from_millis(20)).await;
    });
    assert_eq!(counters(&fabric, 2).done, 1);
}

#[test]
fn all_ranks_learn_whose_nic_takes_no_part() {
    let all: Vec<_> = (0..4).map(NodeId).collect();
    let others = vec![NodeId(0), NodeId(2), NodeId(1), NodeId(3)];
    for (group, rank, status) in [
        (None, 2, Status::Invalid),
        (Some(others), 1, Status::Invalid),
        (Some(all[..3].to_vec()), 0, Status::Invalid),
    ] {
        let mut fabric = world_with(setting(), move |node, unit| {
            let _ = match &group {
                None if node == NodeId(2) => Ok(()),
                None => unit.install(COLLECTIVES, Collectives::new((0..4).map(NodeId).collect())),
                Some(group) if !group.contains(&node) => Ok(()),
                Some(group) => unit.install(COLLECTIVES, Collectives::new(group.clone())),
            };
        });
        run_in(&mut fabric, 4, RdmaConfig::default(), move |world, host| async move {
            let refused = world.on_nics(&host).await.unwrap_err();
            assert_eq!(refused, MessageError::Nics { rank: Rank(rank), status });
            world.barrier().await.unwrap();
        });
    }
}

#[test]
fn one_communicator_holds_the_nics_at_a_time() {
    let mut fabric = fabric(setting());
    run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        let status = Status::Refused;
        let refused = MessageError::Nics { rank: Rank(0), status };
        assert_eq!(world.on_nics(&host).await.unwrap_err(), refused);
        assert_eq!(nics.on_nics(&host).await.unwrap_err(), refused);
        nics.barrier().await.unwrap();
    });
}

#[test]
fn nics_report_differing_numbers_of_words() {
    let mut fabric = fabric(setting());
    run_in(&mut fabric, 4, RdmaConfig::default(), |world, host| async move {
        let nics = world.on_nics(&host).await.unwrap();
        let words = vec![1_u64; if world.rank() == Rank(1) { 3 } else { 2 }];
        let (expected, found) = (words.len(), 5 - words.len());
        let what = "values of another process";
        let odd = Err(MessageError::Shape { what, expected, found });
        let all = nics.all_reduce(&words, Operation::Sum);
        let one = nics.reduce(Rank(0), &words, Operation::Sum);
        let (all, one) = join(all, one).await;
        assert_eq!(all, odd);
        assert_eq!(one.is_err(), world.rank() == Rank(0));
        nics.barrier().await.unwrap();
    });
}
