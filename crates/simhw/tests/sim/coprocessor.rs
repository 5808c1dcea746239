//! Checks the paper's NIC by hand calculation: what each step costs, and that the coprocessor handles one event after
//! another.
//!
//! An event takes 60 instructions of 40 ns. The NIC sees a doorbell after 1 us, reaches host memory in 4 us and 20 ns a
//! byte, and its host sees a completion after 12 us. A byte takes 80 ns on the line; a link is 500 ns long.

use midplane_simhw::frame::Header;
use midplane_simhw::hardware::{Dma, Source};
use midplane_simhw::host::Host;
use midplane_simhw::id::TimerId;
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::World;

use crate::sim::harness::{A, B, C, Happening, Log, Probe, at, send, star};

const EVENT: u64 = 2_400;
/// Nanoseconds for two links and a store-and-forward switch, with a payload of 52 bytes.
const WIRE: u64 = 2 * (100 * 80 + 500);

#[test]
fn a_frame_leaves_when_the_instructions_before_it_are_done() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(2), NicProfile::SBA_200E, 1, move |node, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start if node == A => {
                hw.charge(10);
                log.add(send(hw, B, 0, 52).unwrap().as_nanos());
                hw.commit();
            }
            Happening::Frame(_) => log.add(hw.now().as_nanos()),
            _ => {}
        })
    });
    world.run();
    let ready = EVENT + 400;
    assert_eq!(out.entries(), [ready + 8_000, ready + WIRE]);
}

#[test]
fn events_at_one_instant_are_handled_one_after_another() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::SBA_200E, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start => {
                for timer in 0..4 {
                    hw.set_timer(TimerId(timer), at(100_000));
                }
                hw.commit();
            }
            Happening::Timer(timer) => {
                hw.charge(u64::from(timer.0));
                log.add((timer.0, hw.now().as_nanos()));
            }
            _ => {}
        })
    });
    world.run();
    let second = 100_000 + EVENT;
    let third = second + EVENT + 40;
    let fourth = third + EVENT + 80;
    assert_eq!(out.entries(), [(0, 100_000), (1, second), (2, third), (3, fourth)]);
}

#[test]
fn frames_of_two_senders_wait_for_the_coprocessor() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(3), NicProfile::SBA_200E, 1, move |node, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start if node != C => {
                send(hw, C, 0, 0).unwrap();
                hw.commit();
            }
            Happening::Frame(frame) => {
                hw.charge(200);
                log.add((frame.header.source, hw.now().as_nanos()));
            }
            _ => {}
        })
    });
    world.run();
    // 48 bytes take 3,840 ns; the handler takes 2,400 + 8,000 ns.
    let first = EVENT + 2 * (3_840 + 500);
    assert_eq!(out.entries(), [(A, first), (B, first + 10_400)]);
}

type Steps = Log<(&'static str, u64)>;

/// Returns a world in which A sends the region of a command to B, which fills the region of a command of its own.
fn messengers() -> (World<Probe>, Steps) {
    let log = Log::new();
    let out = log.clone();
    let world = World::new(&star(2), NicProfile::SBA_200E, 1, move |node, _| {
        let log = log.clone();
        let mut buffer = None;
        Probe::new(move |hw, happening| match happening {
            Happening::Doorbell(port) => {
                // Dropping a port rings its doorbell once more.
                let Some(command) = hw.next_command(port) else { return };
                log.add(("doorbell", hw.now().as_nanos()));
                if node == B {
                    buffer = Some((port, command));
                    return;
                }
                let header = Header { source: A, destination: B, length: 52, ..Header::default() };
                hw.transmit(&header, Source::Region(command.region)).unwrap();
                hw.complete(port, &Completion::default());
                hw.commit();
            }
            Happening::Frame(frame) => {
                log.add(("frame", hw.now().as_nanos()));
                let (port, command) = buffer.take().unwrap();
                hw.write(command.region, frame.payload).unwrap();
                hw.complete(port, &Completion { cookie: command.cookie, ..Default::default() });
                hw.commit();
            }
            _ => {}
        })
    });
    (world, out)
}

#[test]
fn a_command_crosses_doorbell_gather_wire_scatter_and_completion() {
    let (mut world, out) = messengers();
    let (sender, receiver) = (world.host(A), world.host(B));
    let start = 1_000_000;
    let log = out.clone();
    world.spawn(A, async move {
        sender.sleep_until(at(start)).await;
        let mut port = sender.open_port().unwrap();
        let region = port.register(52).unwrap();
        region.write(0, &[7; 52]).unwrap();
        port.submit(&Command { region: region.whole(), ..Command::default() }).unwrap();
        port.completion().await.unwrap();
        log.add(("sent", sender.now().as_nanos()));
    });
    let log = out.clone();
    let bytes = world.block_on(B, async move {
        let mut port = receiver.open_port().unwrap();
        let region = port.register(52).unwrap();
        port.submit(&Command { region: region.whole(), cookie: 9, ..Command::default() }).unwrap();
        assert_eq!(port.completion().await.unwrap().cookie, 9);
        log.add(("received", receiver.now().as_nanos()));
        let mut bytes = [0; 52];
        region.read(0, &mut bytes).unwrap();
        bytes
    });
    assert_eq!(bytes, Some([7; 52]));
    let seen = start + 1_000;
    let copy = 4_000 + 52 * 20;
    let gathered = seen + EVENT + copy;
    let arrived = gathered + WIRE;
    let expected = [
        // The NIC is busy with its start until 2,400 ns.
        ("doorbell", EVENT),
        ("doorbell", seen),
        ("sent", gathered + 12_000),
        ("frame", arrived),
        ("received", arrived + EVENT + copy + 12_000),
    ];
    let mut entries = out.entries();
    entries.sort_by_key(|(_, at)| *at);
    assert_eq!(entries, expected);
}

#[test]
fn transfers_end_in_order_and_a_completion_comes_after_the_writes_before_it() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::SBA_200E, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Doorbell(port) => {
                let Some(command) = hw.next_command(port) else { return };
                let region = command.region;
                let (from, to) = (region.part(0, 100).unwrap(), region.part(100, 100).unwrap());
                let first = hw.dma(Dma { from, to }).unwrap();
                let next = region.part(200, 100).unwrap();
                let second = hw.dma(Dma { from: to, to: next }).unwrap();
                assert_ne!(first, second);
                hw.write(region.part(300, 10).unwrap(), Payload::from(&[5; 10][..])).unwrap();
                hw.complete(port, &Completion::default());
                hw.commit();
            }
            Happening::DmaDone(dma) => log.add((dma.0, hw.now().as_nanos())),
            _ => {}
        })
    });
    let host = world.host(A);
    let bytes = world.block_on(A, async move {
        host.sleep_until(at(10_000)).await;
        let mut port = host.open_port().unwrap();
        let region = port.register(400).unwrap();
        region.write(0, &[3; 100]).unwrap();
        port.submit(&Command { region: region.whole(), ..Command::default() }).unwrap();
        port.completion().await.unwrap();
        let mut bytes = vec![0; 310];
        region.read(0, &mut bytes).unwrap();
        (bytes, host.now().as_nanos())
    });
    let (bytes, completed) = bytes.unwrap();
    assert_eq!(bytes[..300], [3; 300]);
    assert_eq!(bytes[300..], [5; 10]);
    // Each transfer takes 6 us into the NIC and 6 us out of it; the second transfer's halves follow the first's.
    let begin = 10_000 + 1_000 + EVENT;
    let ends = [begin + 12_000, begin + 18_000];
    assert_eq!(out.entries(), [(0, ends[0]), (1, ends[1])]);
    // A write of 10 bytes and the completion follow.
    assert_eq!(completed, ends[1] + 4_200 + 12_000);
}

#[test]
fn a_full_transmit_queue_returns_when_to_retry() {
    let mut world = World::new(&star(2), NicProfile::SBA_200E, 1, |node, _| {
        Probe::new(move |hw, happening| {
            if node == B || !matches!(happening, Happening::Start | Happening::Timer(_)) {
                return;
            }
            for number in 0..4 {
                let sent = send(hw, B, number, 52);
                if hw.now() > at(0) && number > 0 {
                    sent.unwrap_err();
                } else {
                    sent.unwrap();
                }
            }
            hw.commit();
            let refused = send(hw, B, 4, 52).unwrap_err();
            let midplane_simhw::hardware::TransmitRefused::Busy { until } = refused else {
                panic!("{refused}");
            };
            if hw.now() == at(0) {
                assert_eq!(until, at(EVENT + 8_000));
                hw.set_timer(TimerId(0), until);
                hw.commit();
            }
        })
    });
    world.run();
    assert_eq!(world.traffic().delivered, 5);
}
