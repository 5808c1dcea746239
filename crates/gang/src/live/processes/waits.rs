//! A step that waits for processes, and how long it waits.

use std::time::Duration;

use midplane_simhw::time::Instant;

use crate::live::clock;
use crate::names::JobId;
use crate::node_core::message::Member;
use crate::node_core::order::Outcome;

/// Time after which a control group counts as frozen although the kernel does not report it. A thread in an
/// uninterruptible wait, such as for a file server that does not answer, is reported only after the wait; it freezes
/// before its next instruction.
const FREEZE_PATIENCE: Duration = Duration::from_millis(500);

/// Time after which a daemon without others gives up a job with a process that does not stop, such as one that has become
/// root's while the daemon is not.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a daemon without others no longer waits for processes that were started or killed.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// Most time between two checks that counts: after a longer pause of this machine, no process has run either.
const COUNTED: Duration = Duration::from_millis(100);

/// Times after which steps no longer wait for processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For the rights of a job's user that are not found: the job is given up.
    pub(super) look_up: Duration,
    /// For a shim that does not stop: its job is given up.
    pub(super) start: Duration,
    /// For a process that does not stop: its job is given up.
    pub(super) stop: Duration,
    /// For a killed process that does not end: it is only reaped.
    pub(super) kill: Duration,
}

impl Limits {
    /// Returns the limits of a daemon. Among several daemons, an order waits less than the time after which the others
    /// take this one for lost, and all of its jobs with it.
    pub(super) fn new(hosts: u16, patience: Duration) -> Self {
        let (long, stop) = (LONG_PATIENCE, STOP_PATIENCE);
        let [quarter, half] = [patience / 4, patience / 2];
        match hosts > 1 {
            true => Self { look_up: quarter, start: half, stop: half, kill: half },
            false => Self { look_up: stop, start: long, stop, kill: long },
        }
    }
}

/// A step that is complete once certain processes have stopped or ended.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) step: u64,
    /// Processes that must stop or, if `is_kill`, end.
    pub(super) members: Vec<Member>,
    /// Processes whose descendants must stop.
    pub(super) groups: Vec<Member>,
    /// Jobs whose control groups must freeze: the jobs' own, and those that they have adopted.
    pub(super) cgroups: Vec<JobId>,
    pub(super) adopted: Vec<JobId>,
    pub(super) is_kill: bool,
    /// The action that a process of `members` has not taken if the step is late.
    pub(super) what: &'static str,
    /// When groups that are not reported as frozen count as frozen.
    pub(super) frozen_at: Instant,
    /// Time left until the step is late, and when it was last counted.
    pub(super) left: Duration,
    pub(super) counted_at: Instant,
    pub(super) outcome: Outcome,
}

impl Waits {
    /// Creates a step that is complete once these processes have stopped, and late after `left`.
    pub(super) fn new(step: u64, members: Vec<Member>, left: Duration) -> Self {
        let (groups, cgroups, adopted) = (Vec::new(), Vec::new(), Vec::new());
        let (counted_at, outcome) = (clock::now(), Outcome::default());
        let frozen_at = counted_at + FREEZE_PATIENCE;
        Self {
            step,
            members,
            groups,
            cgroups,
            adopted,
            is_kill: false,
            what: "stop",
            frozen_at,
            left,
            counted_at,
            outcome,
        }
    }

    /// Counts the time since the last call. Returns whether the step has waited too long.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        let passed = now.since(self.counted_at).min(COUNTED);
        self.counted_at = now;
        self.left = self.left.saturating_sub(passed);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_late_after_a_time_in_which_this_machine_has_run() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let left = Limits::new(2, Duration::from_secs(2)).stop;
        let mut waits = Waits { counted_at: at(0), ..Waits::new(1, Vec::new(), left) };
        let after_a_pause = at(3_600_000);
        assert!(!waits.is_late(after_a_pause));
        let checks = (1..200).find(|check| waits.is_late(after_a_pause + COUNTED / 10 * *check));
        assert_eq!(checks, Some(90));
    }

    /// Regression: a killed process that did not end kept a host from its report for a minute, and the host was lost.
    #[test]
    fn among_several_hosts_no_process_keeps_a_report_waiting_until_the_host_is_lost() {
        let patience = Duration::from_secs(2);
        let Limits { look_up, start, stop, kill } = Limits::new(2, patience);
        assert!(look_up + start < patience && stop < patience && kill < patience);
        assert_eq!(Limits::new(1, patience).kill, LONG_PATIENCE, "no host waits for a single one");
    }
}
