//! What hosts cost: their kernels, their processors, their way to the NIC.

use crate::profile::DmaCost;

/// How a host rings a doorbell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ringing {
    /// With a write to memory that is mapped: user level, nothing but the NIC's own cost.
    #[default]
    Mapped,
    /// With a system call.
    SystemCall,
}

/// How a host learns of completions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// It looks: nothing is spent, and who waits knows at once.
    #[default]
    Polled,
    /// The kernel is interrupted, and wakes who waits.
    Interrupt,
    /// The kernel is interrupted, and runs a handler of the process.
    Signal,
}

/// What a frame to the own node costs where the kernel hands it from one process to another: nothing of it
/// meets the NIC or the line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Loopback {
    /// Nanoseconds of a frame, beside what follows.
    pub frame_ns: u32,
    /// Payload bytes above which a frame takes `long_ns` more.
    pub short_bytes: u32,
    /// Nanoseconds that a longer frame takes more.
    pub long_ns: u32,
    /// Bytes up to which a copy, by the kernel or by a process, finds everything in the nearest cache.
    pub near_bytes: u32,
    /// Picoseconds of each byte of such a copy.
    pub near_byte_ps: u32,
    /// Picoseconds of each byte of a longer one.
    pub far_byte_ps: u32,
}

impl Loopback {
    /// Nanoseconds to copy `bytes` that this host's processor has written or read last.
    #[must_use]
    pub const fn copy_ns(&self, bytes: usize) -> u64 {
        let near = bytes <= self.near_bytes as usize;
        let byte_ps = if near { self.near_byte_ps } else { self.far_byte_ps };
        DmaCost { setup_ns: 0, byte_ps }.nanos(bytes)
    }

    /// Nanoseconds to hand over a frame with so many bytes, which are copied once.
    #[must_use]
    pub const fn frame_ns(&self, bytes: usize) -> u64 {
        let long = if bytes > self.short_bytes as usize { self.long_ns } else { 0 };
        self.frame_ns as u64 + long as u64 + self.copy_ns(bytes)
    }
}

/// What a host's one processor spends on what. Only the simulated fabric charges it, and nothing
/// unless [`World::set_hosts`](crate::sim::World::set_hosts) says so. Registering memory costs nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostProfile {
    /// Nanoseconds into the kernel and back.
    pub system_call_ns: u32,
    /// A copy within memory: of each, and of each byte.
    pub copy: DmaCost,
    /// Nanoseconds that an interrupt takes from what runs, if the kernel's handler serves it.
    pub interrupt_ns: u32,
    /// Nanoseconds that it takes if a signal handler of the process serves it.
    pub signal_ns: u32,
    /// Nanoseconds until another task than the last one runs.
    pub context_switch_ns: u32,
    /// Picoseconds to read a byte of the NIC's memory over the bus.
    pub io_read_ps: u32,
    /// Picoseconds to write one.
    pub io_write_ps: u32,
    /// How doorbells are rung.
    pub ringing: Ringing,
    /// How completions are seen.
    pub notice: Notice,
    /// The firmware runs on this processor, in the kernel: its instructions are the processor's, an
    /// interrupt leads to it when a frame comes, and it writes into memory by copying.
    pub runs_firmware: bool,
    /// How frames to the own node pass within the host; `None` where they leave on the line as all others
    /// do, and come back.
    pub loopback: Option<Loopback>,
}

impl HostProfile {
    /// A host that costs nothing.
    pub const FREE: Self = Self {
        system_call_ns: 0,
        copy: DmaCost { setup_ns: 0, byte_ps: 0 },
        interrupt_ns: 0,
        signal_ns: 0,
        context_switch_ns: 0,
        io_read_ps: 0,
        io_write_ps: 0,
        ringing: Ringing::Mapped,
        notice: Notice::Polled,
        runs_firmware: false,
        loopback: None,
    };

    /// Nanoseconds to read `bytes` of the NIC's memory.
    #[must_use]
    pub const fn io_read_ns(&self, bytes: usize) -> u64 {
        (bytes as u64 * self.io_read_ps as u64).div_ceil(1000)
    }

    /// Nanoseconds to write them.
    #[must_use]
    pub const fn io_write_ns(&self, bytes: usize) -> u64 {
        (bytes as u64 * self.io_write_ps as u64).div_ceil(1000)
    }

    /// Nanoseconds that a completion takes from what runs. Firmware in the kernel was interrupted
    /// for the frame already.
    pub(crate) const fn notice_ns(&self) -> u64 {
        match self.notice {
            _ if self.runs_firmware => 0,
            Notice::Polled => 0,
            Notice::Interrupt => self.interrupt_ns as u64,
            Notice::Signal => self.signal_ns as u64,
        }
    }
}
