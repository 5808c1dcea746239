//! Tests lines: no window of time carries more than a link's rate, and frames arrive when they should.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::link::{CELL_BYTES, LinkProfile};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::switch::{Buffer, Forwarding, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

use crate::sim::conservation::{any_scripts, scripts};
use crate::sim::harness::{A, B, C, Log, ROOMY, Sending, at, scripted_world};

/// Returns the link if the digest's number of an event says that a piece has reached a link's end.
fn link_of_piece(fingerprint: u64) -> Option<u64> {
    (fingerprint & 0xF == 1).then_some(fingerprint >> 4 & 0xF_FFFF)
}

proptest! {
    #[test]
    fn no_window_carries_more_cells_than_the_rate(
        raw in any_scripts(), rate in 1_000_000_u64..2_000_000_000, cells in 1_u32..500,
        forwarding in prop_oneof![
            Just(Forwarding::StoreAndForward), Just(Forwarding::CutThrough { header: 5 })],
    ) {
        let rate = LineRate::new(rate).unwrap();
        let link = LinkProfile::atm(rate, Duration::from_nanos(300));
        let switch = SwitchProfile { forwarding, ..SwitchProfile::new(Buffer::Cells(cells)) };
        let topology = Topology::star(4, link, switch);
        let (mut world, _) = scripted_world(&topology, NicProfile::FREE, 1, scripts(raw, 4));
        let arrivals = Arc::new(Mutex::new(BTreeMap::<u64, Vec<u64>>::new()));
        let seen = Arc::clone(&arrivals);
        world.set_tracer(move |event| {
            if let Some(link) = link_of_piece(event.fingerprint) {
                seen.lock().unwrap().entry(link).or_default().push(event.at.as_nanos());
            }
        });
        world.run();
        let is_seen = !arrivals.lock().unwrap().is_empty();
        prop_assert_eq!(is_seen, world.traffic().sent > 0, "the pieces of sent frames are seen");
        for times in arrivals.lock().unwrap().values() {
            for (first, begin) in times.iter().enumerate() {
                // Every 16th end of a window is enough to see any drift.
                for (number, end) in times.iter().enumerate().skip(first + 1).step_by(16) {
                    let bytes = (number - first) as u64 * u64::from(CELL_BYTES);
                    prop_assert!(bytes <= rate.bytes_in(end - begin + 1));
                }
            }
        }
    }
}

#[test]
fn a_busy_port_loses_no_fraction_of_a_nanosecond() {
    // A cell takes 2,726.337 ns on an OC-3.
    let rate = LineRate::new(155_520_000).unwrap();
    let topology = Topology::star(3, LinkProfile::atm(rate, Duration::ZERO), ROOMY);
    let script = |count: usize| vec![Sending { at: 0, to: C, length: 9_544 }; count];
    let scripts = vec![script(50), script(50)];
    let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, scripts);
    world.run();
    let entries = log.entries();
    assert_eq!(entries.len(), 100);
    // Each frame has 200 cells; the port begins when it has the first cell.
    let cells = 1 + 100 * 200;
    let exact = (cells * 424 * 1_000_000_000_u128).div_ceil(155_520_000);
    assert_eq!(u128::from(entries[99].at.as_nanos()), exact);
}

/// Returns when a frame of 1,000 bytes arrives, from a host on the first of two switches to one on the second, over
/// links of 100 Mb/s (80 us a frame) and 500 ns, and trunks of `trunk` Mb/s.
fn arrival(forwarding: Forwarding, trunk: u64) -> u64 {
    let switch = SwitchProfile { forwarding, latency: Duration::from_nanos(1_000), ..ROOMY };
    let link = |rate| LinkProfile::plain(LineRate::mbps(rate), Duration::from_nanos(500));
    let mut topology = Topology::new();
    let (left, right) = (topology.add_switch(switch), topology.add_switch(switch));
    topology.add_trunk(left, right, link(trunk));
    topology.add_host(left, link(100));
    topology.add_host(right, link(100));
    let script = vec![vec![Sending { at: 0, to: B, length: 952 }]];
    let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, script);
    world.run();
    log.entries()[0].at.as_nanos()
}

#[test]
fn store_and_forward_takes_a_frame_time_at_every_hop() {
    assert_eq!(arrival(Forwarding::StoreAndForward, 100), 3 * 80_500 + 2 * 1_000);
}

#[test]
fn cut_through_takes_a_header_at_every_switch_and_one_frame_time() {
    let header = 48;
    let cut = arrival(Forwarding::CutThrough { header }, 100);
    assert_eq!(cut, 2 * (u64::from(header) * 80 + 500 + 1_000) + 80_500);
}

#[test]
fn cut_through_without_a_header_forwards_from_the_first_bit() {
    assert_eq!(arrival(Forwarding::CutThrough { header: 0 }, 100), 2 * 1_500 + 80_500);
}

#[test]
fn cut_through_onto_a_faster_line_waits_for_the_frame() {
    // The trunk takes 8 us for what arrives in 80 us: it must not run empty.
    let cut = arrival(Forwarding::CutThrough { header: 48 }, 1_000);
    // The first switch stores the frame; the second cuts it through from the trunk to the slower line.
    let trunk = 48 * 8 + 500 + 1_000;
    assert_eq!(cut, 81_500 + trunk + 80_500);
}

#[test]
fn a_frame_sent_for_another_leaves_by_its_own_line() {
    use midplane_simhw::frame::{Frame, Header};
    use midplane_simhw::hardware::Source;
    use midplane_simhw::sim::World;

    use crate::sim::harness::{Happening, Probe, send, star};

    // B forwards what A sends it under A's name. A's line is busy meanwhile, and B's is not.
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(3), NicProfile::FREE, 1, move |node, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start if node == A => {
                for number in 0..8 {
                    send(hw, B, number, 952).unwrap();
                }
                hw.commit();
            }
            Happening::Frame(Frame { header, payload }) if node == B => {
                let header = Header { destination: C, ..header };
                hw.transmit(&header, Source::Bytes(payload)).unwrap();
                hw.commit();
            }
            Happening::Frame(Frame { header, .. }) => {
                assert_eq!(header.source, A);
                log.add(hw.now());
            }
            _ => {}
        })
    });
    world.run();
    let expected: Vec<_> = (0..8).map(|number| at(2 * 161_000 + number * 80_000)).collect();
    assert_eq!(out.entries(), expected);
}
