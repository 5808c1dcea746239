use midplane::{Sim, sim::SimError, time};
use sim_test::{Disk, request, serve};
use std::time::Duration;

/// Adds two replicas, and a client that finds at the end each accepted number in both of them.
fn cluster(sim: &mut Sim, forgets: bool) {
    for (name, other) in [("left", "right"), ("right", "left")] {
        let disk = Disk::default();
        sim.host(name, move |node| serve(node, other, disk.clone(), forgets));
    }
    sim.client(|node| async move {
        let mut taken = Vec::new();
        for number in 0..40 {
            time::sleep(Duration::from_millis(25)).await;
            let sent = request(&node, ["left", "right"][number % 2], format!("PUT /{number}"));
            let sent = time::timeout(Duration::from_millis(500), sent).await;
            taken.extend(sent.is_ok_and(|sent| sent.is_ok()).then(|| number.to_string()));
        }
        time::sleep(Duration::from_secs(4)).await;
        for name in ["left", "right"] {
            let all = request(&node, name, "GET /".into()).await?;
            let held: Vec<_> = all.trim_matches(['{', '}']).split(", ").collect();
            taken.iter().for_each(|n| assert!(held.contains(&&**n), "{name} lacks {n}"));
        }
        Ok(())
    });
}

#[test]
fn the_swarm_finds_a_crash_during_a_partition() {
    let found = Sim::builder().swarm(500, Duration::from_secs(1), |sim| cluster(sim, true));
    println!("{found:?}");
    let Err(SimError::Swarm { script, .. }) = found else { panic!("nothing was found") };
    assert!(script.len() == 2 && script[0].contains("Partition") && script[1].contains("Crash"));
}

#[test]
fn a_replica_that_resumes_its_copies_loses_nothing() {
    Sim::builder().swarm(500, Duration::from_secs(1), |sim| cluster(sim, false)).unwrap();
}
