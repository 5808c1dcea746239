//! Ranks over streams in memory that break again and again, and are replaced.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use midplane_simhw::rng::Rng;
use midplane_via::message::carrier::Carrier;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Peer;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::streams::{StreamCarrier, StreamSource};
use midplane_via::message::wires::Wires;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::World;

/// Bytes that a stream can hold.
const HELD: usize = 3_000;
/// Bytes after which the first stream breaks: at least this many, and a random number less than the other one.
const LEAST: i64 = 2_000;
const SPREAD: u64 = 20_000;
/// Limits how often the bytes of a pair's next stream are doubled: the last ones carry the longest packet.
const DOUBLINGS: u32 = 6;

/// Makes the streams between all ranks.
struct Connector {
    rng: Rng,
    sources: Vec<StreamSource<Fragile>>,
    /// Streams made for each pair.
    made: BTreeMap<[u32; 2], u32>,
}

impl Connector {
    fn connect(connector: &Arc<Mutex<Self>>, pair: [u32; 2]) {
        let mut own = connector.lock().unwrap();
        let made = own.made.entry(pair).or_insert(0);
        let doubled = (*made).min(DOUBLINGS);
        *made += 1;
        let bytes_left = (LEAST + own.rng.below(SPREAD) as i64) << doubled;
        let left = Arc::new(AtomicI64::new(bytes_left));
        let (one, other) = duplex(HELD);
        for (end, stream) in [(0, one), (1, other)] {
            let (connector, left) = (Arc::clone(connector), Arc::clone(&left));
            let stream = Fragile { stream, left, connector, pair };
            own.sources[pair[end] as usize].connect(Peer(pair[1 - end]), stream);
        }
    }
}

/// One end of a stream that breaks.
struct Fragile {
    stream: DuplexStream,
    /// Bytes until the stream breaks; both ends count.
    left: Arc<AtomicI64>,
    connector: Arc<Mutex<Connector>>,
    pair: [u32; 2],
}

impl Fragile {
    /// Breaks the stream once it has carried its bytes; the first end that detects that has it replaced.
    fn check(&self) -> io::Result<()> {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            return Ok(());
        }
        if left > i64::MIN / 2 {
            self.left.store(i64::MIN, Ordering::Relaxed);
            Connector::connect(&self.connector, self.pair);
        }
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl AsyncRead for Fragile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Fragile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.left.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Makes ranks whose streams break. With memory, packets use it once two ranks have found each other there.
pub(crate) fn world(ranks: u32, config: Config, with_memory: bool) -> Vec<World> {
    let (carriers, feeds): (Vec<_>, Vec<_>) =
        (0..ranks).map(|rank| StreamCarrier::new(Peer(rank), ranks)).unzip();
    let sources = feeds.iter().map(|feed| feed.source()).collect();
    let connector = Arc::new(Mutex::new(Connector {
        rng: Rng::new(3, "breaks"),
        sources,
        made: BTreeMap::new(),
    }));
    for one in 0..ranks {
        for other in 0..one {
            Connector::connect(&connector, [one, other]);
        }
    }
    let memories = network(ranks as usize, MemoryConfig::default());
    let ends = carriers.into_iter().zip(memories).enumerate();
    ends.map(|(rank, (streams, memory))| {
        let mut all: Vec<Box<dyn Carrier>> = vec![Box::new(streams)];
        if with_memory {
            all.insert(0, Box::new(memory));
        }
        let wires = Wires::new(1 + rank as u64, u64::from(with_memory), all);
        Communicator::world(Engine::new(wires, config), ranks).unwrap()
    })
    .collect()
}
