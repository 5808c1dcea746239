//! The byte pipes that carry frames: connections over UDP, and over TCP.

use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};

use atomic_waker::AtomicWaker;
use midplane_simhw::lock::lock;

use super::line::{Buffers, Line};
use crate::wire::endpoint::{Endpoint, PipeId};
use crate::wire::pipe::Pipe;
use crate::wire::socket::Clock;

/// The connections over UDP of a process.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) endpoint: Mutex<Endpoint>,
    /// Connections whose sessions have ended, to be closed.
    pub(super) closing: Mutex<Vec<PipeId>>,
    pub(super) clock: Clock,
    /// Woken when a message of gossip is received.
    pub(super) gossip: AtomicWaker,
}

impl Pipes {
    pub(super) fn new(endpoint: Endpoint, clock: Clock) -> Arc<Self> {
        let (endpoint, closing) = (Mutex::new(endpoint), Mutex::default());
        Arc::new(Self { endpoint, closing, clock, gossip: AtomicWaker::new() })
    }

    pub(super) fn endpoint(&self) -> MutexGuard<'_, Endpoint> {
        lock(&self.endpoint)
    }

    pub(super) fn closing(&self) -> MutexGuard<'_, Vec<PipeId>> {
        lock(&self.closing)
    }
}

/// A connection that carries the bytes of frames.
#[derive(Debug)]
pub(super) enum BytePipe {
    Udp(Arc<Pipes>, PipeId),
    Tcp(Arc<Line>),
}

impl Drop for BytePipe {
    fn drop(&mut self) {
        match self {
            Self::Udp(pipes, id) => pipes.closing().push(*id),
            Self::Tcp(line) => line.close(),
        }
    }
}

impl BytePipe {
    /// Locks the connection, for a few calls.
    pub(super) fn hold(&self) -> Held<'_> {
        match self {
            Self::Udp(pipes, id) => Held::Udp(pipes.endpoint(), *id),
            Self::Tcp(line) => Held::Tcp(line, line.buffers()),
        }
    }
}

/// A connection that is locked.
pub(super) enum Held<'a> {
    Udp(MutexGuard<'a, Endpoint>, PipeId),
    Tcp(&'a Line, MutexGuard<'a, Buffers>),
}

impl Held<'_> {
    /// Returns the bytes that may be written.
    pub(super) fn room(&mut self) -> usize {
        match self {
            Self::Udp(endpoint, id) => endpoint.peek(*id).map_or(0, |pipe| pipe.room()),
            Self::Tcp(_, buffers) => buffers.room(),
        }
    }

    /// Writes a frame for which there was room. Another thread may have detected a loss since, which reduces
    /// the room.
    pub(super) fn write_all(&mut self, head: &[u8], parts: &[IoSlice<'_>]) {
        match self {
            Self::Udp(endpoint, id) => {
                if let Some(pipe) = endpoint.pipe(*id) {
                    pipe.write_all(&[IoSlice::new(head)]);
                    pipe.write_all(parts);
                }
            }
            Self::Tcp(_, buffers) => buffers.write(head, parts),
        }
    }

    /// Returns the number of received bytes in order.
    pub(super) fn readable_bytes(&self) -> usize {
        match self {
            Self::Udp(endpoint, id) => endpoint.peek(*id).map_or(0, Pipe::readable_bytes),
            Self::Tcp(_, buffers) => buffers.incoming.len(),
        }
    }

    /// Passes the next `bytes` received bytes to `each`, in parts that are contiguous in memory, and consumes them.
    pub(super) fn take(&mut self, mut bytes: usize, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Udp(endpoint, id) => {
                if let Some(pipe) = endpoint.pipe(*id) {
                    pipe.take(bytes, each);
                }
            }
            Self::Tcp(line, buffers) => {
                while bytes > 0 {
                    let readable = buffers.incoming.readable();
                    let count = readable.len().min(bytes);
                    if count == 0 {
                        break;
                    }
                    each(&readable[..count]);
                    bytes -= count;
                    if buffers.consume(count) {
                        line.wake();
                    }
                }
            }
        }
    }
}
