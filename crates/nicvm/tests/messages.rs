//! The default service in virtual time: sizes, contents, and the effects of faults.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::frame::MAX_PAYLOAD;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Completion, Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

fn world(hosts: u16, mtu: usize, seed: u64) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let switch = SwitchProfile::new(Buffer::Bytes(16 << 20));
    let profile = NicProfile { mtu, ..NicProfile::MODERN };
    World::new(&Topology::star(hosts, link, switch), profile, seed, |_, _| {
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit
    })
}

/// Returns the bytes of message `number` of `sender` to `port`; all messages differ.
fn pattern(sender: u16, port: u16, number: u32, length: usize) -> Vec<u8> {
    let seed = u64::from(sender) << 48 | u64::from(port) << 32 | u64::from(number);
    (0..length as u64)
        .map(|at| ((seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// Sends one message of `sent` bytes to a buffer of `room` bytes; returns the completion and the buffer.
fn one_message(sent: usize, room: usize) -> (Completion, Vec<u8>) {
    let mut world = world(2, MAX_PAYLOAD, 1);
    let (sender, receiver) = (world.host(NodeId(0)), world.host(NodeId(1)));
    world.spawn(NodeId(0), async move {
        sender.sleep_until(Instant::from_nanos(50_000)).await;
        let mut port = sender.open_port().unwrap();
        let region = port.register(sent.max(1)).unwrap();
        region.write(0, &pattern(0, 0, 0, sent)).unwrap();
        let range = region.range(0, sent).unwrap();
        port.submit(&messages::send(NodeId(1), PortId(0), range, 4)).unwrap();
        let completion = port.completion().await.unwrap();
        assert_eq!((completion.status, completion.cookie), (Status::Done, 4));
    });
    world
        .block_on(NodeId(1), async move {
            let mut port = receiver.open_port().unwrap();
            let region = port.register(room).unwrap();
            port.submit(&messages::receive(region.whole(), 9)).unwrap();
            let completion = port.completion().await.unwrap();
            let mut bytes = vec![0; room];
            region.read(0, &mut bytes).unwrap();
            (completion, bytes)
        })
        .expect("the message arrives")
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    for size in [0, 1, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 200_000] {
        let (completion, bytes) = one_message(size, 200_001);
        assert_eq!((completion.status, completion.cookie), (Status::Done, 9), "{size} bytes");
        assert_eq!(completion.length, size as u64);
        assert!(bytes[..size] == pattern(0, 0, 0, size), "{size} bytes");
        assert!(bytes[size..].iter().all(|byte| *byte == 0), "{size} bytes: no more than those");
    }
}

#[test]
fn a_message_that_is_too_long_completes_with_its_length() {
    for (size, room) in [(10, 9), (70_000, 66_000), (200_000, 100)] {
        let (completion, bytes) = one_message(size, room);
        assert_eq!(completion.status, Status::Truncated, "{size} bytes into {room}");
        assert_eq!((completion.length, completion.args[1]), (room as u64, size as u64));
        assert!(bytes == pattern(0, 0, 0, size)[..room], "{size} bytes into {room}");
    }
}

#[test]
fn messages_without_a_buffer_are_counted_and_those_after_them_arrive() {
    let mut world = world(2, MAX_PAYLOAD, 1);
    let (sender, receiver) = (world.host(NodeId(0)), world.host(NodeId(1)));
    let got = world.block_on(NodeId(0), async move {
        let mut port = sender.open_port().unwrap();
        let mut listening = receiver.open_port().unwrap();
        let region = port.register(100_000).unwrap();
        let buffer = listening.register(100_000).unwrap();
        for round in 0..3 {
            if round == 2 {
                listening.submit(&messages::receive(buffer.whole(), 0)).unwrap();
                sender.sleep_until(sender.now() + Duration::from_millis(1)).await;
            }
            port.submit(&messages::send(NodeId(1), listening.id(), region.whole(), 0)).unwrap();
            port.completion().await.unwrap();
            sender.sleep_until(sender.now() + Duration::from_millis(5)).await;
        }
        listening.completion().await.unwrap()
    });
    assert_eq!(got.unwrap().status, Status::Done);
}

/// The messages that arrived, by sender, port and number, and a line for each error.
#[derive(Default)]
struct Arrived {
    messages: BTreeSet<(u16, u16, u32)>,
    wrong: Vec<String>,
}

const PORTS: u16 = 2;
const SENDERS: u16 = 3;
const NUMBERS: u32 = 60;

fn length(number: u32) -> usize {
    8 + (number as usize * 977) % 6_000
}

async fn receive(mut port: Port, arrived: Arc<Mutex<Arrived>>) {
    let regions: Vec<_> = (0..100).map(|_| port.register(8_000).unwrap()).collect();
    for (at, region) in regions.iter().enumerate() {
        port.post(&messages::receive(region.whole(), at as u64)).unwrap();
    }
    port.ring();
    while let Ok(completion) = port.completion().await {
        let region = &regions[completion.cookie as usize];
        let mut bytes = vec![0; completion.length as usize];
        region.read(0, &mut bytes).unwrap();
        let (sender, number) = (completion.node.0, completion.args[0] as u32);
        let expected = pattern(sender, port.id().0, number, length(number));
        {
            let mut arrived = arrived.lock().unwrap();
            if completion.status != Status::Done || bytes != expected {
                arrived.wrong.push(format!("mixed bytes: {completion:?}"));
            }
            if !arrived.messages.insert((sender, port.id().0, number)) {
                arrived.wrong.push(format!("twice: {completion:?}"));
            }
        }
        port.submit(&messages::receive(region.whole(), completion.cookie)).unwrap();
    }
}

/// Sends from three senders to two ports of one node at once, in frames of a kilobyte; returns the received messages.
fn storm(faults: Faults, seed: u64) -> Arrived {
    let mut world = world(SENDERS + 1, 1_000, seed);
    world.set_faults(faults);
    let arrived = Arc::new(Mutex::new(Arrived::default()));
    for _ in 0..PORTS {
        let port = world.host(NodeId(0)).open_port().unwrap();
        world.spawn(NodeId(0), receive(port, Arc::clone(&arrived)));
    }
    for sender in 1..=SENDERS {
        for to in 0..PORTS {
            let host = world.host(NodeId(sender));
            world.spawn(NodeId(sender), async move {
                let mut port = host.open_port().unwrap();
                let region = port.register(8_000).unwrap();
                host.sleep_until(Instant::from_nanos(100_000)).await;
                for number in 0..NUMBERS {
                    let bytes = pattern(sender, to, number, length(number));
                    region.write(0, &bytes).unwrap();
                    let range = region.range(0, bytes.len()).unwrap();
                    let mut command = messages::send(NodeId(0), PortId(to), range, 0);
                    command.args[0] = number.into();
                    port.submit(&command).unwrap();
                    assert_eq!(port.completion().await.unwrap().status, Status::Done);
                }
            });
        }
    }
    world.run_until(Instant::ZERO + Duration::from_secs(2));
    std::mem::take(&mut *arrived.lock().unwrap())
}

#[test]
fn interleaved_senders_and_ports_get_all_messages_without_faults() {
    let arrived = storm(Faults::NONE, 1);
    assert_eq!(arrived.wrong, Vec::<String>::new());
    assert_eq!(arrived.messages.len(), (u32::from(SENDERS * PORTS) * NUMBERS) as usize);
}

fn check_faults(seed: u64) {
    let delay = Duration::from_micros(10 << (seed % 4));
    let faults =
        Faults { loss: 0.02, duplicate: 0.2, corrupt: 0.01, reorder: 0.2, delay, ..Faults::NONE };
    let arrived = storm(faults, seed);
    assert_eq!(arrived.wrong, Vec::<String>::new(), "seed {seed}");
    let share = arrived.messages.len() as f64 / f64::from(u32::from(SENDERS * PORTS) * NUMBERS);
    assert!(share > 0.4, "seed {seed}: {share}");
}

#[test]
fn faults_never_mix_messages_or_deliver_one_twice() {
    (0..6).for_each(check_faults);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn faults_never_mix_messages_from_new_seeds(seed: u64) {
        check_faults(seed);
    }
}

fn check_duplicates(seed: u64) {
    let faults = Faults { duplicate: 0.5, ..Faults::NONE };
    let arrived = storm(faults, seed);
    assert_eq!(arrived.wrong, Vec::<String>::new(), "seed {seed}");
    assert_eq!(arrived.messages.len(), (u32::from(SENDERS * PORTS) * NUMBERS) as usize);
}

#[test]
fn duplicates_alone_lose_nothing() {
    (0..2).for_each(check_duplicates);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn duplicates_alone_lose_nothing_from_new_seeds(seed: u64) {
        check_duplicates(seed);
    }
}
