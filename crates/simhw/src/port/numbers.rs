//! Allocates the numbers of one NIC's ports.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::port::{MAX_DEPTH, PortOptions};

/// Numbers for well-known services: a port has one only if its options ask for it.
pub const WELL_KNOWN: Range<u16> = 1_024..2_048;

/// A port's number, and the epoch that tells its successive uses apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PortName {
    pub(crate) id: PortId,
    /// Generations of the port's regions count from here. The number may have been another port's before, and
    /// stale handles of that port's regions must not match this one's.
    pub(crate) epoch: u32,
}

/// The free numbers of a NIC; the lowest is given first.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortNumbers {
    /// Numbers from here on were never given, except those in `ahead`.
    unused_from: u16,
    /// Released numbers, below `unused_from`.
    freed: BTreeSet<PortId>,
    /// Numbers in use that are well known or not below `unused_from`.
    ahead: BTreeSet<PortId>,
    opened: u32,
}

impl PortNumbers {
    /// Claims a number for a port of `node` that is opened with `options`.
    pub(crate) fn claim(
        &mut self,
        node: NodeId,
        options: &PortOptions,
    ) -> Result<PortName, OpenError> {
        if let Some(depth) = options.depth.filter(|depth| !(1..=MAX_DEPTH).contains(depth)) {
            return Err(OpenError::Depth(depth));
        }
        let id = match options.number {
            Some(wanted) => self.claim_wanted(wanted)?,
            None => self.claim_lowest().ok_or(OpenError::Exhausted(node))?,
        };
        self.opened = self.opened.wrapping_add(1);
        Ok(PortName { id, epoch: self.opened })
    }

    fn claim_wanted(&mut self, wanted: PortId) -> Result<PortId, OpenError> {
        let is_ahead = wanted.0 >= self.unused_from || WELL_KNOWN.contains(&wanted.0);
        let is_free = if is_ahead { self.ahead.insert(wanted) } else { self.freed.remove(&wanted) };
        if is_free { Ok(wanted) } else { Err(OpenError::Taken(wanted)) }
    }

    fn claim_lowest(&mut self) -> Option<PortId> {
        if let Some(id) = self.freed.pop_first() {
            return Some(id);
        }
        while self.unused_from < u16::MAX {
            let id = PortId(self.unused_from);
            self.unused_from += 1;
            if WELL_KNOWN.contains(&id.0) {
                self.unused_from = WELL_KNOWN.end;
            } else if !self.ahead.remove(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Releases the number of a closed port.
    pub(crate) fn release(&mut self, id: PortId) {
        if !self.ahead.remove(&id) {
            self.freed.insert(id);
        }
    }

    /// Releases all numbers, because all ports have closed.
    pub(crate) fn release_all(&mut self) {
        *self = Self { opened: self.opened, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn invalid_depths_and_taken_numbers_are_refused() {
        let mut numbers = PortNumbers::default();
        for depth in [0, MAX_DEPTH + 1] {
            let options = PortOptions::default().depth(depth);
            assert_eq!(numbers.claim(NODE, &options), Err(OpenError::Depth(depth)));
        }
        let wanted = PortOptions::default().number(PortId(1_100));
        assert_eq!(numbers.claim(NODE, &wanted).unwrap().id, PortId(1_100));
        assert_eq!(numbers.claim(NODE, &wanted), Err(OpenError::Taken(PortId(1_100))));
        numbers.release(PortId(1_100));
        assert_eq!(numbers.claim(NODE, &wanted).unwrap().id, PortId(1_100));
    }

    #[test]
    fn all_numbers_but_the_well_known_and_the_last_are_given() {
        let mut numbers = PortNumbers::default();
        let mut given = 0;
        while let Ok(name) = numbers.claim(NODE, &PortOptions::default()) {
            assert!(!WELL_KNOWN.contains(&name.id.0));
            given += 1;
        }
        assert_eq!(given, usize::from(u16::MAX) - WELL_KNOWN.len());
        assert_eq!(numbers.claim(NODE, &PortOptions::default()), Err(OpenError::Exhausted(NODE)));
        numbers.release_all();
        assert_eq!(numbers.claim(NODE, &PortOptions::default()).unwrap().id, PortId(0));
    }

    proptest! {
        #[test]
        fn no_number_has_two_ports_and_no_two_ports_one_epoch(
            requests in proptest::collection::vec((any::<bool>(), proptest::option::of(0_u16..12)), 0..200),
        ) {
            let mut numbers = PortNumbers::default();
            let mut live = BTreeSet::new();
            let mut epochs = BTreeSet::new();
            for (opens, wanted) in requests {
                if !opens {
                    if let Some(id) = live.pop_last() {
                        numbers.release(id);
                    }
                    continue;
                }
                let wanted = wanted.map(PortId);
                let options = PortOptions { number: wanted, ..PortOptions::default() };
                match numbers.claim(NODE, &options) {
                    Ok(name) => {
                        prop_assert!(wanted.is_none_or(|wanted| wanted == name.id));
                        let lowest = (0..).map(PortId).find(|id| !live.contains(id)).unwrap();
                        prop_assert!(wanted.is_some() || name.id == lowest);
                        prop_assert!(live.insert(name.id));
                        prop_assert!(epochs.insert(name.epoch));
                    }
                    Err(error) => {
                        let wanted = wanted.unwrap();
                        prop_assert_eq!(error, OpenError::Taken(wanted));
                        prop_assert!(live.contains(&wanted));
                    }
                }
            }
        }
    }
}
