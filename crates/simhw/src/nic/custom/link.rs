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
    /// Staged copies of broadcasts for which the link had no space.
    full: u64,
}

impl<L: FrameLink> StagingLink<L> {
    pub(super) const fn new(carrier: L) -> Self {
        Self { carrier, staged: Vec::new(), unroutable: 0, full: 0 }
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
            if link.stage(now, &Header { destination, ..*header }, &payload).is_err() {
                link.full += 1;
            }
        }
        Ok(now)
    }

    fn publish(nic: &mut Nic<Self>) {
        let Nic { link, counters, .. } = nic;
        counters.drops.add_many(DropCause::NoRoute, std::mem::take(&mut link.unroutable));
        counters.drops.add_many(DropCause::BufferFull, std::mem::take(&mut link.full));
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
        self.full = 0;
    }

    fn current(&self) -> Option<View<'_>> {
        None
    }

    fn end_frame(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;
    use crate::hardware::Hardware as _;
    use crate::id::Incarnation;

    /// A link of three nodes that has space for frames to node 1 only.
    struct Full;

    impl FrameLink for Full {
        fn nodes(&self) -> u16 {
            3
        }

        fn line_rate(&self) -> LineRate {
            LineRate::mbps(1_000)
        }

        fn has_room(&mut self, to: NodeId, _: usize) -> bool {
            to == NodeId(1)
        }

        fn send(&mut self, _: NodeId, _: &[u8]) -> Result<(), DropCause> {
            Ok(())
        }

        fn poll_receive(&mut self, _: &mut Context<'_>) -> Poll<(NodeId, Vec<u8>)> {
            Poll::Pending
        }
    }

    #[test]
    fn copies_of_a_broadcast_without_space_are_counted() {
        let mut nic = Nic::new(NodeId(0), Incarnation::FIRST, 8, StagingLink::new(Full));
        let header = Header { destination: NodeId::BROADCAST, ..Header::default() };
        nic.transmit(&header, Source::Bytes(Payload::EMPTY)).unwrap();
        nic.abort();
        for sent in 1..=10 {
            nic.transmit(&header, Source::Bytes(Payload::EMPTY)).unwrap();
            nic.commit();
            assert_eq!(nic.counters.frames_sent, sent);
            assert_eq!(nic.counters.drops.of(DropCause::BufferFull), sent);
        }
    }
}
