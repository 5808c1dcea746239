//! Time sharing: one job at a time, in turn, from the first node on.

use std::ops::Range;

use super::policy::{AdmitError, Policy, Request, Round};
use crate::names::JobId;

/// Runs one job at a time, in turn.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    nodes: u16,
    round: Round,
}

impl RoundRobin {
    /// Creates the policy for this many nodes.
    #[must_use]
    pub fn new(nodes: u16) -> Self {
        Self { nodes, round: Round::default() }
    }
}

impl Policy for RoundRobin {
    fn admit(&mut self, job: JobId, request: Request) -> Result<Range<u16>, AdmitError> {
        request.check(self.nodes)?;
        self.round.push(job, request.weight);
        Ok(0..request.nodes)
    }

    fn readmit(&mut self, job: JobId, _: Range<u16>, weight: u8) {
        self.round.push(job, weight);
    }

    fn remove(&mut self, job: JobId) {
        self.round.remove(job);
    }

    fn turn(&mut self) -> Vec<JobId> {
        let next = self.round.next().or_else(|| self.round.next());
        next.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_take_turns_as_long_as_their_weights() {
        let mut policy = RoundRobin::new(4);
        assert_eq!(policy.turn(), []);
        for (job, weight) in [(1, 1), (2, 3)] {
            policy.admit(JobId(job), Request { nodes: 4, weight }).unwrap();
        }
        let turns: Vec<u32> = (0..8).flat_map(|_| policy.turn()).map(|job| job.0).collect();
        assert_eq!(turns, [1, 2, 2, 2, 1, 2, 2, 2]);
        policy.remove(JobId(2));
        assert_eq!(policy.turn(), [JobId(1)]);
        let request = Request { nodes: 5, weight: 1 };
        let refused = policy.admit(JobId(3), request);
        assert_eq!(refused, Err(AdmitError::TooLarge { wanted: 5, there: 4 }));
    }
}
