//! The sending end of one stream.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::id::ExtensionId;
use midplane_simhw::time::Instant;

use super::config::ControlConfig;
use super::{Body, RoundTrip};

/// Later messages that must have come before an earlier one is taken for lost (as TCP's three
/// duplicate acknowledgements; Jacobson, 1990).
const LOST_AFTER: u32 = 3;
/// Most that a timeout is doubled.
const MOST_BACKOFF: u32 = 5;

#[derive(Debug)]
struct Message {
    extension: ExtensionId,
    body: Body,
    /// When it was last sent; `None` before.
    sent: Option<Instant>,
    again: bool,
    arrived: bool,
    /// It is to be sent again.
    lost: bool,
}

/// What a peer says of what has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement {
    pub(super) stream: u32,
    /// The next message that it expects.
    pub(super) next: u32,
    /// A bit for each message from there on that has come.
    pub(super) bitmap: u64,
    /// For how long it held the acknowledgement back.
    pub(super) delay_ns: u64,
    /// Bytes of the message that it came with.
    pub(super) bytes: u16,
}

/// Whether the peer knows of the stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Handshake {
    #[default]
    Closed,
    Greeting {
        since: Instant,
        next: Instant,
    },
    Open,
}

#[derive(Debug, Default)]
pub(super) struct Sender {
    stream: u32,
    handshake: Handshake,
    /// Number of the first message below.
    base: u32,
    /// From the oldest that is not acknowledged.
    messages: VecDeque<Message>,
    /// How many of them were sent.
    sent: usize,
    round_trip: Option<RoundTrip>,
    backoff: u32,
    /// Since when the peer owes an answer.
    owes_since: Option<Instant>,
    resend_at: Option<Instant>,
}

impl Sender {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) const fn stream(&self) -> u32 {
        self.stream
    }

    pub(super) const fn round_trip(&self) -> Option<RoundTrip> {
        self.round_trip
    }

    pub(super) fn push(&mut self, now: Instant, extension: ExtensionId, body: Body) {
        if self.handshake == Handshake::Closed {
            self.handshake = Handshake::Greeting { since: now, next: now };
        }
        let message =
            Message { extension, body, sent: None, again: false, arrived: false, lost: false };
        self.messages.push_back(message);
    }

    /// Gives the stream up with all that waits; a later message opens the next. Returns how many
    /// messages were given up.
    pub(super) fn restart(&mut self) -> u64 {
        let abandoned = self.messages.len() as u64;
        *self = Self { stream: self.stream.wrapping_add(1), ..Self::default() };
        abandoned
    }

    pub(super) fn on_welcome(&mut self, stream: u32) {
        let greeting = matches!(self.handshake, Handshake::Greeting { .. });
        if greeting && stream == self.stream {
            self.handshake = Handshake::Open;
            self.backoff = 0;
            self.owes_since = None;
        }
    }

    pub(super) fn on_acknowledgement(
        &mut self,
        now: Instant,
        acknowledgement: Acknowledgement,
        config: &ControlConfig,
    ) {
        let Acknowledgement { stream, next, bitmap, delay_ns, bytes } = acknowledgement;
        let acknowledged = next.wrapping_sub(self.base) as usize;
        if stream != self.stream || self.handshake != Handshake::Open || acknowledged > self.sent {
            return;
        }
        self.sample(now, acknowledged, delay_ns, bytes);
        self.messages.drain(..acknowledged);
        self.base = next;
        self.sent -= acknowledged;
        let news = self.mark_arrived(bitmap);
        if acknowledged > 0 || news {
            self.backoff = 0;
        }
        let owes = self.sent > 0;
        self.owes_since = owes.then_some(now);
        if acknowledged > 0 || news || !owes {
            self.resend_at = owes.then(|| now + self.timeout(config));
        }
    }

    /// One round trip, of the newest message that this acknowledges for the first time. One that
    /// was sent again tells nothing (Karn and Partridge, 1987).
    fn sample(&mut self, now: Instant, acknowledged: usize, delay_ns: u64, bytes: u16) {
        let Some(newest) = acknowledged.checked_sub(1).and_then(|at| self.messages.get(at)) else {
            return;
        };
        // The delay counts from the first message that the acknowledgement covers.
        let oldest = self.messages.front();
        let (Some(sent), false, false) =
            (oldest.and_then(|message| message.sent), newest.again, newest.arrived)
        else {
            return;
        };
        let length = oldest.map_or(0, |message| message.body.len() as u32);
        let longer = length.saturating_sub(bytes.into());
        if self.messages.iter().take(acknowledged).any(|message| message.again) {
            return;
        }
        let sample = Duration::from_nanos(now.nanos_since(sent).saturating_sub(delay_ns).max(1));
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip::first(sample, longer),
            Some(trip) => trip.with(sample, longer),
        });
    }

    /// Marks what has come out of order, and what that shows to be lost. Whether any is news.
    fn mark_arrived(&mut self, bitmap: u64) -> bool {
        let mut news = false;
        for (at, message) in self.messages.iter_mut().take(self.sent.min(48)).enumerate() {
            if bitmap >> at & 1 == 1 && !message.arrived {
                message.arrived = true;
                message.lost = false;
                news = true;
            }
        }
        if news {
            let mut later = 0;
            for message in self.messages.iter_mut().take(self.sent).rev() {
                if message.arrived {
                    later += 1;
                } else if later >= LOST_AFTER && !message.again {
                    message.lost = true;
                }
            }
        }
        news
    }

    fn timeout(&self, config: &ControlConfig) -> Duration {
        let timeout = self.round_trip.map_or(config.first_timeout, RoundTrip::timeout);
        let most = (config.dead_after / 4).max(config.least_timeout);
        (timeout.max(config.least_timeout) * (1 << self.backoff.min(MOST_BACKOFF))).min(most)
    }

    /// Whether the peer has owed an answer for too long.
    pub(super) fn is_dead(&self, now: Instant, heard: Instant, config: &ControlConfig) -> bool {
        self.dead_at(heard, config).is_some_and(|at| at <= now)
    }

    fn dead_at(&self, heard: Instant, config: &ControlConfig) -> Option<Instant> {
        let since = match self.handshake {
            Handshake::Closed => return None,
            // What it says without answering does not count: it may not hear us.
            Handshake::Greeting { since, .. } => since,
            Handshake::Open => self.owes_since?.max(heard),
        };
        Some(since + config.dead_after)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.resend_at.is_some_and(|at| at <= now) {
            self.backoff += 1;
            self.resend_at = None;
            if let Some(oldest) = self.messages.iter_mut().take(self.sent).find(|m| !m.arrived) {
                oldest.lost = true;
            }
        }
    }

    pub(super) fn poll_timeout(&self, heard: Instant, config: &ControlConfig) -> Option<Instant> {
        let next = match self.handshake {
            Handshake::Greeting { next, .. } => Some(next),
            _ => self.resend_at,
        };
        [next, self.dead_at(heard, config)].into_iter().flatten().min()
    }

    /// The stream to open, if it is time to ask for that.
    pub(super) fn poll_hello(&mut self, now: Instant, config: &ControlConfig) -> Option<u32> {
        let timeout = self.timeout(config);
        let Handshake::Greeting { next, .. } = &mut self.handshake else { return None };
        if *next > now {
            return None;
        }
        *next = now + timeout;
        self.backoff += 1;
        Some(self.stream)
    }

    /// The next message to put on the line: its number, its extension, its bytes, and whether it
    /// was sent before.
    pub(super) fn poll_message(
        &mut self,
        now: Instant,
        config: &ControlConfig,
    ) -> Option<(u32, ExtensionId, Body, bool)> {
        if self.handshake != Handshake::Open {
            return None;
        }
        let lost = self.messages.iter().take(self.sent).position(|message| message.lost);
        let at = match lost {
            Some(at) => at,
            None if self.sent < self.messages.len().min(config.window as usize) => {
                self.sent += 1;
                self.sent - 1
            }
            None => return None,
        };
        let timeout = self.timeout(config);
        let message = &mut self.messages[at];
        message.again = message.sent.is_some();
        message.sent = Some(now);
        message.lost = false;
        self.owes_since.get_or_insert(now);
        if self.resend_at.is_none() || message.again {
            self.resend_at = Some(now + timeout);
        }
        let sequence = self.base.wrapping_add(at as u32);
        Some((sequence, message.extension, message.body, message.again))
    }
}
