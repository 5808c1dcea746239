//! The exact recurrence: the time at which each fragment leaves each stage.

use std::ops::Range;

use crate::stage::{Pipeline, Stage};
use crate::unit::Micros;

/// One fragment's stay in one stage: a bar of the Gantt chart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The stage, counted from 0.
    pub stage: usize,
    /// The fragment, counted from 0.
    pub fragment: usize,
    /// Size of the fragment in bytes.
    pub bytes: f64,
    /// When the fragment entered the stage, in microseconds after the first fragment entered the
    /// first stage.
    pub start: Micros,
    /// When the fragment left the stage, on the same clock.
    pub end: Micros,
}

impl Row {
    /// Creates a row from a measured stay, in microseconds. Returns `None` if a time is negative or
    /// not finite, or if the end lies before the start.
    #[must_use]
    pub fn new(stage: usize, fragment: usize, bytes: f64, stay: Range<f64>) -> Option<Self> {
        let good = stay.start >= 0.0 && stay.end >= stay.start && stay.end.is_finite();
        good.then_some(Self {
            stage,
            fragment,
            bytes,
            start: Micros::of(stay.start),
            end: Micros::of(stay.end),
        })
    }
}

/// The three parts of a latency (equation 4); their sum is the latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// The stage that is busy longest; the other parts refer to it.
    pub bottleneck: usize,
    /// T_f: the time until the first fragment enters the bottleneck.
    pub first: Micros,
    /// T_b: the time from then until the last fragment leaves the bottleneck.
    pub busy: Micros,
    /// T_l: the time from then until the last fragment leaves the last stage.
    pub last: Micros,
    /// Time within T_b that the bottleneck spent waiting. Zero for equal fragments and for every
    /// bubble-free plan.
    pub idle: Micros,
}

/// The state of a chain while fragments enter it one by one (inequalities 1 to 3, taken as
/// equalities).
///
/// With `credits`, at most that many fragments are in the chain at once: the next one enters when
/// the oldest has left.
#[derive(Clone, Debug)]
pub(crate) struct Recurrence<'p> {
    stages: &'p [Stage],
    free: Vec<f64>,
    exits: Vec<f64>,
    sent: usize,
}

impl<'p> Recurrence<'p> {
    pub(crate) fn new(stages: &'p [Stage], credits: Option<usize>) -> Self {
        Self {
            stages,
            free: vec![0.0; stages.len()],
            exits: vec![0.0; credits.unwrap_or(0)],
            sent: 0,
        }
    }

    /// Sends one fragment that is available from `arrival` on. Returns when it leaves the last
    /// stage.
    pub(crate) fn push(&mut self, arrival: f64, bytes: f64) -> f64 {
        let mut at = arrival;
        let slot = if self.exits.is_empty() { None } else { Some(self.sent % self.exits.len()) };
        if let Some(slot) = slot {
            at = at.max(self.exits[slot]);
        }
        if self.sent == 0 {
            for (stage, free) in self.stages.iter().zip(&mut self.free) {
                at = at.max(*free) + stage.first_us(bytes);
                *free = at;
            }
        } else {
            for (stage, free) in self.stages.iter().zip(&mut self.free) {
                at = at.max(*free) + stage.us(bytes);
                *free = at;
            }
        }
        if let Some(slot) = slot {
            self.exits[slot] = at;
        }
        self.sent += 1;
        at
    }

    /// Returns when the newest fragment left each stage.
    pub(crate) fn left_at(&self) -> &[f64] {
        &self.free
    }

    /// Resets the chain to its empty state.
    pub(crate) fn restart(&mut self) {
        self.free.fill(0.0);
        self.exits.fill(0.0);
        self.sent = 0;
    }

    /// Returns the latency of a whole vector in microseconds, from an empty chain.
    pub(crate) fn latency(&mut self, fragments: &[f64]) -> f64 {
        self.restart();
        fragments.iter().fold(0.0, |_, &bytes| self.push(0.0, bytes))
    }
}

impl Pipeline {
    /// Returns the time from the first fragment's start to the last one's end, in this order.
    ///
    /// Sizes are numbers of bytes from 0 to 2^50: of others, such as
    /// NaN, the result means nothing. [`plan::time`](crate::plan::time) checks them.
    ///
    /// `max_in_flight` is the number of fragments that may be in the chain at once. `None` sets no
    /// limit; 0 counts as 1.
    #[must_use]
    pub fn latency(&self, fragments: &[f64], max_in_flight: Option<usize>) -> Micros {
        let credits = max_in_flight.map(|credits| credits.clamp(1, fragments.len().max(1)));
        Micros::of(Recurrence::new(self.stages(), credits).latency(fragments))
    }

    /// Returns every fragment's stay in every stage, fragment by fragment.
    #[must_use]
    pub fn rows(&self, fragments: &[f64], max_in_flight: Option<usize>) -> Vec<Row> {
        let credits = max_in_flight.map(|credits| credits.clamp(1, fragments.len().max(1)));
        let mut clock = Recurrence::new(self.stages(), credits);
        let mut rows = Vec::with_capacity(fragments.len() * self.stages().len());
        for (fragment, &bytes) in fragments.iter().enumerate() {
            clock.push(0.0, bytes);
            for (stage, &end) in clock.left_at().iter().enumerate() {
                let costs = &self.stages()[stage];
                let stay = if fragment == 0 { costs.first_us(bytes) } else { costs.us(bytes) };
                let start = Micros::of((end - stay).max(0.0));
                rows.push(Row { stage, fragment, bytes, start, end: Micros::of(end) });
            }
        }
        rows
    }

    /// Returns T_f, T_b and T_l of a plan. The parts of an empty plan are zero.
    #[must_use]
    pub fn parts(&self, fragments: &[f64], max_in_flight: Option<usize>) -> Parts {
        let bottleneck = self.bottleneck(fragments.len(), fragments.iter().sum());
        let rows = self.rows(fragments, max_in_flight);
        let mut there = rows.iter().filter(|row| row.stage == bottleneck);
        let (Some(head), Some(end)) = (there.next(), rows.last()) else {
            let zero = Micros::ZERO;
            return Parts { bottleneck, first: zero, busy: zero, last: zero, idle: zero };
        };
        let tail = there.next_back().unwrap_or(head);
        let at_work: f64 = rows
            .iter()
            .filter(|row| row.stage == bottleneck)
            .map(|row| row.end.get() - row.start.get())
            .sum();
        let busy = tail.end.get() - head.start.get();
        Parts {
            bottleneck,
            first: head.start,
            busy: Micros::of(busy),
            last: Micros::of(end.end.get() - tail.end.get()),
            idle: Micros::of((busy - at_work).max(0.0)),
        }
    }
}
