//! Going before others: a daemon must not wait for a processor behind those that it is to stop.

use rustix::process::setpriority_process;
use thread_priority::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Before all that have no right to as much.
const NICE: i32 = -20;

/// Puts all threads that this one starts before others; without the right to it, they wait as all do.
pub(super) fn raise_new_threads() {
    let _ = setpriority_process(None, NICE);
}

/// Puts this thread before all that are not real-time ones. Its naps end when they should.
pub(super) fn raise_this_thread() {
    let Ok(lowest) = 1_u8.try_into() else { return };
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriority::Crossplatform(lowest);
    let _ = set_thread_priority_and_policy(thread_native_id(), priority, policy);
}

/// This thread waits as others do.
pub(super) fn lower_this_thread() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    let _ = setpriority_process(None, 0);
}
