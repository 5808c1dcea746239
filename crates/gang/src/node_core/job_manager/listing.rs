//! Reports of the cluster's state and of the last switches.

use std::time::Duration;

use midplane_simhw::time::Instant;

use super::{Job, JobManager};
use crate::names::JobId;
use crate::node_core::message::{Line, Listing, Slice};
use crate::scheduler_core::Switch;

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl JobManager {
    /// Returns the state of the cluster, as [`Listing`].
    pub(crate) fn listing(&self, now: Instant) -> Listing {
        let line = |(job, it): (&JobId, &Job)| Line {
            job: *job,
            user: it.entry.launch.user.name.clone(),
            slots: (it.entry.launch.first, it.entry.launch.first + it.entry.launch.nodes),
            weight: it.entry.weight,
            runs: it.runs_since.is_some(),
            ended: it.entry.ends.iter().flatten().count() as u16,
            preemptions: it.entry.preemptions,
            stayed: it.stayed,
            why_stayed: it.why_stayed.clone(),
            seconds: it.age(now).as_secs_f64(),
            run_seconds: it.ran(now).as_secs_f64(),
            memory: it.entry.launch.program.memory,
            command: it.entry.launch.program.shown(),
            stuck: it.checks.found.clone(),
        };
        Listing {
            hosts: (0..self.cluster.hosts).map(|host| self.hosts.contains(&host)).collect(),
            root: self.host,
            slots: self.cluster.slots,
            slice_ms: self.scheduler_core.config.slice.as_secs_f64() * 1e3,
            switches: self.switch_count,
            freeze_us: self.quantiles(|switch| switch.freeze),
            switch_us: self.quantiles(Switch::took),
            jobs: self.jobs.iter().map(line).collect(),
        }
    }

    /// Returns the median and the 99th percentile of a duration over the remembered switches that stopped a job, in
    /// microseconds.
    fn quantiles(&self, of: impl Fn(&Switch) -> Duration) -> [f64; 2] {
        let real = self.switches.iter().filter(|(switch, _)| !switch.stopped.is_empty());
        let mut all: Vec<f64> = real.map(|(switch, _)| micros(of(switch))).collect();
        all.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|part| {
            let at = (all.len() as f64 * part) as usize;
            all.get(at.min(all.len().saturating_sub(1))).copied().unwrap_or(0.0)
        })
    }

    /// Returns the remembered switches.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        let slice = |(switch, running): &(Switch, Vec<JobId>)| Slice {
            at_us: switch.at.nanos_since(Instant::ZERO) as f64 / 1e3,
            freeze_us: micros(switch.freeze),
            save_us: micros(switch.save),
            restore_us: micros(switch.restore),
            switch_us: micros(switch.took()),
            stopped: switch.stopped.clone(),
            running: running.clone(),
        };
        self.switches.iter().map(slice).collect()
    }
}
