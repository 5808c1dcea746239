//! The faults that are active, and what they do to whoever asks.

use std::time::Duration;

use crate::drops::DropCause;
use crate::fault::{Fault, FaultCounts};
use crate::id::{ExtensionId, NodeId};
use crate::port::Command;
use crate::region::RegionError;
use crate::rng::Rng;
use crate::time::{Instant, nanos};
use crate::topology::{LinkId, SwitchId};

/// One fault while it is active.
#[derive(Debug)]
struct Active {
    /// Which incident of the script.
    incident: usize,
    fault: Fault,
    begun: Instant,
    /// A link is in its bad state; a turn has overrun.
    flag: bool,
    /// Circuits that a table has room for.
    circuits: Vec<(NodeId, NodeId)>,
}

/// What a link does to a piece.
#[derive(Clone, Copy, Debug)]
pub(super) enum Damage {
    Lost(DropCause),
    /// It goes on, of no use to its receiver.
    Spoilt(DropCause),
}

/// How a completion is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Telling {
    Usual,
    Never,
    Unheard,
    Late(Duration),
}

/// The faults that are active: a short list, and mostly empty.
#[derive(Debug)]
pub(super) struct Ailments {
    active: Vec<Active>,
    pub(super) fired: FaultCounts,
    rng: Rng,
}

impl Ailments {
    pub(super) fn new(seed: u64) -> Self {
        Self { active: Vec::new(), fired: FaultCounts::default(), rng: Rng::new(seed, "faults") }
    }

    pub(super) const fn is_none(&self) -> bool {
        self.active.is_empty()
    }

    pub(super) fn begin(&mut self, incident: usize, fault: Fault, now: Instant) {
        let circuits = Vec::new();
        self.active.push(Active { incident, fault, begun: now, flag: false, circuits });
    }

    /// Ends an incident; `false` if it was not active.
    pub(super) fn end(&mut self, incident: usize) -> bool {
        let before = self.active.len();
        self.active.retain(|active| active.incident != incident);
        self.active.len() < before
    }

    pub(super) fn is_active(&self, incident: usize) -> bool {
        self.active.iter().any(|active| active.incident == incident)
    }

    /// The incidents that are active, in the order in which they began.
    pub(super) fn incidents(&self) -> Vec<usize> {
        self.active.iter().map(|active| active.incident).collect()
    }

    /// Counts the first fault for which `effect` has a value, and returns that.
    fn first<T>(
        &mut self,
        mut effect: impl FnMut(&mut Active, &mut Rng) -> Option<T>,
    ) -> Option<T> {
        let Self { active, fired, rng } = self;
        active.iter_mut().find_map(|active| {
            let value = effect(active, rng)?;
            fired.add(active.fault.kind());
            Some(value)
        })
    }

    // ---- links ----

    /// A piece is at the end of `link`.
    pub(super) fn on_piece(&mut self, now: Instant, link: LinkId) -> Option<Damage> {
        self.first(|active, rng| match active.fault {
            Fault::Loss { link: at, probability } if at == link && rng.chance(probability) => {
                Some(Damage::Lost(DropCause::LinkLoss))
            }
            Fault::BurstLoss { link: at, enter, leave } if at == link => {
                let turns = rng.chance(if active.flag { leave } else { enter });
                active.flag ^= turns;
                active.flag.then_some(Damage::Lost(DropCause::LinkLoss))
            }
            Fault::Flap { link: at, period } if at == link => {
                let periods = now.nanos_since(active.begun) / nanos(period).max(1);
                periods.is_multiple_of(2).then_some(Damage::Lost(DropCause::LinkDown))
            }
            Fault::Corrupt { link: at, probability } if at == link && rng.chance(probability) => {
                Some(Damage::Spoilt(DropCause::Corrupt))
            }
            Fault::Truncate { link: at, probability } if at == link && rng.chance(probability) => {
                Some(Damage::Spoilt(DropCause::Truncated))
            }
            _ => None,
        })
    }

    /// Nanoseconds that a piece is late on `link`.
    pub(super) fn late(&mut self, link: LinkId) -> u64 {
        let late = self.first(|active, _| match active.fault {
            Fault::DelaySpike { link: at, by } if at == link => Some(nanos(by)),
            _ => None,
        });
        late.unwrap_or(0)
    }

    /// Nanoseconds that a frame is held up at its sender.
    pub(super) fn held_up(&mut self, origin: NodeId, destination: NodeId) -> u64 {
        let held_up = self.first(|active, rng| match active.fault {
            Fault::SlowPair { from, to, by } if from == origin && to == destination => {
                Some(nanos(by))
            }
            Fault::Reorder { node, probability, by } if node == origin => {
                rng.chance(probability).then(|| rng.between(1, nanos(by)))
            }
            _ => None,
        });
        held_up.unwrap_or(0)
    }

    pub(super) fn is_doubled(&mut self, origin: NodeId) -> bool {
        let doubled = self.first(|active, rng| match active.fault {
            Fault::Duplicate { node, probability } if node == origin => {
                rng.chance(probability).then_some(())
            }
            _ => None,
        });
        doubled.is_some()
    }

    pub(super) fn is_cut(&mut self, origin: NodeId, destination: NodeId) -> bool {
        let cut = self.first(|active, _| match active.fault {
            Fault::OneWay { from, to } => (from == origin && to == destination).then_some(()),
            Fault::Partition { from, to } => {
                let both =
                    (from == origin && to == destination) || (from == destination && to == origin);
                both.then_some(())
            }
            _ => None,
        });
        cut.is_some()
    }

    /// The link's rate now, in hundredths of its own.
    pub(super) fn rate_percent(&self, link: LinkId) -> u8 {
        let percents = self.active.iter().filter_map(|active| match active.fault {
            Fault::RateChange { link: at, percent } if at == link => Some(percent.clamp(1, 100)),
            _ => None,
        });
        percents.min().unwrap_or(100)
    }

    // ---- switches ----

    /// The buffer's size now, in hundredths of its own.
    pub(super) fn buffer_percent(&self, link: LinkId) -> u8 {
        let percents = self.active.iter().filter_map(|active| match active.fault {
            Fault::QueueShrink { link: at, percent } if at == link => Some(percent.min(100)),
            _ => None,
        });
        percents.min().unwrap_or(100)
    }

    pub(super) fn is_stuck(&self, link: LinkId) -> bool {
        self.active.iter().any(|active| active.fault == Fault::PortStuck { link })
    }

    /// A piece of frame `key` is at a switch: why it goes no further.
    pub(super) fn at_switch(
        &mut self,
        switch: SwitchId,
        origin: NodeId,
        destination: NodeId,
    ) -> Option<DropCause> {
        self.first(|active, _| match active.fault {
            Fault::SwitchReboot { switch: at } if at == switch => Some(DropCause::SwitchDown),
            Fault::CircuitTable { switch: at, most } if at == switch => {
                let circuit = (origin, destination);
                if active.circuits.contains(&circuit) {
                    return None;
                }
                if active.circuits.len() < usize::from(most) {
                    active.circuits.push(circuit);
                    return None;
                }
                Some(DropCause::NoCircuit)
            }
            _ => None,
        })
    }

    /// A number to choose a wrong way by, if frame `key` takes one: the same for all its pieces.
    pub(super) fn misroute(&mut self, switch: SwitchId, key: u32) -> Option<u64> {
        self.first(|active, _| match active.fault {
            Fault::Misroute { switch: at, probability } if at == switch => {
                let name = (active.incident as u64) << 32 | u64::from(key);
                let mut draw = Rng::new(name, "misroute");
                draw.chance(probability).then(|| draw.next_u64())
            }
            _ => None,
        })
    }

    // ---- NICs ----

    /// Whether a NIC's memory is too small now for so many bytes.
    pub(super) fn is_memory_full(&mut self, node: NodeId, needed: u32) -> bool {
        let full = self.first(|active, _| match active.fault {
            Fault::NicMemory { node: at, bytes } if at == node => (needed > bytes).then_some(()),
            _ => None,
        });
        full.is_some()
    }

    /// An access to host memory: why it fails.
    pub(super) fn memory_error(&mut self, node: NodeId) -> Option<RegionError> {
        self.first(|active, rng| match active.fault {
            Fault::Unpinned { node: at } if at == node => Some(RegionError::NotResident),
            Fault::DmaError { node: at, probability } if at == node => {
                rng.chance(probability).then_some(RegionError::Bus)
            }
            _ => None,
        })
    }

    /// How often a doorbell rings, at a NIC with `pending` of them.
    pub(super) fn doorbells(&mut self, node: NodeId, pending: usize) -> u8 {
        let times = self.first(|active, rng| match active.fault {
            Fault::DoorbellLost { node: at, probability } if at == node => {
                rng.chance(probability).then_some(0)
            }
            Fault::DoorbellQueue { node: at, depth } if at == node => {
                (pending >= usize::from(depth)).then_some(0)
            }
            Fault::DoorbellDoubled { node: at, probability } if at == node => {
                rng.chance(probability).then_some(2)
            }
            _ => None,
        });
        times.unwrap_or(1)
    }

    pub(super) fn telling(&mut self, node: NodeId) -> Telling {
        let telling = self.first(|active, rng| match active.fault {
            Fault::CompletionLost { node: at, probability } if at == node => {
                rng.chance(probability).then_some(Telling::Never)
            }
            Fault::InterruptLost { node: at, probability } if at == node => {
                rng.chance(probability).then_some(Telling::Unheard)
            }
            Fault::InterruptLate { node: at, by } if at == node => Some(Telling::Late(by)),
            _ => None,
        });
        telling.unwrap_or(Telling::Usual)
    }

    /// Flips a bit of a command, in what is checked before it is used.
    pub(super) fn damage(&mut self, node: NodeId, command: &mut Command) {
        self.first(|active, rng| match active.fault {
            Fault::CommandDamaged { node: at, probability } if at == node => {
                rng.chance(probability).then(|| {
                    if command.region.length == 0 || rng.chance(0.3) {
                        command.extension = ExtensionId(command.extension.0 ^ 0x80);
                    } else {
                        command.region.generation ^= 1 << rng.below(32);
                    }
                })
            }
            _ => None,
        });
    }

    // ---- coprocessors, hosts, clocks ----

    /// How many times as long as usual an instruction takes.
    pub(super) fn instruction_times(&mut self, node: NodeId) -> u64 {
        let times = self.first(|active, _| match active.fault {
            Fault::SlowClock { node: at, times } if at == node => Some(u64::from(times.max(1))),
            _ => None,
        });
        times.unwrap_or(1)
    }

    /// How much longer this turn takes; told once an incident.
    pub(super) fn overrun(&mut self, node: NodeId) -> Option<Duration> {
        self.first(|active, _| match active.fault {
            Fault::Overrun { node: at, by } if at == node && !active.flag => {
                active.flag = true;
                Some(by)
            }
            _ => None,
        })
    }

    pub(super) fn is_paused(&mut self, node: NodeId) -> bool {
        self.first(|active, _| (active.fault == Fault::Pause { node }).then_some(())).is_some()
    }

    /// How late the tasks of a host run.
    pub(super) fn run_late(&mut self, node: NodeId) -> Option<Duration> {
        self.first(|active, _| match active.fault {
            Fault::SlowHost { node: at, by } if at == node => Some(by),
            _ => None,
        })
    }

    /// Nanoseconds that the clock of a node that starts is ahead.
    pub(super) fn skew(&mut self, node: NodeId) -> i64 {
        let ahead = self.first(|active, _| match active.fault {
            Fault::ClockSkew { node: at, ahead_ns } if at == node => Some(ahead_ns),
            _ => None,
        });
        ahead.unwrap_or(0)
    }

    /// Millionths that a clock is too fast.
    pub(super) fn drift(&self, node: NodeId) -> i32 {
        let drifts = self.active.iter().filter_map(|active| match active.fault {
            Fault::ClockDrift { node: at, ppm } if at == node => Some(ppm),
            _ => None,
        });
        drifts.sum::<i32>().clamp(-500_000, 500_000)
    }
}
