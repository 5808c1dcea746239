//! Time and space sharing by a distributed queue tree (Hori, Ishikawa, Konaka, Maeda and Tomokiyo, HICSS 1995; Hori,
//! Ishikawa, Nolte, Konaka, Maeda and Tomokiyo, Euro-Par 1995).
//!
//! The nodes are halved recursively. Each part has a queue for the jobs that need a part of its size. First a part's
//! own jobs have their slices, then both halves run at once. The papers' full texts were not available. Their
//! abstracts leave one point open, which is decided here: a half that completes its round before the other half starts
//! it again.

use std::ops::Range;

use super::{AdmitError, Policy, Request, Round};
use crate::names::JobId;

#[derive(Clone, Debug)]
struct Part {
    nodes: Range<u16>,
    round: Round,
    /// True while the halves have their slices.
    in_halves: bool,
    /// For each half, whether it has completed a round.
    completed: [bool; 2],
}

/// Time and space sharing by a distributed queue tree.
#[derive(Clone, Debug)]
pub struct QueueTree {
    /// The parts in heap order: the halves of part `p` are `2 p + 1` and `2 p + 2`.
    parts: Vec<Part>,
    nodes: u16,
}

impl QueueTree {
    /// Creates the policy for this many nodes.
    #[must_use]
    pub fn new(nodes: u16) -> Self {
        let size = u32::from(nodes.max(1)).next_power_of_two();
        let mut parts = Vec::new();
        let mut width = size;
        while width > 0 {
            for first in (0..size).step_by(width as usize) {
                let clip = |node: u32| node.min(nodes.into()) as u16;
                let nodes = clip(first)..clip(first + width);
                let round = Round::default();
                parts.push(Part { nodes, round, in_halves: false, completed: [false; 2] });
            }
            width /= 2;
        }
        Self { parts, nodes }
    }

    /// Returns whether a part, or a part within it, has jobs.
    fn has_jobs(&self, part: usize) -> bool {
        self.parts.get(part).is_some_and(|it| {
            !it.round.jobs.is_empty() || self.has_jobs(2 * part + 1) || self.has_jobs(2 * part + 2)
        })
    }

    /// Returns the length of a round on a part's nodes, in slices: of the jobs in the part, around it and within it.
    fn load(&self, part: usize) -> usize {
        let mut load = self.parts[part].round.slices();
        let mut above = part;
        while above > 0 {
            above = (above - 1) / 2;
            load += self.parts[above].round.slices();
        }
        load + self.within(part)
    }

    /// Returns the number of slices until all jobs within the halves of a part have had theirs.
    fn within(&self, part: usize) -> usize {
        [2 * part + 1, 2 * part + 2].into_iter().map(|half| self.cycle(half)).max().unwrap_or(0)
    }

    /// Returns the number of slices until all jobs of a part and within it have had theirs.
    fn cycle(&self, part: usize) -> usize {
        self.parts.get(part).map_or(0, |it| it.round.slices() + self.within(part))
    }

    /// Runs one slice of a part: appends its jobs to `out`. Returns whether the part has completed a round.
    fn slice(&mut self, part: usize, out: &mut Vec<JobId>) -> bool {
        if !self.has_jobs(part) {
            return true;
        }
        let halves = [2 * part + 1, 2 * part + 2];
        let any = halves.iter().any(|half| self.has_jobs(*half));
        if !self.parts[part].in_halves
            && let Some(job) = self.parts[part].round.next()
        {
            out.push(job);
            let it = &mut self.parts[part];
            if !it.round.is_over() {
                return false;
            }
            let _ = it.round.next();
            it.in_halves = any;
            return !any;
        }
        if !any {
            self.parts[part].in_halves = false;
            return self.slice(part, out);
        }
        self.parts[part].in_halves = true;
        for (side, half) in halves.into_iter().enumerate() {
            if self.slice(half, out) {
                self.parts[part].completed[side] = true;
            }
        }
        if self.parts[part].completed != [true; 2] {
            return false;
        }
        let it = &mut self.parts[part];
        it.completed = [false; 2];
        it.in_halves = it.round.jobs.is_empty();
        true
    }
}

impl Policy for QueueTree {
    fn admit(&mut self, job: JobId, request: Request) -> Result<Range<u16>, AdmitError> {
        request.check(self.nodes)?;
        let fits = |part: &Part| part.nodes.len() >= request.nodes.into();
        let smallest =
            self.parts.iter().filter(|part| fits(part)).map(|part| part.nodes.len()).min();
        let smallest = smallest.expect("the first part has all nodes");
        let candidates = (0..self.parts.len()).filter(|at| self.parts[*at].nodes.len() == smallest);
        // Chooses the part whose nodes have the shortest round.
        let chosen = candidates.min_by_key(|at| self.load(*at));
        let part = &mut self.parts[chosen.expect("a part of that size was found")];
        part.round.push(job, request.weight);
        Ok(part.nodes.start..part.nodes.start + request.nodes)
    }

    fn readmit(&mut self, job: JobId, nodes: Range<u16>, weight: u8) {
        let fits =
            |part: &&mut Part| part.nodes.start == nodes.start && part.nodes.len() >= nodes.len();
        let part = self.parts.iter_mut().filter(fits).min_by_key(|part| part.nodes.len());
        if let Some(part) = part {
            part.round.push(job, weight);
        }
    }

    fn remove(&mut self, job: JobId) {
        let _ = self.parts.iter_mut().any(|part| part.round.remove(job));
    }

    fn turn(&mut self) -> Vec<JobId> {
        let mut jobs = Vec::new();
        self.slice(0, &mut jobs);
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Admit(u16, u8),
        Remove(usize),
        Turn,
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            2 => (1_u16..40, 1_u8..4).prop_map(|(nodes, weight)| Op::Admit(nodes, weight)),
            1 => (0_usize..50).prop_map(Op::Remove),
            6 => Just(Op::Turn),
        ]
    }

    proptest! {
        #[test]
        fn no_node_ever_has_two_jobs_and_none_waits_for_ever(
            nodes in 1_u16..33, ops in proptest::collection::vec(any_op(), 1..120),
        ) {
            let mut tree = QueueTree::new(nodes);
            let mut jobs: BTreeMap<JobId, Range<u16>> = BTreeMap::new();
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Admit(wanted, weight) => {
                        let request = Request { nodes: wanted, weight };
                        match tree.admit(JobId(next), request) {
                            Ok(range) => {
                                prop_assert!(range.len() == usize::from(wanted) && range.end <= nodes);
                                jobs.insert(JobId(next), range);
                            }
                            Err(_) => prop_assert!(wanted > nodes),
                        }
                        next += 1;
                    }
                    Op::Remove(at) => {
                        if let Some(job) = jobs.keys().nth(at).copied() {
                            jobs.remove(&job);
                            tree.remove(job);
                        }
                    }
                    Op::Turn => {
                        let running = tree.turn();
                        prop_assert!(!running.is_empty() || jobs.is_empty());
                        let mut taken = vec![false; usize::from(nodes)];
                        for job in running {
                            for node in jobs[&job].clone() {
                                prop_assert!(!std::mem::replace(&mut taken[usize::from(node)], true));
                            }
                        }
                    }
                }
            }
            // Every job has a slice within two rounds of the whole tree, starting at any point of a round.
            let bound = 2 * tree.cycle(0);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..bound {
                seen.extend(tree.turn());
            }
            prop_assert_eq!(seen.len(), jobs.len());
        }
    }

    #[test]
    fn jobs_that_another_tree_admitted_keep_their_nodes_and_their_turns() {
        let mut tree = QueueTree::new(8);
        let admitted = [8_u16, 4, 3, 1].map(|nodes| Request { nodes, weight: 1 });
        let mut other = QueueTree::new(8);
        for (job, request) in (1..).map(JobId).zip(admitted) {
            other.readmit(job, tree.admit(job, request).unwrap(), 1);
        }
        for _ in 0..9 {
            assert_eq!(other.turn(), tree.turn());
        }
    }

    #[test]
    fn halves_run_at_once() {
        let mut tree = QueueTree::new(8);
        let all = tree.admit(JobId(1), Request { nodes: 8, weight: 1 }).unwrap();
        let left = tree.admit(JobId(2), Request { nodes: 4, weight: 1 }).unwrap();
        let right = tree.admit(JobId(3), Request { nodes: 3, weight: 1 }).unwrap();
        assert_eq!((all, left, right), (0..8, 0..4, 4..7));
        for _ in 0..3 {
            assert_eq!(tree.turn(), [JobId(1)]);
            assert_eq!(tree.turn(), [JobId(2), JobId(3)]);
        }
    }
}
