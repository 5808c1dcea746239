//! One peer: its present incarnation, and the connection with it.
//!
//! ```text
//!            send: hello until welcomed            proof: a frame that names our number
//!   Closed ------------------------------> Closed --------------------------------> Up
//!     ^                                                                             |
//!     +-- no answer in time, or the peer restarted: number + 1, queue dropped ------+
//! ```

use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::time::Instant;

use super::alarms::{Timer, Timers};
use super::attempt::{Attempt, StaleHellos};
use super::config::{ACKNOWLEDGEMENT_DELAY_NANOS, ControlConfig, MIN_TIMEOUT_NANOS};
use super::message::{Address, Body, Counters, Event};
use super::receive_window::{Acknowledgement, Arrival, ReceiveWindow};
use super::round_trip::Estimate;
use super::send_window::SendWindow;
use super::{Reports, Setting};
use crate::extension::Epoch;
use crate::planted::{self, Bug};

/// The protocol's fields of a peer's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    pub(super) number: u32,
    pub(super) echo: u32,
    said: Acknowledgement,
}

impl Words {
    pub(super) const fn read(header: &Header) -> Self {
        let [said, numbers] = header.words;
        Self {
            number: numbers as u32,
            echo: (numbers >> 32) as u32,
            said: Acknowledgement {
                expected: header.acknowledgement,
                beyond: said as u32,
                delay: (said >> 32) as u32,
            },
        }
    }

    fn write(self) -> [u64; 2] {
        let said = u64::from(self.said.beyond) | u64::from(self.said.delay) << 32;
        [said, u64::from(self.number) | u64::from(self.echo) << 32]
    }
}

/// A frame chosen for transmission; `message` is the message of the window that gives its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) header: Header,
    pub(super) message: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    node: NodeId,
    /// Our number towards this peer: of the connection if it is up, else of the next one.
    own: u32,
    /// The newest attempt of the peer known to have begun.
    latest: Attempt,
    stale_hellos: StaleHellos,
    up: bool,
    /// The incarnation reported to the application last; `None` if the peer was last reported down.
    reported: Option<Incarnation>,
    sending: SendWindow,
    receiving: ReceiveWindow,
    estimate: Estimate,
    timers: Timers,
    hello_due: bool,
    hellos: u32,
    hello_sent_at: Instant,
    welcome_due: bool,
    /// True if a hello is due that need not be answered: the peer has sent data to a former incarnation of ours.
    notice_due: bool,
    /// The instant until which frames that match no connection are not answered.
    next_answer_at: Instant,
}

impl Peer {
    pub(super) fn new(node: NodeId) -> Self {
        Self {
            node,
            own: 1,
            latest: Attempt::default(),
            stale_hellos: StaleHellos::default(),
            up: false,
            reported: None,
            sending: SendWindow::default(),
            receiving: ReceiveWindow::default(),
            estimate: Estimate::default(),
            timers: Timers::default(),
            hello_due: false,
            hellos: 0,
            hello_sent_at: Instant::ZERO,
            welcome_due: false,
            notice_due: false,
            next_answer_at: Instant::ZERO,
        }
    }

    /// Queues a message; the caller has checked that there is room.
    pub(super) fn send(&mut self, now: Instant, setting: &Setting, to: Address, body: Body) {
        self.sending.push(to, body);
        self.timers.set_if_off(Timer::Death, now.plus_nanos(setting.config.dead_after_nanos()));
        // Only the first hello is sent at once: later ones wait for the resend timer.
        self.hello_due |= !self.up && self.hellos == 0;
    }

    /// Handles a frame of the control protocol from this peer and for this node; `body` is checked.
    pub(super) fn handle_frame(
        &mut self,
        now: Instant,
        setting: &Setting,
        reports: &mut Reports,
        header: &Header,
        body: &Body,
    ) {
        let words = Words::read(header);
        let attempt = Attempt { incarnation: header.incarnation, number: words.number };
        if self.latest.is_newer_than(attempt) {
            if attempt.incarnation == self.latest.incarnation {
                reports.counters.stale_connection += 1;
            } else {
                reports.counters.stale_incarnation += 1;
                if header.kind == Kind::Hello {
                    let (older, present) = (attempt.incarnation, self.latest.incarnation);
                    let is_shown = self.stale_hellos.on_hello(self.node, older, present);
                    reports.counters.older_restarts += u64::from(is_shown);
                }
            }
            return;
        }
        self.stale_hellos.on_present();
        if attempt.is_newer_than(self.latest) {
            self.on_newer_attempt(attempt, reports);
        }
        if header.kind == Kind::Hello {
            self.welcome_due = true;
            return;
        }
        if header.destination_incarnation != setting.incarnation || words.echo != self.own {
            self.on_mismatch(now, setting, reports, header);
            return;
        }
        if !self.up {
            self.on_proof(now, setting, reports, header.kind);
        }
        match header.kind {
            Kind::Control => {
                self.on_acknowledgement(now, setting, reports, &words.said);
                self.on_message(now, reports, header, body);
            }
            Kind::Acknowledge => self.on_acknowledgement(now, setting, reports, &words.said),
            _ => {}
        }
    }

    /// Handles a data frame for a former incarnation of ours: if we have no connection, notifies the peer.
    pub(super) fn handle_stale_data(&mut self, now: Instant, header: &Header) {
        if !self.latest.incarnation.is_newer_than(header.incarnation) {
            self.notice_due |= self.may_answer(now);
        }
    }

    /// Carries out the actions of the timers that have expired by `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant, reports: &mut Reports) {
        if self.timers.take_expired(Timer::Death, now) {
            reports.counters.peers_down += 1;
            self.report_down(reports);
            return;
        }
        if self.timers.take_expired(Timer::Resend, now) {
            self.estimate.on_timeout();
            if self.up {
                self.sending.on_timeout();
            } else {
                self.hello_due = true;
            }
        }
        if self.timers.take_expired(Timer::Acknowledge, now) {
            self.receiving.on_delay_over();
        }
    }

    /// Returns the next frame to this peer, if one is to leave now.
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        setting: &Setting,
        counters: &mut Counters,
    ) -> Option<Chosen> {
        self.transmit_welcome(setting, counters)
            .or_else(|| self.transmit_hello(now, setting, counters))
            .or_else(|| self.transmit_message(now, setting, counters))
            .or_else(|| self.transmit_acknowledgement(now, setting, counters))
    }

    /// Returns whether [`Peer::poll_transmit`] has a frame.
    pub(super) fn wants_to_transmit(&self, config: &ControlConfig) -> bool {
        self.welcome_due
            || self.hello_due
            || self.notice_due
            || (self.up
                && (self.receiving.is_due() || self.sending.has_next(config.window_messages())))
    }

    pub(super) const fn node(&self) -> NodeId {
        self.node
    }

    pub(super) const fn timers(&self) -> &Timers {
        &self.timers
    }

    pub(super) const fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    pub(super) const fn sending(&self) -> &SendWindow {
        &self.sending
    }

    /// Returns whether the peer has sent messages that no acknowledgement of ours names yet.
    pub(super) const fn owes_acknowledgement(&self) -> bool {
        self.receiving.is_owed()
    }

    pub(super) const fn reported(&self) -> Option<Incarnation> {
        self.reported
    }

    /// Handles a newer attempt: the peer has restarted, or has given up its connection.
    fn on_newer_attempt(&mut self, attempt: Attempt, reports: &mut Reports) {
        let another = attempt.incarnation != self.latest.incarnation;
        self.latest = attempt;
        if another {
            self.stale_hellos = StaleHellos::default();
        }
        if another && self.reported.is_some() {
            self.close(reports);
            self.reported = Some(attempt.incarnation);
            let event = Event::PeerRestarted { node: self.node, incarnation: attempt.incarnation };
            reports.events.push_back(event);
        } else if self.up {
            self.report_down(reports);
        }
    }

    /// Handles a frame that names no connection of ours. If we have no connection with the peer, answers by a welcome.
    fn on_mismatch(
        &mut self,
        now: Instant,
        setting: &Setting,
        reports: &mut Reports,
        header: &Header,
    ) {
        if header.destination_incarnation == setting.incarnation {
            reports.counters.stale_connection += 1;
        } else {
            reports.counters.stale_incarnation += 1;
        }
        // A welcome is never answered, so that two units cannot answer each other forever.
        if header.kind != Kind::Welcome {
            self.welcome_due |= self.may_answer(now);
        }
    }

    /// Returns whether to answer a peer that we have no connection with: at most once in `min_timeout`.
    fn may_answer(&mut self, now: Instant) -> bool {
        let may = !self.up && now >= self.next_answer_at;
        if may {
            self.next_answer_at = now.plus_nanos(MIN_TIMEOUT_NANOS);
        }
        may
    }

    /// Establishes the connection: the peer's present incarnation has named our present number.
    fn on_proof(&mut self, now: Instant, setting: &Setting, reports: &mut Reports, kind: Kind) {
        self.up = true;
        // Other frames may answer a welcome of ours that left before the hello, so only a welcome gives a round trip.
        if self.hellos == 1 && kind == Kind::Welcome {
            self.estimate.on_sample(now.nanos_since(self.hello_sent_at));
            self.estimate.forget_doublings();
        }
        self.hello_due = false;
        self.hellos = 0;
        self.timers.stop(Timer::Resend);
        self.restart_death(now, setting);
        if self.reported != Some(self.latest.incarnation) {
            let incarnation = self.latest.incarnation;
            self.reported = Some(incarnation);
            reports.events.push_back(Event::PeerUp { node: self.node, incarnation });
        }
    }

    fn on_acknowledgement(
        &mut self,
        now: Instant,
        setting: &Setting,
        reports: &mut Reports,
        said: &Acknowledgement,
    ) {
        let Some(acknowledged) = self.sending.on_acknowledgement(now, said) else {
            reports.counters.refused += 1;
            return;
        };
        if acknowledged.arrived == 0 {
            return;
        }
        reports.counters.acknowledged += acknowledged.arrived;
        if let Some(sample) = acknowledged.sample {
            self.estimate.on_sample(sample);
        }
        if acknowledged.sent_once {
            self.estimate.forget_doublings();
        }
        self.restart_death(now, setting);
        self.timers.stop(Timer::Resend);
        if self.sending.is_under_way() && !planted::is(Bug::ResendStopped) {
            self.start_resend(now, setting);
        }
    }

    fn on_message(&mut self, now: Instant, reports: &mut Reports, header: &Header, body: &Body) {
        let to = Address { extension: header.extension, epoch: Epoch(header.port.0) };
        match self.receiving.on_arrival(now, header.sequence, to, body) {
            Arrival::InOrder => {
                reports.deliver(self.node, to, *body);
                while let Some((to, body)) = self.receiving.next_kept() {
                    reports.deliver(self.node, to, body);
                }
            }
            Arrival::Kept => {
                reports.counters.out_of_order += 1;
                if planted::is(Bug::EarlyDelivered) {
                    reports.deliver(self.node, to, *body);
                }
            }
            Arrival::Duplicate => {
                reports.counters.duplicates += 1;
                if planted::is(Bug::DuplicateDelivered) {
                    reports.deliver(self.node, to, *body);
                }
            }
            Arrival::Beyond => reports.counters.refused += 1,
        }
        if self.receiving.is_owed() {
            self.timers.set_if_off(Timer::Acknowledge, now.plus_nanos(ACKNOWLEDGEMENT_DELAY_NANOS));
        }
    }

    fn report_down(&mut self, reports: &mut Reports) {
        self.close(reports);
        self.reported = None;
        reports.events.push_back(Event::PeerDown { node: self.node });
    }

    /// Drops the connection, or the attempt at one; its number is never used again.
    fn close(&mut self, reports: &mut Reports) {
        if !planted::is(Bug::QueueSurvives) {
            reports.counters.dropped += self.sending.reset() as u64;
        }
        self.receiving.reset();
        self.up = false;
        if !planted::is(Bug::NumberKept) {
            self.own = self.own.wrapping_add(1).max(1);
        }
        self.hello_due = false;
        self.hellos = 0;
        self.timers = Timers::default();
        self.estimate.forget_doublings();
    }

    fn restart_death(&mut self, now: Instant, setting: &Setting) {
        if self.sending.len() > 0 {
            self.timers.set(Timer::Death, now.plus_nanos(setting.config.dead_after_nanos()));
        } else {
            self.timers.stop(Timer::Death);
        }
    }

    fn start_resend(&mut self, now: Instant, setting: &Setting) {
        let wait = self.estimate.timeout(&setting.config);
        self.timers.set_if_off(Timer::Resend, now.plus_nanos(wait));
    }

    fn transmit_welcome(&mut self, setting: &Setting, counters: &mut Counters) -> Option<Chosen> {
        if !std::mem::take(&mut self.welcome_due) {
            return None;
        }
        counters.welcomes += 1;
        Some(self.bare(setting, Kind::Welcome, Acknowledgement::default()))
    }

    fn transmit_hello(
        &mut self,
        now: Instant,
        setting: &Setting,
        counters: &mut Counters,
    ) -> Option<Chosen> {
        let notice = std::mem::take(&mut self.notice_due);
        let hello = std::mem::take(&mut self.hello_due);
        if !hello && !notice {
            return None;
        }
        counters.hellos += 1;
        if hello {
            self.hellos = self.hellos.saturating_add(1);
            self.hello_sent_at = now;
            self.start_resend(now, setting);
        }
        let mut chosen = self.bare(setting, Kind::Hello, Acknowledgement::default());
        chosen.header.destination_incarnation = Incarnation::UNKNOWN;
        chosen.header.words = Words { echo: 0, ..Words::read(&chosen.header) }.write();
        Some(chosen)
    }

    fn transmit_message(
        &mut self,
        now: Instant,
        setting: &Setting,
        counters: &mut Counters,
    ) -> Option<Chosen> {
        if !self.up {
            return None;
        }
        let outbound = self.sending.on_transmit(now, setting.config.window_messages())?;
        if outbound.again {
            counters.retransmitted += 1;
        } else {
            counters.sent += 1;
        }
        self.start_resend(now, setting);
        self.timers.stop(Timer::Acknowledge);
        let said = self.receiving.on_transmit(now);
        let mut chosen = self.bare(setting, Kind::Control, said);
        chosen.header.extension = outbound.to.extension;
        chosen.header.port = PortId(outbound.to.epoch.0);
        chosen.header.sequence = outbound.sequence;
        chosen.header.length = self.sending.body(outbound.index).len() as u16;
        chosen.message = Some(outbound.index);
        Some(chosen)
    }

    fn transmit_acknowledgement(
        &mut self,
        now: Instant,
        setting: &Setting,
        counters: &mut Counters,
    ) -> Option<Chosen> {
        if !self.up || !self.receiving.is_due() {
            return None;
        }
        counters.acknowledgements += 1;
        self.timers.stop(Timer::Acknowledge);
        let said = self.receiving.on_transmit(now);
        Some(self.bare(setting, Kind::Acknowledge, said))
    }

    fn bare(&self, setting: &Setting, kind: Kind, said: Acknowledgement) -> Chosen {
        let words = Words { number: self.own, echo: self.latest.number, said };
        let header = Header {
            kind,
            source: setting.node,
            destination: self.node,
            incarnation: setting.incarnation,
            destination_incarnation: self.latest.incarnation,
            acknowledgement: said.expected,
            hop_limit: DEFAULT_HOP_LIMIT,
            words: words.write(),
            ..Header::default()
        };
        Chosen { header, message: None }
    }
}
