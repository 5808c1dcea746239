//! Starts, suspends, resumes and reaps a rank's process.
//!
//! Signals go to the process's group, and to the process itself if it is in another group. The process is reaped
//! through a pidfd, and the system can't reuse the number of its group before that, so no signal reaches an unrelated
//! process.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, getpriority_process,
    kill_process_group, pidfd_open, pidfd_send_signal, setpriority_process, waitid,
};
use rustix::time::Timespec;

pub use crate::node_core::message::End;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Runs,
    /// Ordered to stop.
    Stopping,
    Stopped,
    Ended(End),
}

/// A rank's process.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    handle: OwnedFd,
    state: State,
    /// True from [`Process::start`], whose program stops by itself, and from [`Process::stop`] to [`Process::resume`].
    is_suspended: bool,
    /// True from [`Process::halt`] to [`Process::let_go`].
    is_halted: bool,
    /// The process's own nice value while its priority is raised.
    own_nice: Option<i32>,
}

/// Nice value of a process that is to stop: the highest priority of ordinary processes.
const FIRST: i32 = -20;

impl Process {
    /// Starts an [`exec_shim`](super::exec_shim), which stops by itself. Also returns the child with its pipes.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(command: &mut Command) -> std::io::Result<(Self, Child)> {
        let mut child = command.spawn()?;
        match Self::of(Pid::from_child(&child)) {
            Ok(process) => Ok((Self { is_suspended: true, ..process }, child)),
            Err(error) => {
                // Without a pidfd, nothing would signal or reap the process.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn of(pid: Pid) -> std::io::Result<Self> {
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        let (state, is_suspended, is_halted) = (State::Runs, false, false);
        Ok(Self { pid, handle, state, is_suspended, is_halted, own_nice: None })
    }

    /// Takes charge of a child of this process that another program (CRIU) has started.
    ///
    /// # Errors
    /// This process has no such child.
    pub(crate) fn adopt(pid: Pid) -> std::io::Result<Self> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let _ = waitid(WaitId::Pid(pid), options)?;
        Self::of(pid)
    }

    /// Returns the process ID, which is also the ID of its group.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the process's group, unless the process has ended. A process that was just started may not
    /// have entered its group yet, and may leave it later: the process itself then gets the signal.
    pub fn signal(&self, signal: Signal) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        let is_sent = kill_process_group(self.pid, signal).is_ok();
        // The process can't handle these two signals, so they may arrive twice. It may have changed its group meanwhile.
        let may_repeat = matches!(signal, Signal::STOP | Signal::KILL);
        let is_in_group = || getpgid(Some(self.pid)) == Ok(self.pid);
        if !is_sent || may_repeat || !is_in_group() {
            // Fails if the process has just ended, which needs no signal.
            let _ = pidfd_send_signal(&self.handle, signal);
        }
    }

    /// Returns whether the process was ordered to stop, or has stopped by itself.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopping | State::Stopped)
    }

    /// Raises the process's priority, if this process may: it must get a processor before it stops.
    pub(crate) fn hurry(&mut self) {
        if self.own_nice.is_none()
            && let Ok(nice) = getpriority_process(Some(self.pid))
            && setpriority_process(Some(self.pid), FIRST).is_ok()
        {
            self.own_nice = Some(nice);
        }
    }

    /// Restores the process's own priority. Returns its nice value, if its priority was raised.
    pub(crate) fn relax(&mut self) -> Option<i32> {
        let nice = self.own_nice.take()?;
        // The process may have ended.
        let _ = setpriority_process(Some(self.pid), nice);
        Some(nice)
    }

    /// Orders the process to stop, without waiting until it has.
    pub fn stop(&mut self) {
        self.is_suspended = true;
        if !matches!(self.state, State::Ended(_)) {
            // A process that has stopped may have been continued since by any other process.
            self.state = State::Stopping;
            self.signal(Signal::STOP);
        }
    }

    /// Lets the process resume, unless it is halted.
    pub fn resume(&mut self) {
        self.is_suspended = false;
        if matches!(self.state, State::Stopping | State::Stopped) {
            self.state = State::Runs;
            if !self.is_halted {
                self.signal(Signal::CONT);
            }
        }
    }

    /// Stops the process until [`Process::let_go`], whether it is suspended or not.
    pub(crate) fn halt(&mut self) {
        self.is_halted = true;
        // A suspended process has stopped, or is about to.
        if !self.is_suspended {
            self.signal(Signal::STOP);
        }
    }

    /// Takes the place of the process that has restored this one.
    pub(crate) fn replace(&mut self, former: &Self) {
        (self.is_suspended, self.is_halted) = (former.is_suspended, former.is_halted);
        self.halt_again();
    }

    /// Stops the process again if it is halted, after another program may have continued it.
    pub(crate) fn halt_again(&self) {
        if self.is_halted {
            self.signal(Signal::STOP);
        }
    }

    /// Lets the process continue, at once or when it is next resumed.
    pub(crate) fn let_go(&mut self) {
        self.is_halted = false;
        if !self.is_suspended {
            self.state = match self.state {
                State::Ended(end) => State::Ended(end),
                _ => State::Runs,
            };
            self.signal(Signal::CONT);
        }
    }

    /// Returns whether all threads of the process are stopped, or it has ended. Asks the system without blocking.
    ///
    /// A thread in an uninterruptible wait counts as stopped: it stops before its next instruction. (A thread that has
    /// called `vfork` waits like that for its child, even while the child is stopped.)
    pub(crate) fn is_still(&mut self) -> bool {
        self.refresh();
        match self.state {
            State::Runs => false,
            State::Stopping => no_thread_runs(self.pid),
            State::Stopped | State::Ended(_) => true,
        }
    }

    /// Returns how the process ended, if it has. Asks the system without blocking.
    pub fn end(&mut self) -> Option<End> {
        self.refresh();
        match self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Returns whether the process has exited, even if this process can't reap it yet because another one traces it.
    pub(crate) fn has_exited(&self) -> bool {
        let mut handles = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut handles, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn refresh(&mut self) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        let handle = || WaitId::PidFd(self.handle.as_fd());
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(handle(), options | WaitIdOptions::NOWAIT) else { return };
        if !status.stopped() {
            // Kills the descendants that are still in the process's group. The number of the group is not reused
            // before the process is reaped.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let Ok(Some(status)) = waitid(handle(), options) else { return };
        if let Some(code) = status.exit_status() {
            self.state = State::Ended(End::Exited(code));
        } else if let Some(signal) = status.terminating_signal() {
            self.state = State::Ended(End::Killed(signal));
        } else if status.stopped() {
            self.state = State::Stopped;
        }
    }
}

/// Sets the nice value of those threads of a process that have inherited a raised priority.
pub(super) fn relax_threads(pid: i32, nice: i32) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    for thread in numbers.filter_map(Pid::from_raw) {
        if getpriority_process(Some(thread)).is_ok_and(|its| its == FIRST) {
            // The thread may have ended.
            let _ = setpriority_process(Some(thread), nice);
        }
    }
}

/// Returns whether all descendants of a stopped process that are in its group are stopped or have ended. Descendants
/// in other groups were not ordered to stop.
pub(super) fn descendants_are_stopped(group: Pid) -> bool {
    let group = group.as_raw_nonzero().get();
    children(group).into_iter().all(|child| is_stopped(child, group))
}

/// Returns whether every thread of a process that was ordered to stop has stopped, or is in an uninterruptible wait.
fn no_thread_runs(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    tasks.into_iter().flatten().flatten().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default().get(..1);
        matches!(state, None | Some("D" | "T" | "t" | "Z" | "X"))
    })
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split(' ').filter_map(|it| it.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn is_stopped(pid: i32, group: i32) -> bool {
    // The fields after the process's name, which may contain any character, are: state, parent, group.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (state, its_group) = (fields.next().unwrap_or_default(), fields.nth(1));
    let is_ours = its_group.and_then(|it| it.parse().ok()) == Some(group);
    let still = matches!(state, "" | "D" | "T" | "t" | "Z" | "X");
    (still || !is_ours) && children(pid).into_iter().all(|child| is_stopped(child, group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::clock;
    use rustix::process::{Signal, getppid, kill_process, kill_process_group, setpgid};
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    /// Environment variable of the process that carries out [`leave_the_group`].
    const LEAVES: &str = "GANG_TEST_LEAVES";

    /// Lets a test run this as a process, which leaves its group. A child of it stays there.
    #[test]
    fn leave_the_group() {
        if std::env::var_os(LEAVES).is_none() {
            return;
        }
        setpgid(None, None).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        setpgid(None, Some(getpgid(getppid()).unwrap())).unwrap();
        child.wait().unwrap();
        loop {
            std::thread::park();
        }
    }

    /// Regression: the group's signals did not reach the process, so that the daemon waited for it for ever.
    #[test]
    fn a_process_that_has_left_its_group_stops_and_ends() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "live::process::tests::leave_the_group"]).env(LEAVES, "1");
        command.stdout(std::process::Stdio::null());
        let (mut process, _child) = Process::start(&mut command).unwrap();
        let until = clock::now() + Duration::from_secs(10);
        let wait_for = |what: &str, is_done: &mut dyn FnMut() -> bool| {
            while !is_done() {
                assert!(clock::now() < until, "the process has not {what}");
                std::thread::yield_now();
            }
        };
        let (pid, own) = (process.pid(), getpgid(None).unwrap());
        wait_for("entered a group", &mut || kill_process_group(pid, Signal::CONT).is_ok());
        wait_for("left its group", &mut || getpgid(Some(pid)) == Ok(own));
        process.stop();
        wait_for("stopped", &mut || process.is_still());
        process.signal(Signal::KILL);
        wait_for("ended", &mut || process.end().is_some());
        assert_eq!(process.end(), Some(End::Killed(Signal::KILL.as_raw())));
    }

    #[test]
    fn a_process_without_a_group_of_its_own_gets_its_signals() {
        let (mut process, _) = Process::start(Command::new("sleep").arg("1000")).unwrap();
        process.signal(Signal::TERM);
        while process.end().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(process.end(), Some(End::Killed(Signal::TERM.as_raw())));
    }

    #[test]
    fn an_exit_is_noticed_before_the_process_is_reaped() {
        let (mut process, _) = Process::start(Command::new("sleep").arg("1000")).unwrap();
        assert!(!process.has_exited());
        process.signal(Signal::KILL);
        while !process.has_exited() {
            std::thread::yield_now();
        }
        assert_eq!(process.end(), Some(End::Killed(Signal::KILL.as_raw())));
    }

    /// Regression: threads and processes that a process started while it was to stop kept the raised priority.
    #[test]
    fn what_a_process_starts_while_its_priority_is_raised_gets_the_own_priority_back() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it takes root");
        }
        let start = || Process::start(Command::new("sleep").arg("1000")).unwrap().0;
        let [mut process, mut started] = [(); 2].map(|()| start());
        setpriority_process(Some(process.pid), 5).unwrap();
        [&mut process, &mut started].into_iter().for_each(Process::hurry);
        let nice = |process: &Process| getpriority_process(Some(process.pid)).unwrap();
        if nice(&process) == 5 {
            [process, started].iter().for_each(|process| process.signal(Signal::KILL));
            return println!("skipped: this container may not raise priorities");
        }
        assert_eq!((nice(&process), nice(&started)), (FIRST, FIRST));
        assert_eq!(process.relax(), Some(5));
        relax_threads(started.pid.as_raw_nonzero().get(), 5);
        assert_eq!((nice(&process), nice(&started)), (5, 5));
        [process, started].iter().for_each(|process| process.signal(Signal::KILL));
    }

    #[test]
    fn a_child_that_runs_is_noticed() {
        let mut command = Command::new("sh");
        let mut shell = command.args(["-c", "sleep 1000 & wait"]).process_group(0).spawn().unwrap();
        let (pid, group) = (Pid::from_child(&shell), shell.id() as i32);
        while children(group).is_empty() {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::STOP).unwrap();
        // At first the child may wait uninterruptibly for pages of its program.
        while descendants_are_stopped(pid) {
            std::thread::yield_now();
        }
        kill_process_group(pid, Signal::STOP).unwrap();
        while !descendants_are_stopped(pid) {
            std::thread::yield_now();
        }
        kill_process_group(pid, Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(descendants_are_stopped(pid));
    }
}
