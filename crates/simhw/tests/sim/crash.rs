//! Tests that a crash ends a node's tasks, ports, alarms and frames, and that a restart is a new incarnation.

use std::sync::Arc;

use midplane_simhw::drops::DropCause;
use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::{Incarnation, PortId, TimerId};
use midplane_simhw::port::{Command, PortClosed, PostError};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;

use crate::sim::harness::{
    A, B, Happening, Log, Probe, Sending, assert_conserved, at, scripted_world, send, star,
};

#[test]
fn a_crash_ends_tasks_and_closes_ports() {
    let mut world = World::new(&star(2), NicProfile::FREE, 1, |_, _| Probe::idle());
    let (local, remote) = (world.host(A), world.host(A));
    let alive = Arc::new(());
    let inside = Arc::clone(&alive);
    world.spawn(A, async move {
        let mut port = local.open_port().unwrap();
        let _inside = inside;
        local.spawn(std::future::pending());
        port.completion().await.unwrap();
    });
    // A port that no task of the crashed host holds.
    let mut port = remote.open_port().unwrap();
    world.run_until(at(100));
    assert_eq!((world.tasks(), Arc::strong_count(&alive)), (2, 2));
    world.crash(A);
    assert_eq!((world.tasks(), Arc::strong_count(&alive)), (0, 1));
    assert!(port.is_closed());
    assert_eq!(port.post(&Command::default()), Err(PostError::Closed));
    assert_eq!(remote.open_port().unwrap_err(), OpenError::Stopped(A));
    let closed = world.block_on(B, async move { port.completion().await });
    assert_eq!(closed, Some(Err(PortClosed)));
}

#[test]
fn requests_from_before_a_crash_do_not_outlive_it() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |_, happening| {
            if let Happening::Doorbell(port) = happening {
                log.add(port);
            }
        })
    });
    let host = world.host(A);
    // All these requests are pending when the node crashes.
    let mut early = host.open_port().unwrap();
    early.submit(&Command::default()).unwrap();
    host.spawn(async { unreachable!("its host is down") });
    world.crash(A);
    assert!(early.is_closed());
    host.spawn(async { unreachable!("its host is down") });
    world.run_until(at(100));
    world.restart(A);
    let late = host.open_port().unwrap();
    assert_eq!(late.id(), PortId(0));
    // Closing a port of the former incarnation rings no doorbell in this one.
    drop(early);
    world.run_until(at(200));
    assert_eq!(out.entries(), []);
    assert!(!late.is_closed());
    assert_eq!(world.tasks(), 0);
}

#[test]
fn alarms_and_doorbells_of_a_former_incarnation_are_void() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::MODERN, 1, move |_, incarnation| {
        let log = log.clone();
        Probe::new(move |hw, happening| {
            log.add((incarnation, hw.now().as_nanos()));
            if let Happening::Start = happening {
                assert_eq!(hw.incarnation(), incarnation);
                hw.set_timer(TimerId(0), hw.now().plus_nanos(1_000));
                hw.commit();
            }
        })
    });
    world.run_until(at(500));
    world.crash(A);
    world.crash(A);
    world.run_until(at(800));
    world.restart(A);
    world.run();
    let second = Incarnation::FIRST.next();
    assert!(second.is_newer_than(Incarnation::FIRST));
    assert_eq!(out.entries(), [(Incarnation::FIRST, 0), (second, 800), (second, 1_800)]);
}

#[test]
fn frames_to_a_node_that_is_down_are_dropped_and_frames_from_it_still_arrive() {
    let script = vec![vec![Sending { at: 0, to: B, length: 952 }; 4]];
    let (mut world, log) = scripted_world(&star(2), NicProfile::FREE, 1, script);
    // The first of four frames reaches B at 161 us; A crashes with three on its line.
    world.run_until(at(170_000));
    world.crash(A);
    world.run_until(at(300_000));
    world.crash(B);
    world.run_until(at(330_000));
    assert_conserved(&world);
    world.restart(B);
    world.run();
    assert_eq!(world.traffic().drops.of(DropCause::NicDown), 1);
    let sequences: Vec<_> = log.entries().iter().map(|frame| frame.sequence).collect();
    assert_eq!(sequences, [0, 1, 3]);
}

#[test]
fn a_line_carries_no_more_than_its_rate_across_a_restart() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(2), NicProfile::FREE, 1, move |node, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start if node == A => {
                send(hw, B, 0, 952).unwrap();
                send(hw, B, 1, 952).unwrap();
                hw.commit();
            }
            Happening::Frame(_) => log.add(hw.now().as_nanos()),
            _ => {}
        })
    });
    world.run_until(at(10_000));
    world.crash(A);
    world.restart(A);
    world.run();
    assert_eq!(out.entries(), [161_000, 241_000, 321_000, 401_000]);
}

#[test]
fn a_frame_of_which_a_nic_held_a_part_when_it_crashed_is_lost() {
    use midplane_simhw::link::LinkProfile;
    use midplane_simhw::topology::Topology;

    use crate::sim::harness::{RATE, ROOMY};

    let link = LinkProfile::atm(RATE, std::time::Duration::ZERO);
    let topology = Topology::star(2, link, ROOMY);
    let script = vec![vec![Sending { at: 0, to: B, length: 10_000 }; 2]];
    let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, script);
    world.run_until(at(400_000));
    world.crash(B);
    world.restart(B);
    world.run();
    assert_conserved(&world);
    assert_eq!(world.traffic().drops.of(DropCause::NicDown), 1);
    let sequences: Vec<_> = log.entries().iter().map(|frame| frame.sequence).collect();
    assert_eq!(sequences, [1]);
}
