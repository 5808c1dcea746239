//! Sums up the results of all seeds, and prints them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use indicatif::ProgressBar;
use midplane::simhw::fault::{FaultCounts, FaultKind};
use midplane_kit::report;
use serde::Serialize;

use super::run::Outcome;

/// Most failed seeds that are printed.
const PRINTED: usize = 10;

/// Sums over all seeds.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) seeds: u64,
    /// Counts of all seeds. The sum of digests is the same in any order of seeds.
    sums: Outcome,
    /// Failed seeds with their complaints, in the order of seeds.
    pub(crate) failures: Vec<(u64, Vec<String>)>,
    /// True if a signal has stopped the run.
    pub(crate) is_stopped: bool,
    began: Instant,
    bar: ProgressBar,
    /// True if the bar shows the seconds, false if it shows the seeds.
    is_timed: bool,
}

/// Results of all seeds, as printed at the end.
#[derive(Serialize)]
struct Document {
    seeds: u64,
    seconds: f64,
    virtual_hours: f64,
    events: u64,
    frames: u64,
    incidents: u64,
    effects: BTreeMap<&'static str, u64>,
    control_messages: u64,
    messages: u64,
    digest: String,
    stopped: bool,
    failures: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    seed: u64,
    complaints: Vec<String>,
    replay: String,
}

impl Summary {
    #[expect(clippy::disallowed_methods, reason = "it measures the machine's time")]
    pub(crate) fn begin(seeds: u64, seconds: Option<u64>) -> Self {
        let template = match seconds {
            Some(_) => "{wide_bar} {pos}/{len} s, {msg} failed",
            None => "{wide_bar} {pos}/{len} seeds, {msg} failed, {eta} left",
        };
        let bar = report::progress(seconds.unwrap_or(seeds) as usize, template).with_message("0");
        Self {
            seeds: 0,
            sums: Outcome::default(),
            failures: Vec::new(),
            is_stopped: false,
            began: Instant::now(),
            bar,
            is_timed: seconds.is_some(),
        }
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.sums += &outcome;
        if self.is_timed {
            self.bar.set_position(self.began.elapsed().as_secs());
        } else {
            self.bar.inc(1);
        }
        if !outcome.complaints.is_empty() {
            self.failures.push((outcome.seed, outcome.complaints));
            self.failures.sort_unstable();
            self.bar.set_message(self.failures.len().to_string());
        }
    }

    pub(crate) const fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    pub(crate) fn print(&self, json: bool) {
        self.bar.finish_and_clear();
        report::print_document(json, &self.document(), |document| text(document, &self.sums.fired));
    }

    fn document(&self) -> Document {
        let failed = |(seed, complaints): &(u64, Vec<String>)| Failed {
            seed: *seed,
            complaints: complaints.clone(),
            replay: replay(*seed, None),
        };
        Document {
            seeds: self.seeds,
            seconds: self.began.elapsed().as_secs_f64(),
            virtual_hours: self.sums.virtual_ns as f64 / 3.6e12,
            events: self.sums.events,
            frames: self.sums.frames,
            incidents: self.sums.incidents,
            effects: self.sums.fired.iter().map(|(kind, count)| (kind.name(), count)).collect(),
            control_messages: self.sums.control_messages,
            messages: self.sums.messages,
            digest: format!("{:016x}", self.sums.digest),
            stopped: self.is_stopped,
            failures: self.failures.iter().map(failed).collect(),
        }
    }
}

fn text(of: &Document, fired: &FaultCounts) -> String {
    let mut text = format!(
        "{} seeds, {:.3} virtual hours in {:.1} s: {} events, {} frames, {} control messages and {} messages delivered, \
         {} incidents with {} effects, digest {}\n",
        of.seeds,
        of.virtual_hours,
        of.seconds,
        of.events,
        of.frames,
        of.control_messages,
        of.messages,
        of.incidents,
        fired.total(),
        of.digest,
    );
    let counts: Vec<_> = fired.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let _ = writeln!(text, "Effects: {}", counts.join(", "));
    let never = FaultKind::ALL.iter().filter(|kind| fired.of(**kind) == 0);
    let never: Vec<_> = never.map(|kind| kind.name()).collect();
    if !never.is_empty() {
        let _ = writeln!(text, "Without effect: {}", never.join(", "));
    }
    for Failed { seed, complaints, replay } in of.failures.iter().take(PRINTED) {
        let _ = writeln!(text, "\nseed {seed} failed; to run it again: {replay}");
        complaints.iter().take(3).for_each(|what| text += &format!("  {what}\n"));
    }
    if let Some(more @ 1..) = of.failures.len().checked_sub(PRINTED) {
        let _ = writeln!(text, "\n{more} more seeds failed; --json prints them");
    }
    if of.stopped {
        text += "stopped by a signal\n";
    }
    text + &format!("{} of {} seeds failed\n", of.failures.len(), of.seeds)
}

/// Returns the command that runs a seed again.
pub(crate) fn replay(seed: u64, bug: Option<&str>) -> String {
    let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug}"));
    format!("midplane swarm --seed {seed}{plant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_seeds_that_are_not_printed_are_counted() {
        let mut summary = Summary::begin(12, None);
        for seed in 0..12 {
            summary.add(Outcome { seed, complaints: vec!["lost".into()], ..Outcome::default() });
        }
        let text = text(&summary.document(), &summary.sums.fired);
        assert!(
            text.ends_with("\n2 more seeds failed; --json prints them\n12 of 12 seeds failed\n"),
            "{text}"
        );
    }
}
