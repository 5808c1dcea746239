//! The root's record of a job.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::barrier::Barrier;
use super::checking::Checks;
use super::saving::Saves;
use crate::node_core::message::ClientId;
use crate::node_core::replica::{Entry, Stage};

/// A job, and its client.
#[derive(Debug)]
pub(super) struct Job {
    /// `None` while the job's client has not found this root.
    pub(super) client: Option<ClientId>,
    /// The job as the other daemons have stored it, except for times and preemptions since the last change.
    pub(super) entry: Entry,
    /// The host of each rank.
    pub(super) hosts: Vec<u16>,
    /// Hosts whose ranks' output may be incomplete.
    pub(super) open: BTreeSet<u16>,
    pub(super) is_launched: bool,
    /// True if a host could not start the job, so that none of its ranks runs.
    pub(super) is_refused: bool,
    /// True if the job was removed from all hosts.
    pub(super) is_removed: bool,
    /// When the job's streams are closed, even if output is missing.
    pub(super) linger_until: Option<Instant>,
    pub(super) admitted_at: Instant,
    /// The job's age when this root took over.
    pub(super) earlier: Duration,
    pub(super) ran: Duration,
    pub(super) runs_since: Option<Instant>,
    /// Preemptions in which the job's interfaces stayed on their NICs, and the last reason.
    pub(super) stayed: u32,
    pub(super) why_stayed: Option<String>,
    pub(super) barrier: Barrier,
    pub(super) checks: Checks,
    pub(super) saves: Saves,
}

impl Job {
    /// Creates the record of a job on these hosts. Another root may have admitted the job.
    pub(super) fn new(
        now: Instant,
        client: Option<ClientId>,
        entry: Entry,
        hosts: Vec<u16>,
    ) -> Self {
        let [earlier, ran] = entry.seconds.map(Duration::from_secs_f64);
        Self {
            client,
            open: hosts.iter().copied().collect(),
            hosts,
            is_launched: entry.stage != Stage::Admitted,
            entry,
            is_refused: false,
            is_removed: false,
            linger_until: None,
            admitted_at: now,
            earlier,
            ran,
            runs_since: None,
            stayed: 0,
            why_stayed: None,
            barrier: Barrier::default(),
            checks: Checks::default(),
            saves: Saves::default(),
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        self.earlier + Duration::from_nanos(now.nanos_since(self.admitted_at))
    }

    pub(super) fn ran(&self, now: Instant) -> Duration {
        let since = |began| Duration::from_nanos(now.nanos_since(began));
        self.ran + self.runs_since.map_or(Duration::ZERO, since)
    }

    pub(super) fn pause(&mut self, at: Instant) {
        self.ran = self.ran(at);
        self.runs_since = None;
    }
}
