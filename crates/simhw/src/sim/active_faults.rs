//! The active faults and their effects.

use std::time::Duration;

use crate::drops::DropCause;
use crate::fault::{Fault, FaultCounts};
use crate::id::{ExtensionId, NodeId};
use crate::port::Command;
use crate::region::RegionError;
use crate::rng::Rng;
use crate::time::{Instant, nanos};
use crate::topology::{LinkId, SwitchId};

/// One active fault.
#[derive(Debug)]
struct Active {
    /// Index of the incident in the script.
    incident: usize,
    fault: Fault,
    begun: Instant,
    /// True while the link is in its bad state (burst loss), or once a turn has been prolonged (overrun).
    flag: bool,
    /// Circuits that have a place in the switch's table.
    circuits: Vec<(NodeId, NodeId)>,
}

/// The effect of a fault on a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    Lost(DropCause),
    /// The piece arrives, but its frame is damaged.
    Spoilt(DropCause),
}

/// The effect of a fault on a completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum CompletionFault {
    None,
    Lost,
    Silent,
    Late(Duration),
}

/// The active faults: a short list, and mostly empty.
#[derive(Debug)]
pub(crate) struct ActiveFaults {
    active: Vec<Active>,
    pub(crate) fired: FaultCounts,
    rng: Rng,
}

impl ActiveFaults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { active: Vec::new(), fired: FaultCounts::default(), rng: Rng::new(seed, "faults") }
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.active.is_empty()
    }

    pub(crate) fn begin(&mut self, incident: usize, fault: Fault, now: Instant) {
        let circuits = Vec::new();
        self.active.push(Active { incident, fault, begun: now, flag: false, circuits });
    }

    /// Ends an incident; returns `false` if it was not active.
    pub(crate) fn end(&mut self, incident: usize) -> bool {
        let before = self.active.len();
        self.active.retain(|active| active.incident != incident);
        self.active.len() < before
    }

    pub(crate) fn is_active(&self, incident: usize) -> bool {
        self.active.iter().any(|active| active.incident == incident)
    }

    /// Returns the active incidents, in the order in which they began.
    pub(super) fn incidents(&self) -> Vec<usize> {
        self.active.iter().map(|active| active.incident).collect()
    }

    /// Finds the first fault for which `effect` returns a value; counts that fault, and returns the value.
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

    /// Draws the damage to a piece at the end of `link`.
    pub(crate) fn on_piece(&mut self, now: Instant, link: LinkId) -> Option<Damage> {
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

    /// Returns the extra nanoseconds of a piece on `link`.
    pub(crate) fn late(&mut self, link: LinkId) -> u64 {
        let late = self.first(|active, _| match active.fault {
            Fault::DelaySpike { link: at, by } if at == link => Some(nanos(by)),
            _ => None,
        });
        late.unwrap_or(0)
    }

    /// Returns the nanoseconds for which a frame is delayed at its sender.
    pub(crate) fn held_up(&mut self, origin: NodeId, destination: NodeId) -> u64 {
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

    pub(crate) fn is_doubled(&mut self, origin: NodeId) -> bool {
        let doubled = self.first(|active, rng| match active.fault {
            Fault::Duplicate { node, probability } if node == origin => {
                rng.chance(probability).then_some(())
            }
            _ => None,
        });
        doubled.is_some()
    }

    pub(crate) fn is_cut(&mut self, origin: NodeId, destination: NodeId) -> bool {
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

    /// Returns the link's present rate, in percent of its own.
    pub(super) fn rate_percent(&self, link: LinkId) -> u8 {
        let percents = self.active.iter().filter_map(|active| match active.fault {
            Fault::RateChange { link: at, percent } if at == link => Some(percent.clamp(1, 100)),
            _ => None,
        });
        percents.min().unwrap_or(100)
    }

    // ---- switches ----

    /// Returns the buffer's present size, in percent of its own.
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

    /// Returns the cause for which a switch drops a piece, if it does.
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

    /// Draws a number that selects a wrong output, if frame `key` is misrouted; it is the same for all pieces
    /// of the frame.
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

    /// Returns whether a NIC's memory is now too small for `needed` bytes.
    pub(super) fn is_memory_full(&mut self, node: NodeId, needed: u32) -> bool {
        let full = self.first(|active, _| match active.fault {
            Fault::NicMemory { node: at, bytes } if at == node => (needed > bytes).then_some(()),
            _ => None,
        });
        full.is_some()
    }

    /// Returns the error of an access to host memory, if it fails.
    pub(super) fn memory_error(&mut self, node: NodeId) -> Option<RegionError> {
        self.first(|active, rng| match active.fault {
            Fault::Unpinned { node: at } if at == node => Some(RegionError::NotResident),
            Fault::DmaError { node: at, probability } if at == node => {
                rng.chance(probability).then_some(RegionError::Bus)
            }
            _ => None,
        })
    }

    /// Returns how many times a doorbell rings at a NIC where `pending` others wait.
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

    pub(super) fn completion_fault(&mut self, node: NodeId) -> CompletionFault {
        let fault = self.first(|active, rng| match active.fault {
            Fault::CompletionLost { node: at, probability } if at == node => {
                rng.chance(probability).then_some(CompletionFault::Lost)
            }
            Fault::InterruptLost { node: at, probability } if at == node => {
                rng.chance(probability).then_some(CompletionFault::Silent)
            }
            Fault::InterruptLate { node: at, by } if at == node => Some(CompletionFault::Late(by)),
            _ => None,
        });
        fault.unwrap_or(CompletionFault::None)
    }

    /// Flips a bit of a command, in a field that is checked before use.
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

    /// Returns the factor by which an instruction takes longer.
    pub(super) fn instruction_times(&mut self, node: NodeId) -> u64 {
        let times = self.first(|active, _| match active.fault {
            Fault::SlowClock { node: at, times } if at == node => Some(u64::from(times.max(1))),
            _ => None,
        });
        times.unwrap_or(1)
    }

    /// Returns the extra time of this turn; each incident affects one turn.
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

    /// Returns the extra time until a task of a slow host runs.
    pub(super) fn run_late(&mut self, node: NodeId) -> Option<Duration> {
        self.first(|active, _| match active.fault {
            Fault::SlowHost { node: at, by } if at == node => Some(by),
            _ => None,
        })
    }

    /// Returns the nanoseconds by which the clock of a starting node is ahead.
    pub(super) fn skew(&mut self, node: NodeId) -> i64 {
        let ahead = self.first(|active, _| match active.fault {
            Fault::ClockSkew { node: at, ahead_ns } if at == node => Some(ahead_ns),
            _ => None,
        });
        ahead.unwrap_or(0)
    }

    /// Returns the millionths by which a clock is too fast.
    pub(super) fn drift(&self, node: NodeId) -> i32 {
        let drifts = self.active.iter().filter_map(|active| match active.fault {
            Fault::ClockDrift { node: at, ppm } if at == node => Some(i64::from(ppm)),
            _ => None,
        });
        drifts.sum::<i64>().clamp(-500_000, 500_000) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drifts_of_one_clock_add_up_to_at_most_half_its_rate() {
        let node = NodeId(0);
        for (ppm, expected) in [(i32::MAX, 500_000), (i32::MIN, -500_000), (100, 200)] {
            let mut faults = ActiveFaults::new(1);
            for incident in 0..2 {
                faults.begin(incident, Fault::ClockDrift { node, ppm }, Instant::ZERO);
            }
            assert_eq!(faults.drift(node), expected);
        }
    }
}
