//! The streams of a client: idle ones that wait for a call, and how many calls each peer has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use midplane_via::session::Stream;
use tokio::io::{AsyncBufRead, BufReader};
use tokio::time::Instant;

use crate::node::links::{Candidate, Peers};

/// 30 s: an idle stream is dropped after that time, long before a service drops it.
const IDLE: Duration = Duration::from_secs(30);
/// Idle streams to one peer.
const MAX_IDLE: usize = 256;
/// Bytes that a stream reads ahead: a short answer is one read.
const READ_AHEAD: usize = 1_024;

/// A stream of calls.
pub(super) type Pipe = BufReader<Stream>;

/// The streams of a client.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// By the session's number.
    ways: Mutex<BTreeMap<u64, Way>>,
}

/// The streams of one session.
#[derive(Debug, Default)]
struct Way {
    idle: Vec<(Pipe, Instant)>,
    /// Calls that are under way.
    busy: usize,
}

/// A call's share of a session; dropped, the call is over.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Pool>,
    session: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut ways = self.pool.ways();
        if let Some(way) = ways.get_mut(&self.session) {
            way.busy -= 1;
            if way.busy == 0 && way.idle.is_empty() {
                ways.remove(&self.session);
            }
        }
    }
}

impl Lease {
    /// Keeps a stream for the next call. It carries nothing: the call's answer was its last bytes.
    pub(super) fn keep(&self, pipe: Pipe) {
        let mut ways = self.pool.ways();
        let way = ways.entry(self.session).or_default();
        if way.idle.len() < MAX_IDLE {
            way.idle.push((pipe, Instant::now()));
        } else {
            drop(ways);
            drop(pipe);
        }
    }

    /// Takes an idle stream, the one that was used last.
    pub(super) fn take(&self) -> Option<Pipe> {
        loop {
            let (mut pipe, since) = self.pool.ways().get_mut(&self.session)?.idle.pop()?;
            if since.elapsed() < IDLE && is_quiet(&mut pipe) {
                return Some(pipe);
            }
        }
    }
}

/// Returns whether a stream has neither ended nor bytes that no call has asked for.
fn is_quiet(pipe: &mut Pipe) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    std::pin::Pin::new(pipe).poll_fill_buf(&mut context).is_pending()
}

/// Wraps a stream that was opened.
pub(super) fn pipe(stream: Stream) -> Pipe {
    BufReader::with_capacity(READ_AHEAD, stream)
}

impl Pool {
    fn ways(&self) -> MutexGuard<'_, BTreeMap<u64, Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a share of the session which, of two chosen by `random`, has fewer calls.
    pub(super) fn lease<'a>(
        self: &Arc<Self>,
        candidates: &'a [Candidate],
        random: u64,
    ) -> Option<(&'a Candidate, Lease)> {
        let pick = |number: u64| candidates.get(number as usize % candidates.len().max(1));
        let (one, other) = (pick(random & 0xFFFF_FFFF)?, pick(random >> 32)?);
        let mut ways = self.ways();
        let busy = |of: &Candidate| ways.get(&of.session.number()).map_or(0, |way| way.busy);
        let chosen = if busy(other) < busy(one) { other } else { one };
        let session = chosen.session.number();
        ways.entry(session).or_default().busy += 1;
        drop(ways);
        Some((chosen, Lease { pool: Arc::clone(self), session }))
    }

    /// Drops the idle streams that `is_kept` does not name, by session, and those that were idle for long.
    fn prune(&self, is_kept: impl Fn(u64) -> bool) {
        let mut ended = Vec::new();
        let mut ways = self.ways();
        for (session, way) in ways.iter_mut() {
            let is_kept = is_kept(*session);
            let is_due = |(_, since): &mut (Pipe, Instant)| !is_kept || since.elapsed() >= IDLE;
            ended.extend(way.idle.extract_if(.., is_due));
        }
        ways.retain(|_, way| way.busy > 0 || !way.idle.is_empty());
        drop(ways);
        drop(ended);
    }
}

/// Drops idle streams whose peer leaves, or that are idle for long, as long as there is a pool.
pub(super) async fn keep(pool: Weak<Pool>, service: String, mut peers: Peers) {
    let watched = peers.clone();
    loop {
        // Made before the peers are read, so that no change is missed.
        let changed = watched.changed();
        {
            let Some(pool) = pool.upgrade() else { return };
            let offering = peers.offering(&service);
            let is_leaving = peers.is_leaving();
            pool.prune(|session| {
                !is_leaving && offering.iter().any(|one| one.session.number() == session)
            });
            if is_leaving {
                return;
            }
        }
        tokio::select! {
            biased;
            () = changed => {}
            () = tokio::time::sleep(IDLE / 2) => {}
            () = peers.left() => {}
        }
    }
}
