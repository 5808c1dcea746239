//! An extension that is to be restarted, and whose module does not load at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{self, INSTALLER, Installer, Listed, Policy};
use midplane_nicvm::unit::Unit;
use midplane_simhw::id::{NodeId, PortId};

use super::cluster::hush;
use super::tally::{FAIL, TALLY, Tally};
use crate::desk::{Desk, Effect, command, memory};

const PORT: PortId = PortId(0);

/// A node whose loader fails at its second to `fails`-th call.
fn desk(fails: u32) -> Desk {
    hush();
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
    let mut desk = Desk::new(unit);
    desk.post(PORT, install::install(TALLY, Policy::Restart, memory(PORT, 10), 1));
    assert_eq!(desk.unit.epoch(TALLY), Some(Epoch(1)));
    desk.post(PORT, command(TALLY, FAIL));
    desk.take();
    desk
}

fn is_listed_as_down(desk: &mut Desk) -> bool {
    desk.post(PORT, install::list(memory(PORT, 1_000), 1));
    let written = desk.take().into_iter().find_map(|effect| match effect {
        Effect::Written(_, bytes) => Some(bytes),
        _ => None,
    });
    Listed::parse(&written.unwrap().try_into().unwrap()).is_down
}

#[test]
fn a_version_whose_restart_does_not_load_stays_down_until_a_later_restart() {
    // Restarts 10, 30 and 70 ms after the failure; the second and third call of the loader fail.
    let mut desk = desk(3);
    for (millis, runs) in [(5, false), (20, false), (30, false), (40, true)] {
        desk.pass(millis * 1_000_000);
        assert_eq!(desk.unit.epoch(TALLY).is_some(), runs);
        assert_eq!(is_listed_as_down(&mut desk), !runs);
    }
    let counters = desk.unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.restarts, counters.reports), (1, 3));
}

#[test]
fn a_version_that_never_loads_again_is_restarted_eight_times_at_most() {
    let mut desk = desk(u32::MAX);
    desk.pass(60_000_000_000);
    assert_eq!(desk.unit.epoch(TALLY), None);
    assert!(is_listed_as_down(&mut desk));
    let counters = desk.unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.restarts, counters.reports), (0, 9));
}
