//! Reports of the cluster's state and of the last switches.

use std::time::Duration;

use midplane_simhw::time::Instant;

use super::{Job, JobManager};
use crate::names::JobId;
use crate::node_core::message::{Line, Listing, Slice};
use crate::scheduler_core::Switch;

/// Most characters of a job's command in a listing, which is one message.
const COMMAND: usize = 200;
/// Most bytes of the switches that are reported in one message.
const MOST_BYTES: usize = 4 << 20;

/// Returns the beginning of a command.
fn beginning(command: &str) -> String {
    match command.char_indices().nth(COMMAND) {
        Some((end, _)) => format!("{} ...", &command[..end]),
        None => command.to_owned(),
    }
}

/// Returns the bytes of an encoded slice: five numbers, and two lists of jobs with their lengths.
const fn bytes_of(slice: &Slice) -> usize {
    5 * 8 + 2 * 8 + 4 * (slice.stopped.len() + slice.running.len())
}

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
            seconds: it.age(now).as_secs_f64(),
            run_seconds: it.ran(now).as_secs_f64(),
            memory: it.entry.launch.program.memory,
            command: beginning(&it.entry.launch.program.shown()),
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

    /// Returns the remembered switches, but no more of the last ones than fit into a message.
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
        let mut bytes = 0;
        let fits = |slice: &Slice| {
            bytes += bytes_of(slice);
            bytes <= MOST_BYTES
        };
        let mut last: Vec<Slice> = self.switches.iter().rev().map(slice).take_while(fits).collect();
        last.reverse();
        last
    }
}

#[cfg(test)]
mod tests {
    use midplane_simhw::wire;

    use super::*;
    use crate::node_core::message::{Cluster, Program, Reply};
    use crate::node_core::tests::root_config;
    use crate::node_core::user::{Caller, User};
    use crate::schedule::Request;

    fn root() -> JobManager {
        JobManager::new(Cluster { hosts: 1, slots: 1, arity: 2 }, root_config(1))
    }

    /// Regression: both replies were longer than a message, and clients reported that the daemon was gone.
    #[test]
    fn listings_and_switches_fit_into_a_message() {
        let mut root = root();
        let command = vec![b"sh".to_vec(), "ä".repeat(1 << 20).into_bytes()];
        let caller = Caller { client: 1, user: User::default() };
        let request = (Request { nodes: 1, weight: 1 }, 1);
        let program = Program { command, ..Program::default() };
        root.admit(Instant::ZERO, caller, request, (program, false)).unwrap();
        let shown = root.listing(Instant::ZERO).jobs.remove(0).command;
        assert!(shown.starts_with("sh ä") && shown.ends_with("ä ..."), "{shown}");
        assert_eq!(shown.chars().count(), COMMAND + 4);

        let switch = |number: u64| Switch {
            at: Instant::from_nanos(number * 1_000),
            freeze: Duration::ZERO,
            save: Duration::ZERO,
            restore: Duration::ZERO,
            run: Duration::ZERO,
            stopped: vec![JobId(1); 300],
            started: Vec::new(),
        };
        root.switches = (0..4_096).map(|number| (switch(number), vec![JobId(2); 300])).collect();
        let slices = root.slices();
        assert_eq!(slices.last().map(|slice| slice.at_us), Some(4_095.0));
        let bytes = wire::encode_long(&Reply::Slices(slices)).unwrap().len();
        assert!((MOST_BYTES - 5_000..MOST_BYTES + 100).contains(&bytes), "{bytes}");
    }
}
