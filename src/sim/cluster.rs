//! A running cluster: hosts in a world.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::lock::lock;
use midplane_simhw::services::{self, DatagramNic, HostError, Hosts, MAX_DATAGRAM};
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::time::{Instant, nanos};
use midplane_simhw::topology::Topology;

use super::builder::Nodes;
use super::script::{self, Action, Step};
use super::trace::{Plan, Trace};
use super::{HostEnd, Report, SimBuilder, SimError, Spec};
use crate::Node;

/// Most hosts of a simulation: each has an address of its own.
const MOST_HOSTS: usize = 60_000;

/// A running cluster.
pub(super) struct Cluster {
    world: World<DatagramNic>,
    hosts: Arc<Hosts>,
    specs: Arc<[Spec]>,
    nodes: Nodes,
    /// The remaining steps of the script, the last first.
    script: Vec<(Instant, Action<NodeId>)>,
    shared: Arc<Shared>,
    topology: Topology,
    /// The trace that has not begun.
    planned: Option<Plan>,
    trace: Option<Trace>,
}

/// State that the cluster and its hosts share.
#[derive(Debug, Default)]
struct Shared(Mutex<Ends>);

#[derive(Debug, Default)]
struct Ends {
    /// The clients whose code has not ended.
    waiting: BTreeSet<NodeId>,
    ended: Vec<(NodeId, Instant)>,
    failed: Option<(NodeId, Instant, HostError)>,
}

/// Starts the code of a host.
fn boot(host: &SimHost, hosts: &Arc<Hosts>, spec: &Spec, nodes: &Nodes, shared: &Arc<Shared>) {
    let (code, nodes, name) = (Arc::clone(&spec.code), nodes.clone(), spec.name.clone());
    let start = move || -> services::Main {
        Box::pin(async move {
            let node = nodes.configure(&name, Node::builder()).start().await?;
            code(node).await
        })
    };
    let (shared, clock, hosts) = (Arc::clone(shared), host.clone(), Arc::clone(hosts));
    let on_end = move |end| {
        let (node, now) = (clock.node(), clock.world_now());
        let mut ends = lock(&shared.0);
        match end {
            Err(error) => drop(ends.failed.get_or_insert((node, now, error))),
            Ok(()) => {
                ends.waiting.remove(&node);
                ends.ended.push((node, now));
            }
        }
    };
    host.spawn(services::run(host.clone(), hosts, MAX_DATAGRAM, start, on_end));
}

impl Cluster {
    pub(super) fn start(
        config: &SimBuilder,
        seed: u64,
        specs: &[Spec],
        steps: &[Step],
        planned: Option<Plan>,
    ) -> Result<Self, SimError> {
        check(specs, config)?;
        let mut topology = config.topology(specs.len() as u16);
        for (node, spec) in (0..).map(NodeId).zip(specs) {
            topology.name_host(node, &*spec.name);
        }
        let hosts = Hosts::new(specs.iter().map(|spec| spec.name.clone()).collect());
        let of_nics = Arc::clone(&hosts);
        let nic = move |_, _| DatagramNic::new(Arc::clone(&of_nics));
        let mut world = World::new(&topology, config.nic(), seed, nic);
        world.set_faults(config.faults);
        if config.host != midplane_simhw::profile::HostProfile::FREE {
            world.set_hosts(config.host);
        }
        let mut script = Vec::new();
        for step in steps {
            let (at, action) = step.resolve(&hosts)?;
            let incidents = script::incidents(at, &action, &topology);
            if incidents.is_empty() {
                script.push((at, action));
            }
            incidents.into_iter().for_each(|incident| world.schedule(incident));
        }
        // Steps are popped from the end; of those at one time, the first added comes first.
        script.reverse();
        script.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let shared = Arc::<Shared>::default();
        let clients = (0..).map(NodeId).zip(specs).filter(|(_, spec)| spec.is_client);
        lock(&shared.0).waiting = clients.map(|(node, _)| node).collect();
        let specs: Arc<[Spec]> = specs.into();
        for (node, spec) in (0..).map(NodeId).zip(&*specs) {
            boot(&world.host(node), &hosts, spec, &config.nodes, &shared);
        }
        let nodes = config.nodes.clone();
        let booting = (Arc::clone(&specs), Arc::clone(&hosts), nodes.clone(), Arc::clone(&shared));
        world.on_boot(move |host| {
            let (specs, hosts, nodes, shared) = &booting;
            boot(&host, hosts, &specs[host.node().index()], nodes, shared);
        });
        Ok(Self { world, hosts, specs, nodes, script, shared, topology, planned, trace: None })
    }

    /// Returns the virtual time.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.now().as_nanos())
    }

    /// Runs until this time; returns `true` at once when the code of all clients has ended.
    pub(super) fn run(&mut self, until: Duration) -> Result<bool, SimError> {
        if let Some(plan) = self.planned.take() {
            if plan.from > Duration::ZERO && self.advance(plan.from.min(until))? {
                return Ok(true);
            }
            let trace = Trace::create(&plan, &self.topology)?;
            self.world.observe(trace.observer(Arc::clone(&self.hosts)));
            self.trace = Some(trace);
        }
        let _entered = self.trace.as_ref().map(Trace::enter);
        self.advance(until)
    }

    fn advance(&mut self, until: Duration) -> Result<bool, SimError> {
        let until = Instant::from_nanos(nanos(until));
        let has_clients = self.specs.iter().any(|spec| spec.is_client);
        let shared = Arc::clone(&self.shared);
        let goes_on = || {
            let ends = lock(&shared.0);
            ends.failed.is_none() && (!ends.waiting.is_empty() || !has_clients)
        };
        loop {
            let next = self.script.last().map(|(at, _)| *at).filter(|at| *at <= until);
            let reached = self.world.run_while(next.unwrap_or(until), goes_on) && goes_on();
            let failed = lock(&self.shared.0).failed.take();
            if let Some((node, at, error)) = failed {
                return Err(self.failed(node, at, &error));
            }
            if !reached {
                return Ok(true);
            }
            self.world.run_until(next.unwrap_or(until));
            if next.is_none() {
                return Ok(false);
            }
            if let Some((_, action)) = self.script.pop() {
                self.act(action);
            }
        }
    }

    /// Completes the trace, if there is one, and returns its path without extensions.
    fn end_trace(&mut self) -> Result<Option<PathBuf>, SimError> {
        let now = self.world.now();
        self.trace.take().map(|trace| trace.finish(now)).transpose()
    }

    /// Completes the trace of a failed run, and returns its path without extensions. Prints the trace's error, because
    /// the run returns its own.
    fn end_failed_trace(&mut self) -> Option<PathBuf> {
        self.end_trace().unwrap_or_else(|error| {
            eprintln!("{error}");
            None
        })
    }

    fn failed(&mut self, node: NodeId, at: Instant, error: &HostError) -> SimError {
        let host = self.specs[node.index()].name.clone();
        let time = Duration::from_nanos(at.as_nanos());
        SimError::Host { host, time, why: error.to_string(), trace: self.end_failed_trace() }
    }

    fn act(&mut self, action: Action<NodeId>) {
        match action {
            Action::Crash(node) => {
                self.world.crash(node);
                let mut later = self.script.iter().map(|(_, action)| action);
                if !later.any(|action| matches!(action, Action::Restart(of) if *of == node)) {
                    lock(&self.shared.0).waiting.remove(&node);
                }
            }
            Action::Restart(node) => {
                self.world.crash(node);
                self.world.restart(node);
                let (host, spec) = (self.world.host(node), &self.specs[node.index()]);
                if spec.is_client {
                    lock(&self.shared.0).waiting.insert(node);
                }
                boot(&host, &self.hosts, spec, &self.nodes, &self.shared);
            }
            Action::Partition(a, b) => self.world.cut(a, b),
            Action::Heal(a, b) => self.world.heal(a, b),
            // The world handles these as incidents.
            Action::Pause(..) | Action::Loss(..) | Action::Slow(..) | Action::Fault(..) => {}
        }
    }

    /// Returns the error of clients that have not ended in time.
    pub(super) fn time_is_over(&mut self, limit: Duration) -> SimError {
        let trace = self.end_failed_trace();
        let ends = lock(&self.shared.0);
        let name = |node: &NodeId| self.specs[node.index()].name.clone();
        let waiting = ends.waiting.iter().map(name).collect();
        SimError::Time { limit, waiting, trace }
    }

    /// Returns the report; completes the trace if the run `is_over`.
    ///
    /// # Errors
    /// [`SimError::SetUp`] if the trace can't be written.
    pub(super) fn report(&mut self, is_over: bool) -> Result<Report, SimError> {
        let trace = if is_over { self.end_trace()? } else { None };
        let traffic = self.world.traffic();
        let of_hosts = self.hosts.drops();
        let mut drops = traffic.drops;
        drops += of_hosts;
        let end = |(node, at): &(NodeId, Instant)| HostEnd {
            host: self.specs[node.index()].name.clone(),
            time: Duration::from_nanos(at.as_nanos()),
        };
        Ok(Report {
            time: self.elapsed(),
            digest: self.world.digest(),
            events: self.world.events(),
            sent: traffic.sent,
            delivered: traffic.delivered - of_hosts.total(),
            drops,
            faults: *self.world.faults_fired(),
            ended: lock(&self.shared.0).ended.iter().map(end).collect(),
            trace,
        })
    }
}

/// Checks the requirements of a simulation.
fn check(specs: &[Spec], config: &SimBuilder) -> Result<(), SimError> {
    if specs.is_empty() || specs.len() > MOST_HOSTS {
        let text = format!(
            "a simulation has 1 to {MOST_HOSTS} hosts, not {}: call `Sim::host`",
            specs.len()
        );
        return Err(SimError::SetUp(text));
    }
    let mut names = BTreeSet::new();
    for spec in specs {
        if !names.insert(&spec.name) {
            return Err(SimError::SetUp(format!("two hosts are called {:?}", spec.name)));
        }
    }
    if !(0.0..=1.0).contains(&config.faults.loss) {
        let text = format!("the loss is a probability of 0 to 1, not {}", config.faults.loss);
        return Err(SimError::SetUp(text));
    }
    Ok(())
}
