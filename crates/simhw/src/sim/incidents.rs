//! Injected failures: crashes, restarts, partitions, faults, and scripts of them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::World;
use super::active_faults::CompletionFault;
use super::clock::Clock;
use super::event_queue::{Event, Phase};
use super::executor::SimHost;
use super::nic::Work;
use crate::drops::DropCause;
use crate::fault::{Fault, FaultCounts, FaultError, Faults, Incident};
use crate::hardware::Firmware;
use crate::id::NodeId;
use crate::profile::Notice;
use crate::time::nanos;
use crate::trace::Record;

/// The scheduled incidents, and the state that their ends restore.
#[derive(Default)]
pub(super) struct Script {
    incidents: Vec<Incident>,
    /// Incidents with a lower index were called off.
    void_before: usize,
    /// By incident: the node that it took down, and the NIC's restarts or the host's process exits by then.
    down: BTreeMap<usize, (NodeId, u32)>,
    /// Number of times that the processes of each host were ended.
    exits: BTreeMap<NodeId, u32>,
    /// Tasks that became ready while their host was paused.
    frozen: Vec<u32>,
    boot: Option<Boot>,
}

/// Starts the tasks of a host.
type Boot = Box<dyn FnMut(SimHost) + Send>;

impl<F: Firmware> World<F> {
    /// Crashes a node, host and NIC: its tasks end, its ports close, and frames to it are dropped. Frames that its
    /// firmware has committed still leave it. If an incident has taken the node down, it stays down when the incident
    /// ends.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn crash(&mut self, node: NodeId) {
        self.assert_node(node);
        if !self.nics[node.index()].up && !self.is_trapped(node) {
            self.script.down.retain(|_, (down, _)| *down != node);
            return;
        }
        self.end_processes(node);
        self.shared.set_down(node);
        self.stop_nic(node);
    }

    /// Ends all tasks of a node. Its NIC sees their ports close.
    fn end_processes(&mut self, node: NodeId) {
        // Earlier requests belong to the processes that end.
        self.take_requests();
        self.executor.kill(node);
        self.shared.processors(|processors| processors.reset(node));
        *self.script.exits.entry(node).or_default() += 1;
        let frozen = std::mem::take(&mut self.script.frozen);
        for task in frozen {
            if self.executor.node_of(task) == node {
                self.executor.thaw(task);
            } else {
                self.script.frozen.push(task);
            }
        }
    }

    /// Returns whether the node's coprocessor is trapped while its host runs.
    fn is_trapped(&self, node: NodeId) -> bool {
        let nic = &self.nics[node.index()];
        let trapped =
            |index: &usize| matches!(self.script.incidents[*index].fault, Fault::Trap { .. });
        let mut down = self.script.down.iter().filter(|(index, _)| trapped(index));
        !nic.up && down.any(|(_, taken)| *taken == (node, u32::from(nic.restarts)))
    }

    fn stop_nic(&mut self, node: NodeId) {
        self.network.forget_parts(node);
        let nic = &mut self.nics[node.index()];
        let work = std::mem::take(&mut nic.inbox);
        let on_link = std::mem::take(&mut nic.on_link);
        *nic = nic.restarted(&mut self.queue);
        nic.up = false;
        let inbox = work.into_iter().filter_map(|work| match work {
            Work::Frame(key) => Some(key),
            _ => None,
        });
        for key in inbox.chain(on_link) {
            self.network.drop_frame(key, DropCause::NicDown);
        }
        self.network.hold_nic(&mut self.queue, self.now, node, false);
    }

    /// Restarts a node after [`World::crash`], with a new incarnation of its firmware. The caller starts its
    /// tasks.
    ///
    /// # Panics
    /// If the node is up, or there is no such node.
    pub fn restart(&mut self, node: NodeId) {
        self.assert_node(node);
        assert!(!self.nics[node.index()].up, "node {node} is up: crash it first");
        let skew = self.network.active_faults.skew(node);
        if skew != 0 {
            self.nics[node.index()].clock = Clock::starting(self.now, skew);
        }
        self.start_nic(node);
    }

    fn start_nic(&mut self, node: NodeId) {
        let nic = &mut self.nics[node.index()];
        nic.up = true;
        nic.busy_until = self.now;
        let (incarnation, restarts, clock) = (nic.incarnation, nic.restarts, nic.clock);
        self.network.forget_parts(node);
        self.firmware[node.index()] = (self.factory)(node, incarnation);
        self.shared.set_up(node, restarts, clock);
        self.dispatch(node, Work::Start);
    }

    /// Partitions two nodes: drops all frames between them, including those in flight.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.assert_node(a);
        self.assert_node(b);
        self.network.partitions.insert((a.min(b), a.max(b)));
    }

    /// Ends the partition that [`World::cut`] made between two nodes, if there is one.
    pub fn heal(&mut self, a: NodeId, b: NodeId) {
        self.network.partitions.remove(&(a.min(b), a.max(b)));
    }

    /// Sets the faults of the links from now on.
    ///
    /// # Panics
    /// If a probability is not from 0 to 1.
    pub fn set_faults(&mut self, faults: Faults) {
        faults.check().unwrap_or_else(|error| panic!("{error}"));
        self.network.faults = faults;
    }

    /// Schedules an incident; one in the past begins now.
    ///
    /// # Panics
    /// If the fault names a place that the topology lacks, a probability is not from 0 to 1, or a period is zero.
    pub fn schedule(&mut self, incident: Incident) {
        let places = self.network.places();
        incident.fault.check_in(&places).unwrap_or_else(|error| panic!("{error}"));
        if let Fault::QueueShrink { link, .. } | Fault::PortStuck { link } = incident.fault
            && self.network.output(link).is_none()
        {
            panic!("{}", FaultError::NoOutput { kind: incident.fault.kind(), link });
        }
        let index = self.script.incidents.len();
        self.script.incidents.push(incident);
        let event = Event::Incident { index: index as u32, phase: Phase::Begins };
        self.queue.schedule(incident.at, event);
    }

    /// Ends all active incidents, and calls off pending ones. Nodes that they took down restart.
    pub fn heal_all(&mut self) {
        self.script.void_before = self.script.incidents.len();
        for index in self.network.active_faults.incidents() {
            self.end_incident(index);
        }
    }

    /// Sets a function that starts a host's tasks after an incident has restarted the node or ended its
    /// processes.
    #[doc(hidden)]
    pub fn on_boot(&mut self, boot: impl FnMut(SimHost) + Send + 'static) {
        self.script.boot = Some(Box::new(boot));
    }

    /// Returns how often each kind of fault of an [`Incident`] has had an effect. Frames that [`World::set_faults`] loses
    /// or damages are in [`World::traffic`].
    #[must_use]
    pub const fn faults_fired(&self) -> &FaultCounts {
        &self.network.active_faults.fired
    }

    pub(super) fn on_incident(&mut self, index: usize, phase: Phase) {
        match phase {
            Phase::Begins if index >= self.script.void_before => self.begin_incident(index),
            Phase::Repeats if self.network.active_faults.is_active(index) => self.repeat(index),
            Phase::Ends => self.end_incident(index),
            _ => {}
        }
    }

    fn begin_incident(&mut self, index: usize) {
        let Incident { lasts, fault, .. } = self.script.incidents[index];
        self.network.active_faults.begin(index, fault, self.now);
        let (at, kind) = (self.now, fault.kind());
        self.network.watch.show(&Record::Fault { at, kind, begins: true });
        let ends = Event::Incident { index: index as u32, phase: Phase::Ends };
        self.queue.schedule(self.now + lasts, ends);
        match fault {
            Fault::Crash { node } if self.nics[node.index()].up => {
                self.crash(node);
                self.fired(index, node);
            }
            Fault::Trap { node } if self.nics[node.index()].up => {
                self.nics[node.index()].up = false;
                self.fired(index, node);
            }
            Fault::NicReset { node } if self.nics[node.index()].up => {
                self.take_requests();
                self.stop_nic(node);
                self.start_nic(node);
                self.network.active_faults.fired.add(fault.kind());
            }
            Fault::ProcessExit { node } if self.nics[node.index()].up => {
                self.end_processes(node);
                self.fired(index, node);
            }
            Fault::DmaStall { node } => {
                self.nics[node.index()].stall(self.now + lasts);
                self.network.active_faults.fired.add(fault.kind());
            }
            Fault::SwitchReboot { switch } => {
                self.network.flush(&mut self.queue, self.now, switch);
                self.network.active_faults.fired.add(fault.kind());
            }
            _ => self.change(fault, true),
        }
        self.repeat(index);
    }

    /// Records that an incident has taken a node down.
    fn fired(&mut self, index: usize, node: NodeId) {
        let fault = self.script.incidents[index].fault;
        let count = match fault {
            Fault::ProcessExit { .. } => self.script.exits[&node],
            _ => u32::from(self.nics[node.index()].restarts),
        };
        self.script.down.insert(index, (node, count));
        self.network.active_faults.fired.add(fault.kind());
    }

    /// Applies what changes when a fault begins and when it ends.
    fn change(&mut self, fault: Fault, begins: bool) {
        match fault {
            Fault::RateChange { link, .. }
            | Fault::QueueShrink { link, .. }
            | Fault::PortStuck { link } => {
                self.network.refresh(&mut self.queue, self.now, link);
                if begins {
                    self.network.active_faults.fired.add(fault.kind());
                }
            }
            Fault::ClockDrift { node, .. } => self.change_clock(fault, node, Duration::ZERO),
            Fault::ClockStep { node, by } if begins => self.change_clock(fault, node, by),
            _ => {}
        }
    }

    fn change_clock(&mut self, fault: Fault, node: NodeId, step: Duration) {
        let nic = &mut self.nics[node.index()];
        let mut clock = nic.clock;
        clock.change(self.now, self.network.active_faults.drift(node), step);
        nic.set_clock(&mut self.queue, clock);
        self.shared.set_clock(node, clock);
        self.network.active_faults.fired.add(fault.kind());
    }

    /// Applies the effect of a fault that repeats.
    fn repeat(&mut self, index: usize) {
        let fault = self.script.incidents[index].fault;
        if let Fault::InterruptSpurious { node, every } = fault {
            self.nics[node.index()].ports.wake_all();
            self.network.active_faults.fired.add(fault.kind());
            let at = self.now.plus_nanos(nanos(every).max(1));
            let event = Event::Incident { index: index as u32, phase: Phase::Repeats };
            self.queue.schedule(at, event);
        }
    }

    fn end_incident(&mut self, index: usize) {
        if !self.network.active_faults.end(index) {
            return;
        }
        let fault = self.script.incidents[index].fault;
        let (at, kind) = (self.now, fault.kind());
        self.network.watch.show(&Record::Fault { at, kind, begins: false });
        self.change(fault, false);
        if let Fault::Pause { .. } = fault {
            for task in std::mem::take(&mut self.script.frozen) {
                self.executor.thaw(task);
            }
        }
        let Some((node, count)) = self.script.down.remove(&index) else { return };
        let nic = &self.nics[node.index()];
        let is_down = !nic.up && u32::from(nic.restarts) == count;
        match fault {
            Fault::Crash { .. } if is_down => self.restart(node),
            Fault::Trap { .. } if is_down => {
                self.take_requests();
                self.stop_nic(node);
                return self.start_nic(node);
            }
            // If the processes were ended again since, the later incident restarts them.
            Fault::ProcessExit { .. } if self.script.exits[&node] == count => {}
            _ => return,
        }
        if let Some(boot) = &mut self.script.boot {
            boot(SimHost::new(node, std::sync::Arc::clone(&self.shared)));
        }
    }

    /// Returns whether a ready task must wait because its host is paused or slow; if so, postpones it.
    pub(super) fn put_off(&mut self, task: u32) -> bool {
        let node = self.executor.node_of(task);
        if self.network.active_faults.is_paused(node) {
            self.script.frozen.push(task);
            return true;
        }
        let Some(by) = self.network.active_faults.run_late(node) else { return false };
        self.queue.schedule(self.now + by, Event::Task { task });
        true
    }

    /// Runs a task of a slow host after its delay.
    pub(super) fn on_late_task(&mut self, task: u32) {
        if self.network.active_faults.is_paused(self.executor.node_of(task)) {
            self.script.frozen.push(task);
        } else {
            self.run_task(task);
        }
    }

    /// Makes a NIC's next completion visible.
    pub(super) fn publish_completion(&mut self, node: NodeId) {
        let nic = &mut self.nics[node.index()];
        let Some((port, completion)) = nic.next_completion() else { return };
        let injected = self.network.active_faults.completion_fault(node);
        let (now, host) = (self.now, &nic.host);
        let fault = match injected {
            CompletionFault::None if host.notice != Notice::Polled => {
                let ends = self.shared.processors(|p| p.notify(node, now, host.notice_ns()));
                CompletionFault::Late(ends.unwrap_or(now).since(now))
            }
            injected => injected,
        };
        if let Some(late) = nic.publish(port, &completion, fault) {
            let event = Event::Interrupt { node, port, restarts: nic.restarts };
            self.queue.schedule(self.now + late, event);
        }
    }
}
