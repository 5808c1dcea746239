//! The sending half of a NIC over UDP: its line, its keys and its paths.

mod leaving;
mod probing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::batch::{Socket, plain};
use super::config::{TRANSMIT_DEPTH, UdpConfig};
use super::line::Line;
use super::paths::Paths;
use super::pieces::Joiner;
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Source, TransmitRefused};
use crate::id::NodeId;
use crate::link::Framing;
use crate::nic::{self, Link};
use crate::seal::{Envelope, Opened, SEAL_BYTES, SealConfigError, Seals};
use crate::segment::View;
use crate::time::{Instant, LineRate};

/// Time by which frames are handed over early to a soft switch, which holds them until they are due: a late wake-up of
/// the host then does not delay the frame. Without a switch, frames are not handed over early, because a control
/// message would wait behind them in the system's queues.
const AHEAD_OF_SWITCH: Duration = Duration::from_millis(1);

/// A NIC over UDP.
pub(super) type Nic = nic::Nic<UdpLink>;

/// The sending half of a NIC over UDP.
#[derive(Debug)]
pub(super) struct UdpLink {
    node: NodeId,
    peers: Vec<SocketAddr>,
    via: Option<SocketAddr>,
    framing: Framing,
    pub(super) socket: Socket,
    /// True if the system accepts nothing now.
    blocked: bool,
    pub(super) line: Line,
    /// The sessions, if the NIC has a key or an identity.
    seals: Option<Seals>,
    paths: Paths,
    joiner: Joiner,
    /// The number of the next frame that is cut.
    next_cut: u32,
    /// The memory of the frame that is being handled.
    arrived: Option<Arc<Vec<u8>>>,
    /// Staged frames for which there are no keys yet, each with whether it is urgent.
    held: Vec<(NodeId, bool, Vec<u8>)>,
    /// Number of staged frames to nodes that do not exist.
    unroutable: u64,
}

/// Makes the seals of a checked configuration, if it has keys.
pub(super) fn seals(config: &UdpConfig) -> Result<Option<Seals>, SealConfigError> {
    let (node, peers, keys) = (config.nic.node, config.peers.len(), config.keys.clone());
    match &config.identity {
        Some(identity) => Seals::identified(node, peers, keys, identity.clone()).map(Some),
        None if keys.is_empty() => Ok(None),
        None => Seals::new(node, peers, keys).map(Some),
    }
}

/// Makes the NIC of a checked configuration, with the result of [`seals`].
pub(super) fn nic(config: &UdpConfig, seals: Option<Seals>, socket: Socket) -> Nic {
    let around = if seals.is_some() { SEAL_BYTES } else { 0 };
    let ahead = if config.via.is_some() { AHEAD_OF_SWITCH } else { Duration::ZERO };
    let link = UdpLink {
        node: config.nic.node,
        peers: config.peers.clone(),
        via: config.via,
        framing: config.line.framing,
        socket,
        blocked: false,
        line: Line::new(config.line.rate, TRANSMIT_DEPTH, config.catch_up, ahead),
        seals,
        paths: Paths::new(config.datagram_bytes, around, config.via.is_some()),
        joiner: Joiner::default(),
        next_cut: 0,
        arrived: None,
        held: Vec::new(),
        unroutable: 0,
    };
    config.nic.nic(link)
}

impl UdpLink {
    /// Returns whether frames are sealed.
    pub(super) const fn is_sealed(&self) -> bool {
        self.seals.is_some()
    }

    /// Returns whether frames may still wait for keys.
    pub(super) fn awaits_keys(&self) -> bool {
        self.seals.as_ref().is_some_and(Seals::is_handshaking)
    }

    /// Returns when the link has timed work besides sending.
    pub(super) fn poll_timeout(&self) -> Instant {
        let keys = self.seals.as_ref().map_or(Instant::FAR_FUTURE, Seals::poll_timeout);
        keys.min(self.paths.poll_timeout())
    }

    /// Returns whether a frame of `source` may come from `from`.
    pub(super) fn is_from(&self, from: SocketAddr, source: NodeId) -> bool {
        match (self.via, self.peers.get(source.index())) {
            (Some(switch), Some(_)) => from == plain(switch),
            (None, Some(peer)) => from == plain(*peer) && source != self.node,
            (_, None) => false,
        }
    }

    /// Returns the address that frames of `source`, one of the nodes, come from.
    pub(super) fn address_of(&self, source: NodeId) -> SocketAddr {
        plain(self.via.unwrap_or_else(|| self.peers[source.index()]))
    }

    /// Begins the handling of a frame in `memory`.
    pub(super) fn begin_frame(&mut self, memory: &Arc<Vec<u8>>) {
        self.arrived = Some(Arc::clone(memory));
    }
}

/// Opens a sealed datagram into `plain`.
pub(super) fn open(
    nic: &mut Nic,
    envelope: &Envelope,
    body: &[u8],
    plain: &mut [u8],
) -> Result<Opened, DropCause> {
    let Some(seals) = &mut nic.link.seals else { return Err(DropCause::Malformed) };
    let opened = seals.open(nic.time.get(), envelope, body, plain);
    send_about_keys(nic);
    opened
}

/// Handles due timeouts of handshakes. No effect may be staged.
fn run_keys(nic: &mut Nic) {
    let Some(seals) = &mut nic.link.seals else { return };
    if seals.poll_timeout() <= nic.time.get() {
        seals.handle_timeout(nic.time.get());
        send_about_keys(nic);
    }
}

/// Puts handshakes, and held frames that have keys now, on the line. No effect may be staged.
fn send_about_keys(nic: &mut Nic) {
    let Nic { link, counters, time, .. } = nic;
    let UdpLink { seals: Some(seals), line, peers, via, framing, .. } = link else { return };
    loop {
        let mut bytes = line.buffer();
        bytes.clear();
        let Some((to, urgent)) = seals.poll_transmit(&mut bytes) else {
            line.recycle(bytes);
            break;
        };
        let to = via.unwrap_or(peers[to.index()]);
        let wire_bytes = framing.wire_bytes(u32::try_from(bytes.len()).expect("a datagram"));
        if urgent {
            line.put_urgent(time.get(), wire_bytes, to, bytes);
        } else {
            line.put(time.get(), wire_bytes, to, (bytes, None));
        }
    }
    line.commit();
    counters.drops.add_many(DropCause::NoKeys, seals.take_given_up());
}

impl Link for UdpLink {
    fn mtu_to(&self, mtu: usize, to: NodeId) -> usize {
        self.whole_frame(to).saturating_sub(HEADER_BYTES).min(mtu)
    }

    fn line_rate(&self) -> LineRate {
        self.line.rate()
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        let around = HEADER_BYTES + if self.is_sealed() { SEAL_BYTES } else { 0 };
        let frame = u32::try_from(around + payload).unwrap_or(u32::MAX / 2);
        self.framing.wire_bytes(frame)
    }

    fn line_lag(&self, now: Instant) -> u64 {
        self.line.lag(now)
    }

    fn transmit(
        nic: &mut Nic,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        let until = nic.link.line.busy_until(nic.time.get());
        if let Some(until) = until.filter(|_| !header.is_urgent()) {
            return Err(TransmitRefused::Busy { until });
        }
        if let Some(at) = nic.link.uncopied(header, source) {
            return nic.put_uncopied(header, at);
        }
        let frame = nic.gather(header, source)?;
        let Nic { link, time, .. } = nic;
        let now = time.get();
        // A switch copies broadcast frames that it can read.
        if header.destination == NodeId::BROADCAST && (link.via.is_none() || link.is_sealed()) {
            return Ok(link.send_to_each(now, header, &frame));
        }
        Ok(link.send(now, header, frame))
    }

    fn gather(nic: &mut Nic) {
        nic.link.line.commit();
        nic.settle_uncopied();
        let Nic { link, counters, time, .. } = nic;
        for (to, urgent, frame) in link.held.drain(..) {
            let held = link.seals.as_mut().is_some_and(|s| s.hold(time.get(), to, urgent, frame));
            if !held {
                counters.drops.add(DropCause::NoKeys);
            }
        }
        counters.drops.add_many(DropCause::NoRoute, std::mem::take(&mut link.unroutable));
        send_about_keys(nic);
    }

    fn handle_timeout(nic: &mut Nic) {
        run_keys(nic);
        nic.run_paths();
    }

    fn abort(&mut self) {
        self.line.abort();
        self.held.clear();
        self.unroutable = 0;
    }

    fn current(&self) -> Option<View<'_>> {
        self.arrived.as_ref().map(|memory| View::from(&memory[..]))
    }

    fn end_frame(&mut self) {
        self.arrived = None;
    }
}
