//! One of the two processes, and their common code.

use std::process::{Child, Command};
use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Argument of the second process, followed by the first one's process number.
pub(crate) const CHILD: &str = "--child";
/// Alternating rounds; the median over them counts.
pub(crate) const ROUNDS: usize = 401;

/// One of the two processes.
pub(crate) struct Side {
    pub(crate) is_first: bool,
    parent: u32,
    phase: u32,
    cores: usize,
}

/// The second process; it is killed when this is dropped.
pub(crate) struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It has exited already unless something failed here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Side {
    /// Creates this process's side; the first process starts the second.
    pub(crate) fn start(parent: Option<String>) -> (Self, Option<Peer>) {
        // Count the cores before this process is pinned.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if let Some(parent) = parent {
            let parent = parent.parse().expect("the first process says its number");
            return (Self { is_first: false, parent, phase: 0, cores }, None);
        }
        let own = std::process::id();
        let program = std::env::current_exe().expect("a running program has a file");
        let child = Command::new(program).args([CHILD, &own.to_string()]).spawn();
        let peer = Peer(child.expect("the bench starts itself"));
        (Self { is_first: true, parent: own, phase: 0, cores }, Some(peer))
    }

    /// Pins the two processes to two cores, or to one.
    pub(crate) fn place(&self, on_one_core: bool) {
        let mut cores = CpuSet::new();
        cores.set(if self.is_first || on_one_core { 0 } else { self.cores - 1 });
        // If pinning is not allowed, the system places the processes.
        let _ = sched_setaffinity(None, &cores);
    }

    /// Returns the name of the next phase, the same in both processes.
    pub(crate) fn next_name(&mut self) -> String {
        self.phase += 1;
        format!("bench {} {}", self.parent, self.phase)
    }

    /// Returns the configuration of a fabric between the two.
    pub(crate) fn config(&mut self) -> ShmConfig {
        let node = NodeId(u16::from(!self.is_first));
        ShmConfig::new(self.next_name(), node, 2)
    }

    /// Starts a NIC with the default service, and waits for the other one.
    pub(crate) async fn nic(&mut self, spin: Duration) -> ShmNic {
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).expect("the unit is empty");
        let nic = ShmNic::start(self.config().spin(spin), unit).expect("the fabric is new");
        nic.meet().await;
        nic
    }

    pub(crate) const fn other(&self) -> NodeId {
        NodeId(self.is_first as u16)
    }

    /// Prints a line, in the first process only.
    pub(crate) fn say(&self, line: &str) {
        if self.is_first {
            println!("{line}");
        }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the nanoseconds of `work`.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
pub(crate) fn nanos_of(work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}
