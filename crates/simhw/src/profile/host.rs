//! Costs of hosts: their kernels, their processors, their access to the NIC.

use crate::profile::DmaCost;

/// The way in which a host rings a doorbell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ringing {
    /// By a write to mapped memory, at user level; it costs only the NIC's own delay.
    #[default]
    Mapped,
    /// By a system call.
    SystemCall,
}

/// The way in which a host is notified of completions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// The host polls: at no cost, a waiting task sees a completion at once.
    #[default]
    Polled,
    /// The NIC interrupts the kernel, which wakes the waiting task.
    Interrupt,
    /// The NIC interrupts the kernel, which runs a signal handler of the process.
    Signal,
}

/// The costs of a frame from a node to itself, if the kernel passes it between processes without the NIC and the line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Loopback {
    /// Nanoseconds of each frame, without the costs below.
    pub frame_ns: u32,
    /// Most payload bytes of a short frame; a longer one takes `long_ns` more.
    pub short_bytes: u32,
    /// Extra nanoseconds of a longer frame.
    pub long_ns: u32,
    /// Most bytes of a copy, by the kernel or a process, whose data is all in the nearest cache.
    pub near_bytes: u32,
    /// Picoseconds of each byte of such a copy.
    pub near_byte_ps: u32,
    /// Picoseconds of each byte of a longer copy.
    pub far_byte_ps: u32,
}

impl Loopback {
    /// Returns the nanoseconds to copy `bytes` that this host's processor wrote or read last.
    #[must_use]
    #[doc(hidden)]
    pub const fn copy_ns(&self, bytes: usize) -> u64 {
        let near = bytes <= self.near_bytes as usize;
        let byte_ps = if near { self.near_byte_ps } else { self.far_byte_ps };
        DmaCost { setup_ns: 0, byte_ps }.nanos(bytes)
    }

    /// Returns the nanoseconds to pass on a frame of `bytes`, which are copied once.
    #[must_use]
    #[doc(hidden)]
    pub const fn frame_ns(&self, bytes: usize) -> u64 {
        let long = if bytes > self.short_bytes as usize { self.long_ns } else { 0 };
        self.frame_ns as u64 + long as u64 + self.copy_ns(bytes)
    }
}

/// The costs to register memory: the kernel pins its pages and enters their addresses in the NIC's table.
/// Deregistering is part of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PinCost {
    /// Nanoseconds of each registration, independent of its size.
    pub base_ns: u32,
    /// Nanoseconds of each page that the memory covers.
    pub page_ns: u32,
}

impl PinCost {
    /// Bytes of a page, on all machines here.
    const PAGE: usize = 4096;

    /// Returns the nanoseconds to register `bytes` that begin at a page's start.
    #[must_use]
    #[doc(hidden)]
    pub const fn nanos(self, bytes: usize) -> u64 {
        self.base_ns as u64 + bytes.div_ceil(Self::PAGE) as u64 * self.page_ns as u64
    }
}

/// The costs of a host with one processor. Only the simulated fabric charges them, after
/// [`World::set_hosts`](crate::sim::World::set_hosts).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostProfile {
    /// Nanoseconds to enter the kernel and return.
    pub system_call_ns: u32,
    /// A copy within memory: setup, and each byte.
    pub copy: DmaCost,
    /// Costs to register memory with the NIC.
    pub pin: PinCost,
    /// Nanoseconds that an interrupt takes from the running task, if the kernel's handler serves it.
    pub interrupt_ns: u32,
    /// Nanoseconds that an interrupt takes if a signal handler of the process serves it.
    pub signal_ns: u32,
    /// Nanoseconds to switch to another task.
    pub context_switch_ns: u32,
    /// The way in which doorbells are rung.
    pub ringing: Ringing,
    /// The way in which the host is notified of completions.
    pub notice: Notice,
    /// True if the firmware runs on this processor, in the kernel. Its instructions then take the processor's
    /// time, a received frame raises an interrupt, and the firmware writes to memory by copying.
    pub runs_firmware: bool,
    /// Costs of frames from the node to itself, if the host passes them internally. `None` if they go out on the line
    /// and come back.
    pub loopback: Option<Loopback>,
}

impl HostProfile {
    /// A host without costs.
    pub const FREE: Self = Self {
        system_call_ns: 0,
        copy: DmaCost { setup_ns: 0, byte_ps: 0 },
        pin: PinCost { base_ns: 0, page_ns: 0 },
        interrupt_ns: 0,
        signal_ns: 0,
        context_switch_ns: 0,
        ringing: Ringing::Mapped,
        notice: Notice::Polled,
        runs_firmware: false,
        loopback: None,
    };

    /// Returns the nanoseconds that a completion takes from the running task. Firmware in the kernel was
    /// interrupted for the frame already.
    pub(crate) const fn notice_ns(&self) -> u64 {
        match self.notice {
            _ if self.runs_firmware => 0,
            Notice::Polled => 0,
            Notice::Interrupt => self.interrupt_ns as u64,
            Notice::Signal => self.signal_ns as u64,
        }
    }
}
