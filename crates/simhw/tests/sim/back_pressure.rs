//! Tests links that wait instead of dropping what finds no space.

use std::time::Duration;

use midplane_simhw::frame::Frame;
use midplane_simhw::hardware::Hardware;
use midplane_simhw::id::{NodeId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

use crate::sim::harness::{
    A, B, C, Happening, Log, Probe, RATE, Sending, at, scripted_world, send,
};

fn waiting_star(hosts: u16, buffer: Buffer) -> Topology {
    let link = match buffer {
        Buffer::Bytes(_) => LinkProfile::plain(RATE, Duration::from_nanos(500)),
        Buffer::Cells(_) => LinkProfile::atm(RATE, Duration::from_nanos(500)),
    };
    let discard = DiscardPolicy::BackPressure;
    Topology::star(hosts, link, SwitchProfile { discard, ..SwitchProfile::new(buffer) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_lost_or_overtaken_however_small_the_buffers_are(
        seed in 0_u64..1_000_000, cells: bool, capacity in 1_u32..8, memory in 1_u32..4,
        sendings in proptest::collection::vec((0_u16..4, 0_u16..4, 0_u64..2_000_000, 1_u16..900), 1..150),
    ) {
        let buffer = if cells { Buffer::Cells(capacity) } else { Buffer::Bytes(capacity * 1_000) };
        let mut scripts = vec![Vec::new(); 4];
        for (from, to, time, length) in sendings {
            if from != to {
                scripts[usize::from(from)].push(Sending { at: time, to: NodeId(to), length });
            }
        }
        scripts.iter_mut().for_each(|script| script.sort_by_key(|sending| sending.at));
        let sent: usize = scripts.iter().map(Vec::len).sum();
        let profile = NicProfile { receive_memory: memory * 1_000, ..NicProfile::MODERN };
        let topology = waiting_star(4, buffer);
        let (mut world, log) = scripted_world(&topology, profile, seed, scripts);
        world.run();
        prop_assert_eq!(world.traffic().drops.total(), 0, "{:?}", world.traffic());
        let received = log.entries();
        prop_assert_eq!(received.len(), sent);
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (NodeId(from), NodeId(to)))) {
            let of_pair = received.iter().filter(|r| r.source == from && r.destination == to);
            let numbers: Vec<u32> = of_pair.map(|r| r.sequence).collect();
            prop_assert!(numbers.is_sorted(), "{from} to {to}: {numbers:?}");
        }
        for node in 0..4 {
            let peak = world.output(topology.downlink(NodeId(node))).unwrap().peak();
            prop_assert!(peak <= buffer_capacity(buffer), "{peak}");
        }
    }
}

const fn buffer_capacity(buffer: Buffer) -> u32 {
    match buffer {
        Buffer::Bytes(capacity) | Buffer::Cells(capacity) => capacity,
    }
}

/// C leaves every frame on its link for a millisecond. A sends it twelve frames, and then one to B.
fn run_with_a_nic_that_receives_nothing(discard: DiscardPolicy) -> Vec<(NodeId, u32, u64)> {
    let switch = SwitchProfile { discard, ..SwitchProfile::new(Buffer::Bytes(4_000)) };
    let link = LinkProfile::plain(RATE, Duration::from_nanos(500));
    let log = Log::new();
    let written = log.clone();
    let profile = NicProfile { receive_memory: 4_000, transmit_slots: 16, ..NicProfile::FREE };
    let mut world = World::new(&Topology::star(3, link, switch), profile, 1, move |node, _| {
        let (log, mut takes) = (log.clone(), node != C);
        Probe::new(move |hw: &mut dyn Hardware, happening| match happening {
            Happening::Start if node == A => {
                for number in 0..13 {
                    let to = if number < 12 { C } else { B };
                    send(hw, to, number, 900).unwrap();
                }
                hw.commit();
            }
            Happening::Start if node == C => {
                hw.set_timer(TimerId(0), at(2_000_000));
                hw.commit();
            }
            Happening::Timer(_) => takes = true,
            Happening::Frame(_) if !takes && hw.leave() => {}
            Happening::Frame(Frame { header, .. }) => {
                log.add((node, header.sequence, hw.now().as_nanos()));
            }
            _ => {}
        })
    });
    world.run();
    let entries = written.entries();
    let total = world.traffic().drops.total() as usize;
    assert_eq!(entries.len() + total, 13, "every frame came or was dropped");
    entries
}

#[test]
fn a_nic_that_receives_nothing_stalls_its_link_the_switch_and_traffic_to_other_nodes() {
    let entries = run_with_a_nic_that_receives_nothing(DiscardPolicy::BackPressure);
    let numbers: Vec<u32> = entries.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(entries.len(), 13, "nothing is lost");
    assert_eq!(numbers.iter().filter(|n| **n < 12).count(), 12);
    let to_b = entries.iter().find(|(node, ..)| *node == B).unwrap();
    assert!(to_b.2 > 2_000_000, "what is for B waits behind what C leaves: {to_b:?}");
    assert!(entries.iter().all(|(.., time)| *time >= 2_000_000), "{entries:?}");
    // Without back-pressure, no link can hold the frame: it arrives or is dropped.
    let entries = run_with_a_nic_that_receives_nothing(DiscardPolicy::Tail);
    let to_b = entries.iter().find(|(node, ..)| *node == B).unwrap();
    assert!(to_b.2 < 2_000_000, "{to_b:?}");
}
