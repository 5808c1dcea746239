//! Tests that observing a run shows all of it and changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::fault::{Chaos, FaultKind};
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_simhw::trace::{Engine, Record};
use proptest::prelude::*;

use crate::sim::harness::{Probe, Sending, at, scripted_world};

/// A star of ATM links with a buffer that overflows.
fn topology() -> Topology {
    let link = LinkProfile::atm(LineRate::mbps(150), Duration::from_micros(1));
    Topology::star(4, link, SwitchProfile::new(Buffer::Cells(64)))
}

fn world(seed: u64) -> World<Probe> {
    let topology = topology();
    let script = |node: u16| {
        let sending =
            |n: u64| Sending { at: 1 + n * 100_000, to: NodeId((node + 1) % 2), length: 900 };
        (0..40).map(sending).collect()
    };
    let scripts = (0..4).map(script).collect();
    let (mut world, _) = scripted_world(&topology, NicProfile::SBA_200E, seed, scripts);
    let chaos = Chaos {
        kinds: vec![FaultKind::Loss, FaultKind::Corrupt, FaultKind::PortStuck, FaultKind::Flap],
        incidents: 8,
        within: Duration::from_millis(3),
        longest: Duration::from_millis(1),
        delay: Duration::from_micros(100),
        ppm: 0,
    };
    for incident in chaos.script(&topology, seed) {
        world.schedule(incident);
    }
    world
}

#[derive(Default)]
struct Seen {
    sent: u64,
    delivered: u64,
    dropped: u64,
    /// The links that each frame passed.
    passed: BTreeMap<u64, Vec<u32>>,
    busy: BTreeMap<Engine, Vec<(Instant, Instant)>>,
    queued: u32,
    last: Instant,
}

impl Seen {
    fn note(&mut self, record: &Record<'_>) {
        let stamp = match *record {
            Record::Sent { at, frame, .. } => {
                self.sent += 1;
                self.passed.insert(frame.number, Vec::new());
                at
            }
            Record::Passed { at, link, frame } => {
                assert_eq!(frame.payload.len(), usize::from(frame.header.length));
                self.passed.get_mut(&frame.number).expect("it was sent").push(link.0);
                at
            }
            Record::Delivered { at, node, frame } => {
                self.delivered += 1;
                let way = &self.passed[&frame.number];
                assert_eq!(*way, [u32::from(frame.header.source.0) * 2, u32::from(node.0) * 2 + 1]);
                at
            }
            Record::Dropped { at, .. } => {
                self.dropped += 1;
                at
            }
            Record::Busy { engine, begins, ends, .. } => {
                self.busy.entry(engine).or_default().push((begins, ends));
                return;
            }
            Record::Queue { at, used, .. } => {
                self.queued = self.queued.max(used);
                at
            }
            _ => return,
        };
        assert!(stamp >= self.last, "what is seen is seen in order");
        self.last = stamp;
    }
}

/// Runs a world with and without an observer, and compares the observed events with the world's own counts.
fn check_watched(seed: u64) {
    let mut alone = world(seed);
    alone.run_until(at(60_000_000));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let note = Arc::clone(&seen);
    let mut watched = world(seed);
    watched.observe(move |record| note.lock().unwrap().note(record));
    watched.run_until(at(60_000_000));
    assert_eq!(watched.digest(), alone.digest());
    let (seen, traffic) = (seen.lock().unwrap(), watched.traffic());
    assert_eq!((seen.sent, seen.delivered), (traffic.sent, traffic.delivered));
    assert_eq!(seen.dropped, traffic.drops.total());
    assert!(seen.queued == 64 && seen.dropped > 0);
    for (engine, spans) in &seen.busy {
        for pair in spans.windows(2) {
            // Times on a line are rounded up.
            let overlap = pair[0].1.nanos_since(pair[1].0);
            assert!(overlap <= 1, "{engine:?} does two things at once: {pair:?}");
        }
    }
    let lines = seen.busy.keys().filter(|engine| matches!(engine, Engine::Link(_))).count();
    assert_eq!(lines, 6, "four uplinks and two downlinks carry frames");
}

#[test]
fn a_watched_run_is_the_same_run_and_all_of_it_is_seen() {
    (0..10).for_each(check_watched);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]
    #[test]
    fn a_watched_run_is_the_same_run_from_new_seeds(seed: u64) {
        check_watched(seed);
    }
}

#[test]
fn a_capture_has_an_interface_for_each_link_and_a_cause_for_each_drop() {
    use midplane_simhw::trace::PcapngWriter;
    use pcap_file::pcapng::PcapNgReader;
    use pcap_file::pcapng::blocks::Block;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;

    let mut world = world(3);
    let writer = Arc::new(Mutex::new(Some(PcapngWriter::new(Vec::new(), &topology()).unwrap())));
    let out = Arc::clone(&writer);
    world.observe(move |record| out.lock().unwrap().as_mut().unwrap().record(record).unwrap());
    world.run_until(at(60_000_000));
    let file = writer.lock().unwrap().take().unwrap().into_inner();
    let mut reader = PcapNgReader::new(&file[..]).unwrap();
    let (mut names, mut drops, mut last) = (Vec::new(), 0, Duration::ZERO);
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                for option in &interface.options {
                    match option {
                        InterfaceDescriptionOption::IfName(name) => names.push(name.to_string()),
                        InterfaceDescriptionOption::IfTsResol(resolution) => {
                            assert_eq!(*resolution, 9);
                        }
                        _ => {}
                    }
                }
            }
            Block::EnhancedPacket(packet) => {
                assert!(packet.timestamp >= last);
                last = packet.timestamp;
                midplane_simhw::frame::Header::parse(&packet.data).unwrap();
                if names[packet.interface_id as usize] == "drops" {
                    drops += 1;
                    let comment = |option: &EnhancedPacketOption<'_>| matches!(option, EnhancedPacketOption::Comment(text) if text.starts_with("dropped: "));
                    assert!(packet.options.iter().any(comment));
                }
            }
            _ => {}
        }
    }
    assert_eq!(names.len(), 9);
    assert_eq!((names[0].as_str(), names[7].as_str()), ("node 0 > switch 0", "switch 0 > node 3"));
    assert_eq!(drops, world.traffic().drops.total());
}
