//! How frames leave: copied together and sealed, or, where they are long and plain, from where the application
//! has them.

use super::{LOOP_DEPTH, Nic};
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Hardware, Source, TransmitRefused};
use crate::id::NodeId;
use crate::region::{Payload, RegionRef};
use crate::seal::{SEAL_BYTES, Verdict};
use crate::time::Instant;
use crate::udp::batch::{RETRY_NANOS, Sent};
use crate::udp::clock::Clock;
use crate::udp::{line, pieces};

impl Nic {
    /// When frames are handed to the system next.
    pub(in crate::udp) fn next_send(&self) -> Instant {
        if self.blocked { Clock::now().plus_nanos(RETRY_NANOS) } else { self.line.next_due() }
    }

    /// Hands what is due to the system. Nothing may be staged.
    pub(in crate::udp) fn hand_over(&mut self) {
        let Self { socket, line, ports, counters, blocked, paths, peers, via, .. } = self;
        if line.is_empty() {
            return *blocked = false;
        }
        let now = Clock::now();
        loop {
            let rest = |at| ports.read(at).unwrap_or(Payload::EMPTY);
            let leaving = |frame| line::leaving(frame, rest);
            match socket.send(line.due(now).map(leaving)) {
                Sent::Taken(0) => break *blocked = false,
                Sent::Taken(count) => {
                    counters.frames_sent += count as u64;
                    counters.bytes_sent += line.left(now, count);
                }
                Sent::Refused => {
                    line.left(now, 1);
                    counters.drops.add(DropCause::System);
                }
                Sent::TooLong => {
                    let (to, bytes) = line.drop_first(now);
                    let is_its = |node: NodeId| via.or(peers.get(node.index()).copied()) == to;
                    paths.handle_refused(now, bytes, is_its);
                    counters.drops.add(DropCause::System);
                }
                Sent::Blocked => break *blocked = true,
            }
        }
    }

    /// Applications may write what frames are sent from as soon as they are told that these have left: what
    /// is due leaves now, and the rest is copied.
    pub(super) fn settle_loans(&mut self) {
        if self.line.borrows() {
            self.hand_over();
            let Self { line, ports, .. } = self;
            line.make_whole(|at| ports.read(at).unwrap_or(Payload::EMPTY));
        }
    }

    /// Checks a region; its bytes, or those that come with a frame.
    fn payload<'a>(
        &'a self,
        header: &Header,
        source: Source<'a>,
    ) -> Result<Payload<'a>, TransmitRefused> {
        let payload = match source {
            Source::Bytes(payload) => payload,
            Source::Region(at) => self.ports.read(at)?,
        };
        if payload.len() != usize::from(header.length) || payload.len() > self.mtu {
            return Err(TransmitRefused::Length { mtu: self.mtu });
        }
        Ok(payload)
    }

    /// Checks a frame and copies it together.
    pub(super) fn gather(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Vec<u8>, TransmitRefused> {
        let mut frame = self.line.buffer();
        let payload = self.payload(header, source)?;
        // Nothing is cleared that is overwritten at once.
        frame.resize(header.frame_bytes(), 0);
        frame[..HEADER_BYTES].copy_from_slice(&header.emit());
        payload.copy_to(&mut frame[HEADER_BYTES..]);
        Ok(frame)
    }

    /// The region of a frame that leaves from where the application has it: a long one, which nothing is to be
    /// made of.
    pub(super) fn lent(&self, header: &Header, source: Source<'_>) -> Option<RegionRef> {
        let Source::Region(at) = source else { return None };
        let plain = self.seals.is_none() && header.destination != NodeId::EVERYBODY;
        let long = at.length as usize >= line::LEAST_LENT;
        let whole = header.frame_bytes() <= self.whole_frame(header.destination);
        (plain && long && whole && !header.is_urgent()).then_some(at)
    }

    /// Puts a frame of which only the header is copied on the line; when it leaves.
    pub(super) fn lend(
        &mut self,
        header: &Header,
        at: RegionRef,
    ) -> Result<Instant, TransmitRefused> {
        self.payload(header, Source::Region(at))?;
        let peer = self.peers.get(header.destination.index()).copied();
        let Some(peer) = peer else {
            self.staged.unroutable += 1;
            return Ok(self.now);
        };
        let wire_bytes = self.wire_bytes(usize::from(header.length));
        let mut head = self.line.buffer();
        head.clear();
        head.extend_from_slice(&header.emit());
        let to = self.via.unwrap_or(peer);
        self.paths.on_sent(self.now, header.destination, to, header.frame_bytes());
        Ok(self.line.put(self.now, wire_bytes, to, (head, Some(at))))
    }

    /// The frame as it leaves; `None` if it has to wait for keys, and is staged for that.
    fn seal(&mut self, header: &Header, frame: Vec<u8>) -> Option<Vec<u8>> {
        let Some(seals) = &mut self.seals else { return Some(frame) };
        let (to, urgent) = (header.destination, header.is_urgent());
        let waiting = self.staged.held.iter().any(|(node, ..)| *node == to);
        let mut sealed = self.line.buffer();
        sealed.clear();
        if !waiting
            && seals.seal(to, (header.hop_limit, urgent), &frame, &mut sealed) == Verdict::Sealed
        {
            self.line.recycle(frame);
            return Some(sealed);
        }
        self.line.recycle(sealed);
        self.staged.held.push((to, urgent, frame));
        None
    }

    /// Puts a frame that is not for this node itself on the line, in pieces if it is longer than a datagram
    /// may be; when it leaves.
    pub(super) fn send(&mut self, header: &Header, frame: Vec<u8>) -> Instant {
        let most = self.whole_frame(header.destination);
        if frame.len() <= most {
            return self.put(header, header.is_urgent(), frame);
        }
        let number = self.next_cut;
        self.next_cut = number.wrapping_add(1);
        let mut leaves = self.now;
        for (piece, part) in pieces::cut(header, number, frame.len(), most) {
            let mut bytes = self.line.buffer();
            bytes.clear();
            bytes.extend_from_slice(&piece.emit());
            bytes.extend_from_slice(&frame[part]);
            leaves = self.put(&piece, header.is_urgent(), bytes);
        }
        self.line.recycle(frame);
        leaves
    }

    /// Bytes of the longest frame that one datagram to `to` carries.
    pub(super) fn whole_frame(&self, to: NodeId) -> usize {
        let around = if self.is_sealed() { SEAL_BYTES } else { 0 };
        let usable = match to {
            NodeId::EVERYBODY => {
                let all = (0..self.peers.len() as u16).map(NodeId);
                all.filter(|node| *node != self.node).map(|node| self.paths.usable(node)).min()
            }
            _ => Some(self.paths.usable(to)),
        };
        usable.map_or(usize::MAX, |bytes| bytes - around)
    }

    /// Puts a frame that one datagram carries on the line; when it leaves.
    fn put(&mut self, header: &Header, urgent: bool, frame: Vec<u8>) -> Instant {
        let is_to_all = header.destination == NodeId::EVERYBODY;
        let peer = self.peers.get(header.destination.index()).copied();
        let Some(to) = self.via.filter(|_| is_to_all || peer.is_some()).or(peer) else {
            self.staged.unroutable += 1;
            return self.now;
        };
        let wire_bytes = self.wire_bytes(usize::from(header.length));
        let Some(frame) = self.seal(header, frame) else {
            // It leaves when there are keys; nobody knows when that is.
            return self.now.plus_nanos(self.line.rate().nanos_for(u64::from(wire_bytes)));
        };
        if !is_to_all {
            self.paths.on_sent(self.now, header.destination, to, frame.len());
        }
        if urgent {
            self.line.put_urgent(self.now, wire_bytes, to, frame)
        } else {
            self.line.put(self.now, wire_bytes, to, (frame, None))
        }
    }

    /// A frame to everybody where nothing on the way copies it; when the last copy leaves.
    pub(super) fn send_to_each(&mut self, header: &Header, frame: &[u8]) -> Instant {
        let mut leaves = self.now;
        let me = self.node;
        let nodes = (0..self.peers.len() as u16).map(NodeId);
        for destination in nodes.filter(|node| *node != me) {
            let header = Header { destination, ..*header };
            let mut copy = self.line.buffer();
            copy.clear();
            copy.extend_from_slice(frame);
            copy[..HEADER_BYTES].copy_from_slice(&header.emit());
            leaves = self.send(&header, copy);
        }
        leaves
    }

    pub(super) fn transmit_looped(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        if self.looped.len() + self.staged.looped.len() >= LOOP_DEPTH {
            return Err(TransmitRefused::Busy { until: self.now.plus_nanos(1) });
        }
        let frame = self.gather(header, source)?;
        self.staged.looped.push(frame);
        Ok(self.now)
    }
}
