//! Tests that alarms go off at the instant that was set last: never early, and once.

use midplane_simhw::id::TimerId;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

use crate::sim::harness::{Happening, Log, Probe, at, star};

const FIRST: TimerId = TimerId(0);
const SECOND: TimerId = TimerId(1);

proptest! {
    #[test]
    fn an_alarm_goes_off_once_at_the_instant_it_was_set_to_last(
        sets in proptest::collection::vec((0_u64..100, 0_u64..300, any::<bool>()), 1..40),
    ) {
        // The second alarm moves the first one each time it goes off.
        let log = Log::new();
        let out = log.clone();
        let moves = sets.clone();
        let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
            let (log, mut moves) = (log.clone(), moves.clone().into_iter());
            Probe::new(move |hw, happening| {
                if let Happening::Timer(FIRST) = happening {
                    log.add(hw.now().as_nanos());
                    return;
                }
                if let Some((gap, delay, off)) = moves.next() {
                    let when = if off { Instant::FAR_FUTURE } else { hw.now().plus_nanos(delay) };
                    hw.set_timer(FIRST, when);
                    hw.set_timer(SECOND, hw.now().plus_nanos(gap));
                    hw.commit();
                }
            })
        });
        let (mut now, mut armed, mut expected) = (0, u64::MAX, Vec::new());
        for (gap, delay, off) in sets {
            armed = if off { u64::MAX } else { now + delay };
            now += gap;
            // If two alarms have the same instant, the one that was set first goes off first.
            if armed <= now {
                expected.push(std::mem::replace(&mut armed, u64::MAX));
            }
        }
        if armed != u64::MAX {
            expected.push(armed);
        }
        world.run();
        prop_assert_eq!(out.entries(), expected);
    }
}

#[test]
fn an_alarm_that_was_moved_while_the_coprocessor_was_busy_is_not_early() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::MODERN, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start => {
                hw.set_timer(SECOND, at(100));
                hw.set_timer(FIRST, at(150));
                hw.commit();
            }
            // Works from 100 to 1,130 ns, so that the other alarms have to wait.
            Happening::Timer(SECOND) => {
                hw.charge(1_000);
                hw.set_timer(TimerId(2), at(110));
                hw.commit();
            }
            // Waits for the coprocessor before the first alarm, and moves it.
            Happening::Timer(TimerId(2)) => {
                hw.set_timer(FIRST, at(5_000));
                hw.commit();
            }
            Happening::Timer(timer) => log.add((timer, hw.now().as_nanos())),
            _ => {}
        })
    });
    world.run();
    assert_eq!(out.entries(), [(FIRST, 5_000)]);
}

#[test]
fn an_alarm_set_to_the_past_goes_off_at_once() {
    let log = Log::new();
    let out = log.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
        let log = log.clone();
        Probe::new(move |hw, happening| match happening {
            Happening::Start => {
                hw.set_timer(FIRST, at(700));
                hw.commit();
            }
            Happening::Timer(FIRST) => {
                hw.set_timer(SECOND, at(5));
                hw.commit();
            }
            Happening::Timer(_) => log.add(hw.now().as_nanos()),
            _ => {}
        })
    });
    world.run();
    assert_eq!(out.entries(), [700]);
    assert_eq!(world.now(), at(700));
}

#[test]
fn alarms_that_are_moved_leave_no_events_behind() {
    let mut world = World::new(&star(1), NicProfile::FREE, 1, |_, _| {
        let mut rounds = 0_u64;
        Probe::new(move |hw, _| {
            rounds += 1;
            if rounds < 1_000 {
                // A lease that is far away and renewed at every tick.
                hw.set_timer(FIRST, hw.now().plus_nanos(1_000_000_000));
                hw.set_timer(SECOND, hw.now().plus_nanos(10));
            } else {
                hw.set_timer(FIRST, Instant::FAR_FUTURE);
            }
            hw.commit();
        })
    });
    world.run();
    assert_eq!(world.now().as_nanos(), 9_990);
    assert_eq!(world.events(), 999);
}
