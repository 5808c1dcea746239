//! Leases: how a holder knows that its token is still the only one.
//!
//! A token is valid while every supporter of its epoch stood by it less than a lease ago: all live
//! senders, and the witness too once a sender has been left out. Whoever gives an epoch up for lost
//! supports it no more; a lease later no holder can believe in it, and the witness may make a new
//! token. Nobody needs another's clock for that: evidence is as old as the question that it answers,
//! and when a token is passed on, its evidence is put on the receiver's clock, rounded to the past.

use midplane_simhw::time::Instant;

use super::member::{Parties, Party};
use super::message::Epoch;

/// Clocks of two nodes drift apart by at most this many nanoseconds a second.
const DRIFT_PPB: u64 = 1_000_000;
/// And hardly ever by more than this: what a guess may rest on that safety does not.
const USUAL_DRIFT_PPB: u64 = 100_000;

/// A question to all supporters, until all have answered.
#[derive(Clone, Copy, Debug)]
struct Round {
    number: u32,
    epoch: Epoch,
    asked: Instant,
    missing: Parties,
}

/// What is known of another party's clock: it showed at least `theirs` at our `ours`.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    theirs: u64,
    ours: Instant,
}

impl ClockSample {
    /// What the other clock shows at `at` of ours, at least, where it drifts by so much at most.
    fn shows_at(self, at: Instant, drift_ppb: u64) -> u64 {
        let (ahead, behind) = (at.nanos_since(self.ours), self.ours.nanos_since(at));
        let drift = u128::from(ahead + behind) * u128::from(drift_ppb) / 1_000_000_000;
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        self.theirs.saturating_add(ahead).saturating_sub(behind).saturating_sub(drift)
    }
}

/// One node's evidence about one link.
#[derive(Debug)]
pub(crate) struct Lease {
    lease_ns: u64,
    round: Option<Round>,
    next_round: u32,
    /// All supporters of the epoch stood by it then, or later.
    evidence: Option<(Epoch, Instant)>,
    /// When a holder last asked all, as far as is known, and when this one did.
    asked: Option<Instant>,
    asked_here: Option<Instant>,
    clocks: Vec<Option<ClockSample>>,
}

impl Lease {
    pub(crate) fn new(lease_ns: u64) -> Self {
        Self {
            lease_ns,
            round: None,
            next_round: 0,
            evidence: None,
            asked: None,
            asked_here: None,
            clocks: vec![None; super::member::MAX_SENDERS + 1],
        }
    }

    /// Until when a holder of `epoch` may send; the start of time if it may not.
    pub(crate) fn valid_until(&self, epoch: Epoch) -> Instant {
        match self.evidence {
            Some((of, at)) if of == epoch => at.plus_nanos(self.lease_ns),
            _ => Instant::ZERO,
        }
    }

    /// Evidence of `epoch` from `at` on our clock.
    pub(crate) fn learn(&mut self, epoch: Epoch, at: Instant) {
        let newer = match self.evidence {
            Some((of, known)) => epoch > of || (epoch == of && at > known),
            None => true,
        };
        if newer {
            self.evidence = Some((epoch, at));
        }
    }

    /// Another holder asked all this long ago.
    pub(crate) fn learn_asked(&mut self, now: Instant, ago_us: u32) {
        let at = Instant::from_nanos(now.as_nanos().saturating_sub(u64::from(ago_us) * 1000));
        if ago_us != u32::MAX && self.asked.is_none_or(|asked| asked < at) {
            self.asked = Some(at);
        }
    }

    /// Microseconds since a holder last asked all.
    pub(crate) fn asked_us(&self, now: Instant) -> u32 {
        self.asked
            .map_or(u32::MAX, |at| u32::try_from(now.nanos_since(at) / 1000).unwrap_or(u32::MAX))
    }

    /// Whether a holder should ask all now: half of its lease is over, and nobody has just asked.
    pub(crate) fn should_ask(&self, now: Instant, epoch: Epoch) -> bool {
        let until = self.valid_until(epoch);
        let within = |at: Option<Instant>, part: u64| {
            at.is_some_and(|at| now.nanos_since(at) < self.lease_ns / part)
        };
        // A lease that is over does not wait for what others have asked.
        let just_asked =
            if until <= now { within(self.asked_here, 16) } else { within(self.asked, 4) };
        until <= now.plus_nanos(self.lease_ns / 2) && !just_asked
    }

    /// When a holder should look at its lease again.
    pub(crate) fn next_look(&self, now: Instant, epoch: Epoch) -> Instant {
        let asked = self.asked.map_or(Instant::ZERO, |at| at.plus_nanos(self.lease_ns / 4));
        let until = self.valid_until(epoch).as_nanos();
        let ending = Instant::from_nanos(until.saturating_sub(self.lease_ns / 2));
        asked.max(ending).max(now.plus_nanos(self.lease_ns / 16))
    }

    /// Begins to ask `supporters`; the round's number. Nobody to ask is evidence at once.
    pub(crate) fn ask(&mut self, now: Instant, epoch: Epoch, supporters: Parties) -> u32 {
        self.next_round = self.next_round.wrapping_add(1);
        self.asked = Some(now);
        self.asked_here = Some(now);
        if supporters.is_empty() {
            self.learn(epoch, now);
        }
        let number = self.next_round;
        self.round = Some(Round { number, epoch, asked: now, missing: supporters });
        number
    }

    /// A message of another party says what its clock showed when it was written.
    pub(crate) fn on_clock(&mut self, now: Instant, from: Party, clock: u64) {
        let Some(known) = self.clocks.get_mut(usize::from(from.0)) else { return };
        // The one that had the shorter way is the better.
        if known.is_none_or(|known| known.shows_at(now, USUAL_DRIFT_PPB) < clock) {
            *known = Some(ClockSample { theirs: clock, ours: now });
        }
    }

    /// A supporter has answered.
    pub(crate) fn on_support(&mut self, from: Party, epoch: Epoch, round: u32) {
        let Some(open) = &mut self.round else { return };
        if open.number != round || open.epoch != epoch {
            return;
        }
        open.missing = open.missing.without(from);
        if open.missing.is_empty() {
            let asked = open.asked;
            self.round = None;
            self.learn(epoch, asked);
        }
    }

    /// What another party's clock shows now, less what its fastest message took; `None` if it has
    /// sent none.
    pub(crate) fn clock_of(&self, now: Instant, party: Party) -> Option<u64> {
        let sample = (*self.clocks.get(usize::from(party.0))?)?;
        Some(sample.shows_at(now, USUAL_DRIFT_PPB))
    }

    /// Who was asked and has gone never answers: all others are asked anew.
    pub(crate) fn forget_round(&mut self) {
        self.round = None;
        self.asked = None;
        self.asked_here = None;
    }

    /// Our evidence on another party's clock, rounded to the past; 0 if that is not known.
    ///
    /// The party's message was written before it arrived: at that instant its clock showed at least
    /// what the message says, so an instant of ours lies at or after the one computed on its clock.
    pub(crate) fn evidence_for(&self, party: Party, epoch: Epoch) -> u64 {
        let Some((of, at)) = self.evidence else { return 0 };
        let Some(Some(sample)) = self.clocks.get(usize::from(party.0)) else { return 0 };
        if of == epoch { sample.shows_at(at, DRIFT_PPB) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Party = Party(0);
    const B: Party = Party(1);

    #[test]
    fn evidence_needs_every_supporter_and_is_as_old_as_the_question() {
        let epoch = Epoch(7);
        let mut lease = Lease::new(1000);
        let all = Parties::default().with(A).with(B);
        let round = lease.ask(Instant::from_nanos(100), epoch, all);
        lease.on_support(A, epoch, round);
        lease.on_support(A, epoch, round);
        lease.on_support(B, epoch, round + 1);
        assert_eq!(lease.valid_until(epoch), Instant::ZERO);
        lease.on_support(B, epoch, round);
        assert_eq!(lease.valid_until(epoch), Instant::from_nanos(1100));
        assert_eq!(lease.valid_until(Epoch(8)), Instant::ZERO);
    }

    proptest! {
        #[test]
        fn evidence_on_anothers_clock_is_never_too_young(
            offset in -1_000_000_000_i64..1_000_000_000, delay in 0_u64..1_000_000,
            answered in 2_000_000_000_u64..4_000_000_000, at in 2_000_000_000_u64..4_000_000_000,
        ) {
            // The other clock is `offset` ahead; its answer took `delay` to arrive.
            let theirs = |ours: u64| ours.checked_add_signed(offset).unwrap();
            let epoch = Epoch(1);
            let mut lease = Lease::new(1000);
            lease.on_clock(Instant::from_nanos(answered + delay), A, theirs(answered));
            lease.learn(epoch, Instant::from_nanos(at));
            let put = lease.evidence_for(A, epoch);
            prop_assert!(put <= theirs(at), "{put} is after {}", theirs(at));
            prop_assert!(put + delay + 4_000_000 > theirs(at), "{put} is long before {}", theirs(at));
        }
    }
}
