//! Data that arrives from outside for jobs: input at the root, and frames at the ports of suspended ranks.

use midplane_simhw::time::Instant;

use super::NodeCore;
use super::message::Up;
use crate::names::JobId;

impl NodeCore {
    /// Takes the notice that input has arrived for a job, on the root.
    pub(crate) fn handle_input(&mut self, now: Instant, job: JobId) {
        if let Some(manager) = &mut self.manager {
            manager.arrived(job);
        }
        self.settle(now);
    }

    /// Takes the notice that data has arrived on this host's NIC for a suspended job, and reports it to the root: once for
    /// each suspension, and only of jobs that want to be woken.
    pub(crate) fn handle_arrival(&mut self, now: Instant, job: JobId) {
        if self.agent.note_arrival(job) {
            self.up(now, Up::Arrived { host: self.config.host, job });
        }
        self.settle(now);
    }
}
