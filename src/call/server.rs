//! Serves calls: one task accepts streams, and one task for each stream handles its calls in turn.

use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::wire::{WireError, decode_value, encode_value};
use midplane_via::session::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncBufReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;
use tracing::Instrument;

use super::Limits;
use super::context::{Context, Trace};
use super::frame::{AnswerHeader, RequestHeader, Status};
use super::pool::{Pipe, pipe};
use crate::error::Error;
use crate::framing::{RESERVED, read_body, read_rest, rest_within, write_parts, write_whole};
use crate::node::links::{Kind, Offer};
use crate::node::meter::{Role, Streams};
use crate::node::{Listener, Node, PeerName};

/// Most streams of a service: 4,096. A client opens one for each of its concurrent calls.
pub const MAX_STREAMS: usize = 4_096;
/// Time after which an idle stream is dropped: 2 min. Clients drop theirs sooner.
const IDLE: Duration = Duration::from_secs(120);

/// A service of calls; made by [`Node::serve`].
///
/// Dropping it ends the service and the calls in progress: their callers get
/// [`CallError::Reset`](super::CallError::Reset).
#[derive(Debug)]
#[must_use = "dropping it ends the service"]
pub struct Serving {
    offer: Arc<Offer>,
    task: AbortHandle,
    room: Arc<Places>,
    concurrency: usize,
}

impl Serving {
    /// Returns the number of calls in progress, and of long answers that their callers have not taken.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.concurrency - self.room.free.available_permits()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.offer.withdraw();
        self.task.abort();
    }
}

impl Node {
    /// Serves calls to a `tower` service, within the default [`Limits`].
    ///
    /// The service is cloned for each stream. Its `poll_ready` may wait; such a call is in progress, and counts for
    /// [`Limits::concurrency`]. The service runs within the call's [`Context`] and a `tracing` span `call`, in the runtime
    /// in which the node was started. Its future is dropped at the call's deadline, and when the caller has dropped the
    /// call or has ended.
    ///
    /// An answer of more than 64 KiB counts as a call in progress until the caller has taken it. If other calls wait, a
    /// caller that does not take the next 64 KiB of it within 2 s loses it: its call ends with
    /// [`CallError::Reset`](super::CallError::Reset).
    ///
    /// The types may not be recursive, nor hold sequences of values without bytes, such as `Vec<()>`: a peer could then
    /// end or stall the process by one request.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) if this node offers it already,
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a name that is empty or has more than 80 bytes,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn serve<S, Request>(&self, name: &str, service: S) -> Result<Serving, Error>
    where
        S: Service<Request, Future: Send> + Clone + Send + 'static,
        Request: DeserializeOwned + Send + 'static,
        S::Response: Serialize + Send,
        S::Error: Serialize + Send,
    {
        self.serve_with(name, service, Limits::default())
    }

    /// Serves calls like [`Node::serve`], within other limits.
    ///
    /// # Errors
    /// Those of [`Node::serve`].
    pub fn serve_with<S, Request>(
        &self,
        name: &str,
        service: S,
        limits: Limits,
    ) -> Result<Serving, Error>
    where
        S: Service<Request, Future: Send> + Clone + Send + 'static,
        Request: DeserializeOwned + Send + 'static,
        S::Response: Serialize + Send,
        S::Error: Serialize + Send,
    {
        self.serve_as(Kind::Calls.service(name)?, name, service, limits)
    }

    /// Serves calls under a reserved name.
    pub(crate) fn serve_as<S, Request>(
        &self,
        reserved: String,
        name: &str,
        service: S,
        limits: Limits,
    ) -> Result<Serving, Error>
    where
        S: Service<Request, Future: Send> + Clone + Send + 'static,
        Request: DeserializeOwned + Send + 'static,
        S::Response: Serialize + Send,
        S::Error: Serialize + Send,
    {
        let served = self.meter().streams(Role::Server, &reserved);
        let listener = self.offer(reserved)?;
        let concurrency = limits.concurrency.min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Places::new(concurrency));
        let server = Server {
            service,
            name: name.into(),
            served,
            room: Arc::clone(&room),
            places: Arc::new(Places::new(concurrency)),
            most: limits.max_message,
            of: PhantomData,
        };
        let offer = listener.offer();
        let task = self.runtime().spawn(accept(listener, server)).abort_handle();
        Ok(Serving { offer, task, room, concurrency })
    }
}

/// Accepts the streams of a service. When it is dropped, the tasks of its streams end.
async fn accept<S, Request>(mut listener: Listener, server: Server<S, Request>)
where
    S: Service<Request, Future: Send> + Clone + Send + 'static,
    Request: DeserializeOwned + Send + 'static,
    S::Response: Serialize + Send,
    S::Error: Serialize + Send,
{
    let mut streams = JoinSet::new();
    while let Ok((stream, peer)) = listener.accept().await {
        while streams.try_join_next().is_some() {}
        if streams.len() >= MAX_STREAMS {
            streams.spawn(refuse(stream));
            // Refusals are short; their number is bounded as well.
            if streams.len() > 2 * MAX_STREAMS {
                streams.join_next().await;
            }
            continue;
        }
        let server = server.clone();
        streams.spawn(async move {
            let name = Arc::clone(&server.name);
            if let Err(error) = server.run(pipe(stream), &peer).await {
                tracing::debug!(service = &*name, %peer, %error, "a stream of calls has ended");
            }
        });
    }
}

/// Reports that the service has too many streams.
async fn refuse(mut stream: Stream) {
    let head = AnswerHeader { status: Status::Busy, length: 0, limit: 0 }.emit();
    // A new stream has space for it; if not, the caller only sees the end of the stream.
    let _ = timeout(rest_within(0), write_parts(&mut stream, &head, &[], 0)).await;
}

/// A limited number of places.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    /// Each task that waits for a place has a clone.
    waiting: Arc<()>,
}

impl Places {
    fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), waiting: Arc::default() }
    }

    /// Waits for a place, which the permit returns when it is dropped.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(free) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(free);
        }
        let _waiting = Arc::clone(&self.waiting);
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// Returns whether a task waits for a place.
    fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }
}

/// The state that each stream's task needs.
#[derive(Debug)]
struct Server<S, Request> {
    service: S,
    name: Arc<str>,
    served: Arc<Streams>,
    /// Limits the calls in progress, and the long answers in memory.
    room: Arc<Places>,
    /// Limits the long requests in memory whose calls are not in progress yet.
    places: Arc<Places>,
    most: usize,
    of: PhantomData<fn(Request)>,
}

impl<S: Clone, Request> Clone for Server<S, Request> {
    fn clone(&self) -> Self {
        let (name, served) = (Arc::clone(&self.name), Arc::clone(&self.served));
        let (room, places) = (Arc::clone(&self.room), Arc::clone(&self.places));
        let (service, most) = (self.service.clone(), self.most);
        Self { service, name, served, room, places, most, of: PhantomData }
    }
}

impl<S, Request> Server<S, Request>
where
    S: Service<Request> + Clone,
    Request: DeserializeOwned,
    S::Response: Serialize,
    S::Error: Serialize,
{
    /// Handles the calls of a stream until the client drops it.
    async fn run(mut self, mut pipe: Pipe, peer: &PeerName) -> io::Result<()> {
        loop {
            let is_over = timeout(IDLE, pipe.fill_buf()).await??.is_empty();
            if is_over {
                return Ok(());
            }
            let header = timeout(rest_within(0), RequestHeader::read(&mut pipe)).await??;
            let length = header.length as usize;
            if length > self.most {
                let status = Status::RequestTooLarge;
                return answer(&mut pipe, status, self.most, &[]).await;
            }
            let since = Instant::now();
            let deadline = header.remaining.and_then(|time| since.checked_add(time));
            let read = read_payload(&self.places, &mut pipe, length);
            let (payload, place) = match within(deadline, read).await {
                // The whole request may be in the caller's buffers: the end of its stream would look like a lost call.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return answer(&mut pipe, Status::Busy, self.most, &[]).await;
                }
                Ok(read) => read?,
                Err(status) => return answer(&mut pipe, status, self.most, &[]).await,
            };
            let call = Call { payload, place, deadline, trace: header.trace };
            let (status, limit, body, turn) = match self.handle(&mut pipe, call, peer).await? {
                Ok((_, body, _)) if body.len() > self.most => {
                    (Status::ResponseTooLarge, self.most, Vec::new(), None)
                }
                Ok((status, body, turn)) => (status, 0, body, turn),
                Err(status) => (status, self.most, Vec::new(), None),
            };
            self.served.calls.add_one();
            if body.len() <= RESERVED {
                drop(turn);
                answer(&mut pipe, status, limit, &body).await?;
            } else {
                // It stays in memory until the caller has taken it: until then it has the call's place.
                answer_long(&mut pipe, &self.room, status, &body).await?;
            }
        }
    }

    /// Runs a call until it ends, its deadline passes, or its stream ends, which is an error.
    async fn handle(
        &mut self,
        pipe: &mut Pipe,
        Call { payload, place, deadline, trace }: Call,
        peer: &PeerName,
    ) -> io::Result<Result<Answered, Status>> {
        let Ok(request) = decode_value(&payload) else { return Ok(Err(Status::Undecodable)) };
        drop(payload);
        let span = tracing::info_span!("call", service = &*self.name, %peer, traceparent = %trace);
        let context = Context::of_call(deadline, trace, peer.clone());
        let room = Arc::clone(&self.room);
        let called = async {
            let turn = room.take().await;
            drop(place);
            let service = &mut self.service;
            let result = match poll_fn(|task| service.poll_ready(task)).await {
                Ok(()) => {
                    let called = context.clone().enter(|| service.call(request));
                    context.scope(called).await
                }
                Err(error) => Err(error),
            };
            encode(&result).map(|(status, body)| (status, body, turn))
        };
        let called = async { within(deadline, called).await.and_then(|result| result) };
        tokio::select! {
            biased;
            result = called.instrument(span) => Ok(result),
            read = pipe.fill_buf() => Err(match read {
                Ok([]) => io::Error::new(io::ErrorKind::ConnectionAborted, "the caller has dropped the call"),
                Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "a request before the answer to the last one"),
                Err(error) => error,
            }),
        }
    }
}

/// Reads a request's payload. After its first 64 KiB, a long one waits for one of the places, which it has until the
/// call begins. If other requests wait for a place, a slow client is answered that the service is busy: its request was
/// not delivered, and it tries again.
async fn read_payload(
    places: &Places,
    pipe: &mut Pipe,
    length: usize,
) -> io::Result<(Vec<u8>, Option<OwnedSemaphorePermit>)> {
    let first = length.min(RESERVED);
    let mut payload = timeout(rest_within(first), read_body(pipe, first)).await??;
    if first == length {
        return Ok((payload, None));
    }
    let place = places.take().await;
    let on_slow = || match places.is_awaited() {
        true => Err(io::ErrorKind::ResourceBusy.into()),
        false => Ok(()),
    };
    let rest = read_rest(pipe, &mut payload, length, on_slow);
    timeout(rest_within(length), rest).await??;
    Ok((payload, place))
}

/// A call whose request has arrived.
struct Call {
    payload: Vec<u8>,
    /// The place of a long request in memory.
    place: Option<OwnedSemaphorePermit>,
    deadline: Option<Instant>,
    trace: Trace,
}

/// The status and the body of a call's answer, and the place of the call.
type Answered = (Status, Vec<u8>, Option<OwnedSemaphorePermit>);

/// Completes `work`, unless the deadline passes before.
async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Result<T, Status> {
    match deadline {
        Some(at) => timeout_at(at, work).await.map_err(|_| Status::Deadline),
        None => Ok(work.await),
    }
}

fn encode<R: Serialize, E: Serialize>(result: &Result<R, E>) -> Result<(Status, Vec<u8>), Status> {
    let (status, bytes) = match result {
        Ok(response) => (Status::Response, encode_value(response)),
        Err(error) => (Status::Error, encode_value(error)),
    };
    match bytes {
        Ok(bytes) => Ok((status, bytes)),
        // Without a limit, as opposed to a response that is too long.
        Err(WireError::Unencodable) => Ok((Status::ResponseTooLarge, Vec::new())),
        Err(_) => Err(Status::ResponseTooLarge),
    }
}

/// Writes an answer of up to 64 KiB.
async fn answer(pipe: &mut Pipe, status: Status, limit: usize, body: &[u8]) -> io::Result<()> {
    let head = header(status, limit, body).emit();
    timeout(rest_within(body.len()), write_parts(pipe, &head, body, 0)).await?
}

/// Writes a longer answer. If calls wait, a caller that takes it too slowly loses its stream.
async fn answer_long(
    pipe: &mut Pipe,
    room: &Places,
    status: Status,
    body: &[u8],
) -> io::Result<()> {
    let head = header(status, 0, body).emit();
    let on_slow = || match room.is_awaited() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "the caller does not take its answer")),
        false => Ok(()),
    };
    timeout(rest_within(body.len()), write_whole(pipe, &head, body, on_slow)).await?
}

#[expect(clippy::cast_possible_truncation, reason = "both are bounded")]
const fn header(status: Status, limit: usize, body: &[u8]) -> AnswerHeader {
    AnswerHeader { status, length: body.len() as u32, limit: limit as u32 }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Regression: a task that had used up its budget waited for a free place, and counted as a sign that others waited.
    #[tokio::test]
    async fn a_free_place_is_taken_at_once() {
        let places = Places::new(1);
        poll_fn(|task| {
            while pin!(tokio::task::coop::consume_budget()).poll(task).is_ready() {}
            assert!(pin!(places.take()).poll(task).is_ready());
            std::task::Poll::Ready(())
        })
        .await;
    }
}
