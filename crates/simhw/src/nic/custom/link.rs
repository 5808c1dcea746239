//! Stages the frames of a turn, and sends them at its commit.

use super::FrameLink;
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Source, TransmitRefused};
use crate::id::NodeId;
use crate::nic::{Link, Nic, payload};
use crate::region::Payload;
use crate::segment::View;
use crate::time::{Instant, LineRate};

/// Nanoseconds after which firmware tries again if the link had no space.
const RETRY_NANOS: u64 = 20_000;

/// The sending half of a NIC, and the link that carries its frames.
pub(super) struct StagingLink<L> {
    pub(super) carrier: L,
    staged: Vec<(NodeId, Vec<u8>)>,
    /// Staged frames to nodes that do not exist.
    unroutable: u64,
}

impl<L: FrameLink> StagingLink<L> {
    pub(super) const fn new(carrier: L) -> Self {
        Self { carrier, staged: Vec::new(), unroutable: 0 }
    }

    fn stage(
        &mut self,
        now: Instant,
        header: &Header,
        payload: &Payload<'_>,
    ) -> Result<(), TransmitRefused> {
        let to = header.destination;
        if to.0 >= self.carrier.nodes() {
            self.unroutable += 1;
            return Ok(());
        }
        let others = self.staged.iter().filter(|(other, _)| *other == to).count();
        if !self.carrier.has_room(to, others) {
            return Err(TransmitRefused::PeerBusy { until: now.plus_nanos(RETRY_NANOS) });
        }
        let mut frame = vec![0; header.frame_bytes()];
        frame[..HEADER_BYTES].copy_from_slice(&header.emit());
        payload.copy_to(&mut frame[HEADER_BYTES..]);
        self.staged.push((to, frame));
        Ok(())
    }
}

impl<L: FrameLink> Link for StagingLink<L> {
    fn line_rate(&self) -> LineRate {
        self.carrier.line_rate()
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        u32::try_from(HEADER_BYTES + payload).unwrap_or(u32::MAX)
    }

    fn transmit(
        nic: &mut Nic<Self>,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        let Nic { link, ports, node, mtu, time, .. } = nic;
        let now = time.get();
        let payload = payload(ports, *mtu, header, source)?;
        if header.destination != NodeId::BROADCAST {
            link.stage(now, header, &payload)?;
            return Ok(now);
        }
        let nodes = (0..link.carrier.nodes()).map(NodeId);
        for destination in nodes.filter(|other| other != node) {
            // A peer without space for its copy misses it, because copies for other peers are already staged.
            let _ = link.stage(now, &Header { destination, ..*header }, &payload);
        }
        Ok(now)
    }

    fn publish(nic: &mut Nic<Self>) {
        let Nic { link, counters, .. } = nic;
        counters.drops.add_many(DropCause::NoRoute, std::mem::take(&mut link.unroutable));
        for (to, frame) in link.staged.drain(..) {
            match link.carrier.send(to, &frame) {
                Ok(()) => {
                    counters.frames_sent += 1;
                    counters.bytes_sent += frame.len() as u64;
                }
                Err(cause) => counters.drops.add(cause),
            }
        }
    }

    fn abort(&mut self) {
        self.staged.clear();
        self.unroutable = 0;
    }

    fn current(&self) -> Option<View<'_>> {
        None
    }

    fn end_frame(&mut self) {}
}
