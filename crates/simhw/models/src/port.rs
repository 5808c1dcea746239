//! The flags, doorbells and gate that the host and the NIC of a port share.

#[path = "../../src/port/bells.rs"]
mod bells;
#[path = "../../src/port/control_block.rs"]
mod control_block;
#[path = "../../src/port/gate.rs"]
mod gate;

pub(crate) use bells::Bells;
pub(crate) use control_block::PortControlBlock;
pub(crate) use gate::{GATE_BYTES, gate};
