//! Control messages between extensions: each once and in order, whatever the network does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Command;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

const NODES: u16 = 4;
const MESSAGES: u32 = 200;

#[derive(Debug, Default)]
struct Heard {
    /// By extension, receiver and sender.
    numbers: BTreeMap<(u8, u16, u16), Vec<u32>>,
    events: Vec<(u16, PeerEvent)>,
}

/// Sends numbered messages to all others, a few at a time.
struct Counter {
    next: u32,
    heard: Arc<Mutex<Heard>>,
}

impl Extension for Counter {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        nic.set_timeout(TimeoutId(0), Service::Exact, Duration::from_micros(50));
        Ok(())
    }

    fn on_command(&mut self, _: &mut Context<'_>, _: Command) {}

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        let number = u32::from_le_bytes(message[..4].try_into().unwrap());
        assert!(message[4..].iter().all(|byte| *byte == number as u8));
        let key = (nic.extension().0, nic.node().0, from.0);
        self.heard.lock().unwrap().numbers.entry(key).or_default().push(number);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        let me = nic.node();
        for _ in 0..7 {
            let number = self.next;
            let mut message = number.to_le_bytes().to_vec();
            message.resize(4 + number as usize % 97, number as u8);
            for to in (0..NODES).map(NodeId).filter(|to| *to != me) {
                nic.send_control(to, &message).unwrap();
            }
            self.next += 1;
        }
        if self.next < MESSAGES {
            nic.set_timeout(timeout, Service::Exact, Duration::from_micros(300));
        }
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        self.heard.lock().unwrap().events.push((nic.node().0, event));
    }
}

fn world(seed: u64, heard: &Arc<Mutex<Heard>>) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_micros(2));
    let switch = SwitchProfile::new(Buffer::Bytes(64 << 10));
    let heard = Arc::clone(heard);
    World::new(&Topology::star(NODES, link, switch), NicProfile::MODERN, seed, move |_, _| {
        // All messages are queued at once, so the queue must hold those that wait under such faults.
        let mut control = ControlConfig::default();
        control = control.queue(1_000);
        let mut unit = Unit::new(control);
        for number in 0..2 {
            let number = ExtensionId(FIRST_USER_EXTENSION.0 + number);
            unit.install(number, Counter { next: 0, heard: Arc::clone(&heard) }).unwrap();
        }
        unit
    })
}

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn check_order(seed: u64) {
    let heard = Arc::default();
    let mut world = world(seed, &heard);
    let delay = Duration::from_micros(200);
    let faults =
        Faults { loss: 0.1, duplicate: 0.1, corrupt: 0.05, reorder: 0.2, delay, ..Faults::NONE };
    world.set_faults(faults);
    world.run_until(seconds(5));
    for node in (0..NODES).map(NodeId) {
        let refused = world.firmware(node).counters().control_refused;
        assert_eq!(refused, 0, "seed {seed}: node {node}");
    }
    let heard = heard.lock().unwrap();
    assert_eq!(heard.numbers.len(), 2 * 4 * 3, "seed {seed}");
    for (who, numbers) in &heard.numbers {
        assert!(numbers.iter().copied().eq(0..203), "seed {seed}: {who:?}: {numbers:?}");
    }
    let down = |(_, event): &(u16, PeerEvent)| !matches!(event, PeerEvent::Up(..));
    assert!(!heard.events.iter().any(down), "seed {seed}: {:?}", heard.events);
}

#[test]
fn control_messages_arrive_once_and_in_order_under_all_faults() {
    (0..4).for_each(check_order);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn control_messages_arrive_once_and_in_order_from_new_seeds(seed: u64) {
        check_order(seed);
    }
}

#[test]
fn extensions_are_notified_of_peers_that_start_die_and_restart() {
    let heard = Arc::default();
    let mut world = world(1, &heard);
    world.run_until(Instant::from_nanos(3_000_000));
    world.crash(NodeId(3));
    world.run_until(seconds(2));
    world.restart(NodeId(3));
    world.run_until(seconds(4));
    let second = Incarnation::FIRST.next();
    for node in 0..3 {
        let heard = heard.lock().unwrap();
        let of_three: Vec<PeerEvent> = heard
            .events
            .iter()
            .filter(|(at, _)| *at == node)
            .map(|(_, event)| *event)
            .filter(|event| {
                matches!(
                    event,
                    PeerEvent::Up(NodeId(3), _)
                        | PeerEvent::Down(NodeId(3))
                        | PeerEvent::Restarted(NodeId(3), _)
                )
            })
            .collect();
        let first = PeerEvent::Up(NodeId(3), Incarnation::FIRST);
        let down = PeerEvent::Down(NodeId(3));
        // Two extensions receive each event.
        assert_eq!(of_three[..4], [first, first, down, down], "node {node}: {of_three:?}");
        let again = [PeerEvent::Up(NodeId(3), second), PeerEvent::Restarted(NodeId(3), second)];
        assert!(of_three[4..].iter().any(|event| again.contains(event)), "{of_three:?}");
    }
}
