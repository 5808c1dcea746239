//! Runs many seeds with random faults, and minimizes the faults of a failing seed.

use std::time::Duration;

use midplane_simhw::fault::{Chaos, FaultKind, Incident};
use midplane_simhw::services::{Hosts, without_panic_messages};

use super::alone::alone;
use super::script::Step;
use super::trace::Plan;
use super::{Action, Report, Sim, SimBuilder, SimError};

/// The kinds of faults that a swarm draws: those that a service is expected to survive.
const KINDS: [FaultKind; 22] = [
    FaultKind::Loss,
    FaultKind::BurstLoss,
    FaultKind::Corrupt,
    FaultKind::Truncate,
    FaultKind::Duplicate,
    FaultKind::Reorder,
    FaultKind::DelaySpike,
    FaultKind::SlowPair,
    FaultKind::RateChange,
    FaultKind::Flap,
    FaultKind::OneWay,
    FaultKind::Partition,
    FaultKind::QueueShrink,
    FaultKind::PortStuck,
    FaultKind::SwitchReboot,
    FaultKind::NicReset,
    FaultKind::InterruptLate,
    FaultKind::Pause,
    FaultKind::SlowHost,
    FaultKind::ProcessExit,
    FaultKind::Crash,
    FaultKind::ClockDrift,
];
/// Most faults of one seed.
const MOST: u64 = 8;

impl SimBuilder {
    /// Runs the simulation that `set_up` adds with `seeds` seeds from the [configured one](SimBuilder::seed) on. Each
    /// seed draws other faults that begin before the virtual time `within`: lost, late and duplicated packets,
    /// partitions, crashes with a restart (of clients as well), pauses, clock drift. `set_up` must create all state
    /// that its hosts share, and may add faults of its own to the script. [`Fault`](midplane_simhw::fault::Fault) explains
    /// each. Returns the report of the last seed.
    ///
    /// With `MIDPLANE_SEED` in the environment, only that seed is run.
    ///
    /// # Errors
    /// [`SimError::Swarm`] for the first seed that fails, with the fewest of its faults that still fail, and the
    /// [trace](SimBuilder::trace) of their last 10 s.
    pub fn swarm(
        self,
        seeds: u64,
        within: Duration,
        set_up: impl Fn(&mut Sim) + Sync,
    ) -> Result<Report, SimError> {
        let seeds = match Self::replayed() {
            Some(seed) => seed..=seed,
            None => self.seed..=self.seed.saturating_add(seeds.max(1) - 1),
        };
        let mut last = None;
        for seed in seeds {
            let faults = self.draw(seed, within, &set_up)?;
            match self.run_with(seed, &faults, None, &set_up) {
                Ok(report) => last = Some(report),
                Err(error @ SimError::SetUp(_)) => return Err(error),
                Err(error) => return Err(self.minimised(seed, faults, error, &set_up)),
            }
        }
        Ok(last.expect("there was a seed"))
    }

    /// Draws the faults of a seed.
    fn draw(
        &self,
        seed: u64,
        within: Duration,
        set_up: &(impl Fn(&mut Sim) + Sync),
    ) -> Result<Vec<Incident>, SimError> {
        let mut sim = self.clone().build_with(seed);
        set_up(&mut sim);
        let Ok(hosts @ 1..) = u16::try_from(sim.specs.len()) else {
            return Err(SimError::SetUp("a simulation needs a host: call `Sim::host`".into()));
        };
        let chaos = Chaos {
            kinds: KINDS.to_vec(),
            incidents: (1 + seed % MOST) as usize,
            within,
            longest: within,
            delay: Duration::from_millis(20),
            ppm: 1_000,
        };
        Ok(chaos.script(&self.topology(hosts), seed))
    }

    fn run_with(
        &self,
        seed: u64,
        faults: &[Incident],
        plan: Option<Plan>,
        set_up: &(impl Fn(&mut Sim) + Sync),
    ) -> Result<Report, SimError> {
        let run = || {
            let mut sim = self.clone().build_with(seed);
            sim.trace = sim.trace.or(plan);
            set_up(&mut sim);
            sim.script.extend(faults.iter().map(|incident| Step {
                time: Duration::from_nanos(incident.at.as_nanos()),
                action: Action::Fault(incident.fault, incident.lasts),
            }));
            sim.run()
        };
        alone(seed, || without_panic_messages(run))
    }

    /// Removes each fault without which the seed still fails.
    fn minimised(
        &self,
        seed: u64,
        mut faults: Vec<Incident>,
        mut error: SimError,
        set_up: &(impl Fn(&mut Sim) + Sync),
    ) -> SimError {
        let mut at = 0;
        while at < faults.len() {
            let mut fewer = faults.clone();
            fewer.remove(at);
            match self.run_with(seed, &fewer, None, set_up) {
                Err(other) => (faults, error) = (fewer, other),
                Ok(_) => at += 1,
            }
        }
        let error = error.traced(seed, |plan| self.run_with(seed, &faults, Some(plan), set_up));
        let mut sim = self.clone().build_with(seed);
        set_up(&mut sim);
        let hosts = Hosts::new(sim.specs.iter().map(|spec| spec.name.clone()).collect());
        let script = faults.iter().map(|incident| shown(incident, &hosts)).collect();
        SimError::Swarm { seed, script, error: Box::new(error) }
    }
}

/// Returns the text of a fault, with the names of its hosts.
fn shown(incident: &Incident, hosts: &Hosts) -> String {
    let at = Duration::from_nanos(incident.at.as_nanos());
    let mut fault = format!("{:?}", incident.fault);
    for (node, name) in hosts.nodes().zip(hosts.names()) {
        fault = fault.replace(&format!("{node:?}"), name);
    }
    format!("at {at:?} for {:?}: {fault}", incident.lasts)
}
