//! Tests that a host has one processor, which tasks, interrupts and firmware share.

use midplane_simhw::host::Host as _;
use midplane_simhw::id::{NodeId, TimerId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::{
    DmaCost, HostProfile, Loopback, NicProfile, Notice, PinCost, Ringing,
};
use midplane_simhw::sim::World;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

use crate::sim::harness::{A, B, C, Happening, Log, Probe, assert_conserved, at, send, star};

/// Returns a firmware that completes each command with its cookie.
fn completing() -> Probe {
    Probe::new(|hw, happening| {
        if let Happening::Doorbell(port) = happening {
            while let Some(command) = hw.next_command(port) {
                let cookie = command.cookie;
                hw.complete(port, &Completion { cookie, ..Completion::default() });
            }
            hw.commit();
        }
    })
}

fn world(profile: HostProfile) -> World<Probe> {
    let mut world = World::new(&star(3), NicProfile::FREE, 1, |_, _| completing());
    world.set_hosts(profile);
    world
}

/// Starts a task that computes for `nanos` and logs when it is done.
fn work(world: &mut World<Probe>, node: NodeId, nanos: u64, log: &Log<(NodeId, Instant)>) {
    let (host, log) = (world.host(node), log.clone());
    world.spawn(node, async move {
        host.compute(nanos).await;
        log.add((node, host.now()));
    });
}

#[test]
fn tasks_of_one_host_take_turns_and_those_of_two_do_not() {
    let log = Log::new();
    let mut world = world(HostProfile::FREE);
    for (node, nanos) in [(A, 1_000), (A, 500), (B, 700)] {
        work(&mut world, node, nanos, &log);
    }
    world.run();
    assert_eq!(log.entries(), [(B, at(700)), (A, at(1_000)), (A, at(1_500))]);
}

#[test]
fn another_task_costs_a_context_switch() {
    let log = Log::new();
    let mut world = world(HostProfile { context_switch_ns: 10, ..HostProfile::FREE });
    work(&mut world, A, 1_000, &log);
    work(&mut world, A, 500, &log);
    world.run();
    assert_eq!(log.entries(), [(A, at(1_010)), (A, at(1_520))]);
}

/// Returns how long 10,000 ns of work take on A while its port gets three completions.
fn interrupted(profile: HostProfile) -> u64 {
    let mut world = world(profile);
    let (host, port_host) = (world.host(A), world.host(A));
    let mut port = port_host.open_port().unwrap();
    world.run();
    for _ in 0..3 {
        port.post(&Command::default()).unwrap();
    }
    let worked = world.block_on(A, async move {
        let began = host.now();
        port.ring();
        host.compute(10_000).await;
        host.now().nanos_since(began)
    });
    worked.unwrap()
}

#[test]
fn completions_take_processor_time_from_the_running_task() {
    let profile = HostProfile { interrupt_ns: 900, signal_ns: 5_000, ..HostProfile::FREE };
    assert_eq!(interrupted(profile), 10_000);
    assert_eq!(interrupted(HostProfile { notice: Notice::Interrupt, ..profile }), 12_700);
    assert_eq!(interrupted(HostProfile { notice: Notice::Signal, ..profile }), 25_000);
}

#[test]
fn registering_memory_takes_the_processor_for_each_page() {
    let registered = |bytes| {
        let pin = PinCost { base_ns: 500, page_ns: 30 };
        let mut world = world(HostProfile { pin, ..HostProfile::FREE });
        let host = world.host(A);
        let nanos = world.block_on(A, async move {
            let mut port = host.open_port().unwrap();
            let began = host.now();
            let _region = port.register(bytes).unwrap();
            host.compute(1).await;
            host.now().nanos_since(began)
        });
        nanos.unwrap()
    };
    assert_eq!([1, 4096, 4097, 40_960].map(registered), [531, 531, 561, 801]);
}

#[test]
fn a_doorbell_by_system_call_rings_after_it() {
    let rung = |ringing| {
        let log = Log::new();
        let out = log.clone();
        let mut world = World::new(&star(2), NicProfile::FREE, 1, move |_, _| {
            let log = log.clone();
            Probe::new(move |hw, happening| {
                if let Happening::Doorbell(_) = happening {
                    log.add(hw.now());
                }
            })
        });
        world.set_hosts(HostProfile { system_call_ns: 700, ringing, ..HostProfile::FREE });
        let host = world.host(A);
        let now = world.block_on(A, async move {
            let mut port = host.open_port().unwrap();
            port.submit(&Command::default()).unwrap();
            host.now()
        });
        world.run();
        (out.entries()[0], now.unwrap())
    };
    assert_eq!(rung(Ringing::Mapped), (at(0), at(0)));
    assert_eq!(rung(Ringing::SystemCall), (at(700), at(700)));
}

/// Returns a firmware that takes 300 instructions of 10 ns for each frame.
fn counting(log: Log<(NodeId, Instant)>) -> Probe {
    Probe::new(move |hw, happening| match happening {
        Happening::Start if hw.node() == B => {
            for number in 0..4 {
                send(hw, A, number, 0).unwrap();
            }
            hw.commit();
        }
        Happening::Frame(_) => {
            hw.charge(300);
            log.add((hw.node(), hw.now()));
        }
        _ => {}
    })
}

#[test]
fn firmware_on_the_host_takes_its_cycles() {
    let elapsed = |runs_firmware| {
        let profile = NicProfile { instruction_ps: 10_000, ..NicProfile::FREE };
        let mut world = World::new(&star(3), profile, 1, |_, _| counting(Log::new()));
        world.set_hosts(HostProfile { runs_firmware, interrupt_ns: 2_000, ..HostProfile::FREE });
        let log = Log::new();
        let (host, out) = (world.host(A), log.clone());
        world.spawn(A, async move {
            host.compute(100_000).await;
            log.add(host.now().as_nanos());
        });
        world.run();
        out.entries()[0]
    };
    assert_eq!(elapsed(false), 100_000);
    // Frames of 48 bytes arrive 3.84 us apart: the handler of each is still busy when the next arrives, so that only
    // the first interrupts.
    assert_eq!(elapsed(true), 100_000 + 2_000 * 2 + 4 * 3_000);
}

#[test]
fn a_crash_ends_the_work() {
    let log = Log::new();
    let mut world = world(HostProfile::FREE);
    work(&mut world, A, 1_000_000, &log);
    world.run_until(at(10));
    world.crash(A);
    world.restart(A);
    work(&mut world, A, 100, &log);
    world.run();
    assert_eq!(log.entries(), [(A, at(110))]);
}

#[test]
fn a_host_that_costs_nothing_changes_nothing() {
    let elapsed = |charged: bool| {
        let mut world = World::new(&star(3), NicProfile::MODERN, 1, |_, _| completing());
        if charged {
            world.set_hosts(HostProfile::FREE);
        }
        let host = world.host(C);
        world.block_on(C, async move {
            let mut port = host.open_port().unwrap();
            for _ in 0..10 {
                port.submit(&Command::default()).unwrap();
                port.completion().await.unwrap();
                host.sleep_until(host.now().plus_nanos(77)).await;
            }
        });
        (world.now(), world.digest())
    };
    assert_eq!(elapsed(false), elapsed(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_host_never_does_more_than_a_second_of_work_in_a_second(
        work_ns in proptest::collection::vec((0_u16..3, 0_u64..100_000), 1..20),
        context_switch_ns in 0_u32..1_000,
    ) {
        let log = Log::new();
        let copy = DmaCost { setup_ns: 5, byte_ps: 5 };
        let mut world = world(HostProfile { context_switch_ns, copy, ..HostProfile::FREE });
        for (node, nanos) in &work_ns {
            work(&mut world, NodeId(*node), *nanos, &log);
        }
        world.run();
        let done = log.entries();
        prop_assert_eq!(done.len(), work_ns.len());
        for node in 0..3 {
            let asked: u64 = work_ns.iter().filter(|(of, _)| *of == node).map(|(_, nanos)| nanos).sum();
            let last = done.iter().filter(|(of, _)| of.0 == node).map(|(_, at)| at.as_nanos()).max();
            prop_assert!(last.unwrap_or(0) >= asked);
        }
    }
}

/// Returns a NIC's firmware that sends a short and a long frame to itself, and one to another node between them.
fn to_own_node(log: Log<(Instant, NodeId, u32)>) -> Probe {
    Probe::new(move |hw, happening| match happening {
        Happening::Start if hw.node() == A => {
            hw.set_timer(TimerId(0), at(1_000));
            hw.commit();
        }
        Happening::Timer(_) => {
            for (number, to, length) in [(1, A, 10), (2, B, 10), (3, A, 1_000)] {
                send(hw, to, number, length).unwrap();
            }
            hw.commit();
        }
        Happening::Frame(frame) => {
            assert!(frame.payload.len() == usize::from(frame.header.length));
            log.add((hw.now(), hw.node(), frame.header.sequence));
        }
        _ => {}
    })
}

fn oneself(loopback: Option<Loopback>) -> Vec<(Instant, NodeId, u32)> {
    let log = Log::new();
    let place = log.clone();
    let mut world =
        World::new(&star(3), NicProfile::FREE, 1, move |_, _| to_own_node(place.clone()));
    world.set_hosts(HostProfile { loopback, ..HostProfile::FREE });
    world.run();
    assert_conserved(&world);
    log.entries()
}

#[test]
fn frames_to_the_own_node_stay_within_a_host_with_a_loopback() {
    let loopback = Loopback {
        frame_ns: 100,
        short_bytes: 64,
        long_ns: 50,
        near_bytes: 64,
        near_byte_ps: 1_000,
        far_byte_ps: 2_000,
    };
    let [first, second, third] = oneself(Some(loopback))[..] else { panic!("three frames") };
    // The short frame takes 110 ns. Of the long one's 2,150 ns, 2,000 are for its bytes at `far_byte_ps`. The
    // kernel, which has sent both, receives them then.
    assert_eq!(first, (at(3_260), A, 1));
    assert_eq!(second, (at(3_260), A, 3));
    assert_eq!((third.1, third.2), (B, 2));
    // Without a loopback, all three frames cross the switch, one after the other.
    let through = oneself(None);
    assert!(through.iter().all(|(came, ..)| *came > at(5_000)), "{through:?}");
}
