//! Packets over Virtual Interfaces: the communication protocol of LAM over VIA (section 4).
//!
//! Each pair of processes has an interface, and each process has an *RDMA area* for each other process, which alone
//! writes it. To send, a process copies the packet into registered memory, and writes it to the receiver's area at
//! `WritePointer`. The immediate data is the packet's length; it is negative if the writer has started again at the
//! area's start. The write consumes a receive descriptor, whose completion has the receiver read at `ReadPointer`.
//!
//! Two credits bound the packets under way (section 4.2): the free part of the area, and the receive descriptors that
//! are left (`descLeft`). The free part is `RDMAmaxwrite`, which follows the `RDMAmaxread` that the receiver publishes.
//! The receiver publishes both credits by writes without immediate data, which consume no descriptor. It publishes the
//! area's credit once an eighth of the area was read. It publishes the descriptors when the sender requests that, by
//! such a write, once half of them or fewer are left; the paper names no threshold.
//!
//! A sender without credit requests it once, with one of two descriptors that data never takes; the reply takes the
//! other. So requests and replies need no credit, and they wake a parked process. Each reports the descriptors of all
//! earlier ones. A process that parks while a packet waits for credit has a request unanswered.

mod credit;
mod exchange;
mod link;
mod rendezvous;

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::{MAX_DEPTH, PortOptions};
use midplane_simhw::region::Payload;

use crate::attributes::{Reliability, ViAttributes};
use crate::memory::{Memory, MemoryOptions, Segment};
use crate::message::carrier::{Carrier, Event, Posted, Refusal};
use crate::message::envelope::{Envelope, LONGEST, Peer};
use crate::message::transport::InitError;
use crate::nic::{CqId, Nic, NicError, ViId, WorkQueue};
use crate::outcome::AsyncError;
use link::{Arrival, CONNECT_TIMEOUT, Link};
use rendezvous::LONGEST_PLACED;

pub use rendezvous::Registration;

/// Commands that each interface may have under way besides its data.
const CONTROLS: usize = 24;
/// Commands that the port may have under way besides those of its interfaces.
const SPARE: usize = 64;

/// The configuration of an [`RdmaCarrier`]: its memory, descriptors and interfaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RdmaConfig {
    area: usize,
    descriptors: u16,
    job: u32,
    reliability: Reliability,
    registration: Registration,
    depth: usize,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            area: 256 * 1024,
            descriptors: 64,
            job: 0,
            reliability: Reliability::ReliableReception,
            registration: Registration::default(),
            depth: MAX_DEPTH,
        }
    }
}

impl RdmaConfig {
    /// Sets the bytes of each RDMA area, at least 4,096; a packet has up to a quarter of it. Default: 256 KiB.
    #[must_use]
    pub const fn area(mut self, bytes: usize) -> Self {
        self.area = if bytes < 4096 { 4096 } else { bytes & !7 };
        self
    }

    /// Enlarges the area, if it is smaller, to what messages of up to `bytes` need to be sent as one packet. Over
    /// sockets, use [`SOCKET_EAGER`](crate::message::engine::SOCKET_EAGER).
    #[must_use]
    pub const fn eager(self, bytes: usize) -> Self {
        let area = 4 * (bytes + LONGEST).next_multiple_of(8);
        if area > self.area { self.area(area) } else { self }
    }

    /// Sets how many receive descriptors are kept posted for each process, 8 to 256. There are fewer if the port is not
    /// [deep](Self::depth) enough for all processes. Default: 64.
    #[must_use]
    pub const fn descriptors(mut self, count: u16) -> Self {
        self.descriptors = match count {
            0..=8 => 8,
            9..=256 => count,
            _ => 256,
        };
        self
    }

    /// Sets the most commands that the port has under way, at most [`MAX_DEPTH`]. Its ring takes 128 bytes of memory
    /// for each. If the ring is full, packets wait. Default: [`MAX_DEPTH`]; the port gets no more than all processes
    /// need.
    #[must_use]
    pub const fn depth(mut self, commands: usize) -> Self {
        self.depth = if commands > MAX_DEPTH { MAX_DEPTH } else { commands };
        self
    }

    /// Returns the configuration with as many descriptors for each process as the port can hold, and the port's depth.
    fn for_job(mut self, nodes: usize) -> (Self, usize) {
        let commands = |descriptors: usize| 3 * descriptors + CONTROLS;
        let share = self.depth.saturating_sub(SPARE) / nodes.max(1);
        let fits = share.saturating_sub(CONTROLS) / 3;
        self.descriptors = self.descriptors.min(u16::try_from(fits).unwrap_or(u16::MAX)).max(8);
        let needed = nodes * commands(self.descriptors.into()) + SPARE;
        (self, needed.min(self.depth))
    }

    /// Sets the job's number, which separates its processes from those of another job on the same nodes. Default: 0.
    #[must_use]
    pub const fn job(mut self, number: u32) -> Self {
        self.job = number;
        self
    }

    /// Sets how rendezvous messages, both sent and received, reach registered memory. Default:
    /// [`Registration::Cached`]; without reliability, [`Registration::Copied`].
    #[must_use]
    pub const fn registration(mut self, how: Registration) -> Self {
        self.registration = how;
        self
    }

    /// Sets the reliability level of the interfaces. Below the default, reliable reception, a packet may be lost, and
    /// its receiver then counts as lost, too. Lower levels are for networks that lose nothing, as the paper assumes of
    /// its own.
    #[must_use]
    pub const fn reliability(mut self, level: Reliability) -> Self {
        self.reliability = level;
        self
    }
}

/// Carries packets over Virtual Interfaces.
#[derive(Debug)]
pub struct RdmaCarrier {
    nic: Nic,
    own: Peer,
    config: RdmaConfig,
    arrivals: CqId,
    links: Vec<Option<Link>>,
    /// The process behind each interface, by its number.
    by_vi: Vec<(ViId, Peer)>,
    /// Processes to which a connection is being made.
    connecting: Vec<Peer>,
    /// Processes for which fewer receive descriptors are posted than configured.
    lacking: Vec<Peer>,
    /// Lost processes that were reported. Each is awaited again once the NIC has returned all its descriptors.
    renewing: Vec<Peer>,
    /// Lost processes that are to be reported, and whether each is known to have restarted.
    lost: VecDeque<(Peer, bool)>,
    /// Processes that were lost, are connected again, and are to be reported.
    returned: VecDeque<Peer>,
    /// The packet that was delivered last; the next poll frees its room.
    delivered: Option<(Peer, Arrival)>,
    /// The NIC's count of processed completions at the last poll that found nothing.
    seen: u64,
}

impl RdmaCarrier {
    /// Creates interfaces and memory for all processes: process `p` runs on `nodes[p]`, and `own` is this process.
    ///
    /// # Errors
    /// [`NicError`] if the NIC has no Virtual Interfaces, or too few, or no memory.
    ///
    /// # Panics
    /// If `own` has no entry in `nodes`.
    ///
    /// # Cancel safety
    /// If dropped, the port and its interfaces are closed.
    pub async fn open(
        host: &impl Host,
        own: Peer,
        nodes: &[NodeId],
        config: RdmaConfig,
    ) -> Result<Self, NicError> {
        assert!((own.0 as usize) < nodes.len(), "a process is one of its job");
        let (config, depth) = config.for_job(nodes.len());
        let mut nic = Nic::open(host, PortOptions::default().depth(depth)).await?;
        let arrivals = nic.create_cq();
        let mut carrier = Self {
            nic,
            own,
            config,
            arrivals,
            links: Vec::new(),
            by_vi: Vec::new(),
            connecting: Vec::new(),
            lacking: Vec::new(),
            renewing: Vec::new(),
            lost: VecDeque::new(),
            returned: VecDeque::new(),
            delivered: None,
            seen: 0,
        };
        for (peer, node) in nodes.iter().enumerate() {
            let link = match Peer(peer as u32) {
                peer if peer == own => None,
                peer => Some(carrier.make_link(peer, *node).await?),
            };
            carrier.links.push(link);
        }
        Ok(carrier)
    }

    async fn make_link(&mut self, peer: Peer, node: NodeId) -> Result<Link, NicError> {
        let tag = self.nic.create_tag();
        let attributes = ViAttributes {
            reliability: self.config.reliability,
            rdma_write: true,
            tag,
            max_transfer: self.config.area.max(LONGEST_PLACED) as u32,
            ..ViAttributes::default()
        };
        let vi = self.nic.create_vi_with(attributes, None, Some(self.arrivals)).await?;
        self.by_vi.push((vi, peer));
        let options = MemoryOptions { tag, rdma_write: true, ..MemoryOptions::default() };
        Link::new(&mut self.nic, vi, node, options, self.config)
    }

    fn peer_of(&self, vi: ViId) -> Option<Peer> {
        self.by_vi.iter().find(|(other, _)| *other == vi).map(|(_, peer)| *peer)
    }

    fn lose(&mut self, peer: Peer, restarted: bool) {
        if let Some(Some(link)) = self.links.get_mut(peer.0 as usize)
            && link.lose()
        {
            self.lost.push_back((peer, restarted));
        }
    }

    /// Posts the receive descriptors that found the port full; returns whether none is left.
    fn repost(&mut self) -> bool {
        let Self { nic, links, lacking, .. } = self;
        lacking.retain(|peer| {
            let link = links.get_mut(peer.0 as usize).and_then(Option::as_mut);
            link.is_some_and(|link| !link.repost(nic))
        });
        lacking.is_empty()
    }

    /// Frees the room of the packet that was delivered last.
    fn free_delivered(&mut self) {
        if let Some((peer, arrival)) = self.delivered.take()
            && let Some(Some(link)) = self.links.get_mut(peer.0 as usize)
        {
            link.free(&mut self.nic, &arrival);
        }
    }

    /// Continues to make connections, and posts the receive descriptors that found the port full.
    fn progress(&mut self) {
        self.repost();
        let mut at = 0;
        while let Some(&peer) = self.connecting.get(at) {
            let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { return };
            match link.connect(&mut self.nic) {
                Ok(true) => {
                    if link.has_returned() {
                        self.returned.push_back(peer);
                    }
                    self.connecting.swap_remove(at);
                }
                Ok(false) => at += 1,
                Err(_) => {
                    self.connecting.swap_remove(at);
                    self.lose(peer, false);
                }
            }
        }
    }

    /// Prepares ended connections for the next process there.
    fn renew_all(&mut self) {
        let mut at = 0;
        while let Some(&peer) = self.renewing.get(at) {
            let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { return };
            match link.renew(&mut self.nic, (self.config.job, self.own, peer)) {
                Ok(false) => at += 1,
                Ok(true) => {
                    self.renewing.swap_remove(at);
                    self.connecting.push(peer);
                }
                // A NIC that has stopped makes no more connections.
                Err(_) => {
                    self.renewing.swap_remove(at);
                }
            }
        }
    }

    /// Handles the NIC's errors that end connections.
    fn take_errors(&mut self) {
        while let Some((vi, error)) = self.nic.taken_error() {
            if let Some(peer) = self.peer_of(vi).filter(|_| error.ends_connection()) {
                self.lose(peer, error == AsyncError::PeerRestarted);
            }
        }
    }

    /// Returns the next loss of a process, which is then awaited again.
    fn next_lost(&mut self) -> Option<Event<'static>> {
        let (peer, restarted) = self.lost.pop_front()?;
        self.renewing.push(peer);
        Some(if restarted { Event::Restarted(peer) } else { Event::Lost(peer) })
    }

    /// Returns the next received packet, and its sender.
    fn arrival(&mut self) -> Option<(Peer, Arrival)> {
        while let Some((vi, queue)) = self.nic.cq_done(self.arrivals) {
            let (WorkQueue::Receive, Some(peer)) = (queue, self.peer_of(vi)) else { continue };
            let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { continue };
            let arrival = link.on_descriptor(&mut self.nic);
            if link.lacks_descriptors() && !self.lacking.contains(&peer) {
                self.lacking.push(peer);
            }
            match arrival {
                Ok(Some(arrival)) => return Some((peer, arrival)),
                Ok(None) => {}
                Err(_) => self.lose(peer, false),
            }
        }
        None
    }
}

impl Carrier for RdmaCarrier {
    fn own(&self) -> Peer {
        self.own
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        for peer in peers {
            let link = self.links.get_mut(peer.0 as usize).ok_or(InitError::Unknown(*peer))?;
            let Some(link) = link.as_mut().filter(|link| link.is_new()) else { continue };
            let names = (self.config.job, self.own, *peer);
            link.begin(&mut self.nic, names, Some(CONNECT_TIMEOUT))
                .map_err(|_| InitError::Unknown(*peer))?;
            self.connecting.push(*peer);
        }
        Ok(())
    }

    fn room(&self) -> usize {
        self.config.area / 4 - LONGEST
    }

    fn part(&self, to: Peer, receive: u64) -> usize {
        match self.links.get(to.0 as usize) {
            Some(Some(link)) if link.is_named(receive) => LONGEST_PLACED,
            _ => self.room(),
        }
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let reposted = self.lacking.is_empty() || self.repost();
        match self.links.get_mut(to.0 as usize) {
            Some(Some(link)) if !reposted => link.refuse_port_full(),
            Some(Some(link)) => link.post(&mut self.nic, envelope, payload),
            _ => Err(Refusal::Lost),
        }
    }

    fn register(&mut self, peer: Peer, bytes: usize) -> Option<Memory> {
        let link = self.links.get(peer.0 as usize)?.as_ref()?;
        link.register(&mut self.nic, bytes)
    }

    fn lend(&mut self, to: Peer, receive: u64, room: &Segment) {
        if let Some(Some(link)) = self.links.get_mut(to.0 as usize) {
            link.offer(&self.nic, receive, room);
        }
    }

    fn post_memory(
        &mut self,
        to: Peer,
        envelope: &Envelope,
        payload: &Segment,
        send: u64,
    ) -> Result<Posted, Refusal> {
        let reposted = self.lacking.is_empty() || self.repost();
        match self.links.get_mut(to.0 as usize) {
            Some(Some(link)) if !reposted => link.refuse_port_full().map(|()| Posted::Copied),
            Some(Some(link)) => link.post_memory(&mut self.nic, envelope, payload, send),
            _ => Err(Refusal::Lost),
        }
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        self.free_delivered();
        let (peer, arrival) = loop {
            let before = self.nic.handled();
            // The return of a process is reported before packets of its new connection.
            self.progress();
            if let Some(peer) = self.returned.pop_front() {
                return Some(Event::Returned(peer));
            }
            if let Some(found) = self.arrival() {
                break found;
            }
            self.take_errors();
            if !self.lost.is_empty() {
                // The poll that reported the loss also took packets that were sent before it.
                if let Some(found) = self.arrival() {
                    break found;
                }
                return self.next_lost();
            }
            self.renew_all();
            let Self { nic, links, .. } = self;
            let mut links = links.iter_mut().flatten();
            if let Some(send) = links.find_map(|link| link.next_released(nic)) {
                return Some(Event::Released(send));
            }
            // If the calls above have processed completions, there may be packets that this poll has not seen.
            if self.nic.handled() == before {
                self.seen = before;
                return None;
            }
        };
        self.delivered = Some((peer, arrival));
        if arrival.in_place {
            return Some(Event::Placed { from: peer, envelope: arrival.envelope });
        }
        let link = self.links.get(peer.0 as usize)?.as_ref()?;
        let payload: Payload<'_> = link.payload(&arrival)?;
        Some(Event::Packet { from: peer, envelope: arrival.envelope, payload })
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.free_delivered();
        self.repost();
        for link in self.links.iter_mut().flatten() {
            link.answer_request(&mut self.nic);
        }
        if self.nic.handled() != self.seen {
            return false;
        }
        let mut context = Context::from_waker(waker);
        if !matches!(self.nic.poll_progress(&mut context), Poll::Pending) {
            return false;
        }
        let has_events = !self.lost.is_empty()
            || !self.returned.is_empty()
            || self.links.iter().flatten().any(Link::has_released);
        !self.links.iter_mut().flatten().any(Link::has_room_again) && !has_events
    }

    fn is_flushed(&mut self) -> bool {
        self.nic.poll();
        let Self { nic, links, .. } = self;
        links.iter_mut().flatten().all(|link| link.is_flushed(nic))
    }

    fn close(&mut self) {
        self.free_delivered();
        self.renewing.clear();
        self.connecting.clear();
        for link in self.links.iter_mut().flatten() {
            link.close(&mut self.nic);
        }
    }
}
