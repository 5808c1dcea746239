//! The addresses of an address vector.

use std::collections::BTreeMap;

use slab::Slab;

use crate::address::Address;

/// An address vector of a domain.
#[derive(Debug, Default)]
pub(crate) struct Vector {
    /// Addresses by number, each with the count of its insertions.
    entries: Slab<(Address, usize)>,
    numbers: BTreeMap<u64, usize>,
    /// The endpoints that are bound to the vector.
    pub(crate) endpoints: Vec<usize>,
}

impl Vector {
    /// Inserts an address; returns its number. An address that is inserted again keeps its number, so that its messages
    /// have one source.
    pub(crate) fn insert(&mut self, address: Address) -> u64 {
        let entries = &mut self.entries;
        let number =
            *self.numbers.entry(address.endpoint).or_insert_with(|| entries.insert((address, 0)));
        entries[number].1 += 1;
        number as u64
    }

    /// Undoes one insertion of an address. Returns whether the address is removed now; `None` if there is no such
    /// number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<bool> {
        let number = usize::try_from(number).ok()?;
        let (address, count) = self.entries.get_mut(number)?;
        *count -= 1;
        if *count > 0 {
            return Some(false);
        }
        self.numbers.remove(&address.endpoint);
        self.entries.remove(number);
        Some(true)
    }

    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        Some(self.entries.get(usize::try_from(number).ok()?)?.0)
    }

    /// Returns all addresses with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Address)> {
        self.entries.iter().map(|(number, (address, _))| (number as u64, *address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_number_until_it_is_removed_as_often_as_inserted() {
        let mut vector = Vector::default();
        let [one, other] = [1, 2].map(|endpoint| Address { host: 0, endpoint, udp: None });
        assert_eq!([one, other, one].map(|address| vector.insert(address)), [0, 1, 0]);
        assert_eq!(vector.remove(0), Some(false));
        assert_eq!(vector.address(0), Some(one));
        assert_eq!(vector.remove(0), Some(true));
        assert_eq!((vector.remove(0), vector.address(0)), (None, None));
        assert_eq!(vector.iter().collect::<Vec<_>>(), [(1, other)]);
    }
}
