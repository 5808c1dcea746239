//! One side of a connection with tagged messages, and the parts that the sides of all layers share.

use std::time::{Duration, Instant};

use bytes::Bytes;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::via::message::carrier::Carrier;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::{CommHandle, Rank};
use midplane::via::message::process::{Parker, Process};
use midplane::via::message::request::{Load, Mode};
use midplane::via::message::transport::Wait as Advance;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

use crate::pingpong::arguments::{MAX_BYTES, Wait};
use crate::pingpong::measure::{Side, WINDOW};
use crate::report::text;

/// Number of posted receives.
pub(crate) const RECEIVES: usize = 2 * WINDOW;

/// Returns the bytes from one buffer of `most` bytes to the next: an odd number of cache lines, because buffers a
/// power of two apart would compete for the same cache sets.
pub(crate) const fn stride(most: usize) -> usize {
    const LINE: usize = 64;
    most.next_multiple_of(2 * LINE) + LINE
}

/// Empty polls (some 15 us) after which a polling process yields its core: with more processes than cores, the
/// awaited one may need it.
const POLLS: u32 = 256;

/// Bytes of a message that a receiver reads at a time, in place.
pub(crate) const GLANCE: usize = 4096;

/// Reads every byte of a message in registered memory.
pub(crate) fn read_all(
    scratch: &mut [u8],
    bytes: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), midplane::simhw::region::RegionError>,
) -> Result<(), String> {
    for at in (0..bytes).step_by(GLANCE) {
        read(at, &mut scratch[..GLANCE.min(bytes - at)]).map_err(text)?;
    }
    Ok(())
}

/// Empty polls: their number, and when the present silence was first noticed.
#[derive(Debug, Default)]
pub(crate) struct EmptyPolls {
    count: u32,
    since: Option<Instant>,
}

impl EmptyPolls {
    /// Polls until there is a value.
    ///
    /// # Errors
    /// [`lost`], after [`LOST`] without a value.
    #[inline]
    pub(crate) fn until<T>(&mut self, mut poll: impl FnMut() -> Option<T>) -> Result<T, String> {
        self.since = None;
        loop {
            match poll() {
                Some(value) => return Ok(value),
                None if self.again() => {
                    // The process may have been stopped for longer than that: polls once more.
                    let checked = self.check(now());
                    match poll() {
                        Some(value) => return Ok(value),
                        None => checked?,
                    }
                }
                None => {}
            }
        }
    }

    /// Counts an empty poll. Returns true now and then, after it has yielded the core.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.count = self.count.wrapping_add(1);
        // No pause between polls: a pause takes longer than a poll.
        let yields = self.count.is_multiple_of(POLLS);
        if yields {
            std::thread::yield_now();
        }
        yields
    }

    /// Checks how long the silence has lasted at `now`.
    fn check(&mut self, now: Instant) -> Result<(), String> {
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) > LOST { Err(lost()) } else { Ok(()) }
    }
}

#[expect(clippy::disallowed_methods, reason = "a wait for another process")]
fn now() -> Instant {
    Instant::now()
}

/// Silence after which an unreliable message counts as lost.
pub(crate) const LOST: Duration = Duration::from_secs(2);

pub(crate) fn lost() -> String {
    format!("no message arrived for {LOST:?}: it was lost, or the other process has ended")
}

/// Messages with tags: polled by hand, or as futures.
pub(crate) enum Messages {
    Polled(Box<Polled>),
    Awaited { all: Communicator, peer: Rank, scratch: Bytes },
}

/// A process that is polled by hand.
pub(crate) struct Polled {
    process: Process,
    scope: CommHandle,
    peer: Rank,
    scratch: Vec<u8>,
    storage: Vec<u8>,
    parker: Parker,
}

const TAG: Tag = Tag(1);

/// Opens the carrier of messages over Virtual Interfaces.
pub(crate) async fn interfaces(host: &impl Host, eager: usize) -> Result<RdmaCarrier, String> {
    let own = Peer(host.node().0.into());
    let config = RdmaConfig::default().eager(eager);
    RdmaCarrier::open(host, own, &[NodeId(0), NodeId(1)], config).await.map_err(text)
}

impl Messages {
    pub(crate) fn new(
        carrier: impl Carrier + 'static,
        most: usize,
        wait: Wait,
        eager: usize,
    ) -> Result<Self, String> {
        let peer = Rank(1 - carrier.own().0);
        let engine = Engine::new(carrier, Config::default().eager(eager));
        if wait == Wait::Await {
            return Ok(Self::of(Communicator::world(engine, 2).map_err(text)?, most));
        }
        let (process, scope) = Process::new(engine, 2).map_err(text)?;
        let (scratch, parker) = (vec![7; most.max(8)], Parker::polling());
        let storage = scratch.clone();
        let polled = Polled { process, scope, peer, scratch, storage, parker };
        Ok(Self::Polled(Box::new(polled)))
    }

    /// Takes a communicator of two ranks that is awaited.
    pub(crate) fn of(all: Communicator, most: usize) -> Self {
        let (peer, scratch) = (Rank(1 - all.rank().0), Bytes::from(vec![7; most.max(8)]));
        Self::Awaited { all, peer, scratch }
    }
}

impl Side for Messages {
    async fn send(&mut self, bytes: usize) -> Result<(), String> {
        match self {
            Self::Polled(polled) => {
                let Polled { process, scope, peer, scratch, parker, .. } = &mut **polled;
                let message = &scratch[..bytes];
                process.send(scope, Mode::Standard, *peer, TAG, message, parker).map_err(text)
            }
            Self::Awaited { all, peer, scratch } => {
                all.send(*peer, TAG, scratch.slice(..bytes)).await.map_err(text)
            }
        }
    }

    async fn receive(&mut self, bytes: usize) -> Result<(), String> {
        let length = match self {
            Self::Polled(polled) => {
                let Polled { process, scope, peer, storage, parker, .. } = &mut **polled;
                let load = Load::Room { room: MAX_BYTES, storage: std::mem::take(storage) };
                let received = process.receive(scope, Some(*peer), Some(TAG), load, parker);
                let outcome = received.map_err(text)?;
                outcome.result.map_err(text)?;
                *storage = outcome.bytes;
                storage.len()
            }
            Self::Awaited { all, peer, .. } => {
                all.receive(*peer, TAG).await.map_err(text)?.bytes.len()
            }
        };
        if length == bytes {
            Ok(())
        } else {
            Err(format!("a message has {length} bytes, not {bytes}"))
        }
    }

    async fn finish(&mut self) -> Result<(), String> {
        match self {
            Self::Polled(polled) => {
                while polled.process.engine_mut().finalize().is_pending() {
                    polled.process.engine_mut().advance(Advance::Not);
                }
            }
            Self::Awaited { all, .. } => all.finalize().await,
        }
        Ok(())
    }
}
