//! Deadlocks, and jobs that have terminated though their processes have not: found in cuts that the root takes of each job
//! from time to time.
//!
//! Both properties are stable, so that a job in which one was found is not cut again. A job is cut at most once in
//! [`RootConfig::check_every`](super::RootConfig::check_every), and one job at a time.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::time::Instant;

use super::saving::network_of;
use super::{Job, JobManager};
use crate::context::NetworkContext;
use crate::detect::{LeadingTag, Verdict};
use crate::names::{Epoch, JobId};
use crate::node_core::state_chunk::{ChunkKind, RankState, StateChunk};
use crate::wait::WaitState;

/// The purpose of a cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    Check,
    Save,
    /// Images of the processes are to be made.
    Images,
}

/// The checks of a job.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The purposes of the cuts that are ordered, in their order.
    ordered: VecDeque<Purpose>,
    contexts: BTreeMap<u16, RankState>,
    /// When the job is to be cut next; `None` if it was never cut.
    next: Option<Instant>,
    found: Option<String>,
}

impl Checks {
    /// Notes that a cut is ordered.
    pub(super) fn order(&mut self, purpose: Purpose) {
        self.ordered.push_back(purpose);
    }

    /// Takes the purpose of the cut that is complete.
    pub(super) fn complete(&mut self) -> Option<Purpose> {
        self.ordered.pop_front()
    }

    /// Takes a chunk of a rank's context, if the cut under way is a check. Returns whether it was one.
    pub(super) fn add_chunk(&mut self, rank: u16, chunk: &StateChunk) -> bool {
        let is_its =
            chunk.kind == ChunkKind::Context && self.ordered.front() == Some(&Purpose::Check);
        if is_its {
            // What is too long is missing, and nothing is found.
            self.contexts.entry(rank).or_default().add(chunk);
        }
        is_its
    }

    /// Returns what was found.
    pub(super) fn found(&self) -> Option<&String> {
        self.found.as_ref()
    }
}

impl JobManager {
    /// Orders the next check that is due.
    pub(super) fn begin_check(&mut self, now: Instant) {
        let Some((job, _)) = self.next_check().filter(|(_, at)| *at <= now) else { return };
        let after = now + self.check_every;
        let Some(it) = self.jobs.get_mut(&job) else { return };
        // A job is not cut in its first interval.
        if it.checks.next.replace(after).is_some() {
            it.checks.order(Purpose::Check);
            self.scheduler_core.cut(job);
        }
    }

    /// Returns the job to be checked next, and when.
    pub(super) fn next_check(&self) -> Option<(JobId, Instant)> {
        let is_free = |it: &Job| it.checks.ordered.is_empty();
        if self.geometry.is_none() || !self.jobs.values().all(is_free) {
            return None;
        }
        let may_be_stuck = |it: &&Job| {
            it.is_launched && it.checks.found.is_none() && it.entry.ends.iter().any(Option::is_none)
        };
        let at = |it: &Job| it.checks.next.unwrap_or(it.admitted_at);
        let jobs = self.jobs.iter().filter(|(_, it)| may_be_stuck(it) && !it.is_removed);
        jobs.map(|(job, it)| (*job, at(it))).min_by_key(|(_, at)| *at)
    }

    /// Finds out from the contexts of a cut whether a job is stuck.
    pub(super) fn check(&mut self, job: JobId, epoch: Epoch) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let contexts = std::mem::take(&mut it.checks.contexts);
        if let Ok(mut network) = network_of(&contexts, job, epoch)
            && network.ranks.len() == it.entry.ends.len()
        {
            for (context, end) in network.ranks.iter_mut().zip(&it.entry.ends) {
                // A rank that has ended never sends again.
                if end.is_some() {
                    context.wait = WaitState::Idle;
                }
            }
            it.checks.found = stuck(&network);
        }
    }
}

/// Describes why the ranks of a job are stuck, if they are.
///
/// The format of the job's messages is unknown, so each message of the right rank counts as the one that is waited for: a
/// process that waits for another consumes it, and the next cut shows it without.
fn stuck(network: &NetworkContext) -> Option<String> {
    let mut any_tag = network.clone();
    for context in &mut any_tag.ranks {
        if let WaitState::Receive { tag, .. } = &mut context.wait {
            *tag = None;
        }
    }
    match any_tag.verdict(&LeadingTag) {
        Verdict::Live => None,
        Verdict::Terminated => {
            Some("it has terminated: all of its ranks are idle, and no message is under way".into())
        }
        Verdict::Deadlocked(mut deadlock) => {
            for (rank, wait) in &mut deadlock.waiting {
                *wait = network.ranks[rank.index()].wait;
            }
            deadlock.unmatched.clear();
            let text = deadlock.to_string();
            Some(format!("it is deadlocked: {}", text.trim_end().replace('\n', "; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::channel::geometry::Geometry;
    use crate::context::{ChannelContext, PeerState, SentMessage};
    use crate::names::Rank;

    fn network(waits: &[WaitState]) -> NetworkContext {
        let context = |(rank, wait): (u16, &WaitState)| {
            let mut context = ChannelContext::fresh(Rank(rank), Geometry::PM);
            context.wait = *wait;
            context
        };
        let ranks = (0..).zip(waits).map(context).collect();
        NetworkContext { job: JobId(1), epoch: Epoch(1), ranks }
    }

    const fn from(rank: u16) -> WaitState {
        WaitState::Receive { from: Some(Rank(rank)), tag: Some(7) }
    }

    #[test]
    fn who_waits_for_whom_is_said_in_one_line() {
        let found = stuck(&network(&[from(1), from(0), WaitState::Running]));
        let text = "it is deadlocked: cycle: 0 > 1 > 0; rank 0 waits for tag 7 from rank 1; rank 1 waits for tag 7 from rank 0";
        assert_eq!(found.as_deref(), Some(text));
        let idle = stuck(&network(&[WaitState::Idle; 3]));
        assert!(idle.is_some_and(|text| text.starts_with("it has terminated")));
        assert_eq!(stuck(&network(&[from(1), WaitState::Running])), None);
    }

    #[test]
    fn a_message_of_the_right_rank_counts_whatever_its_tag_is() {
        let mut network = network(&[from(1), from(0)]);
        let bytes = Bytes::from_static(b"of a format that nobody here knows");
        let (position, length) = (0, bytes.len() as u32);
        let message = SentMessage { to: Rank(0), position, length, taken: false, bytes };
        network.ranks[1].send.push(message);
        let rank = Rank(0);
        network.ranks[1].peers.push(PeerState {
            rank,
            acked: 0,
            next: 1,
            expected: 0,
            refusals: 0,
        });
        assert_eq!(network.validate(), Ok(()));
        assert_eq!(stuck(&network), None);
    }
}
