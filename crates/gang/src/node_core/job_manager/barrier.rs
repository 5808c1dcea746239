//! The PMI barrier of a job, on the root: gathers the pairs of the ranks until all of them have entered.

use std::collections::{BTreeMap, BTreeSet};

use midplane_simhw::time::Instant;

use super::JobManager;
use crate::names::JobId;
use crate::node_core::message::{Down, End, Held, Pairs};

/// Most bytes of the keys and values of a job. In the worst case, one message to each host carries all of them.
const MOST_BYTES: usize = 4 << 20;
/// Most bytes of an encoded pair in addition to its key and value.
const PAIR_BYTES: usize = 16;

/// The ranks inside the barrier, and the pairs that they have put.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Number of barriers that all ranks have entered, and so have left.
    left: u64,
    inside: BTreeSet<u16>,
    /// The pairs of the ranks inside. A key has only its last value, so `bytes` bounds this.
    pairs: BTreeMap<String, String>,
    /// The length of each value of the job, by key, and the total bytes of all pairs.
    lengths: BTreeMap<String, usize>,
    bytes: usize,
}

impl Barrier {
    /// Returns whether a rank has ever entered the barrier.
    pub(super) fn was_entered(&self) -> bool {
        self.left > 0 || !self.inside.is_empty()
    }

    /// Adds a rank that enters, and its pairs. Returns false if the job exceeds [`MOST_BYTES`].
    fn enter(&mut self, rank: u16, pairs: Pairs) -> bool {
        for (key, value) in &pairs {
            let own = key.len() + PAIR_BYTES;
            let before = self.lengths.insert(key.clone(), value.len());
            self.bytes += value.len() + before.map_or(own, |_| 0);
            self.bytes -= before.unwrap_or(0);
        }
        self.inside.insert(rank);
        self.pairs.extend(pairs);
        self.bytes <= MOST_BYTES
    }
}

impl JobManager {
    /// Lets a rank enter the barrier. If it was the last one, all ranks leave.
    pub(super) fn barrier_in(&mut self, now: Instant, job: JobId, rank: u16, pairs: Pairs) {
        let Some(it) = self.jobs.get_mut(&job).filter(|it| usize::from(rank) < it.entry.ends.len())
        else {
            return;
        };
        let fits = it.barrier.enter(rank, pairs);
        if self.takeover.is_some() {
            return;
        }
        if !fits {
            let why = format!("its ranks have put more than {MOST_BYTES} bytes by PMI");
            return self.end(now, job, Some(why));
        }
        self.leave_barrier(job);
        self.check_barrier(now, job);
    }

    /// Lets all ranks leave the barrier, if all have entered it.
    fn leave_barrier(&mut self, job: JobId) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        if it.barrier.inside.len() == it.entry.ends.len() {
            it.barrier.inside.clear();
            it.barrier.left += 1;
            let pairs = std::mem::take(&mut it.barrier.pairs).into_iter().collect();
            let out = Down::BarrierOut(job, it.barrier.left, pairs);
            self.everywhere(out);
        }
    }

    /// Restores the barriers of a job that this root takes over, from its hosts' reports. The lost root may have let
    /// the ranks of only some hosts leave the last barrier; the ranks of the other hosts leave it now.
    pub(super) fn restore_barrier<'a>(
        &mut self,
        now: Instant,
        job: JobId,
        reported: impl Iterator<Item = &'a Held> + Clone,
    ) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let last = reported.clone().max_by_key(|held| held.barriers);
        let Some(Held { barriers: left, put, .. }) = last else { return };
        it.barrier.left = *left;
        if reported.clone().any(|held| held.barriers < *left) {
            self.everywhere(Down::BarrierOut(job, *left, put.clone()));
        }
        let inside = reported.clone().filter(|held| held.barriers == *left);
        for (rank, pairs) in inside.flat_map(|held| &held.inside) {
            self.barrier_in(now, job, *rank, pairs.clone());
        }
        // Ranks may have entered the barrier after their host joined.
        self.leave_barrier(job);
        self.check_barrier(now, job);
        for (rank, code, message) in reported.filter_map(|held| held.aborted.as_ref()) {
            self.abort(now, job, *rank, (*code, message));
        }
    }

    /// Ends a job in which a rank waits in the barrier for a rank that has ended.
    pub(super) fn check_barrier(&mut self, now: Instant, job: JobId) {
        let Some(it) = self.jobs.get(&job) else { return };
        let ended = it.entry.ends.iter().position(Option::is_some);
        if let (Some(waits), Some(ended)) = (it.barrier.inside.first(), ended) {
            let why = format!("rank {waits} waits in a PMI barrier, and rank {ended} has ended");
            self.end(now, job, Some(why));
        }
    }

    /// Ends a job at the request of one of its ranks, which exits with a code.
    pub(super) fn abort(
        &mut self,
        now: Instant,
        job: JobId,
        rank: u16,
        (code, message): (i32, &str),
    ) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let Some(end) = it.entry.ends.get_mut(usize::from(rank)) else { return };
        // The rank's process may be killed before it exits, so its end is recorded now.
        end.get_or_insert(End::Exited(code));
        if self.takeover.is_some() {
            return;
        }
        let message = message.trim_ascii();
        let why = match message.is_empty() {
            true => format!("rank {rank} aborted with code {code}"),
            false => format!("rank {rank} aborted with code {code}: {message}"),
        };
        self.end(now, job, Some(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_values_are_bounded_and_one_that_is_put_again_counts_once() {
        let pairs = |key: &str| vec![(key.to_owned(), "v".repeat(1_024))];
        let mut barrier = Barrier::default();
        assert!((0..20_000).all(|round| barrier.enter(round % 4, pairs("key"))));
        let full = (0..5_000).find(|key| !barrier.enter(0, pairs(&key.to_string())));
        assert!(full.is_some_and(|key| key > 3_900), "{full:?}");
        let held: usize = barrier.pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(held <= MOST_BYTES, "{held}");
    }
}
