//! Processes that are killed: their peers learn of it, and nothing is left of them.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::shm::{ShmConfig, ShmNic};

use crate::shm::firmware::{Probe, name, payload, run, start};

/// The environment variable that says which fabric a child joins, as node 1.
const FABRIC: &str = "MIDPLANE_TEST_FABRIC";
/// Within this a peer's end is known: the system tells at once, and the machine may be busy.
const BOUND: Duration = Duration::from_secs(5);

/// Not a test by itself: the process that the others start and kill.
#[test]
fn child_that_floods_until_it_is_killed() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    run(async {
        let (probe, _) = Probe::new(true);
        let _nic = ShmNic::start(ShmConfig::new(fabric, NodeId(1), 2), probe).unwrap();
        // Ends with the process that started it, should that one be killed: the other end of this is its.
        let parent_ends = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tokio::task::spawn_blocking(parent_ends).await.unwrap().unwrap();
    });
}

struct Killed(Child);

impl Killed {
    fn start(fabric: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "shm::death::child_that_floods_until_it_is_killed"]);
        command.env(FABRIC, fabric).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        // SIGKILL: it can do nothing about it.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something holds that nobody tells of.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Segments of fabrics that this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:midplane")).count()
}

#[test]
fn a_peer_that_is_killed_is_missed_at_once_and_may_come_again() {
    let fabric = name("killed");
    run(async {
        let (nic, seen) = start(ShmConfig::new(&fabric, NodeId(0), 2));
        let mut peers = nic.peers();
        for life in 0..3 {
            let mut child = Killed::start(&fabric);
            let joined = peers.wait_for(|peers| peers == &[NodeId(1)]);
            tokio::time::timeout(BOUND * 4, joined).await.expect("it comes").unwrap();
            // Killed while it sends, at any instruction.
            let sends = until(|| seen.0.lock().unwrap().len() > 500 * life);
            tokio::time::timeout(BOUND * 4, sends).await.expect("it sends");
            child.kill();
            let left = peers.wait_for(Vec::is_empty);
            tokio::time::timeout(BOUND, left).await.expect("it is missed").unwrap();
            let seen = std::mem::take(&mut *seen.0.lock().unwrap());
            // What it sent before it had met this node was dropped at its own NIC.
            let first = seen[0].0.sequence;
            for (number, (header, bytes)) in (first..).zip(seen) {
                assert_eq!(header.sequence, number, "nothing is lost or doubled");
                assert_eq!(bytes, payload(number), "every frame is whole");
            }
        }
        assert_eq!(nic.counters().drops, midplane_simhw::drops::Drops::default());
        // Other tests of this process map some as well, and end.
        let let_go = tokio::time::timeout(BOUND * 12, until(|| mapped() == 0)).await;
        let_go.expect("segments of peers that are gone are let go");
        nic.shutdown().await;
    });
}
