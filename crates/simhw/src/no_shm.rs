//! Stands for shared memory on systems other than Linux: its types, of which there is no value.
//!
//! Code that uses rings where there are any compiles unchanged.

use tokio::io::ReadBuf;

/// The error of a ring with an invalid record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Corrupt;

/// A published record, without its payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record {
    /// The words that the sender passed with it.
    pub words: [u64; 2],
    /// Bytes of the payload.
    pub length: usize,
}

pub mod rings {
    //! Rings between processes, and their wake-ups.

    use std::io::{self, IoSlice};
    use std::os::fd::{AsRawFd, RawFd};

    use super::{Corrupt, ReadBuf, Record};

    /// The producer's end of a ring.
    #[derive(Debug)]
    pub enum RingSender {}

    /// The consumer's end of a ring.
    #[derive(Debug)]
    pub enum RingReceiver {}

    /// Both directions between two processes.
    #[derive(Debug)]
    pub struct RingPair {
        /// The direction to the peer.
        pub sender: RingSender,
        /// The direction from the peer.
        pub receiver: RingReceiver,
    }

    /// The wake-ups of a process.
    #[derive(Clone, Debug)]
    pub enum WakeSet {}

    #[expect(missing_docs, reason = "see the module `shm` on Linux")]
    impl RingSender {
        pub const fn most(&self) -> usize {
            match *self {}
        }

        pub const fn room(&mut self) -> Option<usize> {
            match *self {}
        }

        pub const fn push(&mut self, _: [u64; 2], _: &[IoSlice<'_>]) {
            match *self {}
        }

        pub const fn must_wake(&self) -> bool {
            match *self {}
        }

        pub const fn is_parked(&self) -> bool {
            match *self {}
        }

        pub const fn await_room(&self) {
            match *self {}
        }

        pub const fn publish_processor(&self, _: usize) {
            match *self {}
        }
    }

    #[expect(missing_docs, reason = "see the module `shm` on Linux")]
    impl RingReceiver {
        pub const fn peek(&self) -> Result<Option<Record>, Corrupt> {
            match *self {}
        }

        pub const fn read(&self, _: usize, _: &mut [u8]) {
            match *self {}
        }

        pub const fn append(&self, _: usize, _: usize, _: &mut ReadBuf<'_>) {
            match *self {}
        }

        pub const fn advance(&mut self, _: Record) -> bool {
            match *self {}
        }

        pub const fn park(&mut self) -> bool {
            match *self {}
        }

        pub const fn unpark(&self) {
            match *self {}
        }

        pub const fn processor(&self) -> Option<usize> {
            match *self {}
        }
    }

    #[expect(missing_docs, reason = "see the module `shm` on Linux")]
    impl RingPair {
        pub const fn wake(&self) {
            match self.sender {}
        }
    }

    #[expect(missing_docs, clippy::missing_errors_doc, reason = "see the module `shm` on Linux")]
    impl WakeSet {
        pub fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub const fn add(&self, _: u64, _: &RingPair) -> io::Result<()> {
            match *self {}
        }

        pub const fn remove(&self, _: u64) {
            match *self {}
        }

        pub fn take(&self, _: impl FnMut(u64, bool)) {
            match *self {}
        }
    }

    impl AsRawFd for WakeSet {
        fn as_raw_fd(&self) -> RawFd {
            match *self {}
        }
    }
}
