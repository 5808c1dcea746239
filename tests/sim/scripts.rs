//! Tests the ends of runs: crashed clients, crashes during faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use midplane::simhw::fault::Fault;
use midplane::simhw::id::NodeId;
use midplane::{Sim, time};

use crate::{MS, ask, echo};

/// Runs a host that counts its starts and is crashed by the script while a fault has crashed it; returns the count.
fn starts(script: impl FnOnce(&mut Sim)) -> u32 {
    let starts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&starts);
    let mut sim = Sim::builder().build();
    sim.host("host", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending()
    });
    sim.at(10 * MS).fault(Fault::Crash { node: NodeId(0) }, 50 * MS);
    sim.at(30 * MS).crash("host");
    script(&mut sim);
    sim.run_for(200 * MS).unwrap();
    starts.load(Ordering::Relaxed)
}

#[test]
fn a_host_that_the_script_crashes_during_a_fault_stays_down_until_the_script_restarts_it() {
    assert_eq!(starts(|_| {}), 1);
    for restarts in [40, 100] {
        let script = |sim: &mut Sim| {
            sim.at(restarts * MS).restart("host");
        };
        assert_eq!(starts(script), 2);
    }
}

#[test]
fn a_run_does_not_wait_for_a_client_that_crashes_and_is_not_restarted() {
    let mut sim = Sim::builder().build();
    sim.host("echo", echo);
    sim.client(|_| std::future::pending());
    sim.client(|node| async move {
        time::sleep(30 * MS).await;
        ask(&node, b"last").await
    });
    sim.at(10 * MS).crash("client-1");
    let report = sim.run().unwrap();
    assert!(report.time > 30 * MS && report.time < 3_000 * MS, "{report:?}");
    assert_eq!(report.ended.len(), 1);
}

#[test]
fn a_run_waits_for_a_client_that_is_restarted_after_its_crash() {
    let mut sim = Sim::builder().build();
    sim.client(|_| async {
        time::sleep(30 * MS).await;
        Ok(())
    });
    sim.at(10 * MS).crash("client-1");
    sim.at(50 * MS).restart("client-1");
    assert_eq!(sim.run().unwrap().time, 80 * MS);
}
