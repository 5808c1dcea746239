//! Leases: how a holder knows that its token is still the only one.
//!
//! A token is valid while every supporter of its epoch has confirmed it less than a lease ago. The supporters are all
//! live senders, and the witness too once a sender has been excluded. A party that gives an epoch up as lost no longer
//! supports it. A lease later no holder can consider the old token valid, and the witness may make a new one. The
//! parties' clocks need not agree: evidence is as old as the question that it answers, and a grant converts it to the
//! receiver's clock, rounded to the past.

use midplane_simhw::time::Instant;

use super::member::{Parties, Party};
use super::message::Epoch;

/// Upper bound of the drift between two nodes' clocks, in parts per billion: 1 ms a second.
const DRIFT_PPB: u64 = 1_000_000;
/// Usual bound of the drift, in parts per billion: for estimates on which safety does not depend.
const USUAL_DRIFT_PPB: u64 = 100_000;

/// A question to all supporters that not all have answered.
#[derive(Clone, Copy, Debug)]
struct Round {
    number: u32,
    epoch: Epoch,
    asked: Instant,
    missing: Parties,
}

/// A sample of another party's clock: it showed at least `theirs` when ours showed `ours`.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    theirs: u64,
    ours: Instant,
}

impl ClockSample {
    /// Returns the least that the other clock shows when ours shows `at`, for a drift of at most `drift_ppb`.
    fn shows_at(self, at: Instant, drift_ppb: u64) -> u64 {
        let (ahead, behind) = (at.nanos_since(self.ours), self.ours.nanos_since(at));
        let drift = u128::from(ahead + behind) * u128::from(drift_ppb) / 1_000_000_000;
        let drift = u64::try_from(drift).unwrap_or(u64::MAX);
        self.theirs.saturating_add(ahead).saturating_sub(behind).saturating_sub(drift)
    }
}

/// One node's evidence about the token of one link.
#[derive(Debug)]
pub(crate) struct Lease {
    lease_ns: u64,
    round: Option<Round>,
    next_round: u32,
    /// The epoch, and an instant at or after which all its supporters confirmed it.
    evidence: Option<(Epoch, Instant)>,
    /// When a holder last asked all supporters, as far as is known; and when this node last did.
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

    /// Returns until when a holder of `epoch` may send; the start of time if it may not.
    pub(crate) fn valid_until(&self, epoch: Epoch) -> Instant {
        match self.evidence {
            Some((of, at)) if of == epoch => at.plus_nanos(self.lease_ns),
            _ => Instant::ZERO,
        }
    }

    /// Records evidence of `epoch` from `at` on our clock.
    pub(crate) fn learn(&mut self, epoch: Epoch, at: Instant) {
        let newer = match self.evidence {
            Some((of, known)) => epoch > of || (epoch == of && at > known),
            None => true,
        };
        if newer {
            self.evidence = Some((epoch, at));
        }
    }

    /// Records that another holder asked all supporters `ago_us` microseconds ago.
    pub(crate) fn learn_asked(&mut self, now: Instant, ago_us: u32) {
        let at = Instant::from_nanos(now.as_nanos().saturating_sub(u64::from(ago_us) * 1000));
        if ago_us != u32::MAX && self.asked.is_none_or(|asked| asked < at) {
            self.asked = Some(at);
        }
    }

    /// Returns the microseconds since a holder last asked all supporters.
    pub(crate) fn asked_us(&self, now: Instant) -> u32 {
        self.asked
            .map_or(u32::MAX, |at| u32::try_from(now.nanos_since(at) / 1000).unwrap_or(u32::MAX))
    }

    /// Returns whether a holder should ask all supporters now: half of its lease is over, and no holder has just asked.
    pub(crate) fn should_ask(&self, now: Instant, epoch: Epoch) -> bool {
        let until = self.valid_until(epoch);
        let within = |at: Option<Instant>, part: u64| {
            at.is_some_and(|at| now.nanos_since(at) < self.lease_ns / part)
        };
        // If the lease is over, questions of other holders don't count.
        let just_asked =
            if until <= now { within(self.asked_here, 16) } else { within(self.asked, 4) };
        until <= now.plus_nanos(self.lease_ns / 2) && !just_asked
    }

    /// Returns the first instant at which [`Lease::should_ask`] is true, if no message arrives until then.
    pub(crate) fn next_check(&self, epoch: Epoch) -> Instant {
        let after = |at: Option<Instant>, part: u64| {
            at.map_or(Instant::ZERO, |at| at.plus_nanos(self.lease_ns / part))
        };
        let until = self.valid_until(epoch);
        let ending = Instant::from_nanos(until.as_nanos().saturating_sub(self.lease_ns / 2));
        ending.max(after(self.asked, 4)).min(until).max(after(self.asked_here, 16))
    }

    /// Begins to ask `supporters` and returns the round's number.
    pub(crate) fn ask(&mut self, now: Instant, epoch: Epoch, supporters: Parties) -> u32 {
        self.next_round = self.next_round.wrapping_add(1);
        self.asked = Some(now);
        self.asked_here = Some(now);
        let number = self.next_round;
        self.round = Some(Round { number, epoch, asked: now, missing: supporters });
        number
    }

    /// Records the clock in another party's message, as it showed when the message was written.
    pub(crate) fn on_clock(&mut self, now: Instant, from: Party, clock: u64) {
        let Some(known) = self.clocks.get_mut(usize::from(from.0)) else { return };
        // Of two samples, the one with the shorter delay is kept.
        if known.is_none_or(|known| known.shows_at(now, USUAL_DRIFT_PPB) < clock) {
            *known = Some(ClockSample { theirs: clock, ours: now });
        }
    }

    /// Forgets the clock of a party that has restarted: it may have begun anew.
    pub(crate) fn forget_clock(&mut self, party: Party) {
        if let Some(known) = self.clocks.get_mut(usize::from(party.0)) {
            *known = None;
        }
    }

    /// Records a supporter's answer.
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

    /// Returns what another party's clock shows now, less the delay of its fastest message; `None` if it has sent none.
    pub(crate) fn clock_of(&self, now: Instant, party: Party) -> Option<u64> {
        let sample = (*self.clocks.get(usize::from(party.0))?)?;
        Some(sample.shows_at(now, USUAL_DRIFT_PPB))
    }

    /// Drops the open round, because a party that was asked has left and will not answer; the others are asked anew.
    pub(crate) fn forget_round(&mut self) {
        self.round = None;
        self.asked = None;
        self.asked_here = None;
    }

    /// Returns our evidence on another party's clock, rounded to the past; 0 if that clock is not known.
    ///
    /// The party's message was written before it arrived: at its arrival, the party's clock showed at least what the
    /// message says. So an instant of ours lies at or after the one computed on that clock.
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
