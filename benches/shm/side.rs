//! One of the two processes, and what they have in common.

use std::process::{Child, Command};
use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The argument of the second process; the first one's process number follows.
pub(crate) const CHILD: &str = "--child";
/// Rounds that take turns: the median of them is what counts.
pub(crate) const ROUNDS: usize = 401;

/// One of the two processes.
pub(crate) struct Side {
    pub(crate) is_first: bool,
    parent: u32,
    phase: u32,
    cores: usize,
}

/// The second process, ended with the first.
pub(crate) struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It has ended by itself unless something failed here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Side {
    /// This process; the first one starts the second.
    pub(crate) fn start(parent: Option<String>) -> (Self, Option<Peer>) {
        // Before this process is put on some of them.
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

    /// Puts the two processes on two cores, or on one.
    pub(crate) fn place(&self, on_one_core: bool) {
        let mut cores = CpuSet::new();
        cores.set(if self.is_first || on_one_core { 0 } else { self.cores - 1 });
        // Where it is not allowed, the system places them.
        let _ = sched_setaffinity(None, &cores);
    }

    /// What the next phase of both processes is known by.
    pub(crate) fn next_name(&mut self) -> String {
        self.phase += 1;
        format!("bench {} {}", self.parent, self.phase)
    }

    /// A fabric of the two.
    pub(crate) fn config(&mut self) -> ShmConfig {
        let node = NodeId(u16::from(!self.is_first));
        ShmConfig::new(self.next_name(), node, 2)
    }

    /// A NIC with the default service, once the other one is there.
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

    /// Prints a line, once.
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

/// Nanoseconds that `work` takes.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
pub(crate) fn nanos_of(work: impl FnOnce()) -> f64 {
    let start = std::time::Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}
