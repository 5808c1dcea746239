//! Tests the ends of runs: crashed clients, crashes during faults, traces that fail, odd arguments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use midplane::net::UdpSocket;
use midplane::sim::SimError;
use midplane::simhw::drops::DropCause;
use midplane::simhw::fault::Fault;
use midplane::simhw::id::NodeId;
use midplane::{Sim, time};

use crate::{MS, ask, contents, echo, reports};

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

#[test]
fn a_drop_before_the_trace_of_a_failure_is_not_in_it() {
    let failed = Sim::builder().seed(8).check(|sim| {
        sim.host("sink", |_| async {
            let socket = UdpSocket::bind("0.0.0.0:9".parse()?)?;
            loop {
                socket.recv_from(&mut [0; 1_000]).await?;
            }
        });
        sim.client(|_| async {
            let socket = UdpSocket::bind("0.0.0.0:9".parse()?)?;
            for _ in 0..2_000 {
                socket.send_to(&[7; 1_000], "10.0.0.1:9".parse()?).await?;
            }
            // The trace is of the last 10 s.
            time::sleep(Duration::from_secs(15)).await;
            socket.send_to(b"in the trace", "10.0.0.1:9".parse()?).await?;
            time::sleep(Duration::from_secs(1)).await;
            Err("no luck".into())
        });
        sim.at(MS).pause("sink", 100 * MS);
    });
    let failed = failed.unwrap_err();
    let SimError::Host { trace: Some(path), .. } = &failed else { panic!("{failed}") };
    let (tracks, frames) = (contents(path, ".perfetto-trace"), contents(path, ".pcapng"));
    assert!(frames.contains("client-1 > switch 0"));
    assert!(!tracks.contains(DropCause::NoBuffer.name()) && !frames.contains("dropped:"));
    for extension in ["pcapng", "perfetto-trace"] {
        std::fs::remove_file(format!("{}.{extension}", path.display())).unwrap();
    }
}

#[test]
fn a_trace_on_a_full_disk_is_an_error_and_hides_no_failure() {
    for fails in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let name = "a_trace_on_a_full_disk_is_an_error_and_hides_no_failure-5.pcapng";
        let file = folder.path().join(format!("scripts.{name}"));
        std::os::unix::fs::symlink("/dev/full", file).unwrap();
        let mut sim = Sim::builder().seed(5).trace(folder.path()).build();
        reports(&mut sim, fails);
        let error = sim.run().unwrap_err().to_string();
        match fails {
            false => assert!(error.contains("is incomplete: No space left"), "{error}"),
            true => assert!(error.ends_with("no tea"), "{error}"),
        }
    }
}

#[test]
fn a_run_takes_the_longest_time_and_the_fastest_link() {
    let mut sim = Sim::builder().link_mbps(u64::MAX).build();
    sim.host("echo", echo);
    sim.client(|node| async move {
        time::sleep(20 * MS).await;
        ask(&node, &[7; 100_000]).await
    });
    sim.run_for(10 * MS).unwrap();
    assert_eq!(sim.run_for(Duration::MAX).unwrap().ended.len(), 1);
}
