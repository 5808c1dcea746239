//! Calls a service by its name.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};
use std::time::Duration;

use midplane_simhw::wire::{WireError, decode_value, encode_value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use super::context::{Context, earlier};
use super::frame::{AnswerHeader, RequestHeader, Status};
use super::pool::{self, Lease, Pipe, Pool};
use super::{CallError, Limits};
use crate::framing::{read_body, write_parts};
use crate::node::Node;
use crate::node::host;
use crate::node::links::{Candidate, Kind};
use crate::node::meter::Calls;

/// Default limit of the time that a call takes: 30 s.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Lost peers after which an idempotent call fails.
const MAX_LOST: usize = 3;

/// Calls a service by its name, on any node that offers it; made by [`Node::client`].
///
/// Each call goes to one of the nearest nodes that offer the service. Of two chosen at random, it goes to the one with
/// fewer calls of this client. A call that was certainly not delivered is sent to another node. Clones share the limits
/// and the streams. A client keeps its node running.
///
/// # Cancel safety
/// Dropping a call drops its stream. The peer drops the service's future when it detects that.
pub struct Client<Request, R, E> {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    limits: Limits,
    timeout: Duration,
    is_idempotent: bool,
    permit: Option<OwnedSemaphorePermit>,
    turn: Option<Turn>,
    of: PhantomData<fn(Request) -> (R, E)>,
}

type Turn = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync>>;

#[derive(Debug)]
struct Shared {
    node: Node,
    name: String,
    service: OnceLock<String>,
    /// The number of the node to call; `None` if any node that offers the service may be called.
    peer: Option<u64>,
    pool: Arc<Pool>,
    is_kept: AtomicBool,
    counted: Arc<Calls>,
}

impl<Request, R, E> Clone for Client<Request, R, E> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            room: Arc::clone(&self.room),
            permit: None,
            turn: None,
            ..*self
        }
    }
}

impl<Request, R, E> fmt::Debug for Client<Request, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("service", &self.shared.name).finish_non_exhaustive()
    }
}

impl Node {
    /// Creates a client of a service of calls, within the default [`Limits`]. It connects at its first call.
    ///
    /// The types may not be recursive, nor hold sequences of values without bytes, such as `Vec<()>`: a peer could then
    /// end or stall the process by one answer.
    #[must_use]
    pub fn client<Request, R, E>(&self, name: &str) -> Client<Request, R, E> {
        self.make_client(name, OnceLock::new(), None)
    }

    /// Creates a client of one node's service of calls, by the service's reserved name.
    pub(crate) fn client_of<Request, R, E>(
        &self,
        reserved: &str,
        peer: u64,
    ) -> Client<Request, R, E> {
        self.make_client(reserved, OnceLock::from(reserved.to_owned()), Some(peer))
    }

    fn make_client<Request, R, E>(
        &self,
        name: &str,
        service: OnceLock<String>,
        peer: Option<u64>,
    ) -> Client<Request, R, E> {
        let limits = Limits::default();
        let shared = Shared {
            node: self.clone(),
            name: name.to_owned(),
            service,
            peer,
            pool: Arc::default(),
            is_kept: AtomicBool::new(false),
            counted: self.meter().calls(name),
        };
        Client {
            shared: Arc::new(shared),
            room: Arc::new(Semaphore::new(limits.concurrency)),
            limits,
            timeout: DEFAULT_TIMEOUT,
            is_idempotent: false,
            permit: None,
            turn: None,
            of: PhantomData,
        }
    }
}

impl<Request, R, E> Client<Request, R, E> {
    /// Sets the limits of this client, and of clones made from it later.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.room = Arc::new(Semaphore::new(limits.concurrency.min(Semaphore::MAX_PERMITS)));
        self.limits = limits;
        self
    }

    /// Limits how long a call takes, including the wait for its turn. Default: [`DEFAULT_TIMEOUT`]. The deadline of a
    /// [`Context`] around the call may be sooner. As a `tower` service, the client waits for the turn in `poll_ready`,
    /// without a limit, and the time begins with the call after it.
    #[must_use]
    pub const fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// Permits services to handle a request up to three times: if its peer is lost, the call is retried, at another node
    /// if there is one.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }
}

impl<Request, R, E> Client<Request, R, E>
where
    Request: Serialize,
    R: DeserializeOwned,
    E: DeserializeOwned,
{
    /// Calls the service.
    ///
    /// # Errors
    /// [`CallError`]: the service's own error is [`CallError::Service`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the service may have handled the request, or a part of it.
    pub async fn call(&self, request: Request) -> Result<R, CallError<E>> {
        let call = self.prepare(&request)?;
        let room = Arc::clone(&self.room);
        call.run(async move { room.acquire_owned().await.ok() }).await.and_then(Answer::decode)
    }

    fn prepare(&self, request: &Request) -> Result<Call, CallError<E>> {
        let most = self.limits.max_message;
        let what = "request";
        let payload = match encode_value(request) {
            Ok(payload) if payload.len() <= most => payload,
            Err(WireError::Unencodable) => return Err(CallError::Encode { what }),
            _ => return Err(CallError::TooLarge { what, limit: most }),
        };
        let context = Context::current().unwrap_or_default();
        let own = Instant::now().checked_add(self.timeout);
        Ok(Call {
            shared: Arc::clone(&self.shared),
            payload,
            deadline: earlier(own, context.deadline()),
            context,
            most,
            is_idempotent: self.is_idempotent,
        })
    }
}

impl<Request, R, E> Service<Request> for Client<Request, R, E>
where
    Request: Serialize,
    R: DeserializeOwned + Send + 'static,
    E: DeserializeOwned + Send + 'static,
{
    type Response = R;
    type Error = CallError<E>;
    type Future = Pin<Box<dyn Future<Output = Result<R, CallError<E>>> + Send>>;

    /// Waits while the number of calls in progress is at the limit.
    fn poll_ready(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.permit.is_none() {
            let room = &self.room;
            let turn = self.turn.get_or_insert_with(|| Box::pin(Arc::clone(room).acquire_owned()));
            self.permit = ready!(turn.as_mut().poll(task)).ok();
            self.turn = None;
        }
        Poll::Ready(Ok(()))
    }

    /// # Panics
    /// If the client was not ready.
    fn call(&mut self, request: Request) -> Self::Future {
        let permit = self.permit.take().expect("a client is called once it is ready");
        let call = self.prepare(&request);
        Box::pin(async move {
            call?.run(std::future::ready(Some(permit))).await.and_then(Answer::decode)
        })
    }
}

/// A call with its encoded request, independent of its types.
struct Call {
    shared: Arc<Shared>,
    payload: Vec<u8>,
    deadline: Option<Instant>,
    context: Context,
    most: usize,
    is_idempotent: bool,
}

/// An answer of a service.
struct Answer {
    status: Status,
    limit: usize,
    body: Vec<u8>,
}

/// The reason why no answer arrived.
enum Lost {
    /// The request was not sent completely: no service was called.
    Undelivered,
    /// The peer may have handled the request.
    Delivered(io::Error),
}

impl Call {
    /// Runs the call once `turn` is ready.
    async fn run<E>(
        self,
        turn: impl Future<Output = Option<OwnedSemaphorePermit>>,
    ) -> Result<Answer, CallError<E>> {
        let service = &self.shared.name;
        let span = tracing::debug_span!("request", service, traceparent = %self.context.trace());
        let run = async {
            let _permit = turn.await;
            self.attempts().await
        }
        .instrument(span);
        let done = match self.deadline {
            None => run.await,
            Some(at) => tokio::time::timeout_at(at, run).await.unwrap_or(Err(CallError::Deadline)),
        };
        let counted = &self.shared.counted;
        let total = match done.as_ref().map(|answer| answer.status) {
            Ok(Status::Response) => &counted.answered,
            Ok(Status::Error) => &counted.service_errors,
            _ => &counted.failed,
        };
        total.add_one();
        done
    }

    /// Tries one node after another.
    async fn attempts<E>(&self) -> Result<Answer, CallError<E>> {
        let service = self.shared.service()?;
        let node = &self.shared.node;
        let until = node.search_deadline();
        let mut refused = BTreeSet::new();
        let (mut last, mut lost) = (None, 0);
        loop {
            let peer = self.shared.peer;
            let is_fit = |one: &Candidate| peer.is_none_or(|peer| peer == one.peer);
            let found = node.find(service, &mut refused, until, is_fit).await;
            let candidates = match found {
                Ok(candidates) => candidates,
                Err(error) => return Err(last.unwrap_or(CallError::Node(error))),
            };
            let has_choice = candidates.len() > 1;
            let random = if has_choice { host::random().unwrap_or(0) } else { 0 };
            let leased = self.shared.pool.lease(&candidates, random);
            let (candidate, lease) = leased.expect("a candidate was found");
            let session = candidate.session.number();
            let why = match self.attempt(service, candidate, &lease).await {
                Ok(answer) if answer.status == Status::Busy => CallError::Busy,
                Ok(answer) => return Ok(answer),
                Err(Lost::Undelivered) => {
                    refused.insert(session);
                    continue;
                }
                Err(Lost::Delivered(error)) => {
                    lost += 1;
                    if !self.is_idempotent || lost >= MAX_LOST {
                        return Err(CallError::Reset(error));
                    }
                    CallError::Reset(error)
                }
            };
            // A call that may have run stays so, even if the next node is busy.
            if !matches!(last, Some(CallError::Reset(_))) {
                last = Some(why);
            }
            refused.insert(session);
        }
    }

    /// Calls one node, over an idle stream or a new one.
    async fn attempt(
        &self,
        service: &str,
        candidate: &Candidate,
        lease: &Lease,
    ) -> Result<Answer, Lost> {
        while let Some(pipe) = lease.take() {
            match self.exchange(pipe, lease).await {
                // The peer has ended the idle stream: try the next one, or a new one.
                Err(Lost::Undelivered) => {}
                done => return done,
            }
        }
        let opened = self.shared.node.open_at(candidate, service).await;
        self.exchange(pool::pipe(opened.ok_or(Lost::Undelivered)?), lease).await
    }

    async fn exchange(&self, mut pipe: Pipe, lease: &Lease) -> Result<Answer, Lost> {
        let remaining = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        #[expect(clippy::cast_possible_truncation, reason = "it was bounded")]
        let length = self.payload.len() as u32;
        let trace = self.context.trace().clone();
        let head = RequestHeader { length, remaining, trace }.emit();
        let written = write_parts(&mut pipe, &head, &self.payload, 0).await;
        // A service that refuses a request answers before it has read all of it.
        let read = self.read(&mut pipe).await;
        let (answer, is_whole) = match (written, read) {
            (_, Ok(read)) => read,
            (Err(_), Err(_)) => return Err(Lost::Undelivered),
            (Ok(()), Err(error)) => return Err(Lost::Delivered(error)),
        };
        let ends = matches!(answer.status, Status::Busy | Status::RequestTooLarge);
        if !ends && is_whole {
            lease.keep(pipe);
        }
        Ok(answer)
    }

    /// Reads an answer; returns whether it was read completely.
    async fn read(&self, pipe: &mut Pipe) -> io::Result<(Answer, bool)> {
        let AnswerHeader { status, length, limit } = AnswerHeader::read(pipe).await?;
        if length as usize > self.most {
            let (status, body) = (Status::ResponseTooLarge, Vec::new());
            return Ok((Answer { status, limit: self.most, body }, false));
        }
        let body = read_body(pipe, length as usize).await?;
        Ok((Answer { status, limit: limit as usize, body }, true))
    }
}

impl Answer {
    fn decode<R: DeserializeOwned, E: DeserializeOwned>(self) -> Result<R, CallError<E>> {
        let too_large = |what| CallError::TooLarge { what, limit: self.limit };
        Err(match self.status {
            Status::Response => {
                return decode_value(&self.body)
                    .map_err(|_| CallError::Decode { what: "response" });
            }
            Status::Error => decode_value(&self.body)
                .map_or(CallError::Decode { what: "error" }, CallError::Service),
            Status::Deadline => CallError::Deadline,
            Status::Undecodable => CallError::Decode { what: "request" },
            Status::RequestTooLarge => too_large("request"),
            Status::ResponseTooLarge if self.limit == 0 => CallError::Encode { what: "response" },
            Status::ResponseTooLarge => too_large("response"),
            Status::Busy => CallError::Busy,
        })
    }
}

impl Shared {
    /// Returns the reserved name of the service. The first call starts the task that drops old idle streams.
    fn service<E>(&self) -> Result<&str, CallError<E>> {
        if self.service.get().is_none() {
            let service = Kind::Calls.service(&self.name).map_err(CallError::Node)?;
            let _ = self.service.set(service);
        }
        let service = self.service.get().expect("it was set");
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            let pool = (Arc::downgrade(&self.pool), self.pool.open.subscribe());
            let keeping = pool::keep(pool, service.clone(), self.node.links());
            self.node.runtime().spawn(keeping);
        }
        Ok(service)
    }
}
