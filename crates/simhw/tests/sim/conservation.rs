//! Tests that every frame sent is delivered, dropped with a named cause, or in flight, and that no queue exceeds its
//! bound: under any topology, framing, discard policy, fault, partition and crash.

use std::time::Duration;

use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::{Framing, LinkProfile};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::switch::{Buffer, DiscardPolicy, Forwarding, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::{LinkId, Topology};
use proptest::prelude::*;

use crate::sim::harness::{Sending, assert_conserved, at, scripted_world};

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Hosts on each of a chain of switches.
    hosts: Vec<u16>,
    framing: Framing,
    rates: Vec<u64>,
    propagation: u64,
    switch: SwitchProfile,
}

impl Cluster {
    pub(crate) fn topology(&self) -> Topology {
        let mut topology = Topology::new();
        let mut rates = self.rates.iter().cycle();
        let mut link = || LinkProfile {
            rate: LineRate::new(*rates.next().unwrap()).unwrap(),
            propagation: Duration::from_nanos(self.propagation),
            framing: self.framing,
        };
        let mut last = None;
        for hosts in &self.hosts {
            let switch = topology.add_switch(self.switch);
            if let Some(last) = last.replace(switch) {
                topology.add_trunk(last, switch, link());
            }
            for _ in 0..*hosts {
                topology.add_host(switch, link());
            }
        }
        topology
    }
}

prop_compose! {
    pub(crate) fn any_cluster()(
        hosts in proptest::collection::vec(1_u16..4, 1..4),
        framing in prop_oneof![
            Just(Framing::PLAIN), Just(Framing::ETHERNET), Just(Framing::Cells),
            Just(Framing::Packets { mtu: 300, overhead: 20 }),
        ],
        rates in proptest::collection::vec(
            prop_oneof![Just(10_000_000), Just(100_000_000), Just(149_760_000), Just(1_000_000_000_u64)], 1..4),
        propagation in 0_u64..5_000,
        latency in 0_u64..5_000,
        forwarding in prop_oneof![
            Just(Forwarding::StoreAndForward), (1_u32..200).prop_map(|header| Forwarding::CutThrough { header })],
        buffer in prop_oneof![(60_u32..30_000).prop_map(Buffer::Bytes), (1_u32..300).prop_map(Buffer::Cells)],
        discard in prop_oneof![
            Just(DiscardPolicy::Tail), Just(DiscardPolicy::Partial),
            (0_u16..1001).prop_map(|threshold| DiscardPolicy::Early { threshold })],
    ) -> Cluster {
        let latency = Duration::from_nanos(latency);
        let switch = SwitchProfile { latency, forwarding, buffer, discard };
        Cluster { hosts, framing, rates, propagation, switch }
    }
}

/// Returns frames that hosts send within a few milliseconds. Destinations are taken modulo the number of hosts plus
/// one, so that one does not exist.
pub(crate) fn any_scripts() -> impl Strategy<Value = Vec<Vec<(u64, u16, u16)>>> {
    let length = prop_oneof![0_u16..100, 0_u16..3_000, 0_u16..20_000];
    let sending = (0_u64..2_000_000, any::<u16>(), length);
    proptest::collection::vec(proptest::collection::vec(sending, 0..25), 1..6)
}

pub(crate) fn scripts(raw: Vec<Vec<(u64, u16, u16)>>, nodes: u16) -> Vec<Vec<Sending>> {
    let script = |mut raw: Vec<(u64, u16, u16)>| {
        raw.sort_unstable();
        let sendings = raw.into_iter();
        sendings.map(|(at, to, length)| Sending { at, to: NodeId(to % nodes), length }).collect()
    };
    raw.into_iter().map(script).collect()
}

#[derive(Clone, Copy, Debug)]
enum Incident {
    Crash(u16),
    Restart(u16),
    Cut(u16, u16),
    Heal(u16, u16),
    Faults(Faults),
}

fn any_incident() -> impl Strategy<Value = Incident> {
    let chance = || prop_oneof![2 => Just(0.0), 1 => 0.0..1.0_f64];
    prop_oneof![
        any::<u16>().prop_map(Incident::Crash),
        any::<u16>().prop_map(Incident::Restart),
        any::<(u16, u16)>().prop_map(|(a, b)| Incident::Cut(a, b)),
        any::<(u16, u16)>().prop_map(|(a, b)| Incident::Heal(a, b)),
        (chance(), chance(), chance(), chance(), 0_u64..500_000).prop_map(
            |(loss, duplicate, corrupt, reorder, delay)| {
                let delay = Duration::from_nanos(delay);
                Incident::Faults(Faults {
                    loss,
                    duplicate,
                    corrupt,
                    reorder,
                    delay,
                    ..Faults::NONE
                })
            }
        ),
    ]
}

fn any_profile() -> impl Strategy<Value = NicProfile> {
    let small = NicProfile { receive_memory: 4_096, ..NicProfile::SBA_200E };
    prop_oneof![
        Just(NicProfile::FREE),
        Just(NicProfile::MODERN),
        Just(NicProfile::SBA_200E),
        Just(small)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_frame_is_lost_without_a_name(
        cluster in any_cluster(), profile in any_profile(), raw in any_scripts(), seed: u64,
        incidents in proptest::collection::vec((0_u64..200_000, any_incident()), 0..12),
    ) {
        let topology = cluster.topology();
        let nodes = topology.hosts();
        let (mut world, log) = scripted_world(&topology, profile, seed, scripts(raw, nodes + 1));
        let mut down = vec![false; usize::from(nodes)];
        let mut now = 0;
        for (after, incident) in incidents {
            now += after;
            world.run_until(at(now));
            assert_conserved(&world);
            let node = |number: u16| NodeId(number % nodes);
            match incident {
                Incident::Crash(number) => {
                    world.crash(node(number));
                    down[node(number).index()] = true;
                }
                Incident::Restart(number) => {
                    if std::mem::take(&mut down[node(number).index()]) {
                        world.restart(node(number));
                    }
                }
                Incident::Cut(a, b) => world.cut(node(a), node(b)),
                Incident::Heal(a, b) => world.heal(node(a), node(b)),
                Incident::Faults(faults) => world.set_faults(faults),
            }
            assert_conserved(&world);
        }
        world.run();
        assert_conserved(&world);
        prop_assert_eq!(world.frames_under_way(), 0);
        prop_assert_eq!(world.traffic().delivered, log.entries().len() as u64);
        let (Buffer::Bytes(bound) | Buffer::Cells(bound)) = cluster.switch.buffer;
        let links = 2 * (u32::from(nodes) + cluster.hosts.len() as u32 - 1);
        for output in (0..links).filter_map(|link| world.output(LinkId(link))) {
            prop_assert!(output.peak() <= bound);
            prop_assert_eq!(output.used(), 0);
        }
    }

    #[test]
    fn without_faults_frames_of_a_path_stay_in_order(
        cluster in any_cluster(), profile in any_profile(), raw in any_scripts(),
    ) {
        let topology = cluster.topology();
        let scripts = scripts(raw, topology.hosts());
        let (mut world, log) = scripted_world(&topology, profile, 1, scripts);
        world.run();
        let mut last = std::collections::BTreeMap::new();
        for frame in log.entries() {
            let before = last.insert((frame.source, frame.destination), frame.sequence);
            prop_assert!(before.is_none_or(|before| before < frame.sequence), "{:?}", frame);
        }
    }

    #[test]
    fn nothing_is_lost_where_buffers_are_large_enough(cluster in any_cluster(), raw in any_scripts()) {
        let switch = SwitchProfile { buffer: Buffer::Bytes(1 << 26), ..cluster.switch };
        let switch = SwitchProfile { discard: DiscardPolicy::EARLY, ..switch };
        let topology = Cluster { switch, ..cluster }.topology();
        let scripts = scripts(raw, topology.hosts());
        let hosts = usize::from(topology.hosts());
        let sent: usize = scripts.iter().take(hosts).map(Vec::len).sum();
        let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, scripts);
        world.run();
        prop_assert_eq!(log.entries().len(), sent);
    }
}
