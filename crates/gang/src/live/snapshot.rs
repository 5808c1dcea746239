//! A rank's part in checkpoints. The daemon requests the rank's state; the rank sends it at a point of its choice, and
//! blocks until the whole job is saved. A restored rank receives the state that it was saved with.
//!
//! Messages that a rank sent before its state and that their receivers have not taken are saved with the channels. So
//! a rank may send its state between any two messages. Rank and daemon are connected by a stream of these messages:
//!
//! | from | byte | content |
//! |---|---|---|
//! | daemon, first | `F`, or `R` | none; the length of the restored state (8 bytes, little-endian), and the state |
//! | rank | `A` | none: the rank can be saved |
//! | daemon | `?` | none: the daemon requests the state |
//! | rank | `S` | the length of its state, and the state |
//! | rank | `L` | none: the rank can no longer be saved |
//! | daemon | `G` | none: the rank may continue |

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::sleep;

use super::rank::inherited;
use super::undelivered::CountedState;
use crate::node_core::message::{RankEvent, Word};
use crate::node_core::state_chunk::{CHUNK_BYTES, ChunkKind, LONGEST_STATE, StateChunk};

/// Environment variable with the descriptor of a rank's end of the stream.
pub(crate) const SNAPSHOTS: &str = "GANG_SNAPSHOTS";

/// Pause after a message of a rank, so that none floods the daemons with them.
const BETWEEN: Duration = Duration::from_millis(1);

/// Most chunks of states that wait for a daemon's connection to its parent.
pub(super) const WAITING: usize = 64;

const FRESH: u8 = b'F';
const RESTORED: u8 = b'R';
const ABLE: u8 = b'A';
const ASK: u8 = b'?';
const STATE: u8 = b'S';
const LEFT: u8 = b'L';
const GO: u8 = b'G';

/// Reason why a rank takes no part in checkpoints.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The process was not started by a daemon.
    #[error("{SNAPSHOTS} is not set: start this by `midplane gang run`")]
    NoJob,
    /// The variable is malformed.
    #[error("{SNAPSHOTS} is damaged: start this by `midplane gang run`, which sets it")]
    Variable,
    /// The state exceeds the longest state, 1 GiB.
    #[error("a state has at most {LONGEST_STATE} bytes, not {0}")]
    TooLong(usize),
    /// The daemon has exited.
    #[error("the daemon is gone: {0}")]
    Gone(#[from] io::Error),
}

/// A rank's part in checkpoints of its job. Once this is dropped, the job can't be saved any longer.
#[derive(Debug)]
pub struct Snapshots {
    stream: UnixStream,
    restored: Option<Vec<u8>>,
    is_asked: bool,
}

impl Snapshots {
    /// Reports to the daemon that this rank can be saved, and receives the state that it was saved with, if any.
    /// Blocks until the daemon has answered.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn join() -> Result<Self, SnapshotError> {
        let variable = std::env::var(SNAPSHOTS).map_err(|_| SnapshotError::NoJob)?;
        let number = variable.parse().map_err(|_| SnapshotError::Variable)?;
        let end = inherited(number).map_err(|_| SnapshotError::Variable)?;
        Ok(Self::open(UnixStream::from(end))?)
    }

    fn open(mut stream: UnixStream) -> io::Result<Self> {
        let mut first = [0];
        stream.read_exact(&mut first)?;
        let restored = match first[0] {
            FRESH => None,
            RESTORED => Some(read_state(&mut stream)?),
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        stream.write_all(&[ABLE])?;
        Ok(Self { stream, restored, is_asked: false })
    }

    /// Returns the state that this rank was saved with, once; `None` if it was not restored.
    pub fn take_restored(&mut self) -> Option<Vec<u8>> {
        self.restored.take()
    }

    /// Returns whether the daemon has requested the rank's state. Makes a system call that does not block.
    pub fn is_asked(&mut self) -> bool {
        let mut byte = [0];
        if !self.is_asked && self.stream.set_nonblocking(true).is_ok() {
            self.is_asked = matches!(self.stream.read(&mut byte), Ok(1)) && byte[0] == ASK;
        }
        self.is_asked
    }

    /// Sends the rank's state, and blocks until all ranks have sent theirs and the job's channels are saved. Messages
    /// that the rank sends afterwards are not part of the checkpoint.
    ///
    /// The daemon need not have requested the state. A job is saved only once all of its ranks have sent their states.
    /// If a rank ends or drops its [`Snapshots`], the job is not saved, and all ranks continue.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn save(&mut self, state: &[u8]) -> Result<(), SnapshotError> {
        if state.len() > LONGEST_STATE {
            return Err(SnapshotError::TooLong(state.len()));
        }
        // Discards earlier messages of the daemon, which do not concern this state.
        self.stream.set_nonblocking(true)?;
        let mut before = [0; 64];
        while matches!(self.stream.read(&mut before), Ok(1..)) {}
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(&[STATE])?;
        self.stream.write_all(&(state.len() as u64).to_le_bytes())?;
        self.stream.write_all(state)?;
        let mut byte = [0];
        while byte[0] != GO {
            self.stream.read_exact(&mut byte)?;
        }
        self.is_asked = false;
        Ok(())
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        // Fails if the daemon has exited, which then saves nothing.
        let _ = self.stream.set_nonblocking(true).and_then(|()| self.stream.write_all(&[LEFT]));
    }
}

fn read_state(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut state = Vec::new();
    let read = stream.take(length).read_to_end(&mut state)?;
    if read as u64 == length { Ok(state) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Limits the chunks of ranks' states that wait for the connection to the parent. Clones share the limit.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WAITING)))
    }
}

/// A chunk's bytes, which count until they are sent and dropped.
struct Counted {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Budget {
    /// Counts a chunk's bytes. Waits until few enough others are counted.
    pub(super) async fn count(&self, bytes: Bytes) -> Bytes {
        let permit = Arc::clone(&self.0).acquire_owned().await;
        let _permit = permit.expect("the semaphore is never closed");
        Bytes::from_owner(Counted { bytes, _permit })
    }
}

/// Runs the daemon's side of a rank's stream until the stream ends or `words` closes. After a malformed message,
/// nothing more is read from the rank. After a state, nothing is read until the rank may continue, so that a rank has
/// at most one state on its way to the root.
pub(super) async fn serve(
    end: OwnedFd,
    (state, budget): (Option<CountedState>, Budget),
    mut words: mpsc::UnboundedReceiver<Word>,
    said: impl Fn(RankEvent) + Send + 'static,
) -> io::Result<()> {
    let stream = UnixStream::from(end);
    stream.set_nonblocking(true)?;
    let (mut receiver, mut sender) = tokio::net::UnixStream::from_std(stream)?.into_split();
    let (goes, went) = watch::channel(());
    let mut speaking = tokio::spawn(async move {
        match &state {
            None => sender.write_all(&[FRESH]).await?,
            Some(state) => {
                sender.write_all(&[RESTORED]).await?;
                sender.write_all(&(state.len() as u64).to_le_bytes()).await?;
                sender.write_all(state).await?;
            }
        }
        drop(state);
        while let Some(word) = words.recv().await {
            let byte = if word == Word::Ask { ASK } else { GO };
            sender.write_all(&[byte]).await?;
            if byte == GO {
                goes.send_replace(());
            }
        }
        io::Result::Ok(())
    });
    let heard = tokio::select! {
        heard = hear(&mut receiver, went, (&said, &budget)) => heard,
        _ = &mut speaking => Ok(()),
    };
    said(RankEvent::Left);
    speaking.abort();
    heard
}

async fn hear(
    receiver: &mut tokio::net::unix::OwnedReadHalf,
    mut went: watch::Receiver<()>,
    (said, budget): (&impl Fn(RankEvent), &Budget),
) -> io::Result<()> {
    loop {
        match receiver.read_u8().await? {
            ABLE => {
                said(RankEvent::Able);
                sleep(BETWEEN).await;
            }
            LEFT => {
                said(RankEvent::Left);
                sleep(BETWEEN).await;
            }
            STATE => {
                // The rank ignores earlier permissions to continue.
                went.mark_unchanged();
                let (mut at, mut left) = (0, receiver.read_u64_le().await?);
                if left > LONGEST_STATE as u64 {
                    return Err(ErrorKind::InvalidData.into());
                }
                // An empty state has one chunk as well.
                let mut is_last = false;
                while !is_last {
                    let mut bytes = vec![0; left.min(CHUNK_BYTES as u64) as usize];
                    receiver.read_exact(&mut bytes).await?;
                    let length = bytes.len() as u64;
                    left -= length;
                    is_last = left == 0;
                    let (kind, bytes) = (ChunkKind::State, budget.count(bytes.into()).await);
                    said(RankEvent::Chunk(StateChunk { kind, at, bytes, is_last }));
                    at += length;
                }
                if went.changed().await.is_err() {
                    return Ok(());
                }
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Regression: a rank that sent states without a pause filled the memory of the daemons above it.
    #[test]
    fn a_rank_s_next_state_is_read_once_the_rank_may_continue() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut rank, end) = UnixStream::pair().unwrap();
            let (words, to_rank) = mpsc::unbounded_channel();
            let (events, mut happens) = mpsc::unbounded_channel();
            let said = move |event| drop(events.send(event));
            let alone = (None, Budget::default());
            let serving = tokio::spawn(serve(end.into(), alone, to_rank, said));
            for state in [b"1", b"2"] {
                rank.write_all(&[STATE]).unwrap();
                rank.write_all(&1_u64.to_le_bytes()).unwrap();
                rank.write_all(state).unwrap();
            }
            let chunk = |bytes| {
                let (kind, bytes) = (ChunkKind::State, Bytes::from_static(bytes));
                Some(RankEvent::Chunk(StateChunk { kind, at: 0, bytes, is_last: true }))
            };
            assert_eq!(happens.recv().await, chunk(b"1"));
            let early = timeout(Duration::from_millis(50), happens.recv()).await;
            assert!(early.is_err(), "{early:?}");
            words.send(Word::Go).unwrap();
            assert_eq!(happens.recv().await, chunk(b"2"));
            // The daemon no longer has the process, while another process has its end open.
            drop(words);
            serving.await.unwrap().unwrap();
            assert_eq!(happens.recv().await, Some(RankEvent::Left));
            assert_eq!(happens.recv().await, None);
        });
    }
    /// Regression: a daemon read whole states as fast as the ranks sent them, whatever its connection to the root sent.
    #[test]
    fn a_rank_s_state_waits_until_others_are_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let budget = Budget(Arc::new(Semaphore::new(1)));
            let (events, mut happens) = mpsc::unbounded_channel();
            let mut open = Vec::new();
            for _ in 0..2 {
                let (mut rank, end) = UnixStream::pair().unwrap();
                let (words, to_rank) = mpsc::unbounded_channel();
                let events = events.clone();
                let said = move |event| drop(events.send(event));
                tokio::spawn(serve(end.into(), (None, budget.clone()), to_rank, said));
                rank.write_all(&[STATE]).unwrap();
                rank.write_all(&1_u64.to_le_bytes()).unwrap();
                rank.write_all(b"1").unwrap();
                open.push((rank, words));
            }
            let first = happens.recv().await;
            let early = timeout(Duration::from_millis(50), happens.recv()).await;
            assert!(early.is_err(), "{early:?}");
            drop(first);
            assert!(matches!(happens.recv().await, Some(RankEvent::Chunk(_))));
        });
    }
}
