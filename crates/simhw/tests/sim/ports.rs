//! Tests ports: doorbells, registrations, and dropped ports.

use midplane_simhw::hardware::Source;
use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::{PortId, TimerId};
use midplane_simhw::port::{Command, Completion, PortOptions, WELL_KNOWN};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::{Payload, RegionError};
use midplane_simhw::sim::World;

use crate::sim::harness::{A, Happening, Log, Probe, at, star};

#[test]
fn pending_doorbells_are_coalesced() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::SBA_200E, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| {
            if let Happening::Doorbell(port) = happening {
                let mut commands = 0;
                while hw.next_command(port).is_some() {
                    commands += 1;
                }
                log.add((hw.now().as_nanos(), commands));
            }
        })
    });
    let host = world.host(A);
    world.spawn(A, async move {
        host.sleep_until(at(10_000)).await;
        let mut port = host.open_port().unwrap();
        for _ in 0..50 {
            port.submit(&Command::default()).unwrap();
        }
        host.sleep_until(at(10_500)).await;
        port.submit(&Command::default()).unwrap();
        host.sleep_until(at(20_000)).await;
        port.submit(&Command::default()).unwrap();
        std::future::pending::<()>().await;
    });
    world.run();
    assert_eq!(out.entries(), [(11_000, 51), (21_000, 1)]);
}

#[test]
fn commands_of_a_dropped_port_are_still_taken_before_it_is_removed() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
        let log = log.clone();
        let mut command = None;
        Probe::new(move |hw, happening| match happening {
            Happening::Doorbell(port) => {
                command = hw.next_command(port);
                assert!(hw.next_command(port).is_none());
                hw.set_timer(TimerId(0), at(100));
                hw.commit();
            }
            Happening::Timer(_) => {
                let Command { region, cookie, .. } = command.unwrap();
                let gone = hw.write(region, Payload::from(&[1][..])).unwrap_err();
                let header = midplane_simhw::frame::Header { length: 8, ..Default::default() };
                hw.transmit(&header, Source::Region(region)).unwrap_err();
                // This does nothing: the port is closed.
                hw.complete(PortId(0), &Completion::default());
                hw.commit();
                log.add((cookie, gone));
            }
            _ => {}
        })
    });
    let host = world.host(A);
    let mut port = host.open_port().unwrap();
    let region = port.register(8).unwrap();
    let command = Command { region: region.whole(), cookie: 4, ..Command::default() };
    port.submit(&command).unwrap();
    drop((port, region));
    world.run();
    assert_eq!(out.entries(), [(4, RegionError::Stale)]);
}

#[test]
fn completions_arrive_in_order_and_wake_waiting_tasks() {
    let mut world = World::new(&star(1), NicProfile::MODERN, 1, |_, _| {
        Probe::new(|hw, happening| {
            if let Happening::Doorbell(port) = happening {
                while let Some(command) = hw.next_command(port) {
                    hw.charge(command.cookie % 7);
                    let cookie = command.cookie;
                    hw.complete(port, &Completion { cookie, ..Completion::default() });
                    hw.commit();
                }
            }
        })
    });
    let host = world.host(A);
    let done = world.block_on(A, async move {
        let mut port = host.open_port().unwrap();
        let mut next = 0;
        for cookie in 0..1_000 {
            while port.outstanding() == port.depth() {
                assert_eq!(port.completion().await.unwrap().cookie, next);
                next += 1;
            }
            port.submit(&Command { cookie, ..Command::default() }).unwrap();
        }
        while next < 1_000 {
            assert_eq!(port.completion().await.unwrap().cookie, next);
            next += 1;
        }
        port.outstanding()
    });
    assert_eq!(done, Some(0));
}

#[test]
fn a_number_is_free_once_its_port_is_closed_and_can_be_requested() {
    let mut world =
        World::new(&star(1), NicProfile::MODERN, 1, |_, _| Probe::new(|_: &mut _, _| {}));
    let host = world.host(A);
    let ended = world.block_on(A, async move {
        let first = host.open_port().unwrap();
        let known = PortOptions::default().number(PortId(WELL_KNOWN.start)).depth(5);
        let service = host.open_port_with(known).unwrap();
        assert_eq!((service.id(), service.depth()), (PortId(WELL_KNOWN.start), 8));
        let taken = OpenError::Taken(PortId(WELL_KNOWN.start));
        assert_eq!(host.open_port_with(known).unwrap_err(), taken);
        let id = first.id();
        drop((first, service));
        host.sleep_until(at(1_000_000)).await;
        assert_eq!(host.open_port().unwrap().id(), id);
        host.open_port_with(known).unwrap();
    });
    assert_eq!(ended, Some(()));
}
