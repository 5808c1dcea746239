//! Admission control: decides which data frames may leave now.

use std::collections::BTreeMap;

use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;

use crate::planted::{self, Bug};

/// Flag of a data frame that is under flow control: the gate decides when it leaves.
pub const CONTROLLED: u8 = 0x80;

/// An admission's decision about a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The frame may leave.
    Now,
    /// The scheduler asks again at this instant.
    At(Instant),
    /// Holds the frame until the admission is updated or a frame is reported as sent.
    Hold,
}

impl Verdict {
    /// Combines two verdicts: a frame leaves when neither objects.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Hold, _) | (_, Self::Hold) => Self::Hold,
            (Self::At(a), Self::At(b)) => Self::At(a.max(b)),
            (Self::At(at), Self::Now) | (Self::Now, Self::At(at)) => Self::At(at),
            (Self::Now, Self::Now) => Self::Now,
        }
    }
}

/// A message from an extension to its admission; the two agree on its meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdmissionUpdate {
    /// The destination node that the update concerns.
    pub destination: NodeId,
    /// Two parameters, such as a rate, an allowance or a weight.
    pub values: [u64; 2],
}

/// Decides which data frames may leave now. The unit's one transmit scheduler consults every installed admission; a
/// frame leaves when none objects. Control messages are exempt: they are few and small, and decisions travel in them.
pub trait Admission: Send {
    /// Returns whether a frame may leave. The scheduler may ask any number of times, even for a frame that is never
    /// sent: usage is counted by [`Admission::on_sent`].
    fn admit(&self, now: Instant, header: &Header) -> Verdict;

    /// Counts an admitted frame that was handed to the line; its last bit leaves the line at `leaves`.
    fn on_sent(&mut self, now: Instant, header: &Header, leaves: Instant);

    /// Applies a message from its extension ([`Context::update_admission`](crate::context::Context::update_admission)).
    /// The scheduler then asks again about all held frames.
    fn update(&mut self, now: Instant, update: AdmissionUpdate);
}

/// The gate's state for one destination.
#[derive(Debug, Default)]
struct GateState {
    /// Bytes of frames, headers included, that may still leave.
    allowance: u64,
    /// Messages and packets that may still begin to leave.
    messages: u32,
    /// Instant at which the allowance ends.
    until: Instant,
    /// True if the gate's controller was notified that a frame is held.
    is_reported: bool,
    /// Instants at which the first and the last bit of the frames admitted since the last `drain` leave the line.
    on_line: Option<(Instant, Instant)>,
}

/// Holds frames under flow control, by destination, until an extension lets them through.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    destinations: BTreeMap<NodeId, GateState>,
}

impl Gate {
    /// Sets the allowance for `destination` to `bytes` of frames, headers included, until `until`, replacing the former
    /// allowance; 0 closes the gate. At most `messages` messages and packets may begin to leave.
    pub(crate) fn allow(
        &mut self,
        destination: NodeId,
        (bytes, messages): (u64, u32),
        until: Instant,
    ) {
        let state = self.destinations.entry(destination).or_default();
        (state.allowance, state.messages, state.until) = (bytes, messages, until);
    }

    /// Closes the gate to `destination` if its allowance has ended; returns whether bytes of it were left.
    pub(crate) fn expire(&mut self, now: Instant, destination: NodeId) -> bool {
        let Some(state) = self.destinations.get_mut(&destination) else { return false };
        let is_over = state.allowance > 0 && state.until <= now;
        if is_over {
            state.allowance = 0;
        }
        is_over
    }

    /// Returns the bytes of frames that may still leave to `destination`.
    pub(crate) fn allowance(&self, destination: NodeId) -> u64 {
        self.destinations.get(&destination).map_or(0, |state| state.allowance)
    }

    /// Returns how many messages and packets may still begin to leave to `destination`.
    pub(crate) fn messages(&self, destination: NodeId) -> u32 {
        self.destinations.get(&destination).map_or(0, |state| state.messages)
    }

    /// Returns whether a frame may leave. `is_first`: it is the first of its message, or a packet.
    pub(crate) fn admits(&self, header: &Header, is_first: bool) -> bool {
        let cost = frame_cost(header);
        header.flags & CONTROLLED == 0 || self.has_room(header.destination, cost, is_first)
    }

    /// Returns whether the allowance for `destination` has room for a frame of `bytes`, header included.
    pub(crate) fn has_room(&self, destination: NodeId, bytes: u64, is_first: bool) -> bool {
        let state = self.destinations.get(&destination);
        state.is_some_and(|it| it.allowance >= bytes && (!is_first || it.messages > 0))
    }

    /// Charges the allowance for a frame that has been handed to the line.
    pub(crate) fn on_frame(
        &mut self,
        header: &Header,
        is_first: bool,
        (begins, leaves): (Instant, Instant),
    ) {
        if header.flags & CONTROLLED == 0 {
            return;
        }
        let state = self.destinations.entry(header.destination).or_default();
        state.allowance = state.allowance.saturating_sub(frame_cost(header));
        state.messages = state.messages.saturating_sub(is_first.into());
        let first = state.on_line.map_or(begins, |(first, _)| first);
        state.on_line = Some((first, leaves));
    }

    /// Notes that a frame is held. Returns true if the gate's controller has not yet been notified.
    pub(crate) fn note_held(&mut self, destination: NodeId) -> bool {
        let state = self.destinations.entry(destination).or_default();
        !std::mem::replace(&mut state.is_reported, true)
    }

    /// Notes that no frame is held: the next held frame is reported anew.
    pub(crate) fn forget_held(&mut self, destination: NodeId) {
        let state = self.destinations.entry(destination).or_default();
        state.is_reported &= planted::is(Bug::HeldRemembered);
    }

    /// Ends a period of the allowance. Returns the instants at which its first and last bits leave the line, if a frame
    /// was sent.
    pub(crate) fn drain(&mut self, destination: NodeId) -> Option<(Instant, Instant)> {
        let state = self.destinations.entry(destination).or_default();
        state.is_reported = false;
        state.on_line.take()
    }
}

const fn frame_cost(header: &Header) -> u64 {
    HEADER_BYTES as u64 + header.length as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_ends_with_its_time_once() {
        let (mut gate, to) = (Gate::default(), NodeId(1));
        gate.allow(to, (1_000, 1), Instant::from_nanos(50));
        assert!(!gate.expire(Instant::from_nanos(49), to));
        assert_eq!(gate.allowance(to), 1_000);
        assert!(gate.expire(Instant::from_nanos(50), to));
        assert_eq!(gate.allowance(to), 0);
        assert!(!gate.expire(Instant::from_nanos(51), to));
    }

    #[test]
    fn an_allowance_for_one_message_lets_no_other_begin() {
        let (mut gate, to) = (Gate::default(), NodeId(1));
        let header =
            Header { destination: to, flags: CONTROLLED, length: 100, ..Header::default() };
        gate.allow(to, (1_000, 1), Instant::FAR_FUTURE);
        assert!(gate.admits(&header, true));
        gate.on_frame(&header, true, (Instant::ZERO, Instant::ZERO));
        assert!(!gate.admits(&header, true) && gate.admits(&header, false));
        gate.on_frame(&header, false, (Instant::ZERO, Instant::ZERO));
        gate.allow(to, (10, 1), Instant::FAR_FUTURE);
        assert!(!gate.admits(&header, true) && !gate.admits(&header, false));
    }
}
