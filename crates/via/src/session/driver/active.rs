//! A session that a driver polls, the turns that it waits for its tasks, and the processor on which it polls.

use std::sync::Arc;

use tokio::time::Instant;

use super::reading::Reading;
use crate::session::core::Core;
use crate::session::{Session, TransportKind};

/// Turns without work after a frame, before the driver lets a peer run that waits for this processor: the tasks that the
/// frame has woken, and those that they wake, may write an answer. Once each frame has one, it lets the peer run at once.
pub(super) const PATIENCE: u32 = 4;

/// A session that is polled.
pub(super) struct Active {
    pub(super) session: Arc<Session>,
    /// The time when its last frame was handled.
    pub(super) last: Instant,
    /// Turns since then that handled no frame.
    pub(super) idle_turns: u32,
    /// Such turns before the peer is let run, or the driver parks.
    pub(super) patience: u32,
    /// Frames that were handled, and writes, by the last turn.
    handled: u64,
    written: u64,
    /// True if no frame, and no part of one, was handled in the last turn.
    pub(super) has_rested: bool,
    /// Handled frames that no write has followed since the peer was last let run.
    pub(super) unanswered: u64,
    reading: Reading,
}

impl Active {
    pub(super) fn new(session: Arc<Session>) -> Self {
        let now = Instant::now();
        let (handled, written) = {
            let core = session.lock();
            (core.handled, core.written)
        };
        Self {
            session,
            last: now,
            idle_turns: 0,
            patience: 0,
            handled,
            written,
            has_rested: false,
            unanswered: 0,
            reading: Reading::new(now),
        }
    }

    /// Handles received frames, except those that are left to their readers; returns whether there were any.
    pub(super) fn pump(&mut self, core: &mut Core, now: Instant, is_simulated: bool) -> bool {
        let is_woken = core.wake_reader();
        let any = is_woken || core.pump(None);
        let is_late = self.reading.is_late(core, now, is_woken, is_simulated);
        if is_late && !any {
            core.stop_leaving_frames();
            return core.pump(None);
        }
        any
    }

    /// Counts the frames and writes since the last turn. Once as many writes as frames have followed, the peer need not
    /// wait for more. Returns whether data of several streams have arrived over the network in this turn.
    pub(super) fn count(&mut self, core: &mut Core) -> bool {
        let handled = core.handled.wrapping_sub(self.handled);
        let written = core.written.wrapping_sub(self.written);
        (self.handled, self.written) = (core.handled, core.written);
        self.has_rested = handled == 0;
        self.unanswered = (self.unanswered + handled).saturating_sub(written);
        if written > 0 && self.unanswered == 0 {
            self.patience = 0;
        }
        core.end_turn() && self.session.transport() != TransportKind::Shm
    }
}

/// Returns the processor that this thread runs on; without rings, none needs it.
pub(super) fn processor() -> usize {
    #[cfg(target_os = "linux")]
    return rustix::thread::sched_getcpu();
    #[cfg(not(target_os = "linux"))]
    0
}

impl std::fmt::Debug for Active {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active").field("session", &self.session.number).finish_non_exhaustive()
    }
}
