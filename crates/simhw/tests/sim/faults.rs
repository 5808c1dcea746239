//! Tests that each kind of fault has its effect while it lasts, is counted, and ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::fault::{Fault, FaultKind, Incident};
use midplane_simhw::host::Host;
use midplane_simhw::id::{Incarnation, NodeId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::topology::{LinkId, SwitchId, Topology};

use crate::sim::harness::{
    A, B, C, Log, Probe, RATE, Received, Sending, assert_conserved, at, scripted_world, star,
};

pub(crate) const MS: u64 = 1_000_000;
const SWITCH: SwitchId = SwitchId(0);
/// The link from A.
const UP: LinkId = LinkId(0);
const DOWN: LinkId = LinkId(3);

pub(crate) const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

pub(crate) const fn from_2_to_4_ms(fault: Fault) -> Incident {
    Incident { at: midplane_simhw::time::Instant::from_nanos(2 * MS), lasts: micros(2_000), fault }
}

/// Frames of 200 bytes every 50 us from A and from C to B, for 8 ms.
pub(crate) struct Stream {
    world: World<Probe>,
    received: Vec<Received>,
}

impl Stream {
    pub(crate) fn under(fault: Fault) -> Self {
        Self::over(&star(3), fault)
    }

    fn over(topology: &Topology, fault: Fault) -> Self {
        let every = |start: u64| {
            (0..160).map(|n| Sending { at: start + n * 50_000, to: B, length: 200 }).collect()
        };
        let scripts = vec![every(0), vec![], every(25_000)];
        let (mut world, log) = scripted_world(topology, NicProfile::MODERN, 7, scripts);
        world.schedule(from_2_to_4_ms(fault));
        world.run_until(at(30 * MS));
        assert_conserved(&world);
        assert_eq!(world.frames_under_way(), 0);
        let stream = Self { world, received: log.entries() };
        assert!(stream.fired(fault.kind()) > 0, "{fault:?} has had no effect");
        let late = stream.received.iter().filter(|frame| frame.at > at(7 * MS)).count();
        assert!(late > 20, "{fault:?} has healed");
        stream
    }

    pub(crate) fn fired(&self, kind: FaultKind) -> u64 {
        self.world.faults_fired().of(kind)
    }

    pub(crate) fn drops(&self, cause: DropCause) -> u64 {
        self.world.traffic().drops.of(cause)
    }

    pub(crate) fn from(&self, source: NodeId) -> Vec<u32> {
        let of = self.received.iter().filter(|frame| frame.source == source);
        of.map(|frame| frame.sequence).collect()
    }

    /// Nanoseconds from each frame of A's planned departure to its arrival.
    fn took(&self) -> Vec<u64> {
        let of = self.received.iter().filter(|frame| frame.source == A);
        of.map(|frame| frame.at.as_nanos() - u64::from(frame.sequence) * 50_000).collect()
    }
}

#[test]
fn a_lossy_link_loses_frames() {
    let stream = Stream::under(Fault::Loss { link: UP, probability: 0.5 });
    let lost = stream.drops(DropCause::LinkLoss);
    assert_eq!(lost, stream.fired(FaultKind::Loss));
    assert!((10..30).contains(&lost) && stream.from(C).len() == 160, "{lost}");
}

#[test]
fn burst_loss_occurs_in_bursts() {
    let stream = Stream::under(Fault::BurstLoss { link: DOWN, enter: 0.1, leave: 0.2 });
    let lost = stream.drops(DropCause::LinkLoss);
    let numbers = stream.from(A);
    let gaps = numbers.windows(2).filter(|pair| pair[1] > pair[0] + 1).count() as u64;
    assert!(lost >= 3 * gaps, "{lost} lost in {gaps} bursts");
}

#[test]
fn the_receiver_detects_a_damaged_piece() {
    let stream = Stream::under(Fault::Corrupt { link: DOWN, probability: 0.3 });
    assert_eq!(stream.drops(DropCause::Corrupt), stream.fired(FaultKind::Corrupt));
}

#[test]
fn the_receiver_detects_a_truncated_piece() {
    let stream = Stream::under(Fault::Truncate { link: UP, probability: 1.0 });
    assert_eq!(stream.drops(DropCause::Truncated), 40);
}

#[test]
fn frames_arrive_twice() {
    let stream = Stream::under(Fault::Duplicate { node: A, probability: 1.0 });
    assert_eq!((stream.from(A).len(), stream.from(C).len()), (200, 160));
    assert_eq!(stream.world.traffic().sent, 360);
}

#[test]
fn frames_overtake_each_other() {
    let by = micros(500);
    let stream = Stream::under(Fault::Reorder { node: A, probability: 0.5, by });
    let numbers = stream.from(A);
    assert!(!numbers.is_sorted() && numbers.len() == 160 && stream.from(C).is_sorted());
    assert!(*stream.took().iter().max().unwrap() < 600_000);
}

#[test]
fn a_delay_spike_delays_and_keeps_order() {
    let usual = Stream::under(Fault::Corrupt { link: DOWN, probability: 0.01 }).took()[0];
    let stream = Stream::under(Fault::DelaySpike { link: UP, by: micros(300) });
    let late = stream.took().iter().filter(|took| **took >= usual + 300_000).count();
    assert_eq!(late, 40);
}

#[test]
fn a_slow_pair_delays_one_pair_alone() {
    let stream = Stream::under(Fault::SlowPair { from: A, to: B, by: micros(100) });
    let late = stream.took().iter().filter(|took| **took > 100_000).count();
    assert_eq!((late, stream.fired(FaultKind::SlowPair)), (40, 40));
}

#[test]
fn a_slower_link_takes_longer() {
    let stream = Stream::under(Fault::RateChange { link: DOWN, percent: 50 });
    let took = stream.took();
    // Two senders fill 79 Mb/s of the link.
    assert!(took[..38].iter().all(|took| *took < 80_000));
    assert!(*took.iter().max().unwrap() > 250_000);
    assert!(took.last().unwrap() < &80_000);
}

#[test]
fn a_slower_uplink_is_known_to_its_nic() {
    let rates = Log::new();
    let out = rates.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
        let rates = rates.clone();
        Probe::new(move |hw, _| {
            rates.add(hw.line_rate().bits_per_second());
            let next = hw.now().plus_nanos(MS);
            hw.set_timer(TimerId(0), next);
            hw.commit();
        })
    });
    world.schedule(from_2_to_4_ms(Fault::RateChange { link: UP, percent: 25 }));
    world.run_until(at(5 * MS));
    assert_eq!(out.entries(), [100, 100, 100, 25, 25, 100].map(|mega| mega * 1_000_000));
}

#[test]
fn a_flapping_link_goes_down_and_up() {
    let stream = Stream::under(Fault::Flap { link: UP, period: micros(500) });
    assert_eq!(stream.drops(DropCause::LinkDown), 20);
    let numbers = stream.from(A);
    let gaps: Vec<u32> =
        numbers.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1).collect();
    assert_eq!(gaps, [11, 11]);
}

#[test]
fn a_one_way_partition_leaves_the_other_way_open() {
    let stream = Stream::under(Fault::OneWay { from: A, to: B });
    // One frame was in flight when the partition began.
    assert_eq!((stream.from(A).len(), stream.from(C).len()), (119, 160));
    let script = |to| (0..100).map(|n| Sending { at: n * 50_000, to, length: 9 }).collect();
    let (mut world, log) =
        scripted_world(&star(2), NicProfile::FREE, 1, vec![script(B), script(A)]);
    world.schedule(from_2_to_4_ms(Fault::OneWay { from: B, to: A }));
    world.run();
    let to = |node| log.entries().iter().filter(|frame| frame.destination == node).count();
    assert_eq!((to(A), to(B)), (59, 100));
}

#[test]
fn a_partition_cuts_both_ways() {
    let stream = Stream::under(Fault::Partition { from: B, to: A });
    assert_eq!((stream.from(A).len(), stream.drops(DropCause::Partition)), (119, 41));
}

#[test]
fn a_shrunk_queue_drops_what_does_not_fit() {
    let stream = Stream::under(Fault::QueueShrink { link: DOWN, percent: 0 });
    assert_eq!(stream.drops(DropCause::BufferFull), 80);
    let output = stream.world.output(DOWN).unwrap();
    assert_eq!(output.used(), 0);
}

#[test]
fn frames_in_a_stuck_port_leave_once_it_is_free() {
    let stream = Stream::under(Fault::PortStuck { link: DOWN });
    assert_eq!((stream.from(A).len(), stream.from(C).len()), (160, 160));
    assert!(
        stream.received.iter().all(|frame| frame.at < at(2 * MS + 60_000) || frame.at > at(4 * MS))
    );
    assert!(stream.world.output(DOWN).unwrap().peak() > 70 * 248);
}

#[test]
fn a_stuck_port_fills_its_bounded_buffer() {
    let switch = SwitchProfile::new(Buffer::Bytes(2_480));
    let topology = Topology::star(3, LinkProfile::plain(RATE, micros(1)), switch);
    let stream = Stream::over(&topology, Fault::PortStuck { link: DOWN });
    assert_eq!(stream.drops(DropCause::BufferFull), 70);
    assert_eq!(stream.world.output(DOWN).unwrap().peak(), 2_480);
}

#[test]
fn misrouted_frames_arrive_at_other_nodes() {
    let stream = Stream::under(Fault::Misroute { switch: SWITCH, probability: 0.5 });
    let misrouted = stream.drops(DropCause::Misrouted);
    assert!(misrouted > 10 && misrouted < stream.fired(FaultKind::Misroute), "{misrouted}");
}

#[test]
fn a_full_circuit_table_refuses_new_circuits() {
    let stream = Stream::under(Fault::CircuitTable { switch: SWITCH, most: 1 });
    assert_eq!(stream.drops(DropCause::NoCircuit), 40);
    let (a, c) = (stream.from(A).len(), stream.from(C).len());
    assert!((a, c) == (120, 160) || (a, c) == (160, 120), "{a} {c}");
}

#[test]
fn a_switch_that_reboots_loses_what_it_holds() {
    let (mut world, log) = scripted_world(
        &star(3),
        NicProfile::FREE,
        1,
        (0..3_u16)
            .map(|n| vec![Sending { at: 0, to: B, length: 9_000 }; usize::from(n != 1) * 3])
            .collect(),
    );
    let fault = Fault::SwitchReboot { switch: SWITCH };
    world.schedule(Incident { at: at(1_800_000), lasts: micros(400), fault });
    world.run();
    assert_conserved(&world);
    let traffic = world.traffic();
    // One frame had arrived and one was leaving, two were queued, and two arrived while the switch was down.
    assert_eq!((traffic.sent, log.entries().len()), (6, 2), "{traffic:?}");
    assert_eq!(traffic.drops.of(DropCause::SwitchDown), 4);
    let stream = Stream::under(fault);
    assert_eq!(stream.drops(DropCause::SwitchDown), 80);
}

#[test]
fn a_nic_without_memory_drops_what_arrives() {
    let stream = Stream::under(Fault::NicMemory { node: B, bytes: 100 });
    assert_eq!(stream.drops(DropCause::NicMemory), 80);
}

#[test]
fn a_slow_coprocessor_takes_its_time() {
    let stream = Stream::under(Fault::SlowClock { node: B, times: 1_000 });
    // 30 instructions take 30 us at a thousandth of the clock rate: 1 us instead of 1 ns each.
    let took = |from: u64| stream.received.iter().find(|frame| frame.at > at(from)).unwrap().at;
    assert!(took(3 * MS) > at(3 * MS));
    let gaps = |from: u64| {
        let times: Vec<u64> = stream.received.iter().map(|frame| frame.at.as_nanos()).collect();
        times
            .windows(2)
            .filter(|pair| pair[0] > from && pair[1] < from + MS)
            .map(|pair| pair[1] - pair[0])
            .max()
    };
    assert_eq!((gaps(0), gaps(5 * MS)), (Some(25_000), Some(25_000)));
    assert!(gaps(2_900_000) >= Some(30_000), "{:?}", gaps(2_900_000));
}

#[test]
fn a_turn_that_overruns_delays_those_after_it_once() {
    let stream = Stream::under(Fault::Overrun { node: B, by: micros(700) });
    assert_eq!(stream.fired(FaultKind::Overrun), 1);
    let times: Vec<u64> = stream.received.iter().map(|frame| frame.at.as_nanos()).collect();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!((700_000..730_000).contains(&longest), "{longest}");
    assert_eq!(times.len(), 320);
}

#[test]
fn a_reset_nic_is_another_incarnation_under_the_same_host() {
    let incarnations = Log::new();
    let out = incarnations.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, incarnation| {
        incarnations.add(incarnation);
        Probe::idle()
    });
    let host = world.host(A);
    let closed = Arc::new(Mutex::new(None));
    let when = Arc::clone(&closed);
    world.spawn(A, async move {
        let mut port = host.open_port().unwrap();
        assert!(port.completion().await.is_err());
        *when.lock().unwrap() = Some(host.now());
        assert_eq!(host.open_port().unwrap().id(), port.id());
    });
    world.schedule(from_2_to_4_ms(Fault::NicReset { node: A }));
    world.run();
    assert_eq!(*closed.lock().unwrap(), Some(at(2 * MS)));
    assert_eq!(out.entries(), [Incarnation(1), Incarnation(2)]);
    assert_eq!((world.tasks(), world.faults_fired().of(FaultKind::NicReset)), (0, 1));
}

#[test]
fn a_trapped_coprocessor_is_stalled_until_its_watchdog_resets_it() {
    let stream = Stream::under(Fault::Trap { node: B });
    assert_eq!(stream.drops(DropCause::NicDown), 80);
    let late = stream.received.iter().filter(|frame| frame.at > at(4 * MS)).count();
    assert_eq!(
        late,
        320 - 80 - stream.received.iter().filter(|frame| frame.at < at(4 * MS)).count()
    );
}

#[test]
fn a_crash_of_a_trapped_node_is_a_crash() {
    let mut world = World::new(&star(1), NicProfile::FREE, 1, |_, _| Probe::idle());
    world.spawn(A, std::future::pending());
    world.schedule(from_2_to_4_ms(Fault::Trap { node: A }));
    world.run_until(at(3 * MS));
    assert_eq!(world.tasks(), 1);
    world.crash(A);
    assert_eq!(world.tasks(), 0);
    world.run_until(at(5 * MS));
    assert!(world.host(A).open_port().is_err(), "the watchdog starts no host");
    world.restart(A);
    assert!(world.host(A).open_port().is_ok());
}
