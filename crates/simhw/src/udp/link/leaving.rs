//! Sends frames: copied and, with keys, sealed; long ones without keys go out from the application's memory.

use super::{Nic, UdpLink};
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Source, TransmitRefused};
use crate::id::NodeId;
use crate::nic::{Link, payload};
use crate::region::{Payload, RegionRef};
use crate::seal::{SEAL_BYTES, Verdict};
use crate::time::Instant;
use crate::udp::batch::{RETRY_NANOS, Sent};
use crate::udp::clock::Clock;
use crate::udp::{line, pieces};

impl Nic {
    /// Hands due frames to the system. No effect may be staged.
    pub(in crate::udp) fn hand_over(&mut self) {
        let Self { link, ports, counters, .. } = self;
        let UdpLink { socket, line, blocked, paths, peers, via, .. } = link;
        if line.is_empty() {
            return *blocked = false;
        }
        let now = Clock::now();
        loop {
            let rest = |at| ports.read(at).unwrap_or(Payload::EMPTY);
            let leaving = |frame| line::leaving(frame, rest);
            match socket.send(now, line.due(now).map(leaving)) {
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

    /// Sends or copies frames that lie in applications' memory. Applications may write that memory once their commands
    /// are completed.
    pub(super) fn settle_uncopied(&mut self) {
        if self.link.line.borrows() {
            self.hand_over();
            let Self { link, ports, .. } = self;
            link.line.make_whole(|at| ports.read(at).unwrap_or(Payload::EMPTY));
        }
    }

    /// Checks a frame, and copies its header and payload into one buffer.
    pub(super) fn gather(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Vec<u8>, TransmitRefused> {
        let mut frame = self.link.line.buffer();
        let payload = payload(&self.ports, self.mtu, header, source)?;
        // The buffer is not cleared, because all of it is overwritten.
        frame.resize(header.frame_bytes(), 0);
        frame[..HEADER_BYTES].copy_from_slice(&header.emit());
        payload.copy_to(&mut frame[HEADER_BYTES..]);
        Ok(frame)
    }

    /// Puts a frame on the line, copying only its header; returns when it leaves.
    pub(super) fn put_uncopied(
        &mut self,
        header: &Header,
        at: RegionRef,
    ) -> Result<Instant, TransmitRefused> {
        payload(&self.ports, self.mtu, header, Source::Region(at))?;
        let Self { link, time, .. } = self;
        let peer = link.peers.get(header.destination.index()).copied();
        let Some(peer) = peer else {
            link.unroutable += 1;
            return Ok(time.get());
        };
        let wire_bytes = link.wire_bytes(usize::from(header.length));
        let mut head = link.line.buffer();
        head.clear();
        head.extend_from_slice(&header.emit());
        let to = link.via.unwrap_or(peer);
        link.paths.on_sent(time.get(), header.destination, to, header.frame_bytes());
        Ok(link.line.put(time.get(), wire_bytes, to, (head, Some(at))))
    }
}

impl UdpLink {
    /// Returns when frames are handed to the system next.
    pub(in crate::udp) fn next_send(&self) -> Instant {
        if self.blocked { Clock::now().plus_nanos(RETRY_NANOS) } else { self.line.next_due() }
    }

    /// Returns when frames are handed to the system next, and when the first of them is due on the line: earlier if the
    /// system accepts none. Returns `None` if the line is empty.
    pub(in crate::udp) fn unsent(&self) -> Option<(Instant, Instant)> {
        (!self.line.is_empty()).then(|| (self.next_send(), self.line.next_due()))
    }

    /// Returns the region from which the frame is sent without a copy; `None` if it must be copied.
    pub(super) fn uncopied(&self, header: &Header, source: Source<'_>) -> Option<RegionRef> {
        let Source::Region(at) = source else { return None };
        let plain = self.seals.is_none() && header.destination != NodeId::BROADCAST;
        let long = at.length as usize >= line::MIN_UNCOPIED;
        let whole = header.frame_bytes() <= self.whole_frame(header.destination);
        (plain && long && whole && !header.is_urgent()).then_some(at)
    }

    /// Returns the frame as it leaves. If it must wait for keys, holds it and returns `None`.
    fn seal(&mut self, header: &Header, frame: Vec<u8>) -> Option<Vec<u8>> {
        let Some(seals) = &mut self.seals else { return Some(frame) };
        let (to, urgent) = (header.destination, header.is_urgent());
        let waiting = self.held.iter().any(|(node, ..)| *node == to);
        let mut sealed = self.line.buffer();
        sealed.clear();
        if !waiting
            && seals.seal(to, (header.hop_limit, urgent), &frame, &mut sealed) == Verdict::Sealed
        {
            self.line.recycle(frame);
            return Some(sealed);
        }
        self.line.recycle(sealed);
        self.held.push((to, urgent, frame));
        None
    }

    /// Puts a frame to another node on the line, in pieces if it is longer than a datagram may be; returns when it
    /// leaves.
    pub(super) fn send(&mut self, now: Instant, header: &Header, frame: Vec<u8>) -> Instant {
        let most = self.whole_frame(header.destination);
        if frame.len() <= most {
            return self.put(now, header, header.is_urgent(), frame);
        }
        let number = self.next_cut;
        self.next_cut = number.wrapping_add(1);
        let mut leaves = now;
        for (piece, part) in pieces::cut(header, number, frame.len(), most) {
            let mut bytes = self.line.buffer();
            bytes.clear();
            bytes.extend_from_slice(&piece.emit());
            bytes.extend_from_slice(&frame[part]);
            leaves = self.put(now, &piece, header.is_urgent(), bytes);
        }
        self.line.recycle(frame);
        leaves
    }

    /// Returns the bytes of the longest frame that one datagram to `to` carries.
    pub(super) fn whole_frame(&self, to: NodeId) -> usize {
        let around = if self.is_sealed() { SEAL_BYTES } else { 0 };
        let usable = match to {
            NodeId::BROADCAST => {
                let all = (0..self.peers.len() as u16).map(NodeId);
                all.filter(|node| *node != self.node).map(|node| self.paths.usable(node)).min()
            }
            _ => Some(self.paths.usable(to)),
        };
        usable.map_or(usize::MAX, |bytes| bytes - around)
    }

    /// Puts a frame that one datagram carries on the line; returns when it leaves.
    fn put(&mut self, now: Instant, header: &Header, urgent: bool, frame: Vec<u8>) -> Instant {
        let is_to_all = header.destination == NodeId::BROADCAST;
        let peer = self.peers.get(header.destination.index()).copied();
        let Some(to) = self.via.filter(|_| is_to_all || peer.is_some()).or(peer) else {
            self.unroutable += 1;
            return now;
        };
        let wire_bytes = self.wire_bytes(usize::from(header.length));
        let Some(frame) = self.seal(header, frame) else {
            // It leaves once there are keys, at an unknown time.
            return now.plus_nanos(self.line.rate().nanos_for(u64::from(wire_bytes)));
        };
        if !is_to_all {
            self.paths.on_sent(now, header.destination, to, frame.len());
        }
        if urgent {
            self.line.put_urgent(now, wire_bytes, to, frame)
        } else {
            self.line.put(now, wire_bytes, to, (frame, None))
        }
    }

    /// Sends a frame to each other node, if no switch copies it; returns when the last copy leaves.
    pub(super) fn send_to_each(&mut self, now: Instant, header: &Header, frame: &[u8]) -> Instant {
        let mut leaves = now;
        let me = self.node;
        let nodes = (0..self.peers.len() as u16).map(NodeId);
        for destination in nodes.filter(|node| *node != me) {
            let header = Header { destination, ..*header };
            let mut copy = self.line.buffer();
            copy.clear();
            copy.extend_from_slice(frame);
            copy[..HEADER_BYTES].copy_from_slice(&header.emit());
            leaves = self.send(now, &header, copy);
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::batch::{Socket, bind};
    use crate::udp::config::UdpConfig;
    use crate::udp::link;

    #[test]
    fn a_frame_that_the_system_does_not_accept_stays_due_when_the_line_says() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let socket = Socket::new(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        let mut link = link::nic(&UdpConfig::new(NodeId(0), vec![to]), None, socket).link;
        assert_eq!(link.unsent(), None);
        let now = Clock::now();
        link.line.put(now, 1_000, to, (vec![0; 1_000], None));
        link.line.commit();
        link.blocked = true;
        let (again, due) = link.unsent().unwrap();
        assert_eq!(due, link.line.next_due());
        assert!(due <= now && again >= now.plus_nanos(RETRY_NANOS), "{due:?}, {again:?}");
    }
}
