//! The kernels' results are the official ones, bit-identical however often they are preempted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::job::{open, places, world};
use midplane_gang::carrier::ChannelCarrier;
use midplane_gang::channel::Channel;
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::names::JobId;
use midplane_nas::{self as nas, Cg, Class, Ep, Ft, Kernel, RealTime, Verdict};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use midplane_simhw::time::Instant;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::memory::{MemoryConfig, network};

/// Runs a kernel on threads, over memory.
fn over_memory<K: Kernel + 'static>(class: Class, ranks: u32) -> Verdict {
    let ends = network(ranks as usize, MemoryConfig::default()).into_iter().map(|carrier| {
        std::thread::spawn(move || {
            let engine = Engine::new(carrier, Config::default());
            let world = Communicator::world(engine, ranks).unwrap();
            world.block_on(nas::run::<K>(class, &world.clone(), &RealTime)).unwrap()
        })
    });
    let verdicts: Vec<Verdict> =
        ends.collect::<Vec<_>>().into_iter().map(|end| end.join().unwrap()).collect();
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]));
    verdicts[0].clone()
}

#[track_caller]
fn is_official(verdict: &Verdict) {
    assert!(verdict.verified, "{verdict:?}");
}

#[test]
fn ep_gives_the_official_sums() {
    is_official(&over_memory::<Ep>(Class::S, 3));
}

#[test]
fn cg_gives_the_official_eigenvalue_on_every_grid() {
    for ranks in [1, 2, 4, 8, 64] {
        is_official(&over_memory::<Cg>(Class::S, ranks));
    }
    is_official(&over_memory::<Cg>(Class::W, 2));
}

#[test]
fn ft_gives_the_official_checksums() {
    for ranks in [1, 2, 4, 64] {
        is_official(&over_memory::<Ft>(Class::S, ranks));
    }
    is_official(&over_memory::<Ft>(Class::W, 2));
}

const GEOMETRY: Geometry = Geometry {
    send: FifoSize { messages: 32, bytes: 32 << 10 },
    receive: FifoSize { messages: 64, bytes: 32 << 10 },
    message: 4096,
};

/// Runs a kernel over channels in virtual time, and preempts it every now and then.
fn preempted<K: Kernel + 'static>(
    class: Class,
    ranks: u16,
    copy: bool,
    faults: Faults,
) -> (Verdict, u32) {
    let nodes = ranks.min(3);
    let mut world = world(nodes, 1, faults);
    let hosts: Vec<SimHost> = (0..nodes).map(|node| world.host(NodeId(node))).collect();
    let places = places(ranks, nodes);
    let verdicts = Arc::new(Mutex::new(BTreeMap::new()));
    let results = Arc::clone(&verdicts);
    let task = async move {
        let host = hosts[0].clone();
        let mut network = open(&hosts, JobId(1), &places, GEOMETRY, copy).await;
        network.run(&host).await.unwrap();
        for (rank, held) in network.ranks().iter().enumerate() {
            let host = hosts[places[rank].node.index()].clone();
            let descriptor = held.controller.descriptor(held.context);
            let (place, runner) = (Arc::clone(&results), host.clone());
            let program = async move {
                let channel = Channel::attach(&host, descriptor).await.unwrap();
                let engine = Engine::new(ChannelCarrier::new(channel), Config::default());
                let world = Communicator::world(engine, ranks.into()).unwrap();
                let verdict = nas::run::<K>(class, &world, &RealTime).await.unwrap();
                world.finalize().await;
                place.lock().unwrap().insert(rank, verdict);
            };
            runner.spawn(held.suspend_handle.hold(program));
        }
        let (mut dice, mut preemptions) = (Rng::new(1, "slices"), 0);
        while !network.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            host.sleep_until(host.now().plus_nanos(dice.between(1, 300_000))).await;
            network.freeze(&host).await.unwrap();
            let saved = network.save(copy).await.unwrap();
            saved.validate().unwrap();
            if copy {
                network.restore(&saved).await.unwrap();
            }
            network.run(&host).await.unwrap();
            preemptions += 1;
        }
        preemptions
    };
    let done = Arc::new(Mutex::new(None));
    let place = Arc::clone(&done);
    world.spawn(NodeId(0), async move {
        *place.lock().unwrap() = Some(task.await);
    });
    let limit = Instant::from_nanos(20_000_000_000);
    while done.lock().unwrap().is_none() && world.now() < limit {
        world.run_until(world.now().plus_nanos(1_000_000));
    }
    let preemptions = done.lock().unwrap().take().expect("it comes to its end");
    let verdicts = verdicts.lock().unwrap();
    assert_eq!(verdicts.len(), usize::from(ranks));
    (verdicts[&0].clone(), preemptions)
}

#[test]
fn preempted_kernels_give_the_same_bits() {
    let faults = Faults {
        loss: 0.002,
        duplicate: 0.002,
        reorder: 0.002,
        delay: Duration::from_micros(30),
        ..Faults::NONE
    };
    for copy in [false, true] {
        let (cg, times) = preempted::<Cg>(Class::S, 4, copy, faults);
        assert_eq!(cg, over_memory::<Cg>(Class::S, 4));
        assert!(times > 20, "{times}");
        let (ft, times) = preempted::<Ft>(Class::S, 4, copy, Faults::NONE);
        assert_eq!(ft, over_memory::<Ft>(Class::S, 4));
        assert!(times > 20, "{times}");
    }
}

#[test]
fn a_kernel_continues_from_its_saved_state() {
    let ends = network(2, MemoryConfig::default()).into_iter().map(|carrier| {
        std::thread::spawn(move || {
            let engine = Engine::new(carrier, Config::default());
            let world = Communicator::world(engine, 2).unwrap();
            let task = async {
                let mut kernel = Cg::begin(Class::S, world.rank().0, 2).unwrap();
                while !kernel.step(&world, &RealTime).await.unwrap() {
                    let saved = kernel.save();
                    kernel = Cg::restore(Class::S, world.rank().0, 2, &saved).unwrap();
                }
                kernel.verdict()
            };
            world.block_on(task)
        })
    });
    for end in ends.collect::<Vec<_>>() {
        assert_eq!(end.join().unwrap(), over_memory::<Cg>(Class::S, 2));
    }
    let saved = Cg::begin(Class::S, 0, 2).unwrap().save();
    assert!(Cg::restore(Class::W, 0, 2, &saved).is_err());
    assert!(Ft::restore(Class::S, 0, 2, &saved).is_err());
    assert!(Cg::begin(Class::S, 0, 3).is_err());
}
