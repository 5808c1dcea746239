//! Splits a host's inventory for a root that takes over into parts, because it may exceed a message between daemons.

use std::collections::BTreeMap;

use bytes::Bytes;
use midplane_simhw::wire;

use super::message::{Inventory, Up};
use super::state_chunk::{Assembly, pieces};

/// Splits an inventory into messages, at least one.
pub(super) fn split(inventory: &Inventory) -> impl Iterator<Item = Up> + use<> {
    let host = inventory.host;
    // It never exceeds the longest value, because each job's pairs are bounded.
    let bytes: Bytes = wire::encode_long(inventory).unwrap_or_default().into();
    pieces(bytes).map(move |(at, bytes, is_last)| Up::Joined { host, at, bytes, is_last })
}

/// Incomplete inventories, by host.
#[derive(Debug, Default)]
pub(super) struct Inventories(BTreeMap<u16, Assembly>);

impl Inventories {
    /// Adds a part, and returns the inventory if it is complete. Drops parts that don't follow the previous part: they
    /// belong to a lost connection.
    pub(super) fn add(
        &mut self,
        (host, at): (u16, u64),
        bytes: &[u8],
        is_last: bool,
    ) -> Option<Inventory> {
        if at == 0 {
            self.0.insert(host, Assembly::default());
        }
        let all = self.0.get_mut(&host)?;
        if !all.add(at, bytes, is_last, true) {
            self.forget(host);
            return None;
        }
        let complete = all.take()?;
        self.forget(host);
        let inventory: Option<Inventory> = wire::decode_long(&complete).ok();
        inventory.filter(|inventory| inventory.host == host)
    }

    /// Drops the parts of a lost host.
    pub(super) fn forget(&mut self, host: u16) {
        self.0.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::JobId;
    use crate::node_core::message::Held;
    use crate::node_core::state_chunk::CHUNK_BYTES;

    fn inventory(host: u16, bytes: usize) -> Inventory {
        let put = vec![("key".to_owned(), "v".repeat(bytes))];
        Inventory { host, jobs: vec![Held { job: JobId(1), put, ..Held::default() }] }
    }

    fn add(all: &mut Inventories, up: &Up) -> Option<Inventory> {
        let Up::Joined { host, at, bytes, is_last } = up else { panic!("{up:?}") };
        all.add((*host, *at), bytes, *is_last)
    }

    #[test]
    fn parts_are_put_together_for_each_host() {
        for length in [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7] {
            let mut all = Inventories::default();
            let (one, two) = (inventory(1, length), inventory(2, length));
            let last = split(&one)
                .zip(split(&two))
                .fold([None, None], |_, (a, b)| [add(&mut all, &a), add(&mut all, &b)]);
            assert_eq!(last, [Some(one), Some(two)]);
            assert!(all.0.is_empty());
        }
    }

    #[test]
    fn parts_of_a_connection_that_was_lost_are_no_part_of_the_next() {
        let mut all = Inventories::default();
        let parts: Vec<Up> = split(&inventory(1, 3 * CHUNK_BYTES)).collect();
        assert_eq!(add(&mut all, &parts[1]), None, "the first is missing");
        assert_eq!(add(&mut all, &parts[0]), None);
        assert_eq!(add(&mut all, &parts[1]), None);
        let again = parts.iter().map(|part| add(&mut all, part)).last();
        assert_eq!(again, Some(Some(inventory(1, 3 * CHUNK_BYTES))));
        assert_eq!(add(&mut all, &parts[0]), None);
        assert_eq!(add(&mut all, &parts[2]), None, "one is missing");
        assert!(all.0.is_empty());
        let Up::Joined { bytes, .. } = &parts[0] else { panic!() };
        assert_eq!(all.add((1, 0), bytes, true), None, "it is damaged");
    }
}
