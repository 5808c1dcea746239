//! One fault at one place, for a while; the catalogue of all kinds.

use std::fmt;
use std::time::Duration;

use crate::id::NodeId;
use crate::time::Instant;
use crate::topology::{LinkId, SwitchId};

/// A fault from `at` on, for `lasts`; it heals itself then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incident {
    /// When it begins.
    pub at: Instant,
    /// How long it lasts. What happens once, such as a reset, has no use for it.
    pub lasts: Duration,
    /// What goes wrong.
    pub fault: Fault,
}

macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* } = $text:literal,)*) => {
        /// What goes wrong, and where. Probabilities are fractions from 0 to 1.
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

            /// The parameters of such a fault, by name.
            #[must_use]
            pub const fn parameters(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$(stringify!($field),)*],)*
                }
            }
        }

        impl Fault {
            /// Which kind it is of.
            #[must_use]
            pub const fn kind(&self) -> FaultKind {
                match self {
                    $(Self::$name { .. } => FaultKind::$name,)*
                }
            }
        }
    };
}

catalogue! {
    /// A link loses each piece of a frame with a probability.
    Loss {
        /// Which link.
        link: LinkId,
        /// Of each piece.
        probability: f64
    } = "loss",
    /// A link loses pieces in bursts (Gilbert, "Capacity of a Burst-Noise Channel", 1960): all of
    /// them while it is in its bad state.
    BurstLoss {
        /// Which link.
        link: LinkId,
        /// That it turns bad, at each piece.
        enter: f64,
        /// That it turns good again, at each piece.
        leave: f64
    } = "burst-loss",
    /// A link damages pieces, which the receiver's checksum tells.
    Corrupt {
        /// Which link.
        link: LinkId,
        /// Of each piece.
        probability: f64
    } = "corrupt",
    /// A link cuts pieces short, which the receiver tells from their length. Their time on the wire
    /// is charged in full.
    Truncate {
        /// Which link.
        link: LinkId,
        /// Of each piece.
        probability: f64
    } = "truncate",
    /// A node's frames arrive twice.
    Duplicate {
        /// The sender.
        node: NodeId,
        /// Of each frame.
        probability: f64
    } = "duplicate",
    /// A node's frames are held up, and overtaken by later ones.
    Reorder {
        /// The sender.
        node: NodeId,
        /// Of each frame.
        probability: f64,
        /// Most that one is held up by.
        by: Duration
    } = "reorder",
    /// A link takes longer than usual. What comes after the end of it may overtake what came before.
    DelaySpike {
        /// Which link.
        link: LinkId,
        /// By how much.
        by: Duration
    } = "delay-spike",
    /// What one node sends to another takes longer.
    SlowPair {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
        /// By how much.
        by: Duration
    } = "slow-pair",
    /// A link is slower than usual. What was given to it before keeps its time.
    RateChange {
        /// Which link.
        link: LinkId,
        /// Of its rate, from 1.
        percent: u8
    } = "rate-change",
    /// A link is down for one period and up for the next, in turns.
    Flap {
        /// Which link.
        link: LinkId,
        /// How long it is down.
        period: Duration
    } = "flap",
    /// Nothing passes from one node to another; the other way is open.
    OneWay {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId
    } = "one-way",
    /// Nothing passes between two nodes.
    Partition {
        /// One of them.
        from: NodeId,
        /// The other.
        to: NodeId
    } = "partition",
    /// The buffer of a switch's output shrinks; what is in it stays.
    QueueShrink {
        /// The link after the output.
        link: LinkId,
        /// Of its buffer, from 0.
        percent: u8
    } = "queue-shrink",
    /// A switch's output sends nothing; its buffer fills.
    PortStuck {
        /// The link after the output.
        link: LinkId
    } = "port-stuck",
    /// A switch leads frames to the wrong one of its nodes.
    Misroute {
        /// Which switch.
        switch: SwitchId,
        /// Of each frame.
        probability: f64
    } = "misroute",
    /// A switch's table has room for so many circuits from one node to another; others are dropped.
    CircuitTable {
        /// Which switch.
        switch: SwitchId,
        /// Circuits.
        most: u16
    } = "circuit-table",
    /// A switch loses what is in its buffers, and drops what comes until it runs again.
    SwitchReboot {
        /// Which switch.
        switch: SwitchId
    } = "switch-reboot",
    /// A NIC has less memory for frames that arrive.
    NicMemory {
        /// Which NIC.
        node: NodeId,
        /// Bytes that are left.
        bytes: u32
    } = "nic-memory",
    /// A NIC's DMA engines stand still.
    DmaStall {
        /// Which NIC.
        node: NodeId
    } = "dma-stall",
    /// Accesses of a NIC to host memory fail.
    DmaError {
        /// Which NIC.
        node: NodeId,
        /// Of each access.
        probability: f64
    } = "dma-error",
    /// Doorbells are lost: the NIC does not look until the next one.
    DoorbellLost {
        /// Which NIC.
        node: NodeId,
        /// Of each doorbell.
        probability: f64
    } = "doorbell-lost",
    /// Doorbells ring twice.
    DoorbellDoubled {
        /// Which NIC.
        node: NodeId,
        /// Of each doorbell.
        probability: f64
    } = "doorbell-doubled",
    /// A NIC's doorbell queue is short: what rings while it is full is lost.
    DoorbellQueue {
        /// Which NIC.
        node: NodeId,
        /// Doorbells that it holds.
        depth: u16
    } = "doorbell-queue",
    /// Completions are not written, as by a queue that has run over. Nothing above the hardware can
    /// tell or mend it.
    CompletionLost {
        /// Which NIC.
        node: NodeId,
        /// Of each completion.
        probability: f64
    } = "completion-lost",
    /// Completions are written, and nobody is woken for them.
    InterruptLost {
        /// Which NIC.
        node: NodeId,
        /// Of each completion.
        probability: f64
    } = "interrupt-lost",
    /// Whoever waits for a completion is woken late.
    InterruptLate {
        /// Which NIC.
        node: NodeId,
        /// By how much.
        by: Duration
    } = "interrupt-late",
    /// Those who wait for completions are woken for nothing, again and again.
    InterruptSpurious {
        /// Which NIC.
        node: NodeId,
        /// From one to the next.
        every: Duration
    } = "interrupt-spurious",
    /// A bit of a command flips, in its memory handle or its extension, as the NIC reads it.
    CommandDamaged {
        /// Which NIC.
        node: NodeId,
        /// Of each command.
        probability: f64
    } = "command-damaged",
    /// A NIC starts anew, under a host that goes on: its ports close.
    NicReset {
        /// Which NIC.
        node: NodeId
    } = "nic-reset",
    /// A coprocessor stands still until its watchdog resets the NIC, at the end of the incident.
    Trap {
        /// Which NIC.
        node: NodeId
    } = "trap",
    /// One turn of a coprocessor takes far too long.
    Overrun {
        /// Which NIC.
        node: NodeId,
        /// How much longer.
        by: Duration
    } = "overrun",
    /// A coprocessor is slow.
    SlowClock {
        /// Which NIC.
        node: NodeId,
        /// How many times as long an instruction takes.
        times: u16
    } = "slow-clock",
    /// A node crashes, host and NIC, and restarts at the end of the incident.
    Crash {
        /// Which node.
        node: NodeId
    } = "crash",
    /// A host's tasks stand still; its NIC goes on.
    Pause {
        /// Which host.
        node: NodeId
    } = "pause",
    /// A host's tasks run late.
    SlowHost {
        /// Which host.
        node: NodeId,
        /// From being woken to running.
        by: Duration
    } = "slow-host",
    /// A host's registered memory is not there for its NIC: it was unpinned.
    Unpinned {
        /// Which host.
        node: NodeId
    } = "unpinned",
    /// The processes of a host end with whatever they have posted, and start anew at the end of the
    /// incident; its NIC goes on.
    ProcessExit {
        /// Which host.
        node: NodeId
    } = "process-exit",
    /// A node that starts in this time has a clock that is wrong.
    ClockSkew {
        /// Which node.
        node: NodeId,
        /// Nanoseconds that it is ahead; behind where negative.
        ahead_ns: i64
    } = "clock-skew",
    /// A node's clock is fast or slow.
    ClockDrift {
        /// Which node.
        node: NodeId,
        /// Millionths that it is too fast; too slow where negative. From -500,000 to 500,000.
        ppm: i32
    } = "clock-drift",
    /// A node's clock leaps ahead.
    ClockStep {
        /// Which node.
        node: NodeId,
        /// How far.
        by: Duration
    } = "clock-step",
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each kind of fault has had an effect: frames it took, doorbells it lost, tasks it held
/// up. An incident that met nothing counts nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

    /// How often `kind` has had an effect.
    #[must_use]
    pub const fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Effects of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Kinds that had an effect, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> + '_ {
        FaultKind::ALL.iter().map(|kind| (*kind, self.of(*kind))).filter(|(_, count)| *count > 0)
    }
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
