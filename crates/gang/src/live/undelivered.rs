//! Bounds the memory for saved states of restored ranks that have not read them yet.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::node_core::size::Size;

/// Counts the bytes of all states that ranks on this host have not read.
#[derive(Debug)]
pub(super) struct Undelivered {
    bytes: Arc<AtomicU64>,
    most: u64,
}

/// A saved state. Its bytes count until it is dropped.
#[derive(Debug)]
pub(super) struct CountedState {
    state: Vec<u8>,
    counted: Arc<AtomicU64>,
}

impl Undelivered {
    /// Permits at most `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self { bytes: Arc::default(), most }
    }

    /// Counts a state.
    ///
    /// # Errors
    /// The states that are counted leave less than that; the text has the limit.
    pub(super) fn add(&self, state: Vec<u8>) -> Result<CountedState, String> {
        let counted = Arc::clone(&self.bytes);
        let all = counted.fetch_add(state.len() as u64, Ordering::Relaxed) + state.len() as u64;
        let state = CountedState { state, counted };
        match all <= self.most {
            true => Ok(state),
            false => Err(format!(
                "ranks of restored jobs have yet to read their states, {} would be in memory, and its --checkpoint-mib \
                 permits {}: restore the job once they run",
                Size(all),
                Size(self.most)
            )),
        }
    }
}

impl Deref for CountedState {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.state
    }
}

impl Drop for CountedState {
    fn drop(&mut self) {
        self.counted.fetch_sub(self.state.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_no_rank_has_read_are_bounded_together() {
        let all = Undelivered::new(100);
        let first = all.add(vec![1; 60]).unwrap();
        assert!(all.add(vec![2; 41]).unwrap_err().contains("101 B would be in memory"));
        let second = all.add(vec![2; 40]).unwrap();
        assert_eq!(second[..], [2; 40]);
        drop(first);
        assert!(all.add(vec![3; 60]).is_ok());
    }
}
