//! Free buffers in reserve, and their release.

use midplane_simhw::time::Instant;

use super::Pipe;
use super::loss::Outcome;

/// Nanoseconds without data after which a connection releases all memory for data. One that is in use releases as often
/// what it has not needed meanwhile.
const TRIM: u64 = 1_000_000_000;
/// Most free buffers of a reserve, 4 MiB: a new one costs a system call, page faults and zeroing.
const MOST: usize = 64;

/// Keeps free buffers for later use, as many as were needed lately.
#[derive(Debug)]
pub(crate) struct Reserve<T> {
    free: Vec<T>,
    /// The least number of free buffers since the last trim: those at the front were not needed.
    unneeded: usize,
}

impl<T> Default for Reserve<T> {
    fn default() -> Self {
        Self { free: Vec::new(), unneeded: 0 }
    }
}

impl<T> Reserve<T> {
    /// Takes a buffer, if there is one.
    pub(crate) fn take(&mut self) -> Option<T> {
        let taken = self.free.pop();
        self.unneeded = self.unneeded.min(self.free.len());
        taken
    }

    /// Adds a buffer, unless there are enough.
    pub(crate) fn add(&mut self, buffer: T) {
        if self.free.len() < MOST {
            self.free.push(buffer);
        }
    }

    /// Releases all buffers if `is_idle`; otherwise those that were not needed since the last call.
    pub(crate) fn trim(&mut self, is_idle: bool) {
        self.free.drain(..if is_idle { self.free.len() } else { self.unneeded });
        self.free.shrink_to_fit();
        self.unneeded = self.free.len();
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.free.iter()
    }
}

impl Pipe {
    /// Notes that memory for data was in use until now.
    pub(super) fn on_used(&mut self) {
        self.used_at = self.now;
        self.trim_at = self.trim_at.min(self.now.plus_nanos(TRIM));
    }

    /// Releases memory that was not needed lately; all memory for data, if the connection is idle.
    pub(super) fn trim(&mut self) {
        let idle_at = self.used_at.plus_nanos(TRIM);
        let is_idle = idle_at <= self.now;
        self.trim_at = if is_idle { Instant::FAR_FUTURE } else { idle_at };
        self.send.trim(is_idle);
        self.receive.trim(is_idle);
        self.loss.trim();
        self.outcome = Outcome::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_keeps_what_is_needed_and_releases_the_rest() {
        let mut reserve = Reserve::default();
        (0..80).for_each(|buffer| reserve.add(buffer));
        reserve.trim(false);
        assert_eq!(reserve.iter().len(), MOST, "all were in use since the last call");
        for _ in 0..3 {
            let taken: Vec<u32> = (0..10).filter_map(|_| reserve.take()).collect();
            taken.into_iter().for_each(|buffer| reserve.add(buffer));
            reserve.trim(false);
            assert_eq!(reserve.iter().len(), 10);
        }
        reserve.trim(true);
        assert_eq!((reserve.iter().len(), reserve.take()), (0, None));
    }
}
