//! The daemon is notified of data that arrives for a suspended process from outside: once, and of nothing else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::vis::{ARRIVAL_WATCHER, BAD, PORT_SUSPENDER, Plan, attributes, finish, world};
use midplane_gang::controller::ControlError;
use midplane_gang::port_suspender::{ArrivalWatcher, PortSuspender};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::PortOptions;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::{Address, Discriminator, Reliability};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::{Memory, MemoryOptions};
use midplane_via::nic::{Nic, Ticket, ViId};
use proptest::prelude::*;

/// Bytes of a message: several frames.
const MESSAGE: usize = 2_000;

/// One end of a connection, with memory for a message.
struct Talker {
    nic: Nic,
    vi: ViId,
    memory: Memory,
}

fn name(node: NodeId) -> Discriminator {
    Discriminator::new(&node.0.to_le_bytes()).unwrap()
}

impl Talker {
    async fn open(host: &SimHost) -> Self {
        let mut nic = Nic::open(host, PortOptions::default()).await.unwrap();
        let vi = nic.create_vi(attributes(Reliability::ReliableDelivery)).await.unwrap();
        let memory = nic.register(MESSAGE, MemoryOptions::default()).unwrap();
        Self { nic, vi, memory }
    }

    fn connect(&mut self, (own, other): (NodeId, NodeId)) -> Ticket {
        let to = Address { node: other, discriminator: name(other) };
        self.nic.connect_peer(self.vi, to, name(own), None).unwrap()
    }

    fn receive(&mut self) {
        self.nic.post_receive(self.vi, Descriptor::of(self.memory.whole())).unwrap();
    }

    fn send(&mut self) {
        self.nic.post_send(self.vi, Descriptor::of(self.memory.whole())).unwrap();
    }

    async fn received(&mut self) {
        while self.nic.receive_done(self.vi).unwrap().is_none() {
            self.nic.progress().await.unwrap();
        }
    }
}

async fn pause(host: &SimHost, micros: u64) {
    host.sleep_until(host.now() + Duration::from_micros(micros)).await;
}

type Tags = Arc<Mutex<Vec<u64>>>;

async fn note_all(mut watcher: ArrivalWatcher, arrived: Tags) {
    while let Ok(tag) = watcher.next().await {
        arrived.lock().unwrap().push(tag);
    }
}

/// Repeatedly suspends a process of node 0 that is connected with one of node 1, which sends at random. Returns the
/// number of suspensions in which data arrived.
fn run(seed: u64, faults: Faults) -> usize {
    let mut world = world(&Plan { seed, faults, ..Plan::default() });
    let nodes = [NodeId(0), NodeId(1)];
    let [near, far] = nodes.map(|node| world.host(node));
    let task = async move {
        let mut suspender = PortSuspender::open(&near, PortId(PORT_SUSPENDER)).unwrap();
        let watcher = ArrivalWatcher::open(&near, PortId(ARRIVAL_WATCHER)).unwrap();
        let (arrived, mut expected) = (Tags::default(), Vec::new());
        near.spawn(note_all(watcher, Arc::clone(&arrived)));
        let (mut own, mut other) = (Talker::open(&near).await, Talker::open(&far).await);
        let tickets = [own.connect(nodes.into()), other.connect((nodes[1], nodes[0]))];
        own.nic.finish(&tickets[0]).await.unwrap();
        other.nic.finish(&tickets[1]).await.unwrap();
        // It has a posted receive, and so it probes the silent other end.
        other.receive();
        let (port, mut dice) = (own.nic.port(), Rng::new(seed, "arrivals"));
        for tag in 0..12 {
            own.receive();
            let refused = suspender.watch(port, tag).await;
            assert!(matches!(refused, Err(ControlError::Refused { .. })), "{refused:?}");
            suspender.suspend(port).await.unwrap();
            let [before, after] = [0.3, 0.5].map(|chance| dice.chance(chance));
            if before {
                other.send();
                // Data that arrives before the watch does not count, but is sent again.
                pause(&near, 10).await;
            }
            suspender.watch(port, tag).await.unwrap();
            if !before && after {
                other.send();
            }
            if before || after {
                expected.push(tag);
            }
            pause(&near, 200_000).await;
            assert_eq!(*arrived.lock().unwrap(), expected, "seed {seed}");
            suspender.resume(port).await.unwrap();
            if !before && !after {
                other.send();
            }
            let resumed = near.now();
            own.received().await;
            // The other end's resend timer need not expire first.
            let waited = Duration::from_nanos(near.now().nanos_since(resumed));
            assert!(faults != Faults::NONE || waited < Duration::from_micros(100), "{waited:?}");
        }
        expected.len()
    };
    finish(&mut world, String::new, task)
}

#[test]
fn the_first_data_for_a_suspended_process_is_reported_and_probes_are_not() {
    assert!((3..11).contains(&run(1, Faults::NONE)));
}

/// A request to connect with a suspended server is reported, so that its client need not wait for the server's turn.
#[test]
fn a_request_for_a_connection_is_reported() {
    let mut world = world(&Plan::default());
    let nodes = [NodeId(0), NodeId(1)];
    let [near, far] = nodes.map(|node| world.host(node));
    let task = async move {
        let mut suspender = PortSuspender::open(&near, PortId(PORT_SUSPENDER)).unwrap();
        let mut watcher = ArrivalWatcher::open(&near, PortId(ARRIVAL_WATCHER)).unwrap();
        let (mut server, mut client) = (Talker::open(&near).await, Talker::open(&far).await);
        let _wait = server.nic.listen_for(name(nodes[0]), None).unwrap();
        pause(&near, 100).await;
        suspender.suspend(server.nic.port()).await.unwrap();
        suspender.watch(server.nic.port(), 7).await.unwrap();
        let to = Address { node: nodes[0], discriminator: name(nodes[0]) };
        far.spawn(async move {
            // Only the request matters: the server never accepts it.
            let _ = client.nic.connect(client.vi, to, None).await;
        });
        watcher.next().await.unwrap()
    };
    assert_eq!(finish(&mut world, String::new, task), 7);
}

/// Other ports can neither watch ports nor receive arrivals.
#[test]
fn other_ports_are_refused() {
    let mut world = world(&Plan::default());
    let host = world.host(NodeId(0));
    let task = async move {
        let mut suspender = PortSuspender::open(&host, PortId(PORT_SUSPENDER)).unwrap();
        let mut other = PortSuspender::open(&host, PortId(PORT_SUSPENDER + 1)).unwrap();
        let mut watcher = ArrivalWatcher::open(&host, PortId(ARRIVAL_WATCHER + 1)).unwrap();
        let process = host.open_port().unwrap();
        suspender.suspend(process.id()).await.unwrap();
        (other.watch(process.id(), 1).await, watcher.next().await)
    };
    let (watched, arrived) = finish(&mut world, String::new, task);
    assert!(matches!(watched, Err(ControlError::Refused { .. })), "{watched:?}");
    assert!(matches!(arrived, Err(ControlError::Refused { .. })), "{arrived:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn data_is_reported_once_in_a_bad_network(seed in 0_u64..1_000_000) {
        run(seed, BAD);
    }
}
