//! Detects deadlocked jobs, and jobs that have terminated although their processes still run, in periodic cuts of each
//! job.
//!
//! Both properties are stable, so a job that has one of them is not cut again. A job is cut at most once in
//! [`RootConfig::check_every`](super::RootConfig::check_every), and jobs are cut one at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::time::Instant;

use super::saving::network_of;
use super::{Job, JobManager};
use crate::context::NetworkContext;
use crate::detect::Verdict;
use crate::names::{Epoch, JobId, Rank};
use crate::node_core::reason::bounded;
use crate::node_core::state_chunk::{ChunkKind, RankState, StateChunk};
use crate::wait::WaitState;

/// The purpose of a cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    Check,
    Save,
    /// A checkpoint by images of the processes.
    Images,
}

/// The state of a job's checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The purposes of the ordered cuts, oldest first.
    pub(super) ordered: VecDeque<Purpose>,
    contexts: BTreeMap<u16, RankState>,
    /// When the job is cut next; `None` before its first interval.
    next: Option<Instant>,
    /// The description of the property that was detected, if any.
    pub(super) found: Option<String>,
}

impl Checks {
    /// Adds a chunk of a rank's context, if the cut in progress is a check. Returns whether it is one.
    pub(super) fn add_chunk(&mut self, rank: u16, chunk: &StateChunk) -> bool {
        let is_its =
            chunk.kind == ChunkKind::Context && self.ordered.front() == Some(&Purpose::Check);
        if is_its {
            // If a context is too long, it is missing, and the check detects nothing.
            self.contexts.entry(rank).or_default().add(chunk, true);
        }
        is_its
    }
}

impl JobManager {
    /// Orders the next check, if one is due.
    pub(super) fn begin_check(&mut self, now: Instant) {
        let Some((job, _)) = self.next_check().filter(|(_, at)| *at <= now) else { return };
        let after = now + self.check_every;
        let Some(it) = self.jobs.get_mut(&job) else { return };
        // The first interval of a job passes without a cut.
        if it.checks.next.replace(after).is_some() {
            it.checks.ordered.push_back(Purpose::Check);
            self.scheduler_core.cut(job);
        }
    }

    /// Returns the next job to be checked, and when.
    pub(super) fn next_check(&self) -> Option<(JobId, Instant)> {
        // A job that was removed is never cut, even if that was ordered before.
        let jobs = || self.jobs.iter().filter(|(_, it)| !it.is_removed);
        if self.geometry.is_none() || !jobs().all(|(_, it)| it.checks.ordered.is_empty()) {
            return None;
        }
        let may_be_stuck = |it: &&Job| {
            it.is_launched && it.checks.found.is_none() && it.entry.ends.iter().any(Option::is_none)
        };
        let at = |it: &Job| it.checks.next.unwrap_or(it.admitted_at);
        let stuck = jobs().filter(|(_, it)| may_be_stuck(it));
        stuck.map(|(job, it)| (*job, at(it))).min_by_key(|(_, at)| *at)
    }

    /// Detects from the contexts of a cut whether a job is deadlocked or terminated.
    pub(super) fn check(&mut self, job: JobId, epoch: Epoch) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let contexts = std::mem::take(&mut it.checks.contexts);
        if let Ok(network) = network_of(&contexts, job, epoch)
            && network.ranks.len() == it.entry.ends.len()
        {
            let ends = (0..).map(Rank).zip(&it.entry.ends);
            let ended: BTreeSet<Rank> =
                ends.filter(|(_, end)| end.is_some()).map(|(rank, _)| rank).collect();
            it.checks.found = stuck(&network, &ended).map(bounded);
        }
    }
}

/// Describes why the ranks of a job are stuck; `None` if they are not. The processes of the ranks `ended` have ended.
///
/// The format of the job's messages is unknown, so tags are ignored: each message from the awaited rank counts as the
/// awaited message. A process that waits for another message consumes it, and the next cut no longer has it.
fn stuck(network: &NetworkContext, ended: &BTreeSet<Rank>) -> Option<String> {
    let mut any_tag = network.clone();
    for context in &mut any_tag.ranks {
        if let WaitState::Receive { tag, .. } = &mut context.wait {
            *tag = None;
        }
    }
    match any_tag.verdict_without(ended) {
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
    use crate::context::{ChannelContext, PeerState, ReceivedMessage, SentMessage};

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
        let none = BTreeSet::new();
        let found = stuck(&network(&[from(1), from(0), WaitState::Running]), &none);
        let text = "it is deadlocked: cycle: 0 > 1 > 0; rank 0 waits for tag 7 from rank 1; rank 1 waits for tag 7 from rank 0";
        assert_eq!(found.as_deref(), Some(text));
        let idle = stuck(&network(&[WaitState::Idle; 3]), &none);
        assert!(idle.is_some_and(|text| text.starts_with("it has terminated")));
        assert_eq!(stuck(&network(&[from(1), WaitState::Running]), &none), None);
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
        assert_eq!(stuck(&network, &BTreeSet::new()), None);
    }

    /// Regression: a rank that had ended with an unread message counted as a rank that may send.
    #[test]
    fn a_message_that_an_ended_rank_never_reads_hides_no_deadlock() {
        let mut waits = network(&[from(1), from(0), WaitState::Running]);
        let bytes = Bytes::from_static(b"unread");
        waits.ranks[2].receive.push(ReceivedMessage { from: Rank(0), position: 0, bytes });
        let ended = BTreeSet::from([Rank(2)]);
        let found = stuck(&waits, &ended).expect("ranks 0 and 1 wait for each other");
        assert!(found.starts_with("it is deadlocked: cycle: 0 > 1 > 0; "), "{found}");
        // Rank 0 waits for any rank, and the others have ended.
        waits.ranks[0].wait = WaitState::Receive { from: None, tag: None };
        let ended = BTreeSet::from([Rank(1), Rank(2)]);
        assert_eq!(
            stuck(&waits, &ended).as_deref(),
            Some("it is deadlocked: rank 0 waits for any tag from any rank")
        );
        waits.ranks[0].wait = WaitState::Idle;
        assert!(stuck(&waits, &ended).is_some_and(|found| found.starts_with("it has terminated")));
    }
}
