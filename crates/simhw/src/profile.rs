//! Costs of NICs, hosts and machines. Only the simulated fabric charges them.

mod host;
mod machine;

use std::time::Duration;

use crate::frame::MAX_PAYLOAD;

pub use host::{HostProfile, Loopback, Notice, PinCost, Ringing};
pub use machine::{Attachment, Machine};

/// The costs of a transfer by a DMA engine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DmaCost {
    /// Nanoseconds of each transfer, independent of its size.
    pub setup_ns: u32,
    /// Picoseconds of each byte.
    pub byte_ps: u32,
}

impl DmaCost {
    /// Returns the nanoseconds of a transfer of `bytes`.
    #[must_use]
    #[doc(hidden)]
    pub const fn nanos(self, bytes: usize) -> u64 {
        self.setup_ns as u64 + (bytes as u64 * self.byte_ps as u64).div_ceil(1000)
    }
}

/// The costs and capacities of a NIC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NicProfile {
    /// Picoseconds of one instruction of the coprocessor.
    pub instruction_ps: u32,
    /// Instructions to receive an event and dispatch it to its handler.
    pub event_instructions: u32,
    /// Time from a host's write to a doorbell until the NIC sees it.
    pub doorbell: Duration,
    /// Transfers from host memory to the NIC.
    pub gather: DmaCost,
    /// Transfers from the NIC to host memory.
    pub scatter: DmaCost,
    /// Time from the end of earlier writes until the host sees a completion.
    pub completion: Duration,
    /// Bytes of received frames that the NIC buffers until its firmware has handled them.
    pub receive_memory: u32,
    /// Frames that may wait for the line.
    pub transmit_slots: u16,
    /// Most bytes of one frame's payload.
    pub mtu: usize,
}

/// The costs of frames that a simulated NIC reports to its firmware.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Costs {
    /// The NIC's own costs.
    pub nic: NicProfile,
    /// Bytes of a frame that lines and switches forward as one piece: the longest frame if none cuts frames.
    pub piece: usize,
}

impl NicProfile {
    /// A NIC without costs, to study links and switches alone.
    pub const FREE: Self = Self {
        instruction_ps: 0,
        event_instructions: 0,
        doorbell: Duration::ZERO,
        gather: DmaCost { setup_ns: 0, byte_ps: 0 },
        scatter: DmaCost { setup_ns: 0, byte_ps: 0 },
        completion: Duration::ZERO,
        receive_memory: 1 << 20,
        transmit_slots: 8,
        mtu: MAX_PAYLOAD,
    };

    /// A FORE SBA-200E as DVCM used it, in an SBus workstation.
    ///
    /// Read: a 25 MHz i960 with 256 KiB of memory, at best one instruction a cycle (FORE's data sheet). Fitted
    /// to 18 us from coprocessor to coprocessor (DVCM paper, section 3): the instructions of an event.
    /// Estimated: the DMA setups, doorbell and completion of the card alone; [`Machine::DVCM_ATM`] has those of
    /// the paper's applications. Derived: SBus moves 32 bits a cycle at 25 MHz, and sustains half of that.
    pub const SBA_200E: Self = Self {
        instruction_ps: 40_000,
        event_instructions: 60,
        doorbell: Duration::from_nanos(1_000),
        gather: DmaCost { setup_ns: 4_000, byte_ps: 20_000 },
        scatter: DmaCost { setup_ns: 4_000, byte_ps: 20_000 },
        completion: Duration::from_nanos(12_000),
        receive_memory: 128 << 10,
        transmit_slots: 4,
        mtu: MAX_PAYLOAD,
    };

    /// A NIC of the kind that servers have today, with a coprocessor of 1 GHz. Derived from PCIe round trips of
    /// about 1 us, and from 12.5 GB/s of a third-generation x16 slot.
    pub const MODERN: Self = Self {
        instruction_ps: 1_000,
        event_instructions: 30,
        doorbell: Duration::from_nanos(300),
        gather: DmaCost { setup_ns: 400, byte_ps: 80 },
        scatter: DmaCost { setup_ns: 300, byte_ps: 80 },
        completion: Duration::from_nanos(300),
        receive_memory: 1 << 20,
        transmit_slots: 8,
        mtu: MAX_PAYLOAD,
    };
}

impl Default for NicProfile {
    fn default() -> Self {
        Self::FREE
    }
}
