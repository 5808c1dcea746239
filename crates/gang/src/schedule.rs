//! Scheduling policies: which jobs run in the next slice, and on which nodes.

mod queue_tree;

use std::fmt::Debug;
use std::ops::Range;

use thiserror::Error;

use crate::names::JobId;
pub use queue_tree::QueueTree;

/// A job's request to the policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Number of nodes that the job needs.
    pub nodes: u16,
    /// The job's priority: its consecutive slices per round, at least 1.
    pub weight: u8,
}

/// Errors of [`Policy::admit`].
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AdmitError {
    /// The job needs more nodes than exist.
    #[error("the job asks for {wanted} nodes; there are {there}: ask for fewer")]
    TooLarge {
        /// Number of nodes that the job needs.
        wanted: u16,
        /// Number of nodes that exist.
        there: u16,
    },
    /// The job needs no node.
    #[error("a job has at least one node: ask for one or more")]
    Empty,
}

/// Decides which jobs run in the next slice. A job keeps its nodes from its admission to its removal.
pub trait Policy: Debug + Send {
    /// Admits a job, and returns its nodes.
    fn admit(&mut self, job: JobId, request: Request) -> Result<Range<u16>, AdmitError>;

    /// Takes over a job that another policy of the same kind has admitted on `nodes`.
    fn readmit(&mut self, job: JobId, nodes: Range<u16>, weight: u8);

    /// Removes a job.
    fn remove(&mut self, job: JobId);

    /// Returns the jobs of the next slice. No node belongs to two of them.
    fn turn(&mut self) -> Vec<JobId>;
}

impl Request {
    fn check(&self, there: u16) -> Result<(), AdmitError> {
        match self.nodes {
            0 => Err(AdmitError::Empty),
            wanted if wanted > there => Err(AdmitError::TooLarge { wanted, there }),
            _ => Ok(()),
        }
    }
}

/// A round of jobs, each with as many consecutive slices as its weight.
#[derive(Clone, Debug, Default)]
struct Round {
    jobs: Vec<(JobId, u8)>,
    /// Index of the job that has the next slice, and the number of slices that it has had in this round.
    at: usize,
    passed: u8,
    /// True after the first slice of the round.
    has_begun: bool,
}

impl Round {
    /// Adds a job behind those that wait, and before the one that has the present slice. A round ends although jobs are
    /// added in each slice.
    fn push(&mut self, job: JobId, weight: u8) {
        let new = (job, weight.max(1));
        if !self.has_begun {
            return self.jobs.push(new);
        }
        let present = if self.passed > 0 { self.at } else { self.at.saturating_sub(1) };
        self.jobs.insert(present, new);
        self.at += 1;
    }

    fn remove(&mut self, job: JobId) -> bool {
        let Some(place) = self.jobs.iter().position(|(other, _)| *other == job) else {
            return false;
        };
        self.jobs.remove(place);
        if place < self.at {
            self.at -= 1;
        } else if place == self.at {
            self.passed = 0;
        }
        true
    }

    /// Returns the job of the next slice. Returns `None` after the last job, and starts the round again.
    fn next(&mut self) -> Option<JobId> {
        let Some(&(job, weight)) = self.jobs.get(self.at) else {
            (self.at, self.passed, self.has_begun) = (0, 0, false);
            return None;
        };
        self.has_begun = true;
        self.passed += 1;
        if self.passed >= weight {
            self.at += 1;
            self.passed = 0;
        }
        Some(job)
    }

    /// Returns the number of slices of a whole round.
    fn slices(&self) -> usize {
        self.jobs.iter().map(|(_, weight)| usize::from(*weight)).sum()
    }

    /// Returns whether all jobs have had their slices in this round.
    const fn is_over(&self) -> bool {
        self.at >= self.jobs.len()
    }
}

/// Runs one job at a time, each in turn.
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
    fn short_jobs_that_arrive_in_each_slice_starve_no_job() {
        let policies: [Box<dyn Policy>; 2] =
            [Box::new(RoundRobin::new(4)), Box::new(QueueTree::new(4))];
        for mut policy in policies {
            let request = Request { nodes: 4, weight: 1 };
            policy.admit(JobId(0), request).unwrap();
            assert_eq!(policy.turn(), [JobId(0)]);
            let mut turns = 0;
            for job in 1..100 {
                policy.admit(JobId(job), request).unwrap();
                let runs = policy.turn();
                match runs[..] {
                    [JobId(0)] => turns += 1,
                    _ => runs.iter().for_each(|job| policy.remove(*job)),
                }
            }
            assert!(turns > 5, "{turns} slices of 99");
        }
    }

    #[test]
    fn short_jobs_in_one_half_starve_no_job_of_all_nodes() {
        let mut policy = QueueTree::new(8);
        let request = |nodes| Request { nodes, weight: 1 };
        policy.admit(JobId(0), request(8)).unwrap();
        let halves: Vec<_> =
            (1..4).map(|job| policy.admit(JobId(job), request(4)).unwrap().start).collect();
        let mut turns = 0;
        for job in 4..200 {
            let runs = policy.turn();
            turns += i32::from(runs.contains(&JobId(0)));
            // Of the two halves, jobs of one end in their slice.
            let is_short =
                |job: &&JobId| job.0 > 3 || job.0 > 0 && halves[job.0 as usize - 1] == halves[0];
            runs.iter().filter(is_short).for_each(|job| policy.remove(*job));
            policy.admit(JobId(job), request(4)).unwrap();
        }
        assert!(turns > 9, "{turns} slices of 196");
    }

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
