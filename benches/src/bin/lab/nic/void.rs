//! A NIC without commands, which does none of the requested work.

use midplane::simhw::frame::HEADER_BYTES;
use midplane::simhw::hardware::{Dma, DmaRefused, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::region::{Access, Payload, RegionError, RegionRef};
use midplane::simhw::time::{Instant, LineRate};

/// Drops all effects.
#[derive(Debug)]
pub(crate) struct Void;

const NOW: Instant = Instant::from_nanos(1);

impl Hardware for Void {
    fn node(&self) -> NodeId {
        NodeId(0)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::FIRST
    }

    fn now(&self) -> Instant {
        NOW
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
        Ok(NOW)
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

    fn complete(&mut self, _: PortId, _: &Completion) {}

    fn dma(&mut self, _: Dma) -> Result<DmaId, DmaRefused> {
        Err(RegionError::Stale.into())
    }

    fn next_command(&mut self, _: PortId) -> Option<Command> {
        None
    }

    fn set_timer(&mut self, _: TimerId, _: Instant) {}

    fn commit(&mut self) {}
    fn abort(&mut self) {}
}
