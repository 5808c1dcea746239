//! Scripts of faults, by the names of hosts.

use std::time::Duration;

use midplane_simhw::fault::{Fault, Incident};
use midplane_simhw::id::NodeId;
use midplane_simhw::services::Hosts;
use midplane_simhw::time::{Instant, nanos};
use midplane_simhw::topology::Topology;

use super::SimError;

/// An action and its time.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) time: Duration,
    pub(super) action: Action<String>,
}

/// A change of hosts, by name or number, or of the network.
#[derive(Clone, Debug)]
pub(super) enum Action<H> {
    Crash(H),
    Restart(H),
    Partition(H, H),
    Heal(H, H),
    Pause(H, Duration),
    Loss(H, f64, Duration),
    Slow(H, u8, Duration),
    Fault(Fault, Duration),
}

/// An entry of a script: the actions at one time of the run.
#[derive(Debug)]
pub struct At<'a> {
    script: &'a mut Vec<Step>,
    time: Duration,
}

impl<'a> At<'a> {
    pub(super) const fn new(script: &'a mut Vec<Step>, time: Duration) -> Self {
        Self { script, time }
    }

    fn add(self, action: Action<String>) -> Self {
        self.script.push(Step { time: self.time, action });
        self
    }

    /// Crashes a host, as a loss of power does: its code ends at once, packets to it are lost, and its peers get neither
    /// FIN nor RST. It stays down until it is [restarted](At::restart), even if a fault of the model has crashed it before
    /// for a time.
    pub fn crash(self, host: &str) -> Self {
        self.add(Action::Crash(host.into()))
    }

    /// Restarts a host after a crash, or after the end of its code. Its code runs anew.
    pub fn restart(self, host: &str) -> Self {
        self.add(Action::Restart(host.into()))
    }

    /// Loses all packets between two hosts, until they are [healed](At::heal).
    pub fn partition(self, a: &str, b: &str) -> Self {
        self.add(Action::Partition(a.into(), b.into()))
    }

    /// Ends the partition of two hosts.
    pub fn heal(self, a: &str, b: &str) -> Self {
        self.add(Action::Heal(a.into(), b.into()))
    }

    /// Suspends a host's code for a time. Its NIC still receives.
    pub fn pause(self, host: &str, time: Duration) -> Self {
        self.add(Action::Pause(host.into(), time))
    }

    /// Loses each packet to and from a host with this probability, from 0 to 1, for a time.
    pub fn loss(self, host: &str, probability: f64, time: Duration) -> Self {
        self.add(Action::Loss(host.into(), probability, time))
    }

    /// Slows a host's link to this percentage of its rate, 1 to 100, for a time.
    pub fn slow_link(self, host: &str, percent: u8, time: Duration) -> Self {
        self.add(Action::Slow(host.into(), percent.clamp(1, 100), time))
    }

    /// Injects any of the model's [faults](midplane_simhw::fault) for a time. Hosts are numbered from 0 in the order in
    /// which they were added, clients included. If all are at one switch, as by default, link 2 i leaves host i, and link
    /// 2 i + 1 leads to it. A [`Fault::ProcessExit`] is as silent as a [crash](At::crash).
    ///
    /// [`Sim::run`](super::Sim::run) panics if there is no such host, link or switch, a probability is not from 0 to 1,
    /// or a period is zero.
    pub fn fault(self, fault: Fault, time: Duration) -> Self {
        self.add(Action::Fault(fault, time))
    }
}

impl Step {
    /// Replaces the names of hosts by their numbers.
    pub(super) fn resolve(&self, hosts: &Hosts) -> Result<(Instant, Action<NodeId>), SimError> {
        let find = |name: &String| {
            hosts.node(name).ok_or_else(|| {
                let names = hosts.names().collect::<Vec<_>>().join(", ");
                SimError::SetUp(format!("the script names a host {name:?}; there are {names}"))
            })
        };
        let action = match &self.action {
            Action::Crash(host) => Action::Crash(find(host)?),
            Action::Restart(host) => Action::Restart(find(host)?),
            Action::Partition(a, b) => Action::Partition(find(a)?, find(b)?),
            Action::Heal(a, b) => Action::Heal(find(a)?, find(b)?),
            Action::Pause(host, time) => Action::Pause(find(host)?, *time),
            Action::Loss(host, probability, time) => {
                if !(0.0..=1.0).contains(probability) {
                    let text = format!(
                        "the script loses packets with probability {probability}: it is 0 to 1"
                    );
                    return Err(SimError::SetUp(text));
                }
                Action::Loss(find(host)?, *probability, *time)
            }
            Action::Slow(host, percent, time) => Action::Slow(find(host)?, *percent, *time),
            Action::Fault(fault, time) => Action::Fault(*fault, *time),
        };
        Ok((Instant::from_nanos(nanos(self.time)), action))
    }
}

/// Returns the incidents of an action that the world can inject by itself; none for other actions.
pub(super) fn incidents(
    at: Instant,
    action: &Action<NodeId>,
    topology: &Topology,
) -> Vec<Incident> {
    let both = |node: NodeId| [topology.uplink(node), topology.downlink(node)];
    match *action {
        Action::Pause(node, lasts) => vec![Incident { at, lasts, fault: Fault::Pause { node } }],
        Action::Loss(node, probability, lasts) => both(node)
            .map(|link| Incident { at, lasts, fault: Fault::Loss { link, probability } })
            .into(),
        Action::Slow(node, percent, lasts) => both(node)
            .map(|link| Incident { at, lasts, fault: Fault::RateChange { link, percent } })
            .into(),
        Action::Fault(fault, lasts) => vec![Incident { at, lasts, fault }],
        Action::Crash(_) | Action::Restart(_) | Action::Partition(..) | Action::Heal(..) => vec![],
    }
}
