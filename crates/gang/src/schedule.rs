//! Who runs next: policies, and the partitions that they give jobs.

mod queue_tree;
mod round_robin;

use std::ops::Range;

use thiserror::Error;

use crate::names::JobId;

pub use queue_tree::{Placing, QueueTree};
pub use round_robin::RoundRobin;

/// What a job asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Nodes.
    pub nodes: u16,
    /// Slices in a row that it gets at its turn, at least 1: its priority.
    pub weight: u8,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AdmitError {
    /// It asks for more than there is.
    #[error("the job asks for {wanted} nodes; there are {there}: ask for fewer")]
    TooLarge {
        /// What it asks for.
        wanted: u16,
        /// What there is.
        there: u16,
    },
    /// It asks for nothing.
    #[error("a job has at least one node: ask for one or more")]
    Empty,
}

/// Decides which jobs run in the next slice. A job keeps its nodes from when it is taken until it goes.
pub trait Policy: Send {
    /// Takes a job, and says on which nodes it runs.
    ///
    /// # Errors
    /// [`AdmitError`].
    fn admit(&mut self, job: JobId, request: Request) -> Result<Range<u16>, AdmitError>;

    /// A job is gone.
    fn remove(&mut self, job: JobId);

    /// The jobs of the next slice: no node is in two of them.
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

/// A round of jobs, each as many slices as its weight.
#[derive(Clone, Debug, Default)]
struct Round {
    jobs: Vec<(JobId, u8)>,
    /// Whose turn it is, and how many slices of it have passed.
    at: usize,
    passed: u8,
}

impl Round {
    fn push(&mut self, job: JobId, weight: u8) {
        self.jobs.push((job, weight.max(1)));
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

    /// The job of the next slice; `None` after the last, and the round begins anew.
    fn next(&mut self) -> Option<JobId> {
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

    /// Whether all jobs have had their turn.
    const fn is_over(&self) -> bool {
        self.at >= self.jobs.len()
    }
}
