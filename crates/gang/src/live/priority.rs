//! Going before others: a daemon must not wait for a processor behind those that it is to stop.

use std::io;

use rustix::process::setpriority_process;
use thread_priority::{
    Error, NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority,
    ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// Before all that have no right to as much.
const NICE: i32 = -20;

/// Puts all threads that this one starts before others.
///
/// # Errors
/// The system's, without the right to it; they wait as all do then.
pub(super) fn raise_new_threads() -> io::Result<()> {
    Ok(setpriority_process(None, NICE)?)
}

/// Puts this thread before all that are not real-time ones. Its naps end when they should.
///
/// # Errors
/// The system's, without the right to it.
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

/// This thread waits as others do.
pub(super) fn lower_this_thread() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    let _ = setpriority_process(None, 0);
}

/// Starts a thread that waits as others do.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        lower_this_thread();
        work();
    });
}
