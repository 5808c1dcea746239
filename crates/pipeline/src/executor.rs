//! A plan applied to real I/O: carries fragments of its sizes through stages that work at the same
//! time.
//!
//! This is the only module of the crate that does I/O and reads a clock. An [`Executor`] reads an
//! `AsyncRead`, which [`Cut`] cuts into fragments of the plan's sizes. It passes them through
//! [`StageWorker`]s, each a task of its own. It records the time that every fragment spends in every
//! stage, so that a measured chart can be compared with the predicted one (see
//! [`gantt`](crate::gantt)).
//!
//! Reading the source is stage 0, the workers are stages 1, 2 and so on: plan for a chain whose first
//! stage is the source. A row lasts while its stage works on the fragment, without the time that the
//! fragment waits before or after, so that [`Monitor`](crate::estimate::Monitor) takes its length:
//!
//! ```
//! use midplane_pipeline::estimate::{Monitor, Verdict};
//! use midplane_pipeline::executor::{Copy, Executor, Write};
//! use midplane_pipeline::{Limits, Pipeline, Planner, Stage};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! // Microseconds a fragment, microseconds a byte: read, copy, write.
//! let stages = [Stage::new(2.0, 0.0001)?, Stage::new(1.0, 0.0001)?, Stage::new(5.0, 0.0002)?];
//! let chain = Pipeline::new(stages.into())?;
//! let mut monitor = Monitor::new(&chain);
//! let mut planner = Planner::new(chain, Limits::new())?;
//! for message in [vec![1; 100_000], vec![2; 200_000]] {
//!     let sizes: Vec<u64> = planner.plan(message.len() as u64).collect();
//!     let executor = Executor::source(std::io::Cursor::new(message), sizes);
//!     let rows = executor.stage(Copy).stage(Write(tokio::io::sink())).run().await?;
//!     let mut has_changed = false;
//!     for row in &rows {
//!         let us = row.end.get() - row.start.get();
//!         has_changed |= monitor.handle_timing(row.stage, row.bytes, us) != Verdict::Steady;
//!     }
//!     if has_changed {
//!         planner.replace(monitor.pipeline())?;
//!     }
//!     // Off the hot path: equal fragments until a ramp is installed.
//!     while let Some(wanted) = planner.poll_ramp_request() {
//!         planner.install(wanted.compute()?);
//!     }
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use crate::timing::Row;
use crate::unit::Micros;

/// The largest fragment that is read into memory: a gibibyte.
const MAX_FRAGMENT: u64 = 1 << 30;

/// The most fragments that may wait between two stages; the earlier stage may hold one more. It is enough that a stage seldom waits for the one
/// before, and few enough that a fast source does not fill the memory.
const QUEUE: usize = 4;

/// The reason why a message did not arrive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutionError {
    /// Reading the source or a stage's I/O failed.
    #[error("stage {stage}: {source}")]
    Io {
        /// Index of the stage; the source is 0.
        stage: usize,
        /// The I/O error.
        source: io::Error,
    },
    /// The task of a stage panicked.
    #[error("a stage panicked: its message is on standard error, unless a panic hook moved it")]
    Panicked,
}

/// Cuts a byte source into fragments of given sizes: a stream of `Bytes`.
///
/// Ends after the last size. If the source ends earlier, yields `UnexpectedEof`. A size of zero
/// gives an empty fragment; a size above 1 GiB gives `InvalidInput`.
#[derive(Debug)]
pub struct Cut<R> {
    source: R,
    sizes: std::vec::IntoIter<u64>,
    buffer: BytesMut,
    wanted: Option<usize>,
}

impl<R: AsyncRead + Unpin> Cut<R> {
    /// Cuts `source` by `sizes`, for instance those of [`Plan::whole_bytes`](crate::plan::Plan::whole_bytes).
    #[must_use]
    pub fn new(source: R, sizes: Vec<u64>) -> Self {
        Self { source, sizes: sizes.into_iter(), buffer: BytesMut::new(), wanted: None }
    }
}

impl<R: AsyncRead + Unpin> Stream for Cut<R> {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let wanted = match this.wanted {
            Some(wanted) => wanted,
            None => {
                let Some(size) = this.sizes.next() else { return Poll::Ready(None) };
                if size > MAX_FRAGMENT {
                    return Poll::Ready(Some(Err(too_large(size))));
                }
                let wanted = size as usize;
                this.buffer = BytesMut::zeroed(wanted);
                this.wanted = Some(0);
                0
            }
        };
        let mut filled = wanted;
        while filled < this.buffer.len() {
            let mut rest = ReadBuf::new(&mut this.buffer[filled..]);
            match Pin::new(&mut this.source).poll_read(cx, &mut rest) {
                Poll::Pending => {
                    this.wanted = Some(filled);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    this.wanted = Some(filled);
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(Ok(())) if rest.filled().is_empty() => {
                    return Poll::Ready(Some(Err(too_short(filled, this.buffer.len()))));
                }
                Poll::Ready(Ok(())) => filled += rest.filled().len(),
            }
        }
        this.wanted = None;
        Poll::Ready(Some(Ok(std::mem::take(&mut this.buffer).freeze())))
    }
}

fn too_large(size: u64) -> io::Error {
    let text = format!("a fragment has at most {MAX_FRAGMENT} bytes, not {size}: set a lower mtu");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn too_short(filled: usize, wanted: usize) -> io::Error {
    let text = format!(
        "the source ended after {filled} of a fragment's {wanted} bytes: pass sizes that sum to its length"
    );
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

/// A stage of real work: takes a fragment and passes it on.
pub trait StageWorker: Send + 'static {
    /// Processes one fragment and returns what the next stage receives.
    ///
    /// # Cancel safety
    ///
    /// The executor does not drop the future before it completes, unless the whole run is dropped
    /// or fails.
    fn process(&mut self, fragment: Bytes) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// Copies each fragment in memory: the host's part in many protocols.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copy;

impl StageWorker for Copy {
    async fn process(&mut self, fragment: Bytes) -> io::Result<Bytes> {
        Ok(Bytes::copy_from_slice(&fragment))
    }
}

/// Writes every fragment to a socket, a file or anything else, and flushes it.
#[derive(Debug)]
pub struct Write<W>(pub W);

impl<W: AsyncWrite + Unpin + Send + 'static> StageWorker for Write<W> {
    async fn process(&mut self, fragment: Bytes) -> io::Result<Bytes> {
        self.0.write_all(&fragment).await?;
        self.0.flush().await?;
        Ok(fragment)
    }
}

/// A fragment on its way from stage to stage.
struct Piece {
    fragment: usize,
    bytes: Bytes,
    /// Its part of the fragments that may be in the chain, returned when it leaves.
    _credit: Option<OwnedSemaphorePermit>,
}

/// The result of a stage's task.
type Ended = Result<Result<Vec<Row>, ExecutionError>, JoinError>;

/// A chain of real stages, beginning with its source.
#[derive(Debug)]
pub struct Executor {
    start: Instant,
    tasks: JoinSet<Result<Vec<Row>, ExecutionError>>,
    stages: usize,
    out: mpsc::Receiver<Piece>,
}

impl Executor {
    /// Starts to read fragments of the given sizes; this is stage 0. Must be called within a tokio runtime.
    ///
    /// At most four fragments wait before each stage, and a fifth in the stage before it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn source<R: AsyncRead + Unpin + Send + 'static>(source: R, sizes: Vec<u64>) -> Self {
        Self::begin(source, sizes, None)
    }

    /// Starts to read, as [`Executor::source`] does, and keeps at most `max_in_flight` fragments in the
    /// chain at once, at least 1. Pass the limit of the plan
    /// ([`Limits::max_in_flight`](crate::Limits::max_in_flight)).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn limited<R: AsyncRead + Unpin + Send + 'static>(
        source: R,
        sizes: Vec<u64>,
        max_in_flight: usize,
    ) -> Self {
        let credits = max_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        Self::begin(source, sizes, Some(Arc::new(Semaphore::new(credits))))
    }

    fn begin<R: AsyncRead + Unpin + Send + 'static>(
        source: R,
        sizes: Vec<u64>,
        credits: Option<Arc<Semaphore>>,
    ) -> Self {
        let start = now();
        let (send, out) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(read(Cut::new(source, sizes), credits, send, start));
        Self { start, tasks, stages: 1, out }
    }

    /// Adds a stage behind the last one, and starts its task.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn stage<S: StageWorker>(mut self, worker: S) -> Self {
        let (send, out) = mpsc::channel(QUEUE);
        let input = std::mem::replace(&mut self.out, out);
        self.tasks.spawn(work(worker, self.stages, input, send, self.start));
        self.stages += 1;
        self
    }

    /// Returns when the first stage started. The times of rows count from there.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.start
    }

    /// Waits until the last fragment has left the last stage. Returns every fragment's stay in
    /// every stage.
    ///
    /// # Errors
    ///
    /// [`ExecutionError`] of the first stage that failed. The other stages are then stopped, even if
    /// they wait for their I/O.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops all stages and loses the fragments in them.
    pub async fn run(mut self) -> Result<Vec<Row>, ExecutionError> {
        let mut rows = Vec::new();
        while let Some(ended) = poll_fn(|cx| self.poll_stage(cx)).await {
            match ended.unwrap_or(Err(ExecutionError::Panicked)) {
                Ok(own) => rows.extend(own),
                Err(error) => {
                    self.tasks.shutdown().await;
                    return Err(error);
                }
            }
        }
        rows.sort_by_key(|row| (row.fragment, row.stage));
        Ok(rows)
    }

    /// Takes what leaves the last stage, and returns the result of a stage that has ended.
    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ended>> {
        while let Poll::Ready(Some(_)) = self.out.poll_recv(cx) {}
        self.tasks.poll_join_next(cx)
    }
}

#[expect(clippy::disallowed_methods, reason = "a driver of real I/O")]
fn now() -> Instant {
    Instant::now()
}

fn since(start: Instant) -> Micros {
    Micros::of(now().duration_since(start).as_nanos() as f64 / 1000.0)
}

async fn read<R: AsyncRead + Unpin>(
    mut cut: Cut<R>,
    credits: Option<Arc<Semaphore>>,
    send: mpsc::Sender<Piece>,
    clock: Instant,
) -> Result<Vec<Row>, ExecutionError> {
    let mut rows = Vec::new();
    for fragment in 0.. {
        let credit = match &credits {
            // The semaphore is never closed.
            Some(credits) => Arc::clone(credits).acquire_owned().await.ok(),
            None => None,
        };
        let start = since(clock);
        let next = poll_fn(|cx| Pin::new(&mut cut).poll_next(cx)).await;
        let Some(bytes) = next else { break };
        let bytes = bytes.map_err(|source| ExecutionError::Io { stage: 0, source })?;
        rows.push(Row { stage: 0, fragment, bytes: bytes.len() as f64, start, end: since(clock) });
        if send.send(Piece { fragment, bytes, _credit: credit }).await.is_err() {
            break;
        }
        // Lets later stages on the same thread run between two fragments.
        tokio::task::yield_now().await;
    }
    Ok(rows)
}

async fn work<S: StageWorker>(
    mut worker: S,
    stage: usize,
    mut input: mpsc::Receiver<Piece>,
    send: mpsc::Sender<Piece>,
    clock: Instant,
) -> Result<Vec<Row>, ExecutionError> {
    let mut rows = Vec::new();
    while let Some(Piece { fragment, bytes, _credit: credit }) = input.recv().await {
        let (start, size) = (since(clock), bytes.len() as f64);
        let bytes =
            worker.process(bytes).await.map_err(|source| ExecutionError::Io { stage, source })?;
        rows.push(Row { stage, fragment, bytes: size, start, end: since(clock) });
        if send.send(Piece { fragment, bytes, _credit: credit }).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(rows)
}
