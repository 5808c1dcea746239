//! A job that is restored from a cut on other nodes ends as the job itself would have.

use std::sync::{Arc, Mutex};

use crate::job::{Preemption, Progress, Run, TIGHT, open, places, run, start, world};
use midplane_gang::context::{NetworkContext, ReadError};
use midplane_gang::names::JobId;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use midplane_simhw::time::Instant;
use proptest::prelude::*;
use std::time::Duration;

const RANKS: u16 = 5;
const COUNT: u32 = 12;

fn faults() -> Faults {
    Faults {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.03,
        delay: Duration::from_micros(20),
        ..Faults::NONE
    }
}

/// Runs a job on `nodes` nodes, from its start or from a cut, until it ends or is cut.
fn leg(
    nodes: u16,
    seed: u64,
    from: Option<&(NetworkContext, Vec<Progress>)>,
    cut_at: Option<u64>,
) -> (Option<NetworkContext>, Vec<Progress>) {
    let mut world = world(nodes, seed, faults());
    let hosts: Vec<SimHost> = (0..nodes).map(|node| world.host(NodeId(node))).collect();
    let places = places(RANKS, nodes);
    let progress: Vec<_> = (0..RANKS)
        .map(|rank| match from {
            Some((_, progress)) => progress[usize::from(rank)].clone(),
            None => Progress::new(RANKS, 7 + u64::from(rank)),
        })
        .map(|progress| Arc::new(Mutex::new(progress)))
        .collect();
    let (saved, shown) = (from.map(|(saved, _)| saved.clone()), progress.clone());
    let task = async move {
        let host = hosts[0].clone();
        let mut network = open(&hosts, JobId(1), &places, TIGHT, false).await;
        if let Some(saved) = saved {
            network.restore(&saved).await.unwrap();
        }
        network.run(&host).await.unwrap();
        start(&hosts, &network, &places, &progress, COUNT);
        let until = host.now().plus_nanos(cut_at.unwrap_or(u64::MAX / 2));
        while host.now() < until
            && !network.ranks().iter().all(|held| held.suspend_handle.has_ended())
        {
            host.sleep_until(host.now().plus_nanos(20_000).min(until)).await;
        }
        match cut_at {
            None => None,
            Some(_) => {
                network.freeze(&host).await.unwrap();
                Some(network.save(true).await.unwrap())
            }
        }
    };
    let done = Arc::new(Mutex::new(None));
    let place = Arc::clone(&done);
    world.spawn(NodeId(0), async move {
        *place.lock().unwrap() = Some(task.await);
    });
    let limit = Instant::from_nanos(20_000_000_000);
    while done.lock().unwrap().is_none() && world.now() < limit {
        world.run_until(world.now().plus_nanos(100_000));
    }
    let cut = done.lock().unwrap().take().unwrap_or_else(|| panic!("it never ends: {shown:?}"));
    (cut, shown.iter().map(|progress| progress.lock().unwrap().clone()).collect())
}

#[test]
fn jobs_restored_elsewhere_from_a_thousand_random_cuts_end_as_they_would_have() {
    let digests = |progress: &[Progress]| -> Vec<Vec<u64>> {
        progress.iter().map(|progress| progress.digests.clone()).collect()
    };
    let whole = digests(&leg(3, 1, None, None).1);
    let mut dice = Rng::new(1, "cuts");
    let mut in_transit = 0;
    for cut in 0..1000 {
        let (from, to) = (dice.between(1, 5) as u16, dice.between(1, 6) as u16);
        let (saved, progress) = leg(from, cut, None, Some(dice.between(10_000, 130_000)));
        let saved = saved.unwrap();
        saved.validate().unwrap_or_else(|violation| panic!("cut {cut}: {violation}"));
        in_transit += saved.in_transit().count();
        let text = serde_json::to_string(&saved).unwrap();
        let back: NetworkContext = serde_json::from_str(&text).unwrap();
        assert_eq!(saved, back);
        let (_, ended) = leg(to, cut + 5_000, Some(&(back, progress)), None);
        assert_eq!(digests(&ended), whole, "cut {cut}, from {from} nodes to {to}");
    }
    assert!(in_transit > 5_000, "the cuts held {in_transit} messages: too few to mean anything");
}

fn example() -> NetworkContext {
    leg(3, 3, None, Some(120_000)).0.unwrap()
}

#[test]
fn a_context_of_another_length_is_refused() {
    let saved = example();
    let bytes = saved.to_bytes().unwrap();
    assert_eq!(NetworkContext::from_bytes(&bytes).unwrap(), saved);
    for cut in [0, 3, bytes.len() - 1] {
        let cut = NetworkContext::from_bytes(&bytes[..cut]);
        assert!(matches!(cut, Err(ReadError::Bytes(_))), "{cut:?}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(matches!(NetworkContext::from_bytes(&longer), Err(ReadError::Bytes(_))));
}

#[test]
fn a_context_that_loses_or_doubles_a_message_is_no_consistent_cut() {
    let saved = example();
    let mut lost = saved.clone();
    let rank = lost.ranks.iter_mut().find(|rank| rank.send.iter().any(|m| !m.taken)).unwrap();
    rank.send.retain(|message| message.taken);
    let said = NetworkContext::from_bytes(&lost.to_bytes().unwrap()).unwrap_err();
    assert!(matches!(said, ReadError::Inconsistent(_)), "{said}");
    let mut doubled = saved.clone();
    doubled.ranks[1].peers[0].acked = doubled.ranks[1].peers[0].acked.wrapping_add(1);
    doubled.validate().unwrap_err();
    let mut swapped = saved;
    swapped.ranks.swap(0, 1);
    assert!(swapped.validate().unwrap_err().to_string().contains("ranks are not 0 to"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = NetworkContext::from_bytes(&bytes);
    }
}

#[test]
fn frames_from_before_a_rollback_are_dropped() {
    // Restores the same cut twice, the second time after the job has run on for a while.
    let first = leg(2, 9, None, Some(60_000));
    let (saved, progress) = (first.0.unwrap(), first.1);
    let once = leg(2, 10, Some(&(saved.clone(), progress.clone())), None).1;
    let again = leg(4, 11, Some(&(saved, progress)), None).1;
    let digests = |all: &[Progress]| all.iter().map(|p| p.digests.clone()).collect::<Vec<_>>();
    assert_eq!(digests(&once), digests(&again));
    let never = run(Run { ranks: RANKS, count: COUNT, way: Preemption::Never, ..Run::default() });
    assert_eq!(digests(&once), digests(&never.progress));
}
