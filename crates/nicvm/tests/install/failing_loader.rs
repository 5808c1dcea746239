//! The restart of an extension whose module does not load at first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{self, INSTALLER, Installer, Listed, Policy};
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::{NodeId, PortId};

use super::cluster::silence_panics;
use super::tally::{FAIL, TALLY, Tally};
use crate::harness::{Effect, Harness, command, memory};

const PORT: PortId = PortId(0);

/// A node whose loader fails at its second to `fails`-th call.
fn harness(fails: u32) -> Harness {
    silence_panics();
    let calls = AtomicU32::new(0);
    let loader = move |_: &[u8]| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        if (1..fails).contains(&call) {
            return Err("not now".to_owned());
        }
        let (label, seen) = (b'A', Arc::default());
        let tally =
            Tally { label, nodes: 1, chatty: false, sent: 0, held: Vec::new(), handled: 0, seen };
        Ok(Box::new(tally) as Box<dyn Extension>)
    };
    let mut unit = Unit::default();
    unit.install(INSTALLER, Installer::new(vec![NodeId(1)], loader)).unwrap();
    let mut harness = Harness::new(unit);
    harness.post(PORT, install::install(TALLY, Policy::Restart, memory(PORT, 10), 1));
    assert_eq!(harness.unit.epoch(TALLY), Some(Epoch(1)));
    harness.post(PORT, command(TALLY, FAIL));
    harness.take();
    harness
}

fn is_listed_as_down(harness: &mut Harness) -> bool {
    harness.post(PORT, install::list(memory(PORT, 1_000), 1));
    let written = harness.take().into_iter().find_map(|effect| match effect {
        Effect::Written(_, bytes) => Some(bytes),
        _ => None,
    });
    Listed::parse(&written.unwrap().try_into().unwrap()).is_down
}

#[test]
fn a_version_whose_restart_does_not_load_stays_down_until_a_later_restart() {
    // Restarts 10, 30 and 70 ms after the failure; the second and third call of the loader fail.
    let mut harness = harness(3);
    for (millis, runs) in [(5, false), (20, false), (30, false), (40, true)] {
        harness.pass(millis * 1_000_000);
        assert_eq!(harness.unit.epoch(TALLY).is_some(), runs);
        assert_eq!(is_listed_as_down(&mut harness), !runs);
    }
    let counters = harness.unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.restarts, counters.reports), (1, 3));
}

#[test]
fn a_version_that_never_loads_again_is_restarted_eight_times_at_most() {
    let mut harness = harness(u32::MAX);
    harness.pass(60_000_000_000);
    assert_eq!(harness.unit.epoch(TALLY), None);
    assert!(is_listed_as_down(&mut harness));
    let counters = harness.unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.restarts, counters.reports), (0, 9));
}
