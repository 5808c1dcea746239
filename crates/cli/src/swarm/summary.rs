//! Sums up the results of all seeds, and prints them.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::fault::{FaultCounts, FaultKind};
use serde_json::json;

use crate::swarm::Arguments;
use crate::swarm::run::Outcome;
use midplane_kit::report::{print_json, say};

/// Most failed seeds that are printed.
const PRINTED: usize = 10;

/// Sums over all seeds.
#[derive(Debug)]
pub(crate) struct Summary {
    seeds: u64,
    virtual_ns: u128,
    events: u64,
    frames: u64,
    incidents: u64,
    control_messages: u64,
    messages: u64,
    fired: FaultCounts,
    digest: u64,
    /// Failed seeds with their complaints, in the order of seeds.
    pub(crate) failures: Vec<(u64, Vec<String>)>,
    began: Instant,
    limit: Option<Duration>,
    bar: ProgressBar,
}

impl Summary {
    #[expect(clippy::disallowed_methods, reason = "it measures the machine's time")]
    pub(crate) fn begin(arguments: &Arguments) -> Self {
        let bar = ProgressBar::new(arguments.seeds);
        let style = "{wide_bar} {pos}/{len} seeds, {msg} failed, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).expect("a fixed template"));
        bar.set_message("0");
        Self {
            seeds: 0,
            virtual_ns: 0,
            events: 0,
            frames: 0,
            incidents: 0,
            control_messages: 0,
            messages: 0,
            fired: FaultCounts::default(),
            digest: 0,
            failures: Vec::new(),
            began: Instant::now(),
            limit: arguments.seconds.map(Duration::from_secs),
            bar,
        }
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.virtual_ns += u128::from(outcome.virtual_ns);
        self.events += outcome.events;
        self.frames += outcome.frames;
        self.incidents += outcome.incidents;
        self.control_messages += outcome.control_messages;
        self.messages += outcome.messages;
        self.fired += outcome.fired;
        // A sum is the same in any order of seeds.
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.bar.inc(1);
        if !outcome.complaints.is_empty() {
            self.failures.push((outcome.seed, outcome.complaints));
            self.failures.sort_unstable();
            self.bar.set_message(self.failures.len().to_string());
        }
    }

    /// Returns true once `--seconds` have passed.
    pub(crate) fn is_late(&self) -> bool {
        self.limit.is_some_and(|limit| self.began.elapsed() > limit)
    }

    pub(crate) const fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    #[cfg(feature = "planted")]
    pub(crate) const fn seeds(&self) -> u64 {
        self.seeds
    }

    pub(crate) fn print(&self, as_json: bool) {
        self.bar.finish_and_clear();
        if as_json {
            return self.print_document();
        }
        let hours = self.virtual_ns as f64 / 3.6e12;
        say(&format!(
            "{} seeds, {hours:.3} virtual hours in {:.1} s: {} events, {} frames, {} control \
             messages and {} messages delivered, {} incidents with {} effects, digest {:016x}\n",
            self.seeds,
            self.began.elapsed().as_secs_f64(),
            self.events,
            self.frames,
            self.control_messages,
            self.messages,
            self.incidents,
            self.fired.total(),
            self.digest,
        ));
        let fired: Vec<_> = self.fired.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        say(&format!("Effects: {}\n", fired.join(", ")));
        let never = FaultKind::ALL.iter().filter(|kind| self.fired.of(**kind) == 0);
        let never: Vec<_> = never.map(|kind| kind.name()).collect();
        if !never.is_empty() {
            say(&format!("Without effect: {}\n", never.join(", ")));
        }
        for (seed, complaints) in self.failures.iter().take(PRINTED) {
            say(&format!("\nseed {seed} failed; to run it again: {}\n", replay(*seed, None)));
            complaints.iter().take(3).for_each(|what| say(&format!("  {what}\n")));
        }
        say(&format!("{} of {} seeds failed\n", self.failures.len(), self.seeds));
    }

    fn print_document(&self) {
        let fired: serde_json::Map<String, serde_json::Value> =
            self.fired.iter().map(|(kind, n)| (kind.name().to_owned(), n.into())).collect();
        let failures: Vec<_> = self
            .failures
            .iter()
            .map(|(seed, what)| json!({ "seed": seed, "complaints": what, "replay": replay(*seed, None) }))
            .collect();
        print_json(&json!({
            "seeds": self.seeds,
            "seconds": self.began.elapsed().as_secs_f64(),
            "virtual_hours": self.virtual_ns as f64 / 3.6e12,
            "events": self.events,
            "frames": self.frames,
            "incidents": self.incidents,
            "effects": fired,
            "control_messages": self.control_messages,
            "messages": self.messages,
            "digest": format!("{:016x}", self.digest),
            "failures": failures,
        }));
    }

    pub(crate) fn of(arguments: &Arguments, outcome: Outcome) -> Self {
        let mut summary = Self::begin(arguments);
        summary.add(outcome);
        summary
    }
}

/// Returns the command that runs a seed again.
pub(crate) fn replay(seed: u64, bug: Option<&str>) -> String {
    let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug}"));
    format!("midplane swarm --seed {seed}{plant}")
}
