//! The streams of a client: idle ones for the next calls, and the number of calls to each peer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_via::session::Stream;
use tokio::io::{AsyncBufRead, BufReader};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::node::links::{Candidate, Peers};

/// Time after which an idle stream is dropped: 30 s, long before the service drops it.
const IDLE: Duration = Duration::from_secs(30);
/// Most idle streams to one peer.
const MAX_IDLE: usize = 256;
/// Bytes that a stream reads ahead: a short answer takes one read.
const READ_AHEAD: usize = 1_024;

/// A stream of calls.
pub(super) type Pipe = BufReader<Stream>;

/// The streams of a client.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The streams of each session, by the session's number.
    sessions: Mutex<BTreeMap<u64, SessionStreams>>,
    /// True once this node leaves: no stream is kept any longer.
    is_closed: AtomicBool,
    /// Closed when the pool is dropped.
    pub(super) open: watch::Sender<()>,
}

/// The streams of one session.
#[derive(Debug, Default)]
struct SessionStreams {
    idle: Vec<(Pipe, Instant)>,
    /// Calls in progress.
    busy: usize,
    /// True if the peer leaves: no stream is kept any longer.
    is_ended: bool,
}

/// A call's share of a session. Dropping it ends the call.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Pool>,
    session: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut sessions = lock(&self.pool.sessions);
        if let Some(streams) = sessions.get_mut(&self.session) {
            streams.busy -= 1;
            if streams.busy == 0 && streams.idle.is_empty() {
                sessions.remove(&self.session);
            }
        }
    }
}

impl Lease {
    /// Keeps a stream for the next call, unless this node or the peer leaves. All bytes of the answer were read, so the
    /// stream is empty.
    pub(super) fn keep(&self, pipe: Pipe) {
        let mut sessions = lock(&self.pool.sessions);
        let streams = sessions.entry(self.session).or_default();
        let is_kept = !(streams.is_ended || self.pool.is_closed.load(Ordering::Relaxed));
        if is_kept && streams.idle.len() < MAX_IDLE {
            streams.idle.push((pipe, Instant::now()));
        } else {
            drop(sessions);
            drop(pipe);
        }
    }

    /// Takes the idle stream that was used last.
    pub(super) fn take(&self) -> Option<Pipe> {
        loop {
            let (mut pipe, since) = lock(&self.pool.sessions).get_mut(&self.session)?.idle.pop()?;
            if since.elapsed() < IDLE && is_quiet(&mut pipe) {
                return Some(pipe);
            }
        }
    }
}

/// Returns whether a stream neither has ended nor has received bytes that no call requested.
fn is_quiet(pipe: &mut Pipe) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    std::pin::Pin::new(pipe).poll_fill_buf(&mut context).is_pending()
}

/// Wraps an opened stream.
pub(super) fn pipe(stream: Stream) -> Pipe {
    BufReader::with_capacity(READ_AHEAD, stream)
}

impl Pool {
    /// Takes a share of the session which, of two chosen by `random`, has fewer calls.
    pub(super) fn lease<'a>(
        self: &Arc<Self>,
        candidates: &'a [Candidate],
        random: u64,
    ) -> Option<(&'a Candidate, Lease)> {
        let pick = |number: u64| candidates.get(number as usize % candidates.len().max(1));
        let (one, other) = (pick(random & 0xFFFF_FFFF)?, pick(random >> 32)?);
        let mut sessions = lock(&self.sessions);
        let busy =
            |of: &Candidate| sessions.get(&of.session.number()).map_or(0, |streams| streams.busy);
        let chosen = if busy(other) < busy(one) { other } else { one };
        let session = chosen.session.number();
        sessions.entry(session).or_default().busy += 1;
        drop(sessions);
        Some((chosen, Lease { pool: Arc::clone(self), session }))
    }

    /// Drops idle streams of sessions for which `is_kept` returns `false`, and those that were idle for too long.
    fn prune(&self, is_kept: impl Fn(u64) -> bool) {
        let mut ended = Vec::new();
        let mut sessions = lock(&self.sessions);
        for (session, streams) in sessions.iter_mut() {
            let is_kept = is_kept(*session);
            streams.is_ended = !is_kept;
            let is_due = |(_, since): &mut (Pipe, Instant)| !is_kept || since.elapsed() >= IDLE;
            ended.extend(streams.idle.extract_if(.., is_due));
        }
        sessions.retain(|_, streams| streams.busy > 0 || !streams.idle.is_empty());
        drop(sessions);
        drop(ended);
    }
}

/// Drops idle streams whose peer leaves, and those that were idle for too long, until the pool is dropped.
pub(super) async fn keep(
    (pool, mut open): (Weak<Pool>, watch::Receiver<()>),
    service: String,
    mut peers: Peers,
) {
    let watched = peers.clone();
    loop {
        // Created before the peers are read, so that no change is missed.
        let changed = watched.changed();
        {
            let Some(pool) = pool.upgrade() else { return };
            let offering = peers.offering(&service);
            let is_leaving = peers.is_leaving();
            pool.is_closed.store(is_leaving, Ordering::Relaxed);
            pool.prune(|session| {
                !is_leaving && offering.iter().any(|one| one.session.number() == session)
            });
            if is_leaving {
                return;
            }
        }
        tokio::select! {
            biased;
            _ = open.changed() => {}
            () = changed => {}
            () = tokio::time::sleep(IDLE / 2) => {}
            () = peers.left() => {}
        }
    }
}
