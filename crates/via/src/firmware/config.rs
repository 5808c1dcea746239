//! The configuration of the extension.

use std::time::Duration;

use midplane_simhw::id::PortId;
use midplane_simhw::time::nanos;

/// The configuration of the extension.
#[derive(Clone, Copy, Debug)]
pub struct ViaConfig {
    pub(super) max_vis: usize,
    pub(super) dead_after_ns: u64,
    pub(super) checkpointer: Option<PortId>,
    pub(super) is_gate_shut: bool,
}

impl Default for ViaConfig {
    fn default() -> Self {
        Self {
            max_vis: 4096,
            dead_after_ns: 2_000_000_000,
            checkpointer: None,
            is_gate_shut: false,
        }
    }
}

impl ViaConfig {
    /// Sets the most interfaces of one NIC, up to 65,536. Default: 4,096.
    #[must_use]
    pub const fn max_vis(mut self, interfaces: usize) -> Self {
        self.max_vis = if interfaces < 65_536 { interfaces } else { 65_536 };
        self
    }

    /// Sets how long the other end may be silent while a frame is expected from it. It must exceed any pause of a
    /// process whose NIC stops with it. Default: 2 s.
    #[must_use]
    pub fn dead_after(mut self, time: Duration) -> Self {
        self.dead_after_ns = nanos(time);
        self
    }

    /// Sends all messages through the NIC. By default, the NIC opens the gate when it can: messages between processes
    /// of one host bypass it, unless a process is suspended or an admission is installed.
    #[must_use]
    #[doc(hidden)]
    pub const fn shut_gate(mut self) -> Self {
        self.is_gate_shut = true;
        self
    }

    /// Sets the port that may save, forget and restore the interfaces of all others
    /// ([`Checkpointer`](crate::checkpointer::Checkpointer)). The daemon opens this port by its number before any other
    /// process can. Default: none.
    #[must_use]
    #[doc(hidden)]
    pub const fn checkpointer(mut self, port: PortId) -> Self {
        self.checkpointer = Some(port);
        self
    }
}
