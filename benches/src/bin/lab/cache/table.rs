//! The cache on the owner's NIC: a direct-mapped table in its bounded heap.

use midplane::nicvm::context::Context;
use midplane::nicvm::heap::Vector;

use crate::calls::Rule;

/// Bytes of a value.
pub(crate) const VALUE: usize = 64;
/// Bytes of an empty entry.
pub(crate) const PLACE: usize = size_of::<Place>();

type Place = Option<(u64, Vector<u8>)>;

/// Answers gets that hit; the called word is the key. Without a table none hits.
#[derive(Debug, Default)]
pub(crate) struct Cache(Option<Vector<Place>>);

impl Cache {
    fn place(&mut self, key: u64) -> Option<&mut Place> {
        let table = self.0.as_mut().filter(|table| !table.is_empty())?;
        let at = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let at = at as usize % table.len();
        table.get_mut(at)
    }

    /// Empties the table, and changes its size.
    fn resize(&mut self, nic: &Context<'_>, places: usize) -> Option<()> {
        self.0 = None;
        let mut table = nic.heap().vector(places).ok()?;
        (0..places).try_for_each(|_| table.push(None)).ok()?;
        self.0 = Some(table);
        Some(())
    }
}

impl Rule for Cache {
    fn decide(&mut self, _: &Context<'_>, key: u64, _: usize) -> Option<Vec<u8>> {
        let hit = self.place(key)?.as_ref().filter(|(there, _)| *there == key);
        hit.map(|(_, value)| value.to_vec())
    }

    fn learn(&mut self, nic: &Context<'_>, key: u64, value: &[u8]) {
        let heap = nic.heap().clone();
        if let Some(place) = self.place(key) {
            // Free the old value first: the heap may have no other room.
            *place = None;
            *place = heap.copy(value).ok().map(|value| (key, value));
        }
    }

    /// Sets the value of a key, or the number of entries if there is no value.
    fn set(&mut self, nic: &Context<'_>, [word, ..]: [u64; 3], value: &[u8]) -> bool {
        if value.is_empty() {
            return self.resize(nic, word as usize).is_some();
        }
        self.learn(nic, word, value);
        true
    }
}
