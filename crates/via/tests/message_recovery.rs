//! Processes that are lost at any point while the others agree, revoke and shrink.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::join_all;
use midplane_simhw::rng::Rng;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::{Communicator, Pending, block_on};
use midplane_via::message::engine::{Config, Engine, WhenFull};
use midplane_via::message::envelope::{Peer, Tag};
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::process::MessageError;
use midplane_via::message::request::{Failure, Mode};
use proptest::prelude::*;

use crate::scenarios::harness;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Program<T> = Pin<Box<dyn Future<Output = T>>>;

/// A process with its program, and the number of polls after which it ends.
struct Mortal<T> {
    program: Option<Program<T>>,
    flag: Arc<Flag>,
    dies_after: Option<u32>,
    result: Option<T>,
}

/// Runs a program on `size` ranks, of which about `mortality` tenths are killed at random polls; at least one survives.
/// Returns the results of the ranks; `None` for those killed. A rank that has ended keeps its communicator, and is
/// polled no more.
fn with_deaths<T, F>(
    size: u32,
    seed: u64,
    mortality: u64,
    program: impl Fn(Communicator) -> F,
) -> Vec<Option<T>>
where
    F: Future<Output = T> + 'static,
{
    let mut rng = Rng::new(seed, "deaths");
    let memory = MemoryConfig::default().depth(1 + rng.below(6) as usize).seed(seed);
    let config = Config::default().eager(if rng.below(2) == 0 { 8 } else { 4096 });
    let survivor = rng.below(size.into()) as u32;
    let mut ranks: Vec<_> = (0..size)
        .zip(network(size as usize, memory))
        .map(|(rank, end)| {
            let world = Communicator::world(Engine::new(end, config), size).unwrap();
            let dies = rank != survivor && rng.below(10) < mortality;
            Mortal {
                program: Some(Box::pin(program(world)) as Program<T>),
                flag: Arc::new(Flag(AtomicBool::new(true))),
                dies_after: dies.then(|| rng.below(40) as u32),
                result: None,
            }
        })
        .collect();
    loop {
        let ready: Vec<_> = (0..ranks.len())
            .filter(|at| ranks[*at].program.is_some() && ranks[*at].flag.0.load(Ordering::Relaxed))
            .collect();
        if ranks.iter().all(|rank| rank.program.is_none()) {
            return ranks.into_iter().map(|rank| rank.result).collect();
        }
        assert!(!ready.is_empty(), "no rank was woken");
        let rank = &mut ranks[ready[rng.below(ready.len() as u64) as usize]];
        if rank.dies_after == Some(0) {
            rank.program = None;
            continue;
        }
        rank.dies_after = rank.dies_after.map(|polls| polls - 1);
        rank.flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&rank.flag));
        let polled = rank.program.as_mut().unwrap().as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(result) = polled {
            (rank.result, rank.program) = (Some(result), None);
        }
    }
}

fn flags_of(rank: u32) -> u64 {
    !(1 << rank)
}

/// Checks that all ranks that decide agree: on the flags that all have passed, without those that a deciding rank has
/// not passed.
fn agreement(size: u32, seed: u64) {
    let decided = with_deaths(size, seed, 6, |world| async move {
        let own = world.rank().0;
        let first = world.agree(flags_of(own)).await.unwrap();
        let second = world.agree(first | 1 << (60 + own % 2)).await.unwrap();
        (first, second, world)
    });
    let decided: Vec<_> = (0..).zip(&decided).filter_map(|(r, d)| Some((r, d.as_ref()?))).collect();
    let (first, second) = (decided[0].1.0, decided[0].1.1);
    let everyone = (0..size).fold(u64::MAX, |flags, rank| flags & flags_of(rank));
    assert_eq!(first & everyone, everyone, "seed {seed}");
    for (rank, (one, two, _)) in decided {
        assert_eq!((*one, *two), (first, second), "rank {rank}, seed {seed}");
        assert_eq!(first & !flags_of(rank), 0, "rank {rank}, seed {seed}");
    }
}

/// Reduces, and after a failure revokes, shrinks and repeats, until an operation of all survivors succeeds.
async fn persist(world: Communicator) -> (Vec<Peer>, u32, Communicator) {
    let mut now = world;
    loop {
        let sum = now.all_reduce(&[1_u32; 300], Operation::Sum).await;
        if sum.is_ok() {
            // This would wait for ever if a rank that has seen a loss did not revoke.
            let (next, before) = ((now.rank().0 + 1) % now.size(), now.rank().0 + now.size() - 1);
            let to = (Rank(next), Tag(1));
            let _ = now.send_receive(to, vec![1; 200], Rank(before % now.size()), Tag(1)).await;
        }
        if sum.is_err() {
            now.revoke();
        }
        let fine = now.agree(u64::from(sum.is_ok())).await.unwrap() == 1;
        let next = now.shrink().await.unwrap();
        if fine && next.size() == now.size() {
            return (next.handle().group().members().to_vec(), sum.unwrap()[0], next);
        }
        now = next;
    }
}

fn survivors(size: u32, seed: u64) {
    let ended = with_deaths(size, seed, 6, persist);
    let ended: Vec<_> =
        (0..).map(Peer).zip(&ended).filter_map(|(p, e)| Some((p, e.as_ref()?))).collect();
    let (members, sum, _) = ended[0].1;
    assert_eq!(*sum as usize, members.len(), "seed {seed}");
    for (peer, (others, other_sum, _)) in &ended {
        assert_eq!((others, other_sum), (members, sum), "seed {seed}");
        assert!(members.contains(peer), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn all_survivors_agree_when_processes_are_lost_meanwhile(size in 1_u32..10, seed in any::<u64>()) {
        agreement(size, seed);
    }

    #[test]
    fn survivors_continue_in_one_communicator(size in 1_u32..10, seed in any::<u64>()) {
        survivors(size, seed);
    }
}

#[test]
fn fixed_seeds_agree_and_continue() {
    for seed in 0..100 {
        agreement(1 + seed as u32 % 9, seed);
        survivors(1 + seed as u32 % 9, seed);
    }
    // A rank whose send failed must still receive: its sender waits for that.
    survivors(8, 15_377_447_393_884_259_387);
}

/// Has receives wait for messages that are never sent, until a process revokes; other communicators are unaffected.
#[test]
fn a_revoked_communicator_ends_all_operations_and_only_its_own() {
    for seed in 0..30 {
        let ended = with_deaths(4, seed, 0, |world| async move {
            let other = world.duplicate().await.unwrap();
            let own = world.rank();
            if own == Rank(3) {
                other.revoke();
            }
            let waits = other.receive(Rank((own.0 + 1) % 4), Tag(9)).await;
            assert_eq!(waits, Err(MessageError::Failed(Failure::Revoked)));
            let sent = other.send(Rank(0), Tag(9), vec![1]).await;
            assert_eq!(sent, Err(MessageError::Failed(Failure::Revoked)));
            assert!(other.barrier().await.is_err());
            assert_eq!(world.all_reduce(&[1_u8], Operation::Sum).await.unwrap(), [4]);
            assert_eq!(other.shrink().await.unwrap().barrier().await, Ok(()));
            world
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

#[test]
fn a_probe_ends_when_its_communicator_is_revoked() {
    for seed in 0..10 {
        let ended = with_deaths(3, seed, 0, |world| async move {
            let other = world.duplicate().await.unwrap();
            if world.rank() == Rank(2) {
                other.revoke();
            }
            let revoked = MessageError::Failed(Failure::Revoked);
            assert_eq!(other.probe(Rank(0), None).await, Err(revoked));
            assert_eq!(other.mprobe(None, Tag(9)).await.unwrap_err(), revoked);
            assert_eq!(other.iprobe(None, None), Err(revoked));
            world
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

/// Rank 0 leaves a collective operation, or revokes, while its messages fill all of rank 1's window.
#[test]
fn a_process_whose_window_is_full_learns_of_an_abandoned_or_revoked_communicator() {
    let policies = [WhenFull::Rendezvous, WhenFull::Wait, WhenFull::Refuse];
    for (policy, revokes) in policies.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let config = Config::default().window(4096).eager(64).when_full(policy);
        let views = harness::world(2, MemoryConfig::default(), config);
        let programs = views.clone().into_iter().map(|world| async move {
            let other = world.duplicate().await.unwrap();
            if world.rank() == Rank(0) {
                for all in [&world, &other].repeat(100) {
                    let _ = all.isend(Mode::Standard, Rank(1), Tag(1), vec![]).map(Pending::free);
                }
                return if revokes { other.revoke() } else { drop(other.barrier()) };
            }
            let (ended, failure) = if revokes {
                (other.receive(Rank(0), Tag(9)).await.map(drop), Failure::Revoked)
            } else {
                (other.barrier().await, Failure::Abandoned)
            };
            assert_eq!(ended, Err(MessageError::Failed(failure)), "{policy:?}");
        });
        harness::turns(programs.collect(), &views);
    }
}

/// Rank 0's messages fill all of rank 1's window before both agree.
#[test]
fn processes_agree_although_a_full_window_refuses_messages() {
    let config = Config::default().window(4096).eager(64).when_full(WhenFull::Refuse);
    let views = harness::world(2, MemoryConfig::default(), config);
    let programs = views.clone().into_iter().map(|world| async move {
        let other = world.duplicate().await.unwrap();
        if world.rank() == Rank(0) {
            for all in [&world, &other].repeat(100) {
                let _ = all.isend(Mode::Standard, Rank(1), Tag(1), vec![]).map(Pending::free);
            }
        }
        let agreed = other.agree(flags_of(world.rank().0)).await;
        assert_eq!(agreed, Ok(flags_of(0) & flags_of(1)));
        assert_eq!(other.shrink().await.unwrap().size(), 2);
    });
    harness::turns(programs.collect(), &views);
}

#[test]
fn the_loss_of_a_process_fails_only_wildcards_of_its_own_communicators() {
    let mut views = harness::world(3, MemoryConfig::default(), Config::default());
    let splits = views.iter().map(|world| world.split(Some(world.rank().0 / 2), 0));
    let halves = block_on(join_all(splits)).into_iter();
    let mut halves = halves.map(|half| half.unwrap().expect("it has a color"));
    let (zero, one) = (halves.next().unwrap(), halves.next().unwrap());
    let mut receive = zero.ireceive(None, Tag(1)).unwrap();
    let of_all = views[0].ireceive(None, Tag(1)).unwrap();
    let mut probe = Box::pin(zero.probe(None, Tag(2)));
    let mut idle = Context::from_waker(Waker::noop());
    assert!(probe.as_mut().poll(&mut idle).is_pending());
    drop((views.pop(), halves));
    let lost = MessageError::Failed(Failure::PeerLost(Peer(2)));
    assert_eq!(block_on(of_all), Err(lost));
    assert!(receive.test().is_none());
    assert!(probe.as_mut().poll(&mut idle).is_pending());
    for tag in [1, 2] {
        block_on(one.send(Rank(0), Tag(tag), vec![1])).unwrap();
    }
    assert_eq!(block_on(receive).unwrap().source, Rank(1));
    assert_eq!(block_on(probe).unwrap().source, Rank(1));
}
