//! Messages and packets that wait to leave: queued, suspended with their port, counted, withdrawn.

use std::collections::{BTreeSet, VecDeque};

use midplane_simhw::hardware::{Hardware, Source, TransmitRefused};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

use super::super::flows::{Key, Queue};
use super::super::outgoing::{Outgoing, packet_header};
use super::super::{Backlog, BacklogLimit, Packet, Sent};
use super::{News, Transmit, flow_of};
use crate::extension::Epoch;

impl Transmit {
    /// Prepares a packet for waiting in its flow.
    pub(crate) fn waiting(
        hw: &dyn Hardware,
        (extension, epoch): (ExtensionId, Epoch),
        packet: &Packet<'_>,
    ) -> Result<WaitingPacket, TransmitRefused> {
        let length = packet_length(hw, packet)?;
        let header = packet_header(hw, extension, packet, length);
        Ok(WaitingPacket {
            key: flow_of(extension, packet),
            outgoing: Outgoing::packet(header, epoch, packet),
        })
    }

    /// Queues a packet. If its sender does not wait for it to leave, and too many wait before it, drops it.
    pub(crate) fn enqueue_packet(&mut self, now: Instant, packet: WaitingPacket) {
        if self.is_parked(&packet.outgoing) {
            report_end(&mut self.news, &packet.outgoing, Status::Cancelled, now);
            return;
        }
        if packet.outgoing.token().is_none() && !self.flows.has_room(&packet.key, &packet.outgoing)
        {
            self.dropped += 1;
            return;
        }
        self.flows.push(packet.key, packet.outgoing);
    }

    pub(super) fn is_parked(&self, outgoing: &Outgoing) -> bool {
        belongs_to(&self.stopped, outgoing)
    }

    /// Returns the entry of a flow that leaves next; `None` if it waits for suspended ports.
    pub(super) fn next_in<'a>(&self, queue: &'a Queue) -> Option<&'a Outgoing> {
        next_of(&self.stopped, &queue.waiting).map(|at| &queue.waiting[at])
    }

    /// Suspends a port: its messages wait, its packets are withdrawn.
    pub(crate) fn park(&mut self, hw: &dyn Hardware, port: PortId) {
        self.stopped.insert(port);
        let (now, news) = (hw.now(), &mut self.news);
        let mut parked = BTreeSet::new();
        self.flows.change(|queue| {
            let (node, controlled) = (queue.key.node, queue.key.controlled);
            queue.waiting.retain(|outgoing| {
                let its = outgoing.owner() == Some(port);
                if its && controlled {
                    parked.insert(node);
                }
                if its && outgoing.is_packet() {
                    report_end(news, outgoing, Status::Cancelled, now);
                }
                !its || !outgoing.is_packet()
            });
        });
        self.flows.recheck();
        // Returns the allowance that was granted for it.
        for node in parked {
            if self.gate.allowance(node) > 0 {
                self.report_if_drained(hw, node);
            } else if !self.has_moving(node) {
                self.gate.forget_held(node);
            }
        }
    }

    /// Returns whether a frame under flow control waits for `node` that the gate could let through.
    fn has_moving(&self, node: NodeId) -> bool {
        self.flows.to(node, true).any(|queue| self.next_in(queue).is_some())
    }

    /// Resumes a port: its waiting messages may leave again.
    pub(crate) fn unpark(&mut self, port: PortId) {
        self.stopped.remove(&port);
        self.flows.recheck();
    }

    /// Returns the backlog under flow control to `destination`, counted up to `limit`; `None` if nothing waits.
    pub(crate) fn backlog(
        &self,
        destination: NodeId,
        mtu: usize,
        limit: BacklogLimit,
    ) -> Option<Backlog> {
        let mut backlog = Backlog { bytes: 0, messages: 0 };
        let moving = |queue: &&Queue| self.next_in(queue).is_some();
        for queue in self.flows.to(destination, true).filter(moving) {
            for outgoing in queue.waiting.iter().filter(|it| !self.is_parked(it)) {
                let is_new = !outgoing.has_begun();
                if is_new && backlog.messages == limit.messages {
                    break;
                }
                backlog.bytes += outgoing.cost(mtu as u32);
                backlog.messages += u32::from(is_new);
                if backlog.bytes >= limit.bytes {
                    return Some(backlog);
                }
            }
        }
        (backlog.bytes > 0).then_some(backlog)
    }

    /// Returns how many messages and packets wait to leave to `destination`.
    pub(crate) fn waiting_to(&self, destination: NodeId) -> usize {
        let flows = self.flows.to(destination, false).chain(self.flows.to(destination, true));
        flows.map(|queue| queue.waiting.len()).sum()
    }

    /// Returns whether packets of an extension wait to leave to `destination`.
    pub(crate) fn has_waiting(&self, extension: ExtensionId, destination: NodeId) -> bool {
        self.flows.has_packets(extension, destination)
    }

    /// Returns how many packets were dropped because too many waited before them.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes the entries that `which` selects, and ends them with `status`.
    pub(crate) fn withdraw(
        &mut self,
        hw: &mut dyn Hardware,
        status: Status,
        which: impl Fn(&Waiting) -> bool,
    ) {
        let mut stopped = Vec::new();
        let now = hw.now();
        let news = &mut self.news;
        self.flows.change(|queue| {
            let Key { node, extension, controlled, .. } = queue.key;
            let before = queue.waiting.len();
            queue.waiting.retain(|outgoing| {
                let (port, region) = (outgoing.port(), outgoing.region());
                let goes = which(&Waiting { node, extension, controlled, port, region });
                if goes {
                    outgoing.complete(hw, status);
                    report_end(news, outgoing, status, now);
                }
                !goes
            });
            if controlled && queue.waiting.len() < before {
                stopped.push(node);
            }
        });
        for node in stopped {
            if self.gate.allowance(node) > 0 {
                self.report_if_drained(hw, node);
            } else if !self.has_moving(node) {
                self.gate.forget_held(node);
            }
        }
    }
}

/// The properties by which waiting messages and packets are selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) node: NodeId,
    pub(crate) extension: ExtensionId,
    pub(crate) controlled: bool,
    /// The port whose command it completes.
    pub(crate) port: Option<PortId>,
    /// The memory that a packet's bytes are read from when it leaves.
    pub(crate) region: Option<RegionRef>,
}

/// A packet that waits, prepared for its flow.
#[derive(Debug)]
pub(crate) struct WaitingPacket {
    key: Key,
    outgoing: Outgoing,
}

/// Returns whether an entry belongs to one of these ports.
fn belongs_to(ports: &BTreeSet<PortId>, outgoing: &Outgoing) -> bool {
    outgoing.owner().is_some_and(|owner| ports.contains(&owner))
}

/// Returns the index of the entry that leaves next: the first that does not belong to a suspended port. A message of
/// which a part has left stays the first, because its receiver assembles one message of a flow at a time.
fn next_of(stopped: &BTreeSet<PortId>, waiting: &VecDeque<Outgoing>) -> Option<usize> {
    let candidates = if waiting.front()?.has_begun() { 1 } else { waiting.len() };
    waiting.iter().take(candidates).position(|outgoing| !belongs_to(stopped, outgoing))
}

/// Moves the entry that leaves next to the front, and returns it.
pub(super) fn bring_forward<'a>(
    stopped: &BTreeSet<PortId>,
    waiting: &'a mut VecDeque<Outgoing>,
) -> Option<&'a mut Outgoing> {
    let next = next_of(stopped, waiting)?;
    if next > 0
        && let Some(outgoing) = waiting.remove(next)
    {
        waiting.push_front(outgoing);
    }
    waiting.front_mut()
}

pub(super) fn packet_length(
    hw: &dyn Hardware,
    packet: &Packet<'_>,
) -> Result<u16, TransmitRefused> {
    let length = match packet.source {
        Source::Bytes(payload) => payload.len(),
        Source::Region(region) => region.length as usize,
    };
    let mtu = hw.mtu();
    match u16::try_from(length) {
        Ok(length) if usize::from(length) <= mtu => Ok(length),
        _ => Err(TransmitRefused::Length { mtu }),
    }
}

pub(super) fn report_end(
    news: &mut VecDeque<News>,
    outgoing: &Outgoing,
    status: Status,
    leaves: Instant,
) {
    if let Some((extension, epoch, token)) = outgoing.token() {
        news.push_back(News::Sent(extension, epoch, Sent { token, status, leaves }));
    }
}
