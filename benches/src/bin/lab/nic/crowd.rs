//! Turns of a NIC with many peers, of which two send.

use std::time::Duration;

use midplane::simhw::frame::Header;
use midplane::simhw::shm::measure::Crowd;

use super::dispatch::{EXTENSION, empty};
use super::{BYTES, now};

/// Turns between two readings of the clock.
const BATCH: u32 = 1_000;

/// Returns the nanoseconds of a turn with a frame from each of two of so many peers.
pub(crate) fn turn_ns(peers: u16, time: Duration) -> f64 {
    let mut crowd = Crowd::new(peers, empty());
    let header = Header { extension: EXTENSION, length: BYTES as u16, ..Header::default() };
    let mut batch = || (0..BATCH).for_each(|_| crowd.turn(2, &header, &[7; BYTES]));
    batch();
    let (begin, mut turns) = (now(), 0_u32);
    while turns == 0 || begin.elapsed() < time {
        batch();
        turns += BATCH;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(turns)
}
