//! Counters by name, for a bounded number of names: a recorder keeps each label forever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::lock;

/// Most names that get a label of their own.
pub(super) const MAX_NAMES: usize = 1_024;
/// The label of all further names.
pub(super) const OTHER: &str = "other";

/// Counters by their names and labels.
#[derive(Debug, Default)]
pub(in crate::node) struct Named<T>(Mutex<BTreeMap<String, Arc<T>>>);

impl<T: Default> Named<T> {
    /// Returns the label of a name.
    pub(super) fn label<'a>(&self, name: &'a str) -> &'a str {
        enter(&mut lock(&self.0), name)
    }

    /// Returns the counters of a name.
    pub(super) fn counters(&self, name: &str) -> Arc<T> {
        let mut all = lock(&self.0);
        let label = enter(&mut all, name);
        Arc::clone(&all[label])
    }

    pub(in crate::node) fn each(&self, mut show: impl FnMut(&str, &T)) {
        lock(&self.0).iter().for_each(|(name, counters)| show(name, counters));
    }
}

fn enter<'a, T: Default>(all: &mut BTreeMap<String, Arc<T>>, name: &'a str) -> &'a str {
    let label = if all.len() < MAX_NAMES || all.contains_key(name) { name } else { OTHER };
    if !all.contains_key(label) {
        all.insert(label.to_owned(), Arc::default());
    }
    label
}
