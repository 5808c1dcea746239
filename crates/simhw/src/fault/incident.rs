//! One fault at one place for some time, and the catalogue of all kinds.

use std::fmt;
use std::time::Duration;

use super::FaultError;
use crate::id::NodeId;
use crate::time::Instant;
use crate::topology::{LinkId, SwitchId};

/// A fault that begins at `at` and ends after `lasts`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incident {
    /// When it begins.
    pub at: Instant,
    /// Its duration. Faults that happen once, such as a reset, ignore it.
    pub lasts: Duration,
    /// The fault that it causes.
    pub fault: Fault,
}

macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* } = $text:literal,)*) => {
        /// A fault and the place where it occurs. Probabilities are from 0 to 1.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $kind,)* },)*
        }

        /// A kind of [`Fault`].
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum FaultKind {
            $(#[doc = concat!("[`Fault::", stringify!($name), "`]")] $name,)*
        }

        impl FaultKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind's name in scripts, reports and traces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the names of the parameters of such a fault.
            #[must_use]
            pub const fn parameters(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$(stringify!($field),)*],)*
                }
            }
        }

        impl Fault {
            /// Returns the kind of this fault.
            #[must_use]
            pub const fn kind(&self) -> FaultKind {
                match self {
                    $(Self::$name { .. } => FaultKind::$name,)*
                }
            }

            /// Returns the values of the parameters, in their order.
            fn values(&self) -> Vec<Parameter> {
                match *self {
                    $(Self::$name { $($field),* } => vec![$(Parameter::from($field)),*],)*
                }
            }
        }
    };
}

catalogue! {
    /// A link loses each piece of a frame with a probability.
    Loss {
        /// The link.
        link: LinkId,
        /// Probability for each piece.
        probability: f64
    } = "loss",
    /// A link loses pieces in bursts: all pieces while it is in its bad state (Gilbert, "Capacity of a
    /// Burst-Noise Channel", 1960).
    BurstLoss {
        /// The link.
        link: LinkId,
        /// Probability, at each piece, that the link turns bad.
        enter: f64,
        /// Probability, at each piece, that the link turns good again.
        leave: f64
    } = "burst-loss",
    /// A link damages pieces; the receiver's checksum detects it.
    Corrupt {
        /// The link.
        link: LinkId,
        /// Probability for each piece.
        probability: f64
    } = "corrupt",
    /// A link cuts pieces short; the receiver detects it from their length. They take their full time on the
    /// wire.
    Truncate {
        /// The link.
        link: LinkId,
        /// Probability for each piece.
        probability: f64
    } = "truncate",
    /// A node's frames arrive twice.
    Duplicate {
        /// The sender.
        node: NodeId,
        /// Probability for each frame.
        probability: f64
    } = "duplicate",
    /// A node's frames are delayed, and later ones overtake them.
    Reorder {
        /// The sender.
        node: NodeId,
        /// Probability for each frame.
        probability: f64,
        /// Longest delay of a frame.
        by: Duration
    } = "reorder",
    /// A link has a higher propagation delay. Frames sent after the incident may overtake those sent during it.
    DelaySpike {
        /// The link.
        link: LinkId,
        /// The extra delay.
        by: Duration
    } = "delay-spike",
    /// Frames from one node to another take longer.
    SlowPair {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
        /// The extra delay.
        by: Duration
    } = "slow-pair",
    /// A link has a lower rate. Frames queued on it before keep their times.
    RateChange {
        /// The link.
        link: LinkId,
        /// Percentage of its rate that remains, from 1.
        percent: u8
    } = "rate-change",
    /// A link alternates between one period down and one period up.
    Flap {
        /// The link.
        link: LinkId,
        /// Length of the period.
        period: Duration
    } = "flap",
    /// All frames from one node to another are lost; the opposite direction works.
    OneWay {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId
    } = "one-way",
    /// All frames between two nodes are lost.
    Partition {
        /// One of the nodes.
        from: NodeId,
        /// The other node.
        to: NodeId
    } = "partition",
    /// The buffer of a switch's output shrinks; pieces already in it stay.
    QueueShrink {
        /// The link that leaves the output.
        link: LinkId,
        /// Percentage of its buffer that remains, from 0.
        percent: u8
    } = "queue-shrink",
    /// A switch's output sends nothing; its buffer fills.
    PortStuck {
        /// The link that leaves the output.
        link: LinkId
    } = "port-stuck",
    /// A switch forwards frames to a wrong one of its nodes.
    Misroute {
        /// The switch.
        switch: SwitchId,
        /// Probability for each frame.
        probability: f64
    } = "misroute",
    /// A switch's table holds at most `most` circuits from one node to another; frames of others are
    /// dropped.
    CircuitTable {
        /// The switch.
        switch: SwitchId,
        /// Most circuits.
        most: u16
    } = "circuit-table",
    /// A switch loses its buffers, and drops frames until it has restarted.
    SwitchReboot {
        /// The switch.
        switch: SwitchId
    } = "switch-reboot",
    /// A NIC has less memory for received frames.
    NicMemory {
        /// The NIC.
        node: NodeId,
        /// Bytes that remain.
        bytes: u32
    } = "nic-memory",
    /// A NIC's DMA engines stop.
    DmaStall {
        /// The NIC.
        node: NodeId
    } = "dma-stall",
    /// A NIC's accesses to host memory fail.
    DmaError {
        /// The NIC.
        node: NodeId,
        /// Probability for each access.
        probability: f64
    } = "dma-error",
    /// Doorbells are lost: the NIC does not poll the port until the next one.
    DoorbellLost {
        /// The NIC.
        node: NodeId,
        /// Probability for each doorbell.
        probability: f64
    } = "doorbell-lost",
    /// Doorbells ring twice.
    DoorbellDoubled {
        /// The NIC.
        node: NodeId,
        /// Probability for each doorbell.
        probability: f64
    } = "doorbell-doubled",
    /// A NIC's doorbell queue is short; a doorbell that finds it full is lost.
    DoorbellQueue {
        /// The NIC.
        node: NodeId,
        /// Doorbells that the queue holds.
        depth: u16
    } = "doorbell-queue",
    /// Completions are lost, as in a queue that has overrun. Software above the hardware can neither detect nor
    /// repair it.
    CompletionLost {
        /// The NIC.
        node: NodeId,
        /// Probability for each completion.
        probability: f64
    } = "completion-lost",
    /// Completions are written, but the waiting task is not woken.
    InterruptLost {
        /// The NIC.
        node: NodeId,
        /// Probability for each completion.
        probability: f64
    } = "interrupt-lost",
    /// A task that waits for a completion is woken late.
    InterruptLate {
        /// The NIC.
        node: NodeId,
        /// The extra delay.
        by: Duration
    } = "interrupt-late",
    /// Tasks that wait for completions are woken again and again without one.
    InterruptSpurious {
        /// The NIC.
        node: NodeId,
        /// Time from one such wake-up to the next.
        every: Duration
    } = "interrupt-spurious",
    /// A bit of a command's memory handle or extension flips as the NIC reads it.
    CommandDamaged {
        /// The NIC.
        node: NodeId,
        /// Probability for each command.
        probability: f64
    } = "command-damaged",
    /// A NIC restarts while its host continues; the NIC's ports close.
    NicReset {
        /// The NIC.
        node: NodeId
    } = "nic-reset",
    /// A coprocessor stops; at the end of the incident its watchdog resets the NIC.
    Trap {
        /// The NIC.
        node: NodeId
    } = "trap",
    /// One turn of a coprocessor takes far longer.
    Overrun {
        /// The NIC.
        node: NodeId,
        /// The extra time.
        by: Duration
    } = "overrun",
    /// A coprocessor runs slowly.
    SlowClock {
        /// The NIC.
        node: NodeId,
        /// Factor by which an instruction takes longer.
        times: u16
    } = "slow-clock",
    /// A node, host and NIC, crashes; it restarts at the end of the incident.
    Crash {
        /// The node.
        node: NodeId
    } = "crash",
    /// A host's tasks are suspended; its NIC continues.
    Pause {
        /// The host.
        node: NodeId
    } = "pause",
    /// A host's tasks run late.
    SlowHost {
        /// The host.
        node: NodeId,
        /// Extra time from the wake-up of a task until it runs.
        by: Duration
    } = "slow-host",
    /// A host's registered memory is inaccessible to its NIC, as if unpinned.
    Unpinned {
        /// The host.
        node: NodeId
    } = "unpinned",
    /// The processes of a host exit, even with posted work, and restart at the end of the incident. The NIC continues.
    /// Services (feature `services`) lose their host's kernel as well, as in a loss of power: their sockets send nothing
    /// more, and peers get neither FIN nor RST. The restarted host resets the earlier connections.
    ProcessExit {
        /// The host.
        node: NodeId
    } = "process-exit",
    /// A node that starts during the incident has a wrong clock.
    ClockSkew {
        /// The node.
        node: NodeId,
        /// Nanoseconds by which the clock is ahead; negative if behind.
        ahead_ns: i64
    } = "clock-skew",
    /// A node's clock runs too fast or too slow.
    ClockDrift {
        /// The node.
        node: NodeId,
        /// Millionths by which the clock is too fast, negative if too slow: from -500,000 to 500,000.
        ppm: i32
    } = "clock-drift",
    /// A node's clock jumps ahead.
    ClockStep {
        /// The node.
        node: NodeId,
        /// Length of the jump.
        by: Duration
    } = "clock-step",
}

/// The value of a fault's parameter, as far as it is checked.
#[derive(Clone, Copy, Debug)]
enum Parameter {
    Node(NodeId),
    Link(LinkId),
    Switch(SwitchId),
    Probability(f64),
    Unchecked,
}

macro_rules! parameters {
    ($($kind:ty => |$value:pat_param| $parameter:expr;)*) => {$(
        impl From<$kind> for Parameter {
            fn from($value: $kind) -> Self {
                $parameter
            }
        }
    )*};
}

parameters! {
    NodeId => |node| Self::Node(node);
    LinkId => |link| Self::Link(link);
    SwitchId => |switch| Self::Switch(switch);
    f64 => |probability| Self::Probability(probability);
    Duration => |_| Self::Unchecked;
    u8 => |_| Self::Unchecked;
    u16 => |_| Self::Unchecked;
    u32 => |_| Self::Unchecked;
    i32 => |_| Self::Unchecked;
    i64 => |_| Self::Unchecked;
}

impl Fault {
    /// Checks that the probabilities are valid.
    pub(crate) fn check_probabilities(&self) -> Result<(), FaultError> {
        self.values().into_iter().try_for_each(|value| match value {
            Parameter::Probability(value) => {
                FaultError::check_probability(self.kind().name(), value)
            }
            _ => Ok(()),
        })
    }

    /// Checks that the probabilities and periods are valid, and that `topology` has the places.
    pub(crate) fn check_in(&self, topology: &Places) -> Result<(), FaultError> {
        self.check_probabilities()?;
        if let Self::InterruptSpurious { every: period, .. } | Self::Flap { period, .. } = self
            && period.is_zero()
        {
            return Err(FaultError::Period(self.kind()));
        }
        self.values().into_iter().try_for_each(|value| {
            let (what, number, count) = match value {
                Parameter::Node(node) => ("node", u32::from(node.0), topology.nodes),
                Parameter::Link(link) => ("link", link.0, topology.links),
                Parameter::Switch(switch) => ("switch", u32::from(switch.0), topology.switches),
                Parameter::Probability(_) | Parameter::Unchecked => return Ok(()),
            };
            if number < count { Ok(()) } else { Err(FaultError::Place { what, number, count }) }
        })
    }
}

/// The numbers of places that a topology has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) nodes: u32,
    pub(crate) links: u32,
    pub(crate) switches: u32,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts how often each kind of fault has had an effect, such as a lost frame, a lost doorbell or a delayed
/// task. An incident without effect is not counted.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl Default for FaultCounts {
    fn default() -> Self {
        Self([0; FaultKind::ALL.len()])
    }
}

impl FaultCounts {
    pub(crate) const fn add(&mut self, kind: FaultKind) {
        self.0[kind as usize] += 1;
    }

    /// Returns how often `kind` has had an effect.
    #[must_use]
    pub const fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Returns the number of effects of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over the kinds that had an effect, each with its count.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> + '_ {
        FaultKind::ALL.iter().map(|kind| (*kind, self.of(*kind))).filter(|(_, count)| *count > 0)
    }
}

impl fmt::Debug for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
