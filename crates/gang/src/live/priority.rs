//! Raises the priority of the daemon's threads, so that they don't wait for a processor behind the ranks that they
//! suspend.

use std::io;

use rustix::process::setpriority_process;
use thread_priority::{
    Error, NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority,
    ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// Nice value of the daemon: the highest priority of ordinary threads.
const NICE: i32 = -20;

/// Raises the priority of all threads that this thread starts.
///
/// # Errors
/// The system's error if this process lacks the right. The threads then keep the usual priority.
pub(super) fn raise_new_threads() -> io::Result<()> {
    Ok(setpriority_process(None, NICE)?)
}

/// Gives this thread the lowest real-time priority, above all threads without one. Its sleeps end on time.
///
/// # Errors
/// The system's error if this process lacks the right.
pub(super) fn raise_this_thread() -> io::Result<()> {
    let lowest = 1_u8.try_into().map_err(io::Error::other)?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriority::Crossplatform(lowest);
    let raised = set_thread_priority_and_policy(thread_native_id(), priority, policy);
    raised.map_err(|error| match error {
        Error::OS(number) => io::Error::from_raw_os_error(number),
        other => io::Error::other(other),
    })
}

/// Returns this thread to the usual priority.
pub(super) fn lower_this_thread() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    let _ = setpriority_process(None, 0);
}

/// Starts a thread of the usual priority.
///
/// # Errors
/// The reason why the system starts no thread. `work` is dropped.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let started = std::thread::Builder::new().spawn(move || {
        lower_this_thread();
        work();
    });
    started.map(drop).map_err(|error| {
        format!(
            "the system starts no thread: {error}; raise its limit of tasks (TasksMax, ulimit -u)"
        )
    })
}
