//! The interface of policies, and the round that they share.

use std::ops::Range;

use thiserror::Error;

use crate::names::JobId;

/// A job's demands on the policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Number of nodes.
    pub nodes: u16,
    /// Number of consecutive slices at the job's turn, at least 1: its priority.
    pub weight: u8,
}

/// Errors of [`Policy::admit`].
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AdmitError {
    /// The job needs more nodes than there are.
    #[error("the job asks for {wanted} nodes; there are {there}: ask for fewer")]
    TooLarge {
        /// Nodes that the job needs.
        wanted: u16,
        /// Nodes that there are.
        there: u16,
    },
    /// The job needs no node.
    #[error("a job has at least one node: ask for one or more")]
    Empty,
}

/// Decides which jobs run in the next slice. A job keeps its nodes from its admission to its removal.
pub trait Policy: Send {
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
    pub(super) fn check(&self, there: u16) -> Result<(), AdmitError> {
        match self.nodes {
            0 => Err(AdmitError::Empty),
            wanted if wanted > there => Err(AdmitError::TooLarge { wanted, there }),
            _ => Ok(()),
        }
    }
}

/// A round of jobs, each with as many slices as its weight.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) jobs: Vec<(JobId, u8)>,
    /// Index of the job whose turn it is, and how many slices of that turn have passed.
    at: usize,
    passed: u8,
}

impl Round {
    pub(super) fn push(&mut self, job: JobId, weight: u8) {
        self.jobs.push((job, weight.max(1)));
    }

    pub(super) fn remove(&mut self, job: JobId) -> bool {
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

    /// Returns the job of the next slice; `None` after the last job, and the round starts again.
    pub(super) fn next(&mut self) -> Option<JobId> {
        let Some(&(job, weight)) = self.jobs.get(self.at) else {
            self.at = 0;
            self.passed = 0;
            return None;
        };
        self.passed += 1;
        if self.passed >= weight {
            self.at += 1;
            self.passed = 0;
        }
        Some(job)
    }

    /// Returns whether all jobs have had their turns in this round.
    pub(super) const fn is_over(&self) -> bool {
        self.at >= self.jobs.len()
    }
}
