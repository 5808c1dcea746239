//! A NIC with an endless supply of commands and frames, which does none of the requested work.

use midplane::simhw::frame::HEADER_BYTES;
use midplane::simhw::hardware::{Dma, DmaRefused, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::region::{Access, Payload, RegionError, RegionRef};
use midplane::simhw::time::{Instant, LineRate};

/// Counts committed completions, and drops staged ones on an abort.
#[derive(Debug)]
pub(crate) struct Void {
    pub(crate) now: Instant,
    pub(crate) command: Command,
    /// Remaining commands.
    pub(crate) left: u32,
    /// Completions staged since the last commit, and committed ones.
    staged: u64,
    pub(crate) completed: u64,
}

impl Void {
    pub(crate) fn new() -> Self {
        let (now, command) = (Instant::from_nanos(1), Command::default());
        Self { now, command, left: 0, staged: 0, completed: 0 }
    }
}

impl Hardware for Void {
    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::FIRST
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn mtu(&self) -> usize {
        4096
    }

    fn line_rate(&self) -> LineRate {
        LineRate::mbps(100_000)
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        (HEADER_BYTES + payload) as u32
    }

    fn line_lag(&self) -> u64 {
        0
    }

    fn charge(&mut self, _: u64) {}

    fn transmit(
        &mut self,
        _: &midplane::simhw::frame::Header,
        _: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        Ok(self.now)
    }

    fn check(&self, _: RegionRef, _: Access) -> Result<(), RegionError> {
        Err(RegionError::Stale)
    }

    fn read(&self, _: RegionRef) -> Result<Payload<'_>, RegionError> {
        Err(RegionError::Stale)
    }

    fn write(&mut self, _: RegionRef, _: Payload<'_>) -> Result<(), RegionError> {
        Err(RegionError::Stale)
    }

    fn complete(&mut self, _: PortId, _: &Completion) {
        self.staged += 1;
    }

    fn dma(&mut self, _: Dma) -> Result<DmaId, DmaRefused> {
        Err(RegionError::Stale.into())
    }

    fn next_command(&mut self, _: PortId) -> Option<Command> {
        self.left = self.left.checked_sub(1)?;
        Some(self.command)
    }

    fn set_timer(&mut self, _: TimerId, _: Instant) {}

    fn commit(&mut self) {
        self.completed += self.staged;
        self.staged = 0;
    }

    fn abort(&mut self) {
        self.staged = 0;
    }
}
