//! Saved interfaces that are damaged, do not fit or come at the wrong time are refused, each with its own error and
//! without effect: their job ends as it would have.

use std::sync::{Arc, Mutex};

use crate::vis::interfaces::{Interfaces, RestoreError, SaveError};
use crate::vis::interfaces_context::InterfacesContext;
use crate::vis::{
    CHECKPOINTER, Plan, Program, attributes, connect, describe, finish, hold, run, start, world,
};
use midplane_gang::names::{JobId, Rank};
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::PortOptions;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::{Address, Discriminator, Reliability, ViState};
use midplane_via::checkpointer::{Checkpointer, CheckpointerError, MappedMemory, Refused};
use midplane_via::context::{LinkContext, RemoteEnd, Violation};
use midplane_via::nic::{Nic, NicSaveError};
use midplane_via::outcome::AsyncError;
use proptest::prelude::*;

fn plan() -> Plan {
    let levels = &[Reliability::ReliableDelivery, Reliability::ReliableReception];
    Plan { rdma: true, levels, nodes: 3, ..Plan::default() }
}

/// A suspended job.
struct Scene {
    hosts: Vec<SimHost>,
    programs: Vec<Arc<Mutex<Program>>>,
    held: Interfaces,
}

impl Scene {
    async fn pause(&self, micros: u64) {
        self.hosts[0].sleep_until(self.hosts[0].now().plus_nanos(1000 * micros)).await;
    }

    async fn refuses(
        &mut self,
        saved: &InterfacesContext,
        maps: &[Vec<MappedMemory>],
    ) -> RestoreError {
        self.held.restore(saved, Some(maps)).await.unwrap_err()
    }

    fn maps(&self) -> Vec<Vec<MappedMemory>> {
        let map = |program: &Arc<Mutex<Program>>| program.lock().unwrap().nic.memory_map();
        self.programs.iter().map(map).collect()
    }
}

/// Freezes a job in its middle, runs `work`, and resumes the job: it must end as if nothing had been done.
fn in_the_middle<F: Future<Output = Scene> + Send + 'static>(
    work: impl FnOnce(Scene) -> F + Send + 'static,
) {
    let plan = plan();
    let mut world = world(&plan);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::clone(&shown);
    let totals = finish(&mut world, move || describe(&shown.lock().unwrap()), async move {
        let programs = connect(&hosts, &plan).await;
        place.lock().unwrap().clone_from(&programs);
        let held = hold(&hosts, &programs);
        start(&hosts, &held, &programs);
        let mut scene = Scene { hosts, programs, held };
        scene.pause(150).await;
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        let mut scene = work(scene).await;
        scene.held.run(&scene.hosts[0]).await.unwrap();
        while !scene.held.ranks().iter().all(|held| held.suspend_handle.has_ended()) {
            scene.pause(100).await;
        }
        let totals = scene.programs.iter().map(|program| program.lock().unwrap().totals());
        totals.collect::<Vec<_>>()
    });
    assert_eq!(totals, run(plan, false).0);
}

/// Returns the saved interfaces of a job in its middle.
fn example() -> InterfacesContext {
    let place = Arc::new(Mutex::new(None));
    let shown = Arc::clone(&place);
    in_the_middle(|mut scene| async move {
        *shown.lock().unwrap() = Some(scene.held.save(false).await.unwrap());
        scene
    });
    place.lock().unwrap().take().unwrap()
}

fn link(saved: &mut InterfacesContext, rank: usize, vi: usize) -> &mut LinkContext {
    saved.ranks[rank].vis[vi].link.as_mut().unwrap()
}

/// Changes each of the counts of both ends.
#[test]
fn two_ends_that_disagree_are_named_with_the_difference() {
    let saved = example();
    saved.validate().unwrap();
    let far = saved.ranks[0].vis[0].link.as_ref().unwrap().peer;
    let (from, to) = (RemoteEnd { rank: 0, vi: 0 }, far);

    let mut ahead = saved.clone();
    let there = ahead.ranks[1].vis.iter().position(|vi| vi.name == far.vi).unwrap();
    let next = link(&mut ahead, 0, 0).next();
    let base = link(&mut ahead, 0, 0).base;
    link(&mut ahead, 1, there).expected = next.wrapping_add(1);
    let expected = next.wrapping_add(1);
    assert_eq!(ahead.validate(), Err(Violation::Counts { from, to, base, next, expected }));
    let said = ahead.validate().unwrap_err().to_string();
    assert!(said.contains(&format!("expects frame {expected}")), "{said}");

    let mut behind = saved.clone();
    let expected = base.wrapping_sub(1);
    link(&mut behind, 1, there).expected = expected;
    assert_eq!(behind.validate(), Err(Violation::Counts { from, to, base, next, expected }));

    let mut half = saved.clone();
    let came = link(&mut half, 1, there).arriving.unwrap_or(0) + 7;
    link(&mut half, 1, there).arriving = Some(came);
    let violation = half.validate().unwrap_err();
    assert!(
        matches!(violation, Violation::HalfArrived { came: found, .. } if found == came),
        "{violation}"
    );

    let mut gone = saved.clone();
    link(&mut gone, 0, 0).peer = RemoteEnd { rank: 7, vi: 0 };
    let nobody = RemoteEnd { rank: 7, vi: 0 };
    assert_eq!(gone.validate(), Err(Violation::NoPeer { from, to: nobody }));

    let mut crossed = saved.clone();
    let other = RemoteEnd { vi: saved.ranks[1].vis[1 - there].name, ..far };
    link(&mut crossed, 0, 0).peer = other;
    assert_eq!(crossed.validate(), Err(Violation::OneSided { from, to: other }));

    let mut unlike = saved;
    unlike.ranks[0].vis[0].attributes.rdma_write = false;
    let by = Violation::Attributes { from: far, to: from };
    assert_eq!(unlike.validate(), Err(by));
}

#[test]
fn a_process_whose_numbers_contradict_each_other_is_named() {
    let saved = example();
    type Change = fn(&mut InterfacesContext);
    let changes: [(&str, Change); 10] = [
        ("out of order", |saved| saved.ranks[1].vis.swap(0, 1)),
        ("twice", |saved| {
            let cookie = saved.ranks[1].vis[0].receives[0].cookie;
            saved.ranks[1].vis[1].receives[0].cookie = cookie;
        }),
        ("counts sends", |saved| saved.ranks[1].vis[0].cut = 1000),
        ("counts sends", |saved| saved.ranks[1].vis[0].withdrawn = 1),
        ("of which the NIC has descriptors", |saved| saved.ranks[1].vis[0].gate.lent[1] = true),
        ("being made", |saved| saved.ranks[1].vis[0].state = ViState::ConnectPending),
        ("its state and its connection", |saved| saved.ranks[1].vis[0].state = ViState::Error),
        ("frames on the way", |saved| {
            let flight = link(saved, 1, 0).flights.iter_mut().find(|flight| flight.ends);
            flight.expect("some are under way").ends = false;
        }),
        ("a receive has more memory", |saved| {
            saved.ranks[1].vis[0].receives[0].pieces[0].offset = u32::MAX;
        }),
        ("an error names it", |saved| {
            let error = AsyncError::ConnectionLost;
            saved.ranks[1].errors.push((77, error));
        }),
    ];
    for (what, change) in changes {
        let mut changed = saved.clone();
        change(&mut changed);
        let violation = changed.validate().unwrap_err();
        let said = violation.to_string();
        assert!(matches!(violation, Violation::Rank { rank: 1, .. }), "{what}: {said}");
        assert!(said.contains(what), "{what}: {said}");
        assert!(InterfacesContext::from_bytes(&changed.to_bytes()).is_none());
    }
}

fn refused(rank: u16, error: RestoreError) -> (Refused, Option<u16>) {
    match error {
        RestoreError::Keep { rank: found, error: CheckpointerError::Refused { why, vi, .. } } => {
            assert_eq!(found, Rank(rank));
            (why, vi)
        }
        other => panic!("{other}"),
    }
}

/// Rank 1 refuses each of these after rank 0 has restored its part, which is then discarded.
#[test]
fn interfaces_that_do_not_fit_are_refused_without_effect() {
    in_the_middle(|mut scene| async move {
        let maps = scene.maps();
        let saved = scene.held.save(true).await.unwrap();
        let memory = saved.ranks[1].vis[0].receives[0].pieces[0].memory;

        let mut unregistered = maps.clone();
        unregistered[1].retain(|mapped| mapped.name != memory);
        let error = scene.refuses(&saved, &unregistered).await;
        let CheckpointerError::Unmapped { memory: found, there: 0, .. } = keep(&error) else {
            panic!("{error}")
        };
        assert_eq!(found, memory);

        let mut shorter = maps.clone();
        let mapped = shorter[1].iter_mut().find(|mapped| mapped.name == memory).unwrap();
        mapped.bytes = 5;
        let error = scene.refuses(&saved, &shorter).await;
        assert!(matches!(keep(&error), CheckpointerError::Unmapped { there: 5, .. }), "{error}");

        let mut gone = maps.clone();
        let mapped = gone[1].iter_mut().find(|mapped| mapped.name == memory).unwrap();
        mapped.now.generation ^= 1;
        let (why, vi) = refused(1, scene.refuses(&saved, &gone).await);
        assert_eq!((why, vi), (Refused::Memory, Some(saved.ranks[1].vis[0].name)));

        let mut foreign = saved.clone();
        foreign.ranks[1].vis[0].receives[0].cookie = u64::MAX;
        let (why, vi) = refused(1, scene.refuses(&foreign, &maps).await);
        assert_eq!((why, vi), (Refused::NotAwaited, Some(saved.ranks[1].vis[0].name)));

        let mut long = saved.clone();
        let flight =
            link(&mut long, 1, 0).flights.iter_mut().find(|flight| flight.source.is_some());
        flight.expect("some are under way").source.as_mut().unwrap().length = 601;
        let (why, _) = refused(1, scene.refuses(&long, &maps).await);
        assert_eq!(why, Refused::FrameTooLong);

        let mut wrong = saved.clone();
        // The other end then expects a frame later than all that are under way.
        let link = link(&mut wrong, 1, 0);
        link.base = link.base.wrapping_sub(1 + link.flights.len() as u32);
        let error = scene.refuses(&wrong, &maps).await;
        assert!(matches!(error, RestoreError::Inconsistent(_)), "{error}");

        let mut fewer = saved.clone();
        fewer.ranks.pop();
        let error = scene.refuses(&fewer, &maps).await;
        assert_eq!(error, RestoreError::Ranks { saved: 1, ranks: 2 });

        let mut full = Nic::open(&scene.hosts[1], PortOptions::default()).await.unwrap();
        while full.create_vi(attributes(Reliability::Unreliable)).await.is_ok() {}
        let (why, _) = refused(1, scene.refuses(&saved, &maps).await);
        assert_eq!(why, Refused::NoRoom);
        drop(full);
        scene.pause(10).await;

        scene.held.restore(&saved, Some(&maps)).await.unwrap();
        let (why, _) = match scene.held.restore(&saved, Some(&maps)).await.unwrap_err() {
            error @ RestoreError::Keep { .. } => refused(0, error),
            other => panic!("{other}"),
        };
        assert_eq!(why, Refused::Occupied);
        assert_eq!(scene.held.save(false).await.unwrap(), saved);
        scene
    });
}

fn keep(error: &RestoreError) -> CheckpointerError {
    match error {
        RestoreError::Keep { rank: Rank(1), error } => *error,
        other => panic!("{other}"),
    }
}

#[test]
fn interfaces_of_a_running_process_are_not_saved() {
    in_the_middle(|mut scene| async move {
        scene.held.run(&scene.hosts[0]).await.unwrap();
        let running = scene.held.save(false).await.unwrap_err();
        let why = |error: &SaveError| match error {
            SaveError::Keep { error: CheckpointerError::Refused { why, .. }, .. } => *why,
            other => panic!("{other}"),
        };
        assert_eq!(why(&running), Refused::Running);
        let mut stranger = Checkpointer::open(&scene.hosts[0], PortId(CHECKPOINTER + 1)).unwrap();
        let port = scene.held.ranks()[0].port;
        let refused = stranger.save(port).await.unwrap_err();
        assert!(
            matches!(refused, CheckpointerError::Refused { why: Refused::NotCheckpointer, .. }),
            "{refused}"
        );
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        scene
    });
}

/// A connection that leads out of the job, one that is being made, and one that has just ended.
#[test]
fn connections_without_both_ends_in_the_job_are_refused_by_name() {
    in_the_middle(|mut scene| async move {
        let third = scene.hosts[0].clone();
        scene.held.run(&scene.hosts[0]).await.unwrap();
        let program = Arc::clone(&scene.programs[1]);
        let mut outside = Nic::open(&third, PortOptions::default()).await.unwrap();
        let far = outside.create_vi(attributes(Reliability::ReliableDelivery)).await.unwrap();
        let name = |text: &str| Discriminator::new(text.as_bytes()).unwrap();
        let near = program.lock().unwrap().spare.unwrap();
        let to = Address { node: scene.hosts[0].node(), discriminator: name("far") };
        let asked = program.lock().unwrap().nic.connect_peer(near, to, name("near"), None).unwrap();
        scene.pause(100).await;
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        let SaveError::Keep { rank: Rank(1), error: CheckpointerError::Refused { why, .. } } =
            scene.held.save(true).await.unwrap_err()
        else {
            panic!("a connection is being made")
        };
        assert_eq!(why, Refused::Connecting);
        assert_eq!(program.lock().unwrap().nic.save().unwrap_err(), NicSaveError::Busy);

        scene.held.run(&scene.hosts[0]).await.unwrap();
        let to = Address { node: scene.hosts[1].node(), discriminator: name("near") };
        let ticket = outside.connect_peer(far, to, name("far"), None).unwrap();
        outside.finish(&ticket).await.unwrap();
        scene.pause(100).await;
        program.lock().unwrap().nic.connected(&asked).unwrap().expect("both have asked");
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        let stranger = scene.held.save(true).await.unwrap_err();
        assert!(matches!(stranger, SaveError::Stranger { rank: Rank(1), .. }), "{stranger}");

        // It ends while the process is suspended. The process is notified when it is resumed, and can be saved then.
        outside.disconnect(far).await.unwrap();
        scene.pause(100).await;
        let SaveError::Keep { rank: Rank(1), error: CheckpointerError::Refused { why, .. } } =
            scene.held.save(true).await.unwrap_err()
        else {
            panic!("the process is yet to be told")
        };
        assert_eq!(why, Refused::Ended);
        scene.held.run(&scene.hosts[0]).await.unwrap();
        scene.pause(100).await;
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        let saved = scene.held.save(true).await.unwrap();
        let broken = saved.ranks[1].vis.iter().find(|vi| vi.state == ViState::Error);
        assert!(broken.is_some_and(|vi| vi.link.is_none()));
        scene.held.restore(&saved, None).await.unwrap();
        scene
    });
}

/// Frames that the other end had taken before the cut are not sent again, though their sender was not notified.
#[test]
fn frames_taken_before_the_cut_are_acknowledged_by_it() {
    in_the_middle(|mut scene| async move {
        let saved = scene.held.save(true).await.unwrap();
        scene.held.restore(&saved, None).await.unwrap();
        scene.held.run(&scene.hosts[0]).await.unwrap();
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        let after = scene.held.save(false).await.unwrap();
        let mut untold = 0;
        for (rank, context) in saved.ranks.iter().enumerate() {
            for vi in &context.vis {
                let Some(link) = &vi.link else { continue };
                let far = saved.ranks[usize::from(link.peer.rank)].vi(link.peer.vi).unwrap();
                let expected = far.link.as_ref().unwrap().expected;
                untold += expected.wrapping_sub(link.base);
                let base = after.ranks[rank].vi(vi.name).unwrap().link.as_ref().unwrap().base;
                assert!(base.wrapping_sub(expected) < 1 << 31, "{base} is before {expected}");
            }
        }
        assert!(untold > 0, "the cut has nothing that its sender was not told of");
        scene
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Changes a context arbitrarily: the NICs refuse it, or accept and restore it, and none of their handlers fails on
    /// it.
    #[test]
    fn no_context_makes_a_nic_fail(
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        thread_local! {
            static SAVED: Vec<u8> = example().to_bytes();
        }
        let mut bytes = SAVED.with(Clone::clone);
        for (at, to) in changes {
            let at = at % bytes.len();
            bytes[at] = to;
        }
        if let Some(changed) = InterfacesContext::from_bytes(&bytes) {
            take(changed);
        }
    }
}

/// Restores a changed context of [`example`]'s job, and resumes the NICs.
fn take(changed: InterfacesContext) {
    let plan = plan();
    let mut world = world(&plan);
    let hosts: Vec<SimHost> = (0..2).map(|node| world.host(NodeId(node))).collect();
    finish(&mut world, String::new, async move {
        let programs = connect(&hosts, &plan).await;
        let held = hold(&hosts, &programs);
        start(&hosts, &held, &programs);
        let mut scene = Scene { hosts, programs, held };
        scene.pause(150).await;
        scene.held.freeze(&scene.hosts[0]).await.unwrap();
        scene.held.save(true).await.unwrap();
        let _ = scene.held.restore(&changed, None).await;
        for held in scene.held.ranks() {
            held.suspend_handle.kill();
        }
        scene.held.run(&scene.hosts[0]).await.unwrap();
        scene.pause(5_000).await;
    });
    for node in 0..2 {
        assert_eq!(world.firmware(NodeId(node)).counters().traps, 0);
    }
}

#[test]
fn interfaces_changed_since_they_were_saved_are_not_forgotten() {
    in_the_middle(|scene| async move {
        let Scene { hosts, programs, held } = scene;
        let (ranks, mut holds) = (held.ranks().to_vec(), held.into_port_controls());
        let checkpointer = &mut holds[1].checkpointer;
        let mut older = checkpointer.save(ranks[1].port).await.unwrap();
        older.context.vis[0].receives.pop();
        let refused = checkpointer.forget(ranks[1].port, &older).await.unwrap_err();
        assert!(
            matches!(refused, CheckpointerError::Refused { why: Refused::Changed, .. }),
            "{refused}"
        );
        Scene { hosts, programs, held: Interfaces::new(JobId(1), holds, ranks) }
    });
}

#[test]
fn errors_not_yet_reported_to_the_process_are_restored() {
    in_the_middle(|mut scene| async move {
        let mut saved = scene.held.save(true).await.unwrap();
        let spare = saved.ranks[1].vis.iter().find(|vi| vi.link.is_none()).unwrap().name;
        saved.ranks[1].errors.push((spare, AsyncError::ReceiveQueueEmpty));
        scene.held.restore(&saved, None).await.unwrap();
        assert_eq!(scene.held.save(false).await.unwrap(), saved);
        scene
    });
}
