//! One-sided accesses: values that each process offers, and that other processes read, write and combine.
//!
//! A [`Window`] has a part at each process of a communicator. Accesses are messages: they work over every carrier, and
//! take effect while the part's process polls any future of the window. A process that does nothing else with its
//! window polls [`Window::serve`], for example in a task. Accesses of one process to one part take effect in order;
//! each is atomic.
//!
//! ```
//! # use midplane_via::message::communicator::Communicator;
//! # use midplane_via::message::collective::Operation;
//! # use midplane_via::message::group::Rank;
//! # use midplane_via::message::window::{Window, WindowError};
//! /// Counts at rank 0: returns the number that this process draws, each number once.
//! async fn draw(all: &Communicator) -> Result<u64, WindowError> {
//!     let window = Window::<u64>::create(all, if all.rank() == Rank(0) { 1 } else { 0 }).await?;
//!     let number = window.fetch(Rank(0), 0, 1, Operation::Sum).await?;
//!     window.fence().await?;
//!     Ok(number)
//! }
//! # use midplane_via::message::engine::{Config, Engine};
//! # use midplane_via::message::memory::{MemoryConfig, network};
//! # let ranks = network(3, MemoryConfig::default()).into_iter().map(|carrier| std::thread::spawn(move || {
//! #     let all = Communicator::world(Engine::new(carrier, Config::default()), 3).unwrap();
//! #     all.block_on(draw(&all)).unwrap()
//! # }));
//! # let mut drawn: Vec<u64> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
//! # drawn.sort();
//! # assert_eq!(drawn, [0, 1, 2]);
//! ```

mod locks;
mod request;
mod serving;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake as _, Waker, ready};

use midplane_simhw::lock::lock;
use thiserror::Error;
use zerocopy::IntoBytes as _;

use super::collective::{Number, Operation};
use super::communicator::{Communicator, Pending, Received};
use super::engine::MAX_LENGTH;
use super::envelope::Tag;
use super::group::{NoSuchRank, Rank};
use super::process::MessageError;
use super::request::Mode;
use super::transport::StartError;
use request::{Access, Request};
use serving::{Bell, Part, Progress, decode, fits_answer};

/// The tag of requests; answers have the other tags.
const REQUEST: Tag = Tag(0);
/// Most answers of one process that another one may wait for at a time. Further operations wait.
const MOST_ANSWERS: usize = 64;

/// Why an access failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum WindowError {
    /// A message failed, for example because a process was lost.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The access reaches beyond the values that the process offers.
    #[error("rank {rank} offers {length} values, not {count} from {offset}")]
    OutOfRange {
        /// The process that was to be accessed.
        rank: Rank,
        /// Index of the first value of the access.
        offset: usize,
        /// Number of values of the access.
        count: usize,
        /// Number of values that the process offers.
        length: usize,
    },
    /// The process refused this access, or an earlier one of this process: a second lock, an unlock without the lock,
    /// or values that do not fit its window.
    #[error("rank {0} refuses the accesses of this process; lock before you unlock, and only once")]
    Refused(Rank),
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lock {
    /// Other processes may hold it too.
    Shared,
    /// No other process may hold it.
    Exclusive,
}

/// Values that each process of a communicator offers to the others (MPI's window). Clones share it.
#[derive(Clone, Debug)]
pub struct Window<T> {
    communicator: Communicator,
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    /// Values that each process offers, by rank.
    lengths: Vec<usize>,
    part: Mutex<Part<T>>,
    bell: Arc<Bell>,
    next_reply: AtomicU32,
    peers: Vec<Peer>,
    /// Receives of answers whose operations were dropped, with the rank that answers. No waker runs under this lock.
    late: Mutex<Vec<(Exchange, Rank)>>,
}

/// Counts of this process's accesses to another one's part.
#[derive(Debug, Default)]
struct Peer {
    /// Answers that have not arrived.
    waits: AtomicU32,
    /// Accesses without an answer; and how many of them have certainly taken effect.
    sent: AtomicU64,
    flushed: AtomicU64,
}

impl<T> Shared<T> {
    /// Counts an answer of a process as arrived.
    fn on_answer(&self, rank: Rank) {
        self.peers[rank.0 as usize].waits.fetch_sub(1, Ordering::Relaxed);
        self.bell.wake_by_ref();
    }
}

impl<T: Number> Window<T> {
    /// Makes a window in which this process offers `length` values, all 0. All processes of the communicator take part;
    /// each chooses its own length.
    ///
    /// # Errors
    /// Those of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, the communicator is [abandoned](MessageError::Abandoned).
    pub async fn create(all: &Communicator, length: usize) -> Result<Self, WindowError> {
        let communicator = all.duplicate().await?;
        let lengths = communicator.all_gather((length as u64).to_le_bytes().to_vec()).await?;
        let shape = |found| MessageError::Shape { what: "bytes of a length", expected: 8, found };
        let lengths = lengths.iter().map(|bytes| {
            let bytes: [u8; 8] = bytes[..].try_into().map_err(|_| shape(bytes.len()))?;
            Ok(usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX))
        });
        let lengths: Vec<usize> = lengths.collect::<Result<_, MessageError>>()?;
        let peers = lengths.iter().map(|_| Peer::default()).collect();
        let part = Mutex::new(Part::new(communicator.clone(), vec![T::new_zeroed(); length]));
        let (bell, next_reply) = (Arc::default(), AtomicU32::new(1));
        let shared =
            Arc::new(Shared { lengths, part, bell, next_reply, peers, late: Mutex::default() });
        Ok(Self { communicator, shared })
    }

    /// Accesses the values that this process offers, exclusively. `access` must not use the window.
    pub fn local<R>(&self, access: impl FnOnce(&mut [T]) -> R) -> R {
        access(&mut lock(&self.shared.part).values)
    }

    /// Writes values, from `offset` on. They are certainly written once [`Window::flush`] has ended.
    ///
    /// # Errors
    /// [`WindowError::OutOfRange`], [`WindowError::Message`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is written; if dropped later, all values are.
    pub async fn put(&self, rank: Rank, offset: usize, values: &[T]) -> Result<(), WindowError> {
        self.send(Access::Put, rank, offset, values).await
    }

    /// Combines values with those from `offset` on, position by position. This has certainly taken effect once
    /// [`Window::flush`] has ended.
    ///
    /// # Errors
    /// [`WindowError::OutOfRange`], [`WindowError::Message`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is combined; if dropped later, all values are.
    pub async fn accumulate(
        &self,
        rank: Rank,
        offset: usize,
        values: &[T],
        operation: Operation,
    ) -> Result<(), WindowError> {
        self.send(Access::Accumulate(operation), rank, offset, values).await
    }

    /// Reads `count` values, from `offset` on.
    ///
    /// # Errors
    /// [`WindowError::OutOfRange`], [`WindowError::Refused`], [`WindowError::Message`].
    pub async fn get(
        &self,
        rank: Rank,
        offset: usize,
        count: usize,
    ) -> Result<Vec<T>, WindowError> {
        self.ask(Access::Get, rank, (offset, count), &[], count).await
    }

    /// Combines one value with the window's, and returns the former value (`MPI_Fetch_and_op`).
    ///
    /// # Errors
    /// [`WindowError::OutOfRange`], [`WindowError::Refused`], [`WindowError::Message`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is combined; if dropped later, the value may be.
    pub async fn fetch(
        &self,
        rank: Rank,
        offset: usize,
        value: T,
        operation: Operation,
    ) -> Result<T, WindowError> {
        let former = self.ask(Access::Fetch(operation), rank, (offset, 1), &[value], 1).await?;
        Ok(former[0])
    }

    /// Replaces one value if it equals `expected`, and returns the former value.
    ///
    /// # Errors
    /// [`WindowError::OutOfRange`], [`WindowError::Refused`], [`WindowError::Message`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is replaced; if dropped later, the value may be.
    pub async fn compare_and_swap(
        &self,
        rank: Rank,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<T, WindowError> {
        let (access, place) = (Access::CompareAndSwap, (offset, 1));
        Ok(self.ask(access, rank, place, &[expected, new], 1).await?[0])
    }

    /// Waits until all accesses of this process to a part have taken effect.
    ///
    /// # Errors
    /// [`WindowError::Refused`] if one of them was refused, [`WindowError::Message`].
    pub async fn flush(&self, rank: Rank) -> Result<(), WindowError> {
        let peer = self.shared.peers.get(rank.0 as usize);
        let sent = peer.map_or(0, |peer| peer.sent.load(Ordering::Relaxed));
        self.ask(Access::Flush, rank, (0, 0), &[], 0).await?;
        if let Some(peer) = peer {
            peer.flushed.fetch_max(sent, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until all accesses of all processes have taken effect. All processes take part (`MPI_Win_fence`).
    ///
    /// # Errors
    /// Those of [`Window::flush`] and of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, the window can't be used for further fences.
    pub async fn fence(&self) -> Result<(), WindowError> {
        for (rank, peer) in (0..).map(Rank).zip(&self.shared.peers) {
            if peer.flushed.load(Ordering::Relaxed) < peer.sent.load(Ordering::Relaxed) {
                self.flush(rank).await?;
            }
        }
        Ok(self.serving(self.communicator.barrier()).await??)
    }

    /// Waits for the lock of a part. Locks are granted in the order of the requests. They are advisory: accesses of
    /// processes without the lock are not held back.
    ///
    /// # Errors
    /// [`WindowError::Refused`] if this process holds the lock or waits for it, [`WindowError::Message`].
    ///
    /// # Cancel safety
    /// None: if dropped after its first poll, this process may still get the lock, and then holds it until
    /// [`Window::unlock`].
    pub async fn lock(&self, rank: Rank, lock: Lock) -> Result<(), WindowError> {
        let access = match lock {
            Lock::Shared => Access::LockShared,
            Lock::Exclusive => Access::LockExclusive,
        };
        self.ask(access, rank, (0, 0), &[], 0).await.map(drop)
    }

    /// Waits until all accesses of this process to a part have taken effect, and releases its lock. The lock of a
    /// process that is lost is also released.
    ///
    /// # Errors
    /// [`WindowError::Refused`] if this process does not hold the lock, [`WindowError::Message`].
    pub async fn unlock(&self, rank: Rank) -> Result<(), WindowError> {
        self.ask(Access::Unlock, rank, (0, 0), &[], 0).await.map(drop)
    }

    /// Serves the accesses of other processes, until it is dropped.
    ///
    /// # Errors
    /// [`MessageError`] if this process can exchange no more messages.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    pub async fn serve(&self) -> Result<(), MessageError> {
        self.serving(std::future::pending()).await
    }

    /// Waits for a future, and serves accesses meanwhile.
    async fn serving<F: Future>(&self, work: F) -> Result<F::Output, MessageError> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.shared.bell.add(context.waker());
            self.take_late();
            let (mut is_busy, mut has_served) = (false, false);
            loop {
                if let Poll::Ready(done) = work.as_mut().poll(context) {
                    return Poll::Ready(Ok(done));
                }
                if is_busy {
                    // Yield to other tasks of this thread.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let progress = lock(&self.shared.part).poll(&self.shared.bell);
                match progress {
                    Ok(Progress::Idle) => return Poll::Pending,
                    Ok(progress) => {
                        is_busy = has_served || progress == Progress::Busy;
                        has_served = true;
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        })
        .await
    }

    /// Takes the answers of dropped operations that have arrived. Further ones ring the bell when they arrive.
    fn take_late(&self) {
        let mut late = std::mem::take(&mut *lock(&self.shared.late));
        if late.is_empty() {
            return;
        }
        let waker = Waker::from(Arc::clone(&self.shared.bell));
        late.retain_mut(|(exchange, rank)| {
            let polled = Pin::new(exchange).poll(&mut Context::from_waker(&waker));
            let has_arrived = polled.is_ready();
            if has_arrived {
                self.shared.on_answer(*rank);
            }
            !has_arrived
        });
        if !late.is_empty() {
            lock(&self.shared.late).append(&mut late);
        }
    }

    /// Builds a request, if the process offers these values.
    fn request(
        &self,
        access: Access,
        rank: Rank,
        (offset, count): (usize, usize),
        reply: u32,
    ) -> Result<Request, WindowError> {
        let Some(&length) = self.shared.lengths.get(rank.0 as usize) else {
            let size = self.communicator.size();
            return Err(MessageError::Rank(NoSuchRank { rank, size }).into());
        };
        if offset.checked_add(count).is_none_or(|end| end > length) {
            return Err(WindowError::OutOfRange { rank, offset, count, length });
        }
        let (offset, count) = (offset as u64, count as u64);
        Ok(Request { access, size: size_of::<T>(), reply, offset, count })
    }

    /// Sends a request that is not answered.
    async fn send(
        &self,
        access: Access,
        rank: Rank,
        offset: usize,
        values: &[T],
    ) -> Result<(), WindowError> {
        let request = self.request(access, rank, (offset, values.len()), 0)?;
        let bytes = request.to_bytes(values.as_bytes());
        let sending = self.communicator.isend(Mode::Standard, rank, REQUEST, bytes)?;
        // Counted now: any later flush follows this request.
        self.shared.peers[rank.0 as usize].sent.fetch_add(1, Ordering::Relaxed);
        self.serving(sending).await??;
        Ok(())
    }

    /// Sends a request, and waits for an answer of `answered` values.
    async fn ask(
        &self,
        access: Access,
        rank: Rank,
        place: (usize, usize),
        values: &[T],
        answered: usize,
    ) -> Result<Vec<T>, WindowError> {
        let tag = 1 + self.shared.next_reply.fetch_add(1, Ordering::Relaxed) % (u32::MAX / 2);
        let request = self.request(access, rank, place, tag)?;
        if !fits_answer::<T>(answered) {
            let length = answered.saturating_mul(size_of::<T>());
            return Err(MessageError::from(StartError::TooLong { length, most: MAX_LENGTH }).into());
        }
        let waits = &self.shared.peers[rank.0 as usize].waits;
        let more = |waits| (waits < MOST_ANSWERS as u32).then_some(waits + 1);
        let turn =
            poll_fn(|_| match waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
                Ok(_) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            });
        self.serving(turn).await?;
        let mut answer = Answer { shared: &self.shared, rank, exchange: None };
        let receiving = self.communicator.ireceive(rank, Tag(tag))?;
        let bytes = request.to_bytes(values.as_bytes());
        let sending = self.communicator.isend(Mode::Standard, rank, REQUEST, bytes)?;
        answer.exchange = Some(Exchange { sending: Some(sending), receiving });
        let received = self.serving(&mut answer).await??;
        decode(answered, &received.bytes).ok_or(WindowError::Refused(rank))
    }
}

/// A request and the receive of its answer, which never comes if the request can't be sent.
#[derive(Debug)]
struct Exchange {
    sending: Option<Pending>,
    receiving: Pending,
}

impl Future for Exchange {
    type Output = Result<Received, MessageError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(sending) = &mut self.sending {
            ready!(Pin::new(sending).poll(context))?;
            self.sending = None;
        }
        Pin::new(&mut self.receiving).poll(context)
    }
}

/// The exchange with a process. If dropped before the answer arrives, the window receives it.
struct Answer<'a, T> {
    shared: &'a Shared<T>,
    rank: Rank,
    exchange: Option<Exchange>,
}

impl<T> Future for Answer<'_, T> {
    type Output = Result<Received, MessageError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let exchange = self.exchange.as_mut().expect("it is not polled after it was ready");
        let polled = Pin::new(exchange).poll(context);
        if polled.is_ready() {
            self.exchange = None;
        }
        polled
    }
}

impl<T> Drop for Answer<'_, T> {
    fn drop(&mut self) {
        match self.exchange.take() {
            Some(Exchange { sending, receiving }) => {
                let exchange =
                    Exchange { sending: sending.map(Pending::kept), receiving: receiving.kept() };
                lock(&self.shared.late).push((exchange, self.rank));
                // The woken tasks poll this receive, so that its answer wakes those that wait for fewer open answers.
                self.shared.bell.wake_by_ref();
            }
            None => self.shared.on_answer(self.rank),
        }
    }
}
