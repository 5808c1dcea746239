//! A switch in software: the model of [`switch`](crate::switch), in real time, between real NICs.

mod model;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::batch::{self, Datagram, Inbox, Leaving, RETRY_NANOS, Sent, Socket, plain};
use super::config::{check_family, check_peers};
use super::{kernel, run_on_thread};
use crate::drops::{DropCause, Drops};
use crate::frame::Header;
use crate::id::NodeId;
use crate::link::{Framing, LinkProfile};
use crate::nic::StartError;
use crate::rng::Rng;
use crate::seal::Envelope;
use crate::switch::{Buffer, SwitchProfile};
use crate::time::{Instant, LineRate};

use model::{Model, Offered};

/// Default link: 100 Mb/s Ethernet with 1 us of cable and adapters, slow enough for one core to keep up.
pub const DEFAULT_SWITCH_LINK: LinkProfile =
    LinkProfile::ethernet(LineRate::mbps(100), Duration::from_micros(1));
/// Default profile: 32 KiB a port, too small for a few senders of 10 KB messages, as in small switches.
const DEFAULT_SWITCH_PROFILE: SwitchProfile = SwitchProfile::new(Buffer::Bytes(32 << 10));
/// Bytes of frames that may wait for one host's line to the switch, including the frame on it: 4 MiB, a third of a second
/// at 100 Mb/s, far more than paced senders ever queue. Further frames are dropped, as [`System`](DropCause::System).
const INGRESS_MEMORY: usize = 4 << 20;

/// The configuration of a switch in software.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    bind: SocketAddr,
    peers: Vec<SocketAddr>,
    link: LinkProfile,
    rate_in: Option<LineRate>,
    recut: Option<Framing>,
    profile: SwitchProfile,
    jitter: Option<Duration>,
    seed: u64,
}

impl SwitchConfig {
    /// Creates a switch at `bind` that connects `peers`: node `i`, at `peers[i]`, is on port `i`.
    #[must_use]
    pub const fn new(bind: SocketAddr, peers: Vec<SocketAddr>) -> Self {
        Self {
            bind,
            peers,
            link: DEFAULT_SWITCH_LINK,
            rate_in: None,
            recut: None,
            profile: DEFAULT_SWITCH_PROFILE,
            jitter: None,
            seed: 0,
        }
    }

    /// Sets the links between the switch and its hosts, in both directions. Default: [`DEFAULT_SWITCH_LINK`].
    #[must_use]
    pub const fn link(mut self, link: LinkProfile) -> Self {
        self.link = link;
        self
    }

    /// Sets the rate at which hosts send to the switch, if it differs from the link's. If hosts are faster than
    /// the ports, senders congest a port and not their own NIC. Default: the link's rate.
    #[must_use]
    pub const fn rate_in(mut self, rate: LineRate) -> Self {
        self.rate_in = Some(rate);
        self
    }

    /// Reassembles incoming frames and cuts them anew according to `framing`, as a gateway between two kinds of
    /// network does. A frame leaves only once it is complete, even if the profile cuts through. Default: pieces
    /// leave as they come.
    #[must_use]
    pub const fn recut(mut self, framing: Framing) -> Self {
        self.recut = Some(framing);
        self
    }

    /// Sets the switch's parameters. Default: buffers of 32 KiB a port.
    #[must_use]
    pub const fn profile(mut self, profile: SwitchProfile) -> Self {
        self.profile = profile;
        self
    }

    /// Sets the longest random delay of each piece on its way to its output; the order on each line is kept.
    /// Default: the time that a full piece takes on the link.
    ///
    /// Clocks and adapters of real hosts are never in phase; the lines of this model are, to the nanosecond.
    /// Without jitter, one of several senders at line rate would get every free place in a full buffer, and a
    /// port that loses two frames of three would show no collapse.
    #[must_use]
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// Sets the seed of the jitter. Default: 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn model(&self) -> Model {
        let full = self.link.framing.piece_bytes(FULL_FRAME, 0);
        let piece = Duration::from_nanos(self.link.rate.nanos_for(u64::from(full)));
        let jitter = (self.jitter.unwrap_or(piece), Rng::new(self.seed, "switch jitter"));
        Model::new(self.peers.len(), self.link, self.profile, INGRESS_MEMORY, jitter)
            .rate_in(self.rate_in)
            .recut(self.recut)
    }
}

/// Bytes of a frame whose first piece is a full one, or long enough to be delayed.
const FULL_FRAME: u32 = 1_500;

/// Counters of a switch. `frames_in` is always the sum of `frames_out`, `frames_queued` and `frame_drops`.
/// `pieces_in` is the sum of `pieces_out`, `piece_drops`, and the pieces in buffers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct SwitchCounters {
    /// Datagrams that arrived, and headers that were returned. On Linux they include those for which the system
    /// had no space, which are dropped as [`System`](DropCause::System). The system counts several that one
    /// call sent as one; the hosts' counters have what they sent.
    pub frames_in: u64,
    /// Frames that were forwarded.
    pub frames_out: u64,
    /// Frames in the switch.
    pub frames_queued: u64,
    /// Dropped frames, by cause: for a frame in pieces, the cause of its first loss.
    pub frame_drops: Drops,
    /// Pieces that reached an output, including dropped ones.
    pub pieces_in: u64,
    /// Pieces that have left an output.
    pub pieces_out: u64,
    /// Pieces dropped by outputs, by cause.
    pub piece_drops: Drops,
    /// For each port, the highest occupancy of its buffer, in the buffer's unit.
    pub peaks: Vec<u32>,
}

impl SwitchCounters {
    /// Adds datagrams that the system dropped for lack of space in the socket.
    const fn add_lost(&mut self, count: u64) {
        self.frames_in += count;
        self.frame_drops.add_many(DropCause::System, count);
    }
}

/// A running switch, on a thread of its own. Dropping it stops it at once.
///
/// Each datagram of a host is a frame on that host's line, from the instant at which the system received it. It
/// is cut according to the link, its pieces pass the output's buffer according to the profile, and it is sent
/// on when its last piece has reached the other end of its wire. With cells, a packet whose last cell was lost
/// also loses the next one of its sender ([`Merged`](DropCause::Merged)). The switch changes one byte of a
/// frame, its hop limit; of a sealed frame it reads the envelope. A frame whose hop limit ends here is dropped
/// once it has arrived completely, and its header is returned to its sender with that time
/// (`Header::returned`). For a sealed frame, the switch cannot return one.
#[derive(Debug)]
pub struct SoftSwitch {
    shared: Arc<Shared>,
    address: SocketAddr,
    ended: oneshot::Receiver<()>,
}

#[derive(Debug, Default)]
struct Shared {
    notes: Mutex<Notes>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Notes {
    stop: bool,
    stopped: bool,
    counters: SwitchCounters,
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nothing panics while it holds this lock")
    }

    fn stop(&self) {
        self.notes().stop = true;
        self.waker.wake();
    }
}

impl SoftSwitch {
    /// Starts a switch. The caller needs no runtime.
    ///
    /// # Errors
    /// [`StartError`] says how to fix it; nothing then runs.
    pub fn start(config: SwitchConfig) -> Result<Self, StartError> {
        let bind = config.bind;
        check_peers(&config.peers)?;
        check_family(bind, &config.peers)?;
        check_framings(&[Some(config.link.framing), config.recut])?;
        let failed = |error: std::io::Error| StartError::of_address(bind, &error);
        let socket = batch::bind(bind).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let for_driver = Arc::clone(&shared);
        let (end, ended) = oneshot::channel();
        let start = move || Ok((Forwarder::new(socket, config, for_driver)?.run(), ()));
        run_on_thread("switch".into(), end, start).map_err(failed)?;
        Ok(Self { shared, address, ended })
    }

    /// Returns the address that hosts send to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the switch's counters, which may be 10 ms old. Also reads counters of the system, which takes about 100
    /// us.
    #[must_use]
    pub fn counters(&self) -> SwitchCounters {
        let lost = kernel::dropped(self.address);
        let notes = self.shared.notes();
        let mut counters = notes.counters.clone();
        // The last report includes them already, and the socket is closed.
        if !notes.stopped {
            counters.add_lost(lost);
        }
        counters
    }

    /// Stops the switch, and returns its last counters; frames in it are lost. When this returns, its address
    /// is free.
    ///
    /// # Cancel safety
    /// Dropping the future stops the switch nevertheless.
    pub async fn shutdown(mut self) -> SwitchCounters {
        self.shared.stop();
        let _ = (&mut self.ended).await;
        self.counters()
    }
}

impl Drop for SoftSwitch {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Most batches of datagrams that one turn receives.
const BATCHES_PER_TURN: usize = 8;
/// Most events that one turn handles.
const EVENTS_PER_TURN: usize = 8_192;
/// Events closer than this are handled together: a cell at 100 Mb/s takes 4 us, a wake-up more.
const GRAIN_NANOS: u64 = 20_000;
/// Most frames that wait for the system; beyond that, the oldest are dropped.
const OUTBOUND_FRAMES: usize = 4_096;
/// Greatest age of the counters while the switch is busy, in nanoseconds.
const REPORT_NANOS: u64 = 10_000_000;

struct Forwarder {
    socket: Socket,
    alarm: Alarm,
    inbox: Inbox,
    model: Model,
    peers: Vec<SocketAddr>,
    /// Datagrams that were dropped before they reached the model.
    refused: Drops,
    /// Frames that left the model but were dropped before the system accepted them.
    unsent: Drops,
    blocked: bool,
    reported: Instant,
    shared: Arc<Shared>,
}

impl Forwarder {
    fn new(
        socket: std::net::UdpSocket,
        config: SwitchConfig,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        let model = config.model();
        Ok(Self {
            socket: Socket::new(socket)?,
            alarm: Alarm::new()?,
            inbox: Inbox::new(),
            model,
            peers: config.peers,
            refused: Drops::default(),
            unsent: Drops::default(),
            blocked: false,
            reported: Instant::ZERO,
            shared,
        })
    }

    async fn run(mut self) {
        loop {
            let idle = self.turn();
            if self.shared.notes().stop {
                break;
            }
            if idle {
                self.wait().await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        self.report();
        let lost = self.socket.dropped();
        let mut notes = self.shared.notes();
        notes.counters.add_lost(lost);
        notes.stopped = true;
    }

    /// Receives, handles events, and sends; returns whether nothing is left.
    fn turn(&mut self) -> bool {
        let mut idle = false;
        for _ in 0..BATCHES_PER_TURN {
            if !self.socket.receive(&mut self.inbox) {
                idle = true;
                break;
            }
            let Self { inbox, model, peers, refused, .. } = self;
            for datagram in inbox.datagrams() {
                take_in(model, peers, refused, datagram);
            }
        }
        let now = self.inbox.taken_at();
        let idle = self.model.advance(now, EVENTS_PER_TURN) && idle;
        self.send_on();
        if now.nanos_since(self.reported) > REPORT_NANOS {
            self.reported = now;
            self.report();
        }
        idle
    }

    fn send_on(&mut self) {
        let now = self.inbox.taken_at();
        let Self { socket, model, peers, .. } = self;
        loop {
            let frames = model
                .outbound
                .iter()
                .map(|frame| Leaving::whole(peers[usize::from(frame.to)], &frame.bytes));
            match socket.send(now, frames) {
                Sent::Taken(0) => break self.blocked = false,
                Sent::Taken(count) => drop(model.outbound.drain(..count)),
                Sent::Refused | Sent::TooLong => {
                    model.outbound.pop_front();
                    self.unsent.add(DropCause::System);
                }
                Sent::Blocked => break self.blocked = true,
            }
        }
        while model.outbound.len() > OUTBOUND_FRAMES {
            model.outbound.pop_front();
            self.unsent.add(DropCause::System);
        }
    }

    async fn wait(&mut self) {
        // Before a long wait, the switch updates the counters.
        let next = self.model.next_due();
        let now = self.inbox.taken_at();
        if next.nanos_since(now) > REPORT_NANOS && self.reported != now {
            self.reported = now;
            self.report();
        }
        let until = next.max(now.plus_nanos(GRAIN_NANOS));
        let until = if self.blocked { until.min(now.plus_nanos(RETRY_NANOS)) } else { until };
        let Self { socket, alarm, shared, .. } = self;
        poll_fn(|context| {
            shared.waker.register(context.waker());
            if shared.notes().stop || socket.poll_readable(context).is_ready() {
                return Poll::Ready(());
            }
            alarm.poll(context, until)
        })
        .await;
    }

    fn report(&self) {
        let tally = &self.model.tally;
        let mut frame_drops = tally.drops;
        frame_drops += self.refused;
        frame_drops += self.unsent;
        let waiting = self.model.outbound.len() as u64;
        self.shared.notes().counters = SwitchCounters {
            frames_in: tally.frames + self.refused.total(),
            frames_out: tally.delivered - self.unsent.total() - waiting,
            frames_queued: self.model.in_flight() as u64 + waiting,
            frame_drops,
            pieces_in: tally.pieces,
            pieces_out: tally.pieces_passed,
            piece_drops: self.model.piece_drops(),
            peaks: self.model.peaks().collect(),
        };
    }
}

/// The fields of a datagram that a switch reads.
struct Route {
    source: NodeId,
    destination: NodeId,
    urgent: bool,
    /// Byte offset of the hop limit.
    hop_limit: usize,
}

impl Route {
    /// Reads the fields from a frame's header, or from the envelope of a sealed frame.
    fn parse(bytes: &[u8]) -> Result<Self, DropCause> {
        if let Ok((envelope, _)) = Envelope::parse(bytes) {
            let Envelope { source, destination, urgent, .. } = envelope;
            return Ok(Self { source, destination, urgent, hop_limit: 3 });
        }
        let (header, _) = Header::parse(bytes).map_err(|_| DropCause::Malformed)?;
        let (source, destination) = (header.source, header.destination);
        Ok(Self { source, destination, urgent: header.is_urgent(), hop_limit: 29 })
    }
}

/// Passes a datagram to the model if it is a frame between two of the hosts.
fn take_in(model: &mut Model, peers: &[SocketAddr], refused: &mut Drops, datagram: Datagram<'_>) {
    match check(peers, datagram) {
        Ok(route) => {
            model.advance(datagram.at, EVENTS_PER_TURN);
            let mut bytes = datagram.bytes.to_vec();
            let left = bytes[route.hop_limit].checked_sub(1);
            bytes[route.hop_limit] = left.unwrap_or(0);
            let (source, destination) = (route.source.0, route.destination.0);
            let (urgent, ends_here) = (route.urgent, left.is_none());
            let offered = Offered { source, destination, urgent, ends_here, bytes };
            model.offer(datagram.at, offered);
        }
        Err(cause) => refused.add(cause),
    }
}

/// Checks that frames can be cut into packets.
fn check_framings(framings: &[Option<Framing>]) -> Result<(), StartError> {
    for framing in framings.iter().flatten() {
        if let Framing::Packets { mtu, .. } = *framing {
            StartError::check("the MTU of a framing", mtu as usize, (1, u32::MAX as usize))?;
        }
    }
    Ok(())
}

fn check(peers: &[SocketAddr], datagram: Datagram<'_>) -> Result<Route, DropCause> {
    let route = Route::parse(datagram.bytes)?;
    let peer = peers.get(route.source.index());
    if peer.is_none_or(|peer| plain(*peer) != datagram.from) {
        return Err(DropCause::Stranger);
    }
    let is_to_all = route.destination == NodeId::BROADCAST;
    if route.destination.index() >= peers.len() && !is_to_all {
        return Err(DropCause::NoRoute);
    }
    Ok(route)
}
