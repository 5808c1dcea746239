//! A job whose Virtual Interfaces and processes are restored on other nodes ends as it would have.

use std::sync::{Arc, Mutex};

use crate::vis::interfaces_context::InterfacesContext;
use crate::vis::talk::Image;
use crate::vis::{
    ALL, BAD, Plan, Program, Totals, connect, describe, finish, handed_on, hold, start, world,
};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::profile::DmaCost;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use proptest::prelude::*;

/// A cut of a job: the state of its NICs, and the images of its processes.
#[derive(Clone)]
struct Cut {
    saved: InterfacesContext,
    images: Vec<Image>,
}

/// Draws the ranks' nodes: even ranks are on even nodes, odd ones on odd nodes, so that peers are on different nodes.
fn places(plan: &Plan, dice: &mut Rng) -> Vec<NodeId> {
    let half = u64::from(plan.nodes / 2);
    (0..plan.ranks).map(|rank| NodeId(2 * dice.below(half) as u16 + rank % 2)).collect()
}

/// Runs a job on these nodes, from its start or from a cut, until it ends or is cut.
fn leg(
    plan: Plan,
    places: &[NodeId],
    from: Option<Cut>,
    cut_at: Option<u64>,
) -> (Option<Cut>, Vec<Totals>) {
    let mut world = world(&plan);
    let hosts: Vec<SimHost> = places.iter().map(|node| world.host(*node)).collect();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&shown);
    let task = async move {
        let host = hosts[0].clone();
        let (programs, mut held) = begin(&hosts, &plan, from).await;
        place.lock().unwrap().clone_from(&programs);
        start(&hosts, &held, &programs);
        let until = host.now().plus_nanos(cut_at.unwrap_or(u64::MAX / 2));
        while host.now() < until && !held.ranks().iter().all(|held| held.suspend_handle.has_ended())
        {
            host.sleep_until(host.now().plus_nanos(20_000).min(until)).await;
        }
        let totals = |programs: &[Arc<Mutex<Program>>]| {
            programs.iter().map(|program| program.lock().unwrap().totals()).collect()
        };
        if cut_at.is_none() {
            return (None, totals(&programs));
        }
        held.freeze(&host).await.unwrap();
        let saved = held.save(true).await.unwrap();
        let images = programs.iter().map(|program| program.lock().unwrap().save()).collect();
        (Some(Cut { saved, images }), totals(&programs))
    };
    finish(&mut world, move || describe(&shown.lock().unwrap()), task)
}

/// Starts a job's processes, new or from their images.
async fn begin(
    hosts: &[SimHost],
    plan: &Plan,
    from: Option<Cut>,
) -> (Vec<Arc<Mutex<Program>>>, crate::vis::interfaces::Interfaces) {
    let Some(Cut { saved, images }) = from else {
        let programs = connect(hosts, plan).await;
        let held = hold(hosts, &programs);
        return (programs, held);
    };
    let mut programs = Vec::new();
    for ((host, image), taken) in hosts.iter().zip(&images).zip(&saved.ranks) {
        // Makes the NIC give ports, interfaces and memory other numbers than before.
        for _ in 0..3 {
            drop(host.open_port().unwrap());
        }
        let program = Program::restore(host, image, taken).await;
        programs.push(Arc::new(Mutex::new(program)));
    }
    let mut held = hold(hosts, &programs);
    let map = |program: &Arc<Mutex<Program>>| program.lock().unwrap().nic.memory_map();
    let memory: Vec<_> = programs.iter().map(map).collect();
    assert!(memory.iter().flatten().all(|mapped| mapped.name != mapped.now));
    held.freeze(&hosts[0]).await.unwrap();
    held.restore(&saved, Some(&memory)).await.unwrap();
    assert_eq!(held.save(false).await.unwrap(), saved, "saved again, it is the same");
    held.run(&hosts[0]).await.unwrap();
    for program in &programs {
        program.lock().unwrap().nic.post_untaken().unwrap();
    }
    (programs, held)
}

/// Cuts a job `legs` times, restores it elsewhere each time, and lets it end.
fn wander(plan: Plan, legs: u32) -> Vec<Totals> {
    let mut dice = Rng::new(plan.seed, "places");
    let mut from = None;
    for leg_number in 0..legs {
        let places = places(&plan, &mut dice);
        let plan = Plan { seed: plan.seed + 1000 * u64::from(leg_number), ..plan };
        let (cut, _) = leg(plan, &places, from, Some(dice.between(1_000, 300_000)));
        let Cut { saved, images } = cut.unwrap();
        from = Some(Cut { saved: handed_on(&saved, dice.chance(0.2)), images });
    }
    let places = places(&plan, &mut dice);
    leg(plan, &places, from, None).1
}

#[test]
fn two_processes_change_places_and_end_as_they_would_have() {
    let plan = Plan { rdma: true, levels: ALL, nodes: 4, ..Plan::default() };
    let whole = leg(plan, &[NodeId(0), NodeId(1)], None, None).1;
    let (cut, _) = leg(plan, &[NodeId(0), NodeId(1)], None, Some(150_000));
    let swapped = leg(plan, &[NodeId(1), NodeId(0)], cut, None).1;
    assert_eq!(swapped, whole);
}

/// Runs the processes from a cut for a while, discards them, and starts them from that cut again, on the same NICs.
/// Frames of the discarded run that the network still carries must be dropped.
fn check_rollback(seed: u64) {
    let plan = Plan { seed, rdma: true, levels: ALL, count: 25, ..Plan::default() };
    let home = [NodeId(0), NodeId(1)];
    let whole = leg(plan, &home, None, None).1;
    let mut world = world(&Plan { faults: BAD, ..plan });
    let hosts: Vec<SimHost> = home.iter().map(|node| world.host(*node)).collect();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&shown);
    let task = async move {
        let host = hosts[0].clone();
        let pause = async |micros: u64| {
            host.sleep_until(host.now().plus_nanos(1000 * micros)).await;
        };
        let (programs, mut held) = begin(&hosts, &plan, None).await;
        start(&hosts, &held, &programs);
        pause(100).await;
        held.freeze(&host).await.unwrap();
        let saved = held.save(true).await.unwrap();
        let save = |program: &Arc<Mutex<Program>>| program.lock().unwrap().save();
        let images: Vec<Image> = programs.iter().map(save).collect();
        held.restore(&saved, None).await.unwrap();
        held.run(&host).await.unwrap();
        pause(60).await;
        held.freeze(&host).await.unwrap();
        held.save(true).await.unwrap();
        held.run(&host).await.unwrap();
        for held in held.ranks() {
            held.suspend_handle.kill();
        }
        drop((programs, held));
        let cut = Cut { saved, images };
        let (programs, held) = begin(&hosts, &plan, Some(cut)).await;
        place.lock().unwrap().clone_from(&programs);
        start(&hosts, &held, &programs);
        while !held.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            pause(20).await;
        }
        programs.iter().map(|program| program.lock().unwrap().totals()).collect::<Vec<_>>()
    };
    let again = finish(&mut world, move || describe(&shown.lock().unwrap()), task);
    assert_eq!(again, whole, "seed {seed}");
}

#[test]
fn frames_from_before_a_rollback_are_dropped() {
    (0..8).for_each(check_rollback);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn frames_from_before_a_rollback_are_dropped_from_new_seeds(seed: u64) {
        check_rollback(seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_job_restored_elsewhere_again_and_again_ends_as_it_would_have(
        seed in 0_u64..1_000_000, ranks in 2_u16..6, legs in 1_u32..6, bad: bool, byte_ps in 80_u32..100_000,
    ) {
        let faults = if bad { BAD } else { Faults::NONE };
        let plan = Plan { seed, ranks, nodes: 4, faults, rdma: true, levels: ALL, count: 20, ..Plan::default() };
        let plan = Plan { scatter: DmaCost { setup_ns: 300, byte_ps }, ..plan };
        let home: Vec<NodeId> = (0..ranks).map(|rank| NodeId(rank % 2)).collect();
        let whole = leg(Plan { faults: Faults::NONE, ..plan }, &home, None, None).1;
        prop_assert_eq!(wander(plan, legs), whole);
    }
}
