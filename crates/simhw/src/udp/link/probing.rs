//! A NIC's part in path discovery: probes, their answers, and received pieces.

use super::{Nic, UdpLink};
use crate::drops::DropCause;
use crate::frame::{Frame, HEADER_BYTES, Header, Kind};
use crate::nic::Link;
use crate::seal::{SEAL_BYTES, Verdict};
use crate::time::Instant;

impl Nic {
    /// Adds a received piece; returns the frame's bytes if the frame is complete.
    pub(in crate::udp) fn join(&mut self, piece: &Frame<'_>) -> Result<Option<Vec<u8>>, DropCause> {
        let mut given_up = 0;
        let joined = self.link.joiner.take(self.time.get(), piece, &mut given_up);
        self.counters.drops.add_many(DropCause::Incomplete, given_up);
        joined
    }

    /// Keeps the memory of a joined frame for the next one.
    pub(in crate::udp) fn recycle_joined(&mut self, bytes: Vec<u8>) {
        self.link.joiner.recycle(bytes);
    }

    /// Handles a probe, or the answer to one. A probe beyond the answers' share of the line is dropped, and its sender
    /// tries again. Nothing may be staged.
    pub(in crate::udp) fn on_probe(&mut self, header: &Header) {
        if header.kind == Kind::Probed {
            self.link.paths.handle_probed(self.time.get(), header.source, header.sequence);
            return self.send_probes();
        }
        let wire_bytes = self.link.wire_bytes(0);
        if !self.link.line.admits_answer(self.time.get(), wire_bytes) {
            return self.counters.drops.add(DropCause::NicMemory);
        }
        let answer = Header {
            kind: Kind::Probed,
            source: self.node,
            destination: header.source,
            incarnation: self.incarnation,
            sequence: header.sequence,
            ..Header::default()
        };
        self.link.put_bare(self.time.get(), &answer);
        self.link.line.commit();
    }

    /// Handles due timeouts of probes, and sends due probes. No effect may be staged.
    pub(super) fn run_paths(&mut self) {
        if self.link.paths.poll_timeout() <= self.time.get() {
            self.link.paths.handle_timeout(self.time.get());
        }
        self.send_probes();
    }

    /// Puts due probes on the line. No effect may be staged.
    fn send_probes(&mut self) {
        let around = HEADER_BYTES + if self.link.is_sealed() { SEAL_BYTES } else { 0 };
        while let Some((to, number, bytes)) = self.link.paths.poll_transmit(self.time.get()) {
            let probe = Header {
                kind: Kind::Probe,
                source: self.node,
                destination: to,
                incarnation: self.incarnation,
                sequence: number,
                length: bytes.saturating_sub(around) as u16,
                ..Header::default()
            };
            self.link.put_bare(self.time.get(), &probe);
        }
        self.link.line.commit();
    }
}

impl UdpLink {
    /// Puts a frame of zeroes on the line. Without keys it is not sent: the next probe replaces it.
    fn put_bare(&mut self, now: Instant, header: &Header) {
        let peer = self.peers.get(header.destination.index()).copied();
        let Some(to) = self.via.filter(|_| peer.is_some()).or(peer) else { return };
        let mut frame = self.line.buffer();
        frame.clear();
        frame.extend_from_slice(&header.emit());
        frame.resize(header.frame_bytes(), 0);
        if let Some(seals) = &mut self.seals {
            let mut sealed = self.line.buffer();
            sealed.clear();
            let way = (header.hop_limit, header.is_urgent());
            let verdict = seals.seal(header.destination, way, &frame, &mut sealed);
            self.line.recycle(std::mem::replace(&mut frame, sealed));
            if verdict == Verdict::Hold {
                return self.line.recycle(frame);
            }
        }
        let wire_bytes = self.wire_bytes(usize::from(header.length));
        if header.is_urgent() {
            self.line.put_urgent(now, wire_bytes, to, frame);
        } else {
            self.line.put(now, wire_bytes, to, (frame, None));
        }
    }
}
