//! Divisions of a chain into groups. [`compound`](crate::compound) exports them.

use std::ops::Range;

/// An invalid division of a chain into groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupingError {
    /// A group is empty.
    #[error("groups[{0}] is empty")]
    Empty(usize),
    /// A group does not continue where the one before ended.
    #[error("groups[{group}] must continue with stage {expected}")]
    Gap {
        /// Index of the group.
        group: usize,
        /// The stage that must come next.
        expected: usize,
    },
    /// The groups end before or behind the last stage.
    #[error("groups cover {covered} of {stages} stages")]
    Uncovered {
        /// Number of stages that the groups cover.
        covered: usize,
        /// Number of stages of the chain.
        stages: usize,
    },
}

/// A division of a chain into groups of neighbouring stages, each a compound stage (section 4.3.1).
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Grouping {
    ends: Vec<usize>,
}

impl Grouping {
    /// Creates groups from their stages; they must cover stages `0..stages` in order.
    ///
    /// # Errors
    ///
    /// [`GroupingError`] if a group is empty, out of order, overlapping or beyond the last stage,
    /// or if a stage is in no group.
    pub fn new<G: AsRef<[usize]>>(stages: usize, groups: &[G]) -> Result<Self, GroupingError> {
        let mut ends = Vec::with_capacity(groups.len());
        let mut expected = 0;
        for (group, members) in groups.iter().enumerate() {
            if members.as_ref().is_empty() {
                return Err(GroupingError::Empty(group));
            }
            for &stage in members.as_ref() {
                if stage != expected {
                    return Err(GroupingError::Gap { group, expected });
                }
                expected += 1;
            }
            ends.push(expected);
        }
        if expected != stages || stages == 0 {
            return Err(GroupingError::Uncovered { covered: expected, stages });
        }
        Ok(Self { ends })
    }

    /// Creates three groups: one slow stage, the stages before it and the stages after it.
    #[must_use]
    pub fn around(stages: usize, slow: usize) -> Self {
        let mut ends = vec![slow, slow + 1, stages];
        ends.retain(|&end| end > 0 && end <= stages);
        ends.dedup();
        Self { ends }
    }

    /// Creates groups that end with the stages for which `border` returns true, and with the last
    /// one.
    pub(crate) fn at(stages: usize, border: impl Fn(usize) -> bool) -> Self {
        Self {
            ends: (0..stages)
                .filter(|&stage| stage + 1 == stages || border(stage))
                .map(|stage| stage + 1)
                .collect(),
        }
    }

    /// Returns the groups as ranges of stages.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }

    /// Returns the number of groups.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if no group has more than one stage, so that nothing can refragment.
    #[must_use]
    pub(crate) fn is_flat(&self) -> bool {
        self.ranges().all(|range| range.len() == 1)
    }

    /// Returns true if the groups end with the last of `stages` stages.
    pub(crate) fn covers(&self, stages: usize) -> bool {
        self.ends.last() == Some(&stages)
    }
}
