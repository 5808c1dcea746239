//! The synchronous iteration (Heddaya and Park 1994, section 2): every rank waits for all values of a round before it
//! computes the next one.
//!
//! A round's values must all arrive, over a network that loses messages. So a rank that has waited for too long sends
//! requests to the ranks whose values are missing, and they send their values of that round again. A rank is at most
//! one round ahead of any other, since it needs the values of all: two rounds are kept.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use midplane::warp::iterate::{self, FixedPoint};

use super::message::{MAX_UPDATES, Note};
use super::pace::Pace;
use super::rank::{Rank, STRIDE};
use super::setting::{Setting, UPDATE_US};
use crate::incast::scenario::by;
use midplane_kit::report::Failure;

/// Silence after which missing values are requested. On an idle cable, a round of 1,000 unknowns takes 5 ranks 45 ms;
/// on a busy one twice as long.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for a message before other work is done.
const PAUSE: Duration = Duration::from_millis(5);

/// Values of unknowns for one target.
type Message = (NodeId, u32, Vec<(usize, f64)>);

/// A rank's values of the last complete round, of the present one and of the one after it.
#[derive(Debug)]
pub struct Rounds {
    own: Range<usize>,
    buffer: usize,
    /// Number of the present round, from 1.
    number: u32,
    x: Vec<f64>,
    next: Vec<Option<f64>>,
    /// Values of ranks that are a round ahead.
    early: Vec<Option<f64>>,
    unsent: VecDeque<Message>,
    /// When the wait for others began, or a value was last received or requested in it.
    last_received: Instant,
}

impl Rounds {
    /// Starts a rank with the unknowns `own` at the start values of `problem`.
    pub fn new(problem: &impl FixedPoint, own: Range<usize>, setting: &Setting) -> Self {
        let x: Vec<f64> = (0..problem.unknowns()).map(|i| problem.start(i)).collect();
        Self {
            own,
            buffer: usize::from(setting.buffer).min(MAX_UPDATES),
            number: 1,
            next: vec![None; x.len()],
            early: vec![None; x.len()],
            x,
            unsent: VecDeque::new(),
            last_received: Instant::ZERO,
        }
    }

    /// Stores values of other ranks, of round `round`. Ignores those of other rounds, and those that a rank may not send.
    pub fn on_values(
        &mut self,
        now: Instant,
        round: u32,
        values: impl Iterator<Item = (usize, f64)>,
    ) {
        let place = match round.checked_sub(self.number) {
            Some(0) => &mut self.next,
            Some(1) => &mut self.early,
            _ => return,
        };
        self.last_received = now;
        for (i, value) in values {
            if !self.own.contains(&i)
                && !value.is_nan()
                && let Some(place) = place.get_mut(i)
            {
                *place = Some(value);
            }
        }
    }

    /// Queues this rank's values of round `round` for a rank that misses some of them.
    pub fn on_missing(&mut self, from: NodeId, round: u32) {
        let values: Vec<(usize, f64)> = if round == self.number {
            self.own.clone().filter_map(|i| Some((i, self.next[i]?))).collect()
        } else if round.checked_add(1) == Some(self.number) {
            self.own.clone().map(|i| (i, self.x[i])).collect()
        } else {
            return;
        };
        // A request that is repeated while its answer waits gets one answer.
        self.unsent.retain(|(to, ..)| *to != from);
        self.unsent.extend(values.chunks(MAX_UPDATES).map(|some| (from, round, some.to_vec())));
    }

    /// Stores own values of the present round, and queues the messages that they complete.
    fn on_computed(&mut self, values: &[(usize, f64)], targets: &[NodeId]) {
        for &(i, value) in values {
            self.next[i] = Some(value);
            let count = i + 1 - self.own.start;
            if !count.is_multiple_of(self.buffer) && i + 1 != self.own.end {
                continue;
            }
            let first = i + 1 - ((count - 1) % self.buffer + 1);
            let some: Vec<(usize, f64)> =
                (first..=i).filter_map(|i| Some((i, self.next[i]?))).collect();
            let to = |target: &NodeId| (*target, self.number, some.clone());
            self.unsent.extend(targets.iter().map(to));
        }
    }

    fn is_complete(&self) -> bool {
        self.next.iter().all(Option::is_some)
    }

    /// Begins the next round, if the present one is complete.
    fn advance(&mut self) {
        let next = std::mem::replace(&mut self.early, vec![None; self.x.len()]);
        for (x, value) in self.x.iter_mut().zip(std::mem::replace(&mut self.next, next)) {
            *x = value.unwrap_or(*x);
        }
        self.number += 1;
    }
}

impl<H: Pace> Rank<H> {
    /// Computes one round, and waits for the other ranks' values of it.
    pub async fn round(&mut self) -> Result<(), Failure> {
        let targets = self.job.setting.targets(self.host.node());
        let own: Vec<usize> = self.part.own().collect();
        for some in own.chunks(STRIDE) {
            let Some(rounds) = &mut self.rounds else { return Ok(()) };
            let value = |i: &usize| (*i, self.job.problem.update(*i, &rounds.x));
            let values: Vec<(usize, f64)> = some.iter().map(value).collect();
            let time = UPDATE_US * 1_000 * some.len() as u64;
            self.host.compute(&mut self.due, time).await;
            rounds.on_computed(&values, &targets);
            self.handle_events()?;
            if self.has_ended() {
                return Ok(());
            }
        }
        let now = self.host.now();
        self.rounds.iter_mut().for_each(|rounds| rounds.last_received = now);
        while self.rounds.as_ref().is_some_and(|rounds| !rounds.is_complete()) {
            if self.has_ended() || self.is_over() {
                return Ok(());
            }
            self.request_missing()?;
            let until = self.host.now() + PAUSE;
            if let Some(done) = by(&self.host, until, self.port.completion()).await {
                self.handle_completion(&done.map_err(Failure::of_run)?)?;
                self.port.ring();
            }
            self.handle_events()?;
        }
        self.end_round();
        Ok(())
    }

    /// Begins the next round. Rank 0 checks the values of the last one: all ranks have the same.
    fn end_round(&mut self) {
        let Some(rounds) = &mut self.rounds else { return };
        rounds.advance();
        if let Some(lead) = &mut self.lead {
            let residual = iterate::residual(&self.job.problem, &rounds.x);
            if residual <= self.job.setting.tolerance {
                lead.accept(rounds.x.clone());
            }
            self.on_residual(residual);
        }
        self.count_sweep();
    }

    /// Sends queued values while the NIC has room.
    pub fn send_values(&mut self) -> Result<(), Failure> {
        let Some(rounds) = &mut self.rounds else { return Ok(()) };
        let now = self.host.now();
        while let Some((to, round, values)) = rounds.unsent.front() {
            let is_sent = self.outbox.send_to(&mut self.port, now, *to, (*round, values));
            if !is_sent.map_err(Failure::of_run)? {
                break;
            }
            rounds.unsent.pop_front();
        }
        Ok(())
    }

    /// Requests the values of ranks that have not sent all of them, after a silence.
    fn request_missing(&mut self) -> Result<(), Failure> {
        let Some(rounds) = &mut self.rounds else { return Ok(()) };
        let now = self.host.now();
        if now.since(rounds.last_received) < PATIENCE {
            return Ok(());
        }
        rounds.last_received = now;
        let round = rounds.number;
        let is_missing =
            |(_, range): &(NodeId, &Range<usize>)| rounds.next[(*range).clone()].contains(&None);
        let ranks = (0..).map(NodeId).zip(&self.ranges).filter(is_missing);
        let ranks: Vec<NodeId> = ranks.map(|(node, _)| node).collect();
        ranks.into_iter().try_for_each(|node| self.send_note(node, &Note::Missing { round }))
    }
}
