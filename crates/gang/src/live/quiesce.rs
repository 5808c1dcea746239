//! Whether what a rank has started stands still with it, where signals stop it.

use std::fs;

use rustix::process::Pid;

/// Whether all descendants of a stopped process that are in its group stand still or have ended. Whoever
/// has left the group was not told to.
pub(super) fn descendants_are_stopped(group: Pid) -> bool {
    let group = group.as_raw_nonzero().get();
    children(group).into_iter().all(|child| is_stopped(child, group))
}

/// Whether every thread of a process that was told to stop has, or waits where nothing but the end of that
/// wait lets it go on.
pub(super) fn no_thread_runs(pid: Pid) -> bool {
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
    // After the name, which may hold anything: state, parent, group.
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
    use rustix::process::{Signal, kill_process, kill_process_group};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_child_that_runs_is_noticed() {
        let mut command = Command::new("sh");
        let mut shell = command.args(["-c", "sleep 1000 & wait"]).process_group(0).spawn().unwrap();
        let (pid, group) = (Pid::from_child(&shell), shell.id() as i32);
        while children(group).is_empty() {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::STOP).unwrap();
        // At first it may wait for its program's pages, which nothing stops.
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
