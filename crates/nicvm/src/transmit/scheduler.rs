//! The one transmit scheduler of a unit.

mod waiting;

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::hardware::{Hardware, TransmitRefused};
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::time::Instant;

use super::flows::{Flows, Key};
use super::outgoing::{Outgoing, packet_header};
use super::{Message, Packet, Sending, Sent};
use crate::admission::{Admission, AdmissionUpdate, Gate, Verdict};
use crate::extension::{Epoch, TransmitEvent};
use crate::planted::{self, Bug};

pub(crate) use waiting::WaitingPacket;
use waiting::{bring_forward, packet_length, report_end};

/// Frames that one pump may hand over, so that a turn's work is bounded.
const FRAMES_PER_PUMP: usize = 64;
/// Instructions charged for handing one frame to the line.
pub(crate) const TRANSMIT_INSTRUCTIONS: u64 = 40;

/// An event of the scheduler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum News {
    /// For the gate's controller.
    Gate(TransmitEvent),
    /// For the version of the extension that sent the packet.
    Sent(ExtensionId, Epoch, Sent),
    /// For the unit: the admission of this version of an extension has panicked.
    Trapped(ExtensionId, Epoch),
}

/// An admission in the scheduler.
struct Installed {
    /// The extension that updates it, and its version.
    owner: ExtensionId,
    epoch: Epoch,
    admission: Box<dyn Admission>,
}

/// The frames that wait to leave a unit, and the admissions that decide about them.
#[derive(Default)]
pub(crate) struct Transmit {
    flows: Flows,
    next_number: u32,
    gate: Gate,
    admissions: Vec<Installed>,
    /// When to pump again.
    retry: Instant,
    /// When the last data frame that was handed to the line leaves it.
    line_free_at: Instant,
    /// Frames that bypassed the queue since the last commit.
    direct: Direct,
    news: VecDeque<News>,
    /// Suspended ports: none of their frames leaves.
    stopped: BTreeSet<PortId>,
    /// Packets that were dropped because too many waited before them.
    dropped: u64,
}

impl std::fmt::Debug for Transmit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transmit").field("flows", &self.flows).finish_non_exhaustive()
    }
}

/// Frames that were handed to the line bypassing the queue; they count once their handler has returned.
#[derive(Default)]
struct Direct {
    messages: u32,
    leaves: Instant,
}

/// The combined decision of the admissions.
struct Answer {
    verdict: Verdict,
    /// True if the gate holds the frame.
    by_gate: bool,
}

impl Transmit {
    pub(crate) fn install(
        &mut self,
        owner: ExtensionId,
        epoch: Epoch,
        admission: Box<dyn Admission>,
    ) {
        self.admissions.push(Installed { owner, epoch, admission });
    }

    /// Removes an extension's admission; the frames that it held are checked again. Returns whether there was one.
    pub(crate) fn uninstall(&mut self, owner: ExtensionId) -> bool {
        let before = self.admissions.len();
        self.admissions.retain(|installed| installed.owner != owner);
        self.flows.recheck();
        self.admissions.len() < before
    }

    /// Returns whether this version of an extension has an admission.
    pub(crate) fn has_admission(&self, owner: ExtensionId, epoch: Epoch) -> bool {
        self.admissions.iter().any(|it| (it.owner, it.epoch) == (owner, epoch))
    }

    pub(crate) fn has_admissions(&self) -> bool {
        !self.admissions.is_empty()
    }

    pub(crate) fn update(&mut self, now: Instant, owner: ExtensionId, update: AdmissionUpdate) {
        for installed in self.admissions.iter_mut().filter(|a| a.owner == owner) {
            let steer = AssertUnwindSafe(|| installed.admission.update(now, update));
            if catch_unwind(steer).is_err() {
                self.news.push_back(News::Trapped(owner, installed.epoch));
            }
        }
        self.flows.recheck();
    }

    pub(crate) fn allow(
        &mut self,
        destination: NodeId,
        bytes_and_messages: (u64, u32),
        until: Instant,
    ) {
        self.gate.allow(destination, bytes_and_messages, until);
        self.flows.recheck();
    }

    pub(crate) fn allowance(&self, destination: NodeId) -> u64 {
        self.gate.allowance(destination)
    }

    pub(crate) fn allowed_messages(&self, destination: NodeId) -> u32 {
        self.gate.messages(destination)
    }

    pub(crate) fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Drops the gate's events, because no extension controls it any more.
    pub(crate) fn forget_gate_news(&mut self) {
        self.news.retain(|news| !matches!(news, News::Gate(_)));
    }

    pub(crate) fn enqueue(&mut self, message: Message) {
        // It gets its number when it begins to leave.
        self.flows.push(key_of(&message), Outgoing::message(message, 0));
    }

    /// Returns whether nothing waits, and no event is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.flows.is_empty() && self.news.is_empty()
    }

    /// Returns whether a packet may bypass the queue.
    pub(crate) fn is_open(&self, extension: ExtensionId, packet: &Packet<'_>) -> bool {
        self.is_free(&flow_of(extension, packet))
    }

    /// Returns whether frames of this flow may leave at once: no admission applies, and no frame is queued before them.
    fn is_free(&self, key: &Key) -> bool {
        !key.controlled
            && self.admissions.is_empty()
            && self.flows.first().is_none()
            && !self.flows.contains(key)
    }

    /// Sends a message of one frame at once, if it may bypass the queue and the line takes it now.
    pub(crate) fn send_at_once(&mut self, hw: &mut dyn Hardware, message: &Message) -> bool {
        let number = self.next_number.wrapping_add(self.direct.messages);
        let outgoing = Outgoing::message(*message, number);
        let is_one = outgoing.next_length(hw.mtu_to(message.node) as u32) == message.source.length;
        if !is_one || !self.is_free(&key_of(message)) || self.is_parked(&outgoing) {
            return false;
        }
        let header = outgoing.next_header(hw);
        hw.charge(TRANSMIT_INSTRUCTIONS);
        let status = match hw.transmit(&header, outgoing.next_source(header.length)) {
            Ok(leaves) => {
                self.on_sent_directly(leaves);
                Status::Done
            }
            Err(TransmitRefused::Busy { .. } | TransmitRefused::PeerBusy { .. }) => return false,
            // The application has deregistered the memory.
            Err(_) => Status::Region,
        };
        self.direct.messages += 1;
        outgoing.complete(hw, status);
        true
    }

    /// Sends a packet bypassing the queue. It keeps no state here, so that the sending can be aborted.
    pub(crate) fn send_directly(
        hw: &mut dyn Hardware,
        extension: ExtensionId,
        packet: &Packet<'_>,
    ) -> Result<Sending, TransmitRefused> {
        let length = packet_length(hw, packet)?;
        let header = packet_header(hw, extension, packet, length);
        hw.charge(TRANSMIT_INSTRUCTIONS);
        match hw.transmit(&header, packet.source) {
            Ok(leaves) => Ok(Sending::Now(leaves)),
            Err(TransmitRefused::Busy { .. } | TransmitRefused::PeerBusy { .. }) => {
                Ok(Sending::Queued)
            }
            Err(refused) => Err(refused),
        }
    }

    /// Returns the number of a message whose frames the extension sends as packets.
    pub(crate) const fn next_message(&mut self) -> u32 {
        let number = self.next_number.wrapping_add(self.direct.messages);
        self.direct.messages += 1;
        number
    }

    pub(crate) fn on_sent_directly(&mut self, leaves: Instant) {
        self.direct.leaves = self.direct.leaves.max(leaves);
    }

    /// Counts the frames that a handler has sent directly, because it has returned.
    pub(crate) fn commit(&mut self) {
        let Direct { messages, leaves } = std::mem::take(&mut self.direct);
        self.next_number = self.next_number.wrapping_add(messages);
        self.line_free_at = self.line_free_at.max(leaves);
    }

    /// Discards the count of the frames that a failed handler has sent directly.
    pub(crate) fn abort(&mut self) {
        self.direct = Direct::default();
    }

    /// Sets when to pump again: the line is busy until then.
    pub(crate) const fn retry_at(&mut self, until: Instant) {
        self.retry = until;
    }

    /// Pumps again at `until`, or earlier.
    pub(crate) fn retry_by(&mut self, until: Instant) {
        self.retry = self.retry.min(until);
    }

    /// Returns when to pump again, if nothing else happens.
    pub(crate) const fn next(&self) -> Instant {
        self.retry
    }

    /// Returns when the last data frame that was handed to the line leaves it.
    pub(crate) const fn line_free_at(&self) -> Instant {
        self.line_free_at
    }

    /// Hands over the frames that may leave now, flow by flow in turn.
    pub(crate) fn pump(&mut self, hw: &mut dyn Hardware) {
        let now = hw.now();
        let next = self.flows.wake(now);
        self.retry = self.retry.min(next);
        for _ in 0..FRAMES_PER_PUMP {
            let Some(at) = self.flows.first() else { return };
            if let Err(busy) = self.attempt(hw, at) {
                self.retry = self.retry.min(busy);
                return;
            }
        }
        self.retry = now;
    }

    /// Sends the next frame of the flow whose turn it is, or holds the flow.
    ///
    /// # Errors
    /// The instant until which the line is busy.
    fn attempt(&mut self, hw: &mut dyn Hardware, at: usize) -> Result<(), Instant> {
        let queue = self.flows.queue(at);
        let key = queue.key;
        if queue.waiting.is_empty() {
            self.flows.rotate();
            return Ok(());
        }
        let Some(outgoing) = bring_forward(&self.stopped, &mut queue.waiting) else {
            self.flows.hold(Instant::FAR_FUTURE);
            if key.controlled && self.gate.allowance(key.node) > 0 {
                self.report_if_drained(hw, key.node);
            }
            return Ok(());
        };
        outgoing.set_number(self.next_number);
        let (header, is_first) = (outgoing.next_header(hw), !outgoing.has_begun());
        if key.controlled && self.gate.expire(hw.now(), key.node) {
            self.report_if_drained(hw, key.node);
            return Ok(());
        }
        let answer = self.ask(hw.now(), &header, is_first);
        match answer.verdict {
            Verdict::Now => return self.send(hw, at, &header),
            Verdict::At(until) => {
                self.retry = self.retry.min(until);
                self.flows.hold(until);
            }
            Verdict::Hold => self.flows.hold(Instant::FAR_FUTURE),
        }
        if answer.by_gate && self.gate.note_held(key.node) {
            let news = TransmitEvent::Held { destination: key.node };
            self.news.push_back(News::Gate(news));
        }
        Ok(())
    }

    fn ask(&mut self, now: Instant, header: &Header, is_first: bool) -> Answer {
        let by_gate = !self.gate.admits(header, is_first);
        let mut verdict = if by_gate { Verdict::Hold } else { Verdict::Now };
        for Installed { owner, epoch, admission } in &self.admissions {
            let said = catch_unwind(AssertUnwindSafe(|| admission.admit(now, header)));
            verdict = verdict.and(said.unwrap_or_else(|_| {
                self.news.push_back(News::Trapped(*owner, *epoch));
                Verdict::Hold
            }));
        }
        Answer { verdict, by_gate }
    }

    fn send(&mut self, hw: &mut dyn Hardware, at: usize, header: &Header) -> Result<(), Instant> {
        let queue = self.flows.queue(at);
        let Some(outgoing) = queue.waiting.front_mut() else { return Ok(()) };
        let is_first = !outgoing.has_begun();
        let is_new_message = is_first && !outgoing.is_packet();
        hw.charge(TRANSMIT_INSTRUCTIONS);
        let (status, leaves) = match hw.transmit(header, outgoing.next_source(header.length)) {
            Ok(leaves) => (Status::Done, leaves),
            Err(TransmitRefused::Busy { .. }) if planted::is(Bug::BusyForgotten) => {
                self.flows.pop(at);
                self.flows.rotate();
                return Ok(());
            }
            Err(TransmitRefused::Busy { until }) => return Err(until),
            // Only this destination takes no more: the other flows have their turns.
            Err(TransmitRefused::PeerBusy { until }) => {
                self.retry_by(until);
                self.flows.hold(until);
                return Ok(());
            }
            // The application has deregistered the memory, so the rest can't be sent.
            Err(_) => (Status::Region, hw.now()),
        };
        if status != Status::Done || outgoing.on_sent(header.length) {
            outgoing.complete(hw, status);
            report_end(&mut self.news, outgoing, status, leaves);
            self.flows.pop(at);
        }
        self.flows.rotate();
        if status == Status::Done {
            self.next_number = self.next_number.wrapping_add(is_new_message.into());
            self.on_sent(hw, header, is_first, leaves);
        }
        if header.flags & crate::admission::CONTROLLED != 0 {
            self.report_if_drained(hw, header.destination);
        }
        Ok(())
    }

    /// Reports a sent frame to the gate and to all admissions.
    fn on_sent(&mut self, hw: &dyn Hardware, header: &Header, is_first: bool, leaves: Instant) {
        let now = hw.now();
        self.line_free_at = self.line_free_at.max(leaves);
        let on_line = hw.line_rate().nanos_for(hw.wire_bytes(usize::from(header.length)).into());
        let begins = Instant::from_nanos(leaves.as_nanos().saturating_sub(on_line));
        self.gate.on_frame(header, is_first, (begins, leaves));
        for Installed { owner, epoch, admission } in &mut self.admissions {
            let told = catch_unwind(AssertUnwindSafe(|| admission.on_sent(now, header, leaves)));
            if told.is_err() {
                self.news.push_back(News::Trapped(*owner, *epoch));
            }
        }
    }

    /// If no further frame to `destination` fits the gate's allowance, reports that to the gate's controller.
    fn report_if_drained(&mut self, hw: &dyn Hardware, destination: NodeId) {
        let mtu = hw.mtu_to(destination) as u32;
        let passes = |outgoing: &Outgoing| {
            let bytes = u64::from(outgoing.next_length(mtu)) + HEADER_BYTES as u64;
            self.gate.has_room(destination, bytes, !outgoing.has_begun())
        };
        if self.flows.to(destination, true).any(|queue| self.next_in(queue).is_some_and(passes)) {
            return;
        }
        let (begins, leaves) = self.gate.drain(destination).unwrap_or_else(|| (hw.now(), hw.now()));
        let news = TransmitEvent::Drained { destination, begins, leaves };
        self.news.push_back(News::Gate(news));
        self.flows.recheck();
    }
}

const fn key_of(message: &Message) -> Key {
    let Message { node, controlled, extension, flow, .. } = *message;
    Key { node, controlled, extension, flow }
}

const fn flow_of(extension: ExtensionId, packet: &Packet<'_>) -> Key {
    Key { node: packet.node, controlled: packet.controlled, extension, flow: packet.flow }
}
