//! Tests that faults depend on the seed and the path only, and that each lost frame is counted.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::fault::Chaos;
use crate::link::LinkProfile;
use crate::switch::{Buffer, SwitchProfile};
use crate::time::LineRate;
use crate::topology::Topology;

const ALL: Faults = Faults {
    loss: 0.2,
    duplicate: 0.2,
    corrupt: 0.1,
    reorder: 0.2,
    delay: Duration::from_micros(300),
    jitter: Duration::from_micros(20),
};

/// The kinds of faults that live NICs support.
const KINDS: [FaultKind; 11] = [
    FaultKind::Loss,
    FaultKind::BurstLoss,
    FaultKind::Corrupt,
    FaultKind::Truncate,
    FaultKind::Duplicate,
    FaultKind::Reorder,
    FaultKind::DelaySpike,
    FaultKind::SlowPair,
    FaultKind::Flap,
    FaultKind::OneWay,
    FaultKind::Partition,
];

fn star() -> Topology {
    let link = LinkProfile::plain(LineRate::mbps(1_000), Duration::ZERO);
    Topology::star(3, link, SwitchProfile::new(Buffer::Bytes(1 << 20)))
}

/// An injector with incidents drawn from `seed`, all within 100 ms.
fn injector(seed: u64) -> FaultInjector {
    let injector = FaultInjector::new(seed);
    injector.set(ALL).unwrap();
    let within = Duration::from_millis(100);
    let (longest, delay) = (within, Duration::from_millis(1));
    let chaos = Chaos { kinds: KINDS.to_vec(), incidents: 8, within, longest, delay, ppm: 0 };
    for incident in chaos.script(&star(), seed) {
        injector.schedule(incident).unwrap();
    }
    injector
}

/// A fate with its times relative to the injector's own, which differs from run to run.
fn relative(injector: &FaultInjector, fate: Fate) -> [Option<Result<u64, DropCause>>; 2] {
    let begun = lock(&injector.0).begun;
    let since = |arrival: Arrival| arrival.map(|at| at.nanos_since(begun));
    [Some(since(fate.frame)), fate.copy.map(since)]
}

fn judge(injector: &FaultInjector, micros: u64, from: u16, to: u16) -> Fate {
    let now = lock(&injector.0).begun + Duration::from_micros(micros);
    injector.judge(now, NodeId(from), NodeId(to))
}

proptest! {
    #[test]
    fn one_seed_has_the_same_faults_for_the_same_frames_of_a_path(
        seed: u64, gaps in proptest::collection::vec(0_u64..2_000, 1..200), others in 0_u16..3,
    ) {
        let (one, two) = (injector(seed), injector(seed));
        let mut micros = 0;
        for gap in gaps {
            micros += gap;
            // Frames on other paths change nothing.
            for other in 0..others {
                judge(&two, micros, 2, other % 2);
            }
            let (first, second) = (judge(&one, micros, 0, 1), judge(&two, micros, 0, 1));
            prop_assert_eq!(relative(&one, first), relative(&two, second));
        }
    }

    #[test]
    fn each_frame_and_each_copy_arrives_once_or_has_a_cause_that_is_counted(
        seed: u64, gaps in proptest::collection::vec(0_u64..2_000, 1..200),
    ) {
        let injector = injector(seed);
        let (mut micros, mut copies, mut lost) = (0, 0, 0);
        for gap in gaps {
            micros += gap;
            let Fate { frame, copy } = judge(&injector, micros, 0, 1);
            let now = lock(&injector.0).begun + Duration::from_micros(micros);
            for arrival in [Some(frame), copy].into_iter().flatten() {
                match arrival {
                    Ok(at) => prop_assert!(at >= now),
                    Err(_) => lost += 1,
                }
            }
            copies += u64::from(copy.is_some());
        }
        let fired = injector.fired();
        prop_assert_eq!(fired.of(FaultKind::Duplicate), copies);
        let kinds = [
            FaultKind::Loss, FaultKind::BurstLoss, FaultKind::Corrupt, FaultKind::Truncate,
            FaultKind::Flap, FaultKind::OneWay, FaultKind::Partition,
        ];
        let counted: u64 = kinds.iter().map(|kind| fired.of(*kind)).sum();
        prop_assert_eq!(counted, lost);
    }

    #[test]
    fn jitter_alone_keeps_the_order(seed: u64, count in 1_u64..100) {
        let injector = FaultInjector::new(seed);
        injector.set(Faults { jitter: Duration::from_millis(1), ..Faults::NONE }).unwrap();
        let mut last = Instant::ZERO;
        for number in 0..count {
            let Fate { frame: Ok(at), copy: None } = judge(&injector, 10 * number, 0, 1) else {
                return Err(TestCaseError::fail("a frame is lost or doubled"));
            };
            prop_assert!(at >= last);
            last = at;
        }
    }
}

#[test]
fn a_partition_cuts_both_directions_until_it_is_healed() {
    let injector = FaultInjector::new(1);
    injector.cut(NodeId(1), NodeId(0));
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(judge(&injector, 0, from, to), Fate::lost(DropCause::Partition));
        assert!(judge(&injector, 0, from, 2).frame.is_ok());
    }
    injector.heal(NodeId(0), NodeId(1));
    assert!(judge(&injector, 1, 0, 1).frame.is_ok());
    assert_eq!(injector.fired().of(FaultKind::Partition), 2);
}

#[test]
fn an_incident_has_its_time_and_its_link() {
    let injector = FaultInjector::new(1);
    let (at, lasts) = (Instant::from_nanos(5_000), Duration::from_micros(5));
    let link = star().downlink(NodeId(1));
    let fault = Fault::Loss { link, probability: 1.0 };
    injector.schedule(Incident { at, lasts, fault }).unwrap();
    let is_lost = |micros, to| judge(&injector, micros, 0, to).frame.is_err();
    assert!(!is_lost(4, 1) && is_lost(5, 1) && is_lost(9, 1) && !is_lost(10, 1));
    assert!(!is_lost(7, 2));
}

#[test]
fn a_lost_frame_is_dropped_once_although_its_sender_doubles_frames() {
    let injector = FaultInjector::new(1);
    let fault = Fault::Duplicate { node: NodeId(0), probability: 1.0 };
    injector.schedule(Incident { at: Instant::ZERO, lasts: Duration::MAX, fault }).unwrap();
    injector.set(Faults { loss: 1.0, ..Faults::NONE }).unwrap();
    for micros in 0..100 {
        assert_eq!(judge(&injector, micros, 0, 1), Fate::lost(DropCause::LinkLoss));
    }
    // The copy of a damaged frame is whole.
    injector.set(Faults { corrupt: 1.0, ..Faults::NONE }).unwrap();
    let Fate { frame, copy } = judge(&injector, 100, 0, 1);
    assert_eq!(frame, Err(DropCause::Corrupt));
    assert!(copy.is_some_and(|copy| copy.is_ok()), "{copy:?}");
    assert_eq!(injector.fired().of(FaultKind::Duplicate), 1);
}

#[test]
fn a_value_that_is_no_probability_is_refused_and_changes_nothing() {
    let injector = FaultInjector::new(1);
    for value in [-0.1, 1.5, f64::NAN, f64::INFINITY] {
        let error = injector.set(Faults { corrupt: value, ..Faults::NONE }).unwrap_err();
        assert!(error.to_string().contains("\"corrupt\""), "{error}");
        assert!(error.to_string().contains("it must be 0 to 1"), "{error}");
        let fault = Fault::BurstLoss { link: LinkId(0), enter: 0.5, leave: value };
        let incident = Incident { at: Instant::ZERO, lasts: Duration::MAX, fault };
        assert!(injector.schedule(incident).is_err());
    }
    assert!(judge(&injector, 1, 0, 1).frame.is_ok());
}

#[test]
fn faults_that_only_virtual_time_has_are_refused_with_those_that_work() {
    for kind in FaultKind::ALL {
        let chaos = Chaos {
            kinds: vec![*kind],
            incidents: 1,
            within: Duration::from_secs(1),
            longest: Duration::from_secs(1),
            delay: Duration::from_secs(1),
            ppm: 1,
        };
        let result = FaultInjector::new(1).schedule(chaos.script(&star(), 1)[0]);
        match KINDS.contains(kind) {
            true => assert_eq!(result, Ok(())),
            false => assert_eq!(result, Err(FaultError::Unsupported(*kind))),
        }
    }
    let message = FaultError::Unsupported(FaultKind::Crash).to_string();
    for kind in KINDS {
        assert!(message.contains(kind.name()), "{message}");
    }
}
