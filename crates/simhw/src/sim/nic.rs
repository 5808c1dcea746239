//! A modelled NIC: a coprocessor that handles one event after another, DMA engines, and a line.

mod hardware;

use std::collections::VecDeque;
use std::ops::Range;

use super::active_faults::CompletionFault;
use super::clock::Clock;
use super::event_queue::{Event, EventQueue, Scheduled};
use super::uplink::Checkpoint;
use crate::hardware::{Dma, TIMERS};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::port::{Completion, Ports};
use crate::profile::{HostProfile, NicProfile};
use crate::region::RegionRef;
use crate::time::Instant;

pub(super) use hardware::SimHardware;

/// An event that waits for the coprocessor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Start,
    Doorbell(PortId),
    Frame(u32),
    DmaDone(DmaId),
    Timer(TimerId),
}

impl Work {
    /// Returns the event's name in traces.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Doorbell(_) => "doorbell",
            Self::Frame(_) => "frame",
            Self::DmaDone(_) => "dma done",
            Self::Timer(_) => "timer",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Alarm {
    at: Instant,
    scheduled: Scheduled,
    /// True once it has expired, until the firmware is called.
    due: bool,
}

impl Alarm {
    const OFF: Self = Self { at: Instant::FAR_FUTURE, scheduled: Scheduled::NEVER, due: false };
}

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// Counts restarts; events of an earlier incarnation are ignored.
    pub(super) restarts: u16,
    pub(super) up: bool,
    pub(super) profile: NicProfile,
    pub(super) host: HostProfile,
    pub(super) clock: Clock,
    pub(super) ports: Ports,
    pub(super) inbox: VecDeque<Work>,
    /// When the coprocessor has finished its last event.
    pub(super) busy_until: Instant,
    /// Bytes of frames in the inbox.
    pub(super) held: u32,
    /// Frames that wait on the stopped link, in order of arrival.
    pub(super) on_link: VecDeque<u32>,
    /// True if the first of them is in the inbox.
    pub(super) offered: bool,
    /// For each port: true if its doorbell rang and the firmware has not handled it yet.
    rung: Vec<bool>,
    engines: Engines,
    alarms: [Alarm; TIMERS],
    /// Completions, each to be published by its scheduled event; `None` if the port has closed.
    completions: VecDeque<Option<(PortId, Completion)>>,
    next_dma: u32,
    staged: Staged,
}

/// The engines that work in parallel with the coprocessor, and the instants at which each is free.
#[derive(Clone, Debug)]
struct Engines {
    gather_free: Instant,
    scatter_free: Instant,
    last_completion: Instant,
}

/// The effects that a turn has staged and not committed.
#[derive(Debug, Default)]
struct Staged {
    frames: Vec<(u32, Route)>,
    effects: Vec<Effect>,
    bytes: Vec<u8>,
    /// The state that an abort restores.
    saved: Option<Saved>,
}

/// The route of a staged frame.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// To the line; with the begin and end of its DMA transfer, if it has one.
    Line(Option<(Instant, Instant)>),
    /// To this node itself, where it arrives at this instant.
    Loopback(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Saved {
    line: Checkpoint,
    gather_free: Instant,
    next_dma: u32,
}

#[derive(Clone, Debug)]
enum Effect {
    Write { to: RegionRef, from: Stored },
    Complete { port: PortId, completion: Completion },
    Timer { timer: TimerId, at: Instant },
    Copy { transfer: Dma, dma: DmaId },
    Fence { dma: DmaId },
}

#[derive(Clone, Debug)]
enum Stored {
    /// A range of the frame that is being handled.
    Current(Range<usize>),
    /// A range of the staged bytes.
    Staged(Range<usize>),
}

impl Nic {
    pub(super) fn new(node: NodeId, profile: NicProfile) -> Self {
        Self {
            node,
            incarnation: Incarnation::FIRST,
            restarts: 0,
            up: true,
            profile,
            host: HostProfile::FREE,
            clock: Clock::default(),
            ports: Ports::default(),
            inbox: VecDeque::new(),
            busy_until: Instant::ZERO,
            held: 0,
            on_link: VecDeque::new(),
            offered: false,
            rung: Vec::new(),
            engines: Engines {
                gather_free: Instant::ZERO,
                scatter_free: Instant::ZERO,
                last_completion: Instant::ZERO,
            },
            alarms: [Alarm::OFF; TIMERS],
            completions: VecDeque::new(),
            next_dma: 0,
            staged: Staged::default(),
        }
    }

    /// Returns the NIC as it restarts after a crash. Its line still sends the frames committed before.
    pub(super) fn restarted(&self, queue: &mut EventQueue) -> Self {
        for alarm in &self.alarms {
            queue.cancel(alarm.scheduled);
        }
        let fresh = Self::new(self.node, self.profile);
        let (incarnation, restarts) = (self.incarnation.next(), self.restarts.wrapping_add(1));
        Self { incarnation, restarts, clock: self.clock, host: self.host, ..fresh }
    }

    /// Records a doorbell; returns `false` if the firmware has not handled an earlier one.
    pub(super) fn ring(&mut self, port: PortId) -> bool {
        if port.index() >= self.rung.len() {
            self.rung.resize(port.index() + 1, false);
        }
        !std::mem::replace(&mut self.rung[port.index()], true)
    }

    /// Returns the number of ports whose doorbell the firmware has not handled.
    pub(super) fn rung(&self) -> usize {
        self.rung.iter().filter(|rung| **rung).count()
    }

    /// Stops the DMA engines until this instant.
    pub(super) fn stall(&mut self, until: Instant) {
        self.engines.gather_free = self.engines.gather_free.max(until);
        self.engines.scatter_free = self.engines.scatter_free.max(until);
    }

    /// Replaces the clock, and schedules the alarms anew by it.
    pub(super) fn set_clock(&mut self, queue: &mut EventQueue, clock: Clock) {
        self.clock = clock;
        for (number, alarm) in (0_u8..).zip(&mut self.alarms) {
            if alarm.at != Instant::FAR_FUTURE {
                queue.cancel(alarm.scheduled);
                let (node, timer, restarts) = (self.node, TimerId(number), self.restarts);
                alarm.scheduled =
                    queue.schedule(clock.when(alarm.at), Event::Timer { node, timer, restarts });
            }
        }
    }

    /// Prepares the firmware's handling of a port: clears its doorbell, and applies its registrations.
    pub(super) fn answer(&mut self, port: PortId) {
        self.rung[port.index()] = false;
        if let Some(port) = self.ports.at(port) {
            port.sync();
        }
    }

    /// Takes the next completion to publish.
    pub(super) fn next_completion(&mut self) -> Option<(PortId, Completion)> {
        self.completions.pop_front().flatten()
    }

    /// Publishes a completion to its port; returns the delay of its interrupt, if there is one.
    pub(super) fn publish(
        &mut self,
        port: PortId,
        completion: &Completion,
        fault: CompletionFault,
    ) -> Option<std::time::Duration> {
        let at = self.ports.at(port)?;
        match fault {
            CompletionFault::None => at.complete(completion),
            CompletionFault::Lost => {}
            CompletionFault::Silent => drop(at.complete_silently(completion)),
            CompletionFault::Late(by) => {
                at.complete_silently(completion);
                return Some(by);
            }
        }
        None
    }

    /// Drops the unpublished completions of a closed port, whose number may be reused.
    pub(super) fn forget_completions(&mut self, port: PortId) {
        for waiting in &mut self.completions {
            waiting.take_if(|(of, _)| *of == port);
        }
    }

    /// Marks an alarm as expired.
    pub(super) const fn expire_alarm(&mut self, timer: TimerId) {
        self.alarms[timer.index()] = Alarm { due: true, ..Alarm::OFF };
    }

    /// Returns whether the firmware must be called for an alarm: it has expired and was not set anew since.
    pub(super) const fn take_alarm(&mut self, timer: TimerId) -> bool {
        std::mem::replace(&mut self.alarms[timer.index()].due, false)
    }

    fn set_alarm(&mut self, queue: &mut EventQueue, timer: TimerId, at: Instant) {
        let event = Event::Timer { node: self.node, timer, restarts: self.restarts };
        let alarm = &mut self.alarms[timer.index()];
        alarm.due = false;
        if alarm.at != at {
            queue.cancel(alarm.scheduled);
            alarm.at = at;
            alarm.scheduled = queue.schedule(self.clock.when(at), event);
        }
    }
}
