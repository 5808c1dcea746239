//! A modelled NIC: a coprocessor that takes one event after another, DMA engines, a line.

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

/// What waits for a busy coprocessor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Start,
    Doorbell(PortId),
    Frame(u32),
    DmaDone(DmaId),
    Timer(TimerId),
}

impl Work {
    /// Its name in traces.
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
    /// It has gone off, and the firmware has not been told.
    due: bool,
}

impl Alarm {
    const OFF: Self = Self { at: Instant::FAR_FUTURE, scheduled: Scheduled::NEVER, due: false };
}

#[derive(Debug)]
pub(super) struct Nic {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// Counts restarts; events of a former life are void.
    pub(super) life: u16,
    pub(super) up: bool,
    pub(super) profile: NicProfile,
    pub(super) host: HostProfile,
    pub(super) clock: Clock,
    pub(super) ports: Ports,
    pub(super) inbox: VecDeque<Work>,
    /// The coprocessor works on its last event until then.
    pub(super) busy_until: Instant,
    /// Bytes of frames in the inbox.
    pub(super) held: u32,
    /// Frames that wait on the link, which stands still, in their order.
    pub(super) on_link: VecDeque<u32>,
    /// The first of them is among what waits for the coprocessor.
    pub(super) offered: bool,
    /// For each port: whether it was rung and the firmware has not looked since.
    rung: Vec<bool>,
    engines: Engines,
    alarms: [Alarm; TIMERS],
    /// To be seen at the instants that were scheduled for them; `None` is one of a port that is gone.
    completions: VecDeque<Option<(PortId, Completion)>>,
    next_dma: u32,
    staged: Staged,
}

/// What works on by itself, each free again at some instant.
#[derive(Clone, Debug)]
struct Engines {
    gather_free: Instant,
    scatter_free: Instant,
    last_completion: Instant,
}

/// What a turn has asked for and not committed.
#[derive(Debug, Default)]
struct Staged {
    frames: Vec<(u32, Way)>,
    effects: Vec<Effect>,
    bytes: Vec<u8>,
    /// What changes before a commit, as it was at the last.
    saved: Option<Saved>,
}

/// Where a staged frame goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// To the line; from when to when it is gathered, if it is.
    Line(Option<(Instant, Instant)>),
    /// To this node itself, where it is then.
    Within(Instant),
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
            life: 0,
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

    /// The NIC as it starts again after a crash. Its line first sends what it was told to before.
    pub(super) fn reborn(&self, queue: &mut EventQueue) -> Self {
        for alarm in &self.alarms {
            queue.cancel(alarm.scheduled);
        }
        let fresh = Self::new(self.node, self.profile);
        let (incarnation, life) = (self.incarnation.next(), self.life.wrapping_add(1));
        Self { incarnation, life, clock: self.clock, host: self.host, ..fresh }
    }

    /// Takes note of a doorbell; `false` if the firmware is yet to look at an earlier one.
    pub(super) fn ring(&mut self, port: PortId) -> bool {
        if port.index() >= self.rung.len() {
            self.rung.resize(port.index() + 1, false);
        }
        !std::mem::replace(&mut self.rung[port.index()], true)
    }

    /// Doorbells that the firmware has not looked at.
    pub(super) fn rung(&self) -> usize {
        self.rung.iter().filter(|rung| **rung).count()
    }

    /// The DMA engines do nothing until then.
    pub(super) fn stall(&mut self, until: Instant) {
        self.engines.gather_free = self.engines.gather_free.max(until);
        self.engines.scatter_free = self.engines.scatter_free.max(until);
    }

    /// The clock has changed: what is set by it is set anew.
    pub(super) fn set_clock(&mut self, queue: &mut EventQueue, clock: Clock) {
        self.clock = clock;
        for (number, alarm) in (0_u8..).zip(&mut self.alarms) {
            if alarm.at != Instant::FAR_FUTURE {
                queue.cancel(alarm.scheduled);
                let (node, timer, life) = (self.node, TimerId(number), self.life);
                alarm.scheduled =
                    queue.schedule(clock.when(alarm.at), Event::Timer { node, timer, life });
            }
        }
    }

    /// The firmware is about to look at a port: takes note of what was registered.
    pub(super) fn answer(&mut self, port: PortId) {
        self.rung[port.index()] = false;
        if let Some(port) = self.ports.at(port) {
            port.sync();
        }
    }

    /// Takes the next completion to be seen by its port.
    pub(super) fn next_completion(&mut self) -> Option<(PortId, Completion)> {
        self.completions.pop_front().flatten()
    }

    /// Shows a completion to its port; when its interrupt is late, until when it is.
    pub(super) fn publish(
        &mut self,
        port: PortId,
        completion: &Completion,
        telling: CompletionFault,
    ) -> Option<std::time::Duration> {
        let at = self.ports.at(port)?;
        match telling {
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

    /// A port is gone, and its number may be another's: what it was yet to see is nobody's.
    pub(super) fn forget_completions(&mut self, port: PortId) {
        for waiting in &mut self.completions {
            waiting.take_if(|(of, _)| *of == port);
        }
    }

    /// The alarm goes off.
    pub(super) const fn go_off(&mut self, timer: TimerId) {
        self.alarms[timer.index()] = Alarm { due: true, ..Alarm::OFF };
    }

    /// Whether the firmware is to be told of the alarm: it went off and was not set anew since.
    pub(super) const fn take_alarm(&mut self, timer: TimerId) -> bool {
        std::mem::replace(&mut self.alarms[timer.index()].due, false)
    }

    fn set_alarm(&mut self, queue: &mut EventQueue, timer: TimerId, at: Instant) {
        let event = Event::Timer { node: self.node, timer, life: self.life };
        let alarm = &mut self.alarms[timer.index()];
        alarm.due = false;
        if alarm.at != at {
            queue.cancel(alarm.scheduled);
            alarm.at = at;
            alarm.scheduled = queue.schedule(self.clock.when(at), event);
        }
    }
}
