//! One process's part of a window: its values, and how it serves the requests of other processes.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use midplane_simhw::lock::lock;

use super::locks::{Locks, Waiting};
use super::request::{Access, Request};
use super::{MOST_ANSWERS, REQUEST};
use crate::message::collective::{Number, Reduction};
use crate::message::communicator::{Communicator, Pending};
use crate::message::engine::MAX_LENGTH;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Failure, Mode};
use crate::message::typed;

/// Most requests served in a row before the task yields to others on its thread.
const IN_A_ROW: u32 = 64;

/// Bytes of an answer's status, which precedes the values.
const STATUS: usize = size_of::<u32>();
const GRANTED: u32 = 0;
const REFUSED: u32 = 1;

/// Wakes the tasks that serve the window.
#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<Vec<Waker>>);

impl Bell {
    /// Registers a task for the next wake only.
    pub(super) fn add(&self, waker: &Waker) {
        let mut wakers = lock(&self.0);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The part of a window that this process serves.
#[derive(Debug)]
pub(super) struct Part<T> {
    communicator: Communicator,
    pub(super) values: Vec<T>,
    locks: Locks,
    /// The receive of the next request.
    receive: Option<Pending>,
    /// Answers in flight, by rank.
    answers: Vec<Vec<Pending>>,
    /// Processes that have broken the protocol: they are not served.
    refused: BTreeSet<u32>,
    /// Number of process losses that the locks reflect.
    losses: u32,
}

/// The result of serving the requests that have arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Progress {
    /// No request had arrived.
    Idle,
    /// All requests that had arrived were served. The task's own work may depend on one of them.
    Served,
    /// Many requests were served, and more may have arrived.
    Busy,
}

impl<T: Number> Part<T> {
    pub(super) fn new(communicator: Communicator, values: Vec<T>) -> Self {
        let size = communicator.size() as usize;
        let answers = (0..size).map(|_| Vec::new()).collect();
        let (locks, refused) = (Locks::default(), BTreeSet::new());
        let losses = communicator.losses();
        Self { communicator, values, locks, receive: None, answers, refused, losses }
    }

    /// Serves the requests that have arrived; rings the bell once there are more.
    pub(super) fn poll(&mut self, bell: &Arc<Bell>) -> Result<Progress, MessageError> {
        let waker = Waker::from(Arc::clone(bell));
        for served in 0..IN_A_ROW {
            self.forget_lost()?;
            let receive = match self.receive.take() {
                Some(receive) => receive,
                None => self.communicator.ireceive(None, REQUEST)?.kept(),
            };
            let receive = self.receive.insert(receive);
            let Poll::Ready(received) = Pin::new(receive).poll(&mut Context::from_waker(&waker))
            else {
                return Ok(if served > 0 { Progress::Served } else { Progress::Idle });
            };
            self.receive = None;
            match received {
                Ok(received) => self.serve(received.source, &received.bytes)?,
                // The next round releases the locks of the lost process.
                Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::Busy)
    }

    /// Releases the locks of processes that were lost. The receive of requests does not report every loss, because it
    /// is not always posted.
    fn forget_lost(&mut self) -> Result<(), MessageError> {
        let losses = self.communicator.losses();
        if losses == self.losses {
            return Ok(());
        }
        self.losses = losses;
        let Self { communicator, locks, answers, .. } = self;
        locks.forget(|rank| communicator.was_lost(Rank(rank)));
        for (rank, answers) in (0..).map(Rank).zip(answers) {
            if communicator.was_lost(rank) {
                answers.clear();
            }
        }
        self.grant()
    }

    /// Serves a request. A process whose request does not fit the window is refused from then on. Requests of processes
    /// outside of the group are ignored.
    fn serve(&mut self, from: Rank, bytes: &[u8]) -> Result<(), MessageError> {
        if from == Rank::NULL {
            return Ok(());
        }
        let Some((request, values)) = Request::parse(bytes) else {
            self.refused.insert(from.0);
            self.locks.forget(|rank| rank == from.0);
            return self.grant();
        };
        let served = match self.refused.contains(&from.0) {
            true => Served::Refused,
            false => self.access(from, &request, values),
        };
        match served {
            Served::Done => {}
            Served::Answer(values) => self.answer(from, request.reply, GRANTED, &values)?,
            Served::Refused => {
                self.refused.insert(from.0);
                self.locks.forget(|rank| rank == from.0);
                self.answer(from, request.reply, REFUSED, &[])?;
            }
        }
        self.grant()
    }

    fn access(&mut self, from: Rank, request: &Request, values: &[u8]) -> Served<T> {
        let is_granted = match request.access {
            Access::Flush => true,
            Access::Unlock => self.locks.release(from.0),
            Access::LockShared | Access::LockExclusive => {
                // Requests of a process that was lost may still wait here.
                if self.communicator.was_lost(from) {
                    return Served::Done;
                }
                let is_exclusive = request.access == Access::LockExclusive;
                let waiting = Waiting { rank: from.0, is_exclusive, reply: request.reply };
                return match self.locks.request(waiting) {
                    true => Served::Done,
                    false => Served::Refused,
                };
            }
            _ => return self.on_values(request, values).unwrap_or(Served::Refused),
        };
        if is_granted { Served::Answer(Vec::new()) } else { Served::Refused }
    }

    /// Accesses values; `None` if the request does not fit the window.
    fn on_values(&mut self, request: &Request, bytes: &[u8]) -> Option<Served<T>> {
        let offset = usize::try_from(request.offset).ok()?;
        let count = usize::try_from(request.count).ok()?;
        let place = self.values.get_mut(offset..offset.checked_add(count)?)?;
        let is_single = matches!(request.access, Access::Fetch(_) | Access::CompareAndSwap);
        let is_too_long = request.access == Access::Get && !fits_answer::<T>(count);
        if request.size != size_of::<T>() || is_single && count != 1 || is_too_long {
            return None;
        }
        let expected = match request.access {
            Access::Put | Access::Accumulate(_) | Access::Fetch(_) => count,
            Access::CompareAndSwap => 2,
            _ => 0,
        };
        let given = typed::values_of::<T>(expected, bytes).ok()?;
        let former = match request.access {
            Access::Put | Access::Accumulate(_) => Served::Done,
            _ => Served::Answer(place.to_vec()),
        };
        match request.access {
            Access::Put => place.copy_from_slice(&given),
            Access::Accumulate(mut operation) | Access::Fetch(mut operation) => {
                operation.join(place, &given);
            }
            Access::CompareAndSwap if place[0] == given[0] => place[0] = given[1],
            _ => {}
        }
        Some(former)
    }

    /// Grants the lock to the waiting processes that can hold it now.
    fn grant(&mut self) -> Result<(), MessageError> {
        while let Some(granted) = self.locks.grant() {
            self.answer(Rank(granted.rank), granted.reply, GRANTED, &[])?;
        }
        Ok(())
    }

    /// Sends an answer, unless the process expects none or does not receive its answers: at most [`MOST_ANSWERS`] are
    /// in flight.
    fn answer(
        &mut self,
        to: Rank,
        reply: u32,
        status: u32,
        values: &[T],
    ) -> Result<(), MessageError> {
        let answers = &mut self.answers[to.0 as usize];
        answers.retain_mut(|answer| answer.test().is_none());
        if reply == 0 || answers.len() >= MOST_ANSWERS {
            return Ok(());
        }
        let bytes = encode(status, values);
        // The process has posted its receive, and so gets the answer even if its window is full.
        match self.communicator.isend(Mode::Ready, to, Tag(reply), bytes) {
            Ok(send) => answers.push(send.kept()),
            // The process was lost: a receive reports that.
            Err(MessageError::Failed(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The result of a request.
enum Served<T> {
    Done,
    Answer(Vec<T>),
    Refused,
}

/// Returns whether `count` values fit an answer.
pub(super) const fn fits_answer<T>(count: usize) -> bool {
    count <= (MAX_LENGTH - STATUS) / size_of::<T>()
}

fn encode<T: Number>(status: u32, values: &[T]) -> Bytes {
    let values = zerocopy::IntoBytes::as_bytes(values);
    let mut bytes = BytesMut::with_capacity(STATUS + values.len());
    bytes.put_u32_le(status);
    bytes.put_slice(values);
    bytes.freeze()
}

/// Reads an answer with `count` values; `None` if it is a refusal, or does not have `count` values.
pub(super) fn decode<T: Number>(count: usize, bytes: &[u8]) -> Option<Vec<T>> {
    let (status, values) = bytes.split_first_chunk::<STATUS>()?;
    let is_granted = u32::from_le_bytes(*status) == GRANTED;
    let values = typed::values_of(count, values).ok().filter(|_| is_granted)?;
    Some(values.into_owned())
}
