//! Stages with fixed rates, as cloud volumes and links have. The data is real, but its time is fixed: if the machine
//! is faster, other work on it hardly affects the times.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use midplane::pipeline::executor::StageWorker;
use midplane::simhw::time::nanos;
use midplane::simhw::udp::Alarm;
use midplane_kit::clock::now;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// Gap up to which a stage counts as busy: it then continues from its due time and makes up for a late wake-up, as a
/// device would.
const AT_ONCE: Duration = Duration::from_micros(50);

/// Rate of one stage.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Microseconds per operation.
    pub op_us: f64,
    /// Rate in 10^6 bit/s.
    pub mbps: f64,
}

/// A volume of 3,000 operations and 125 MB a second, as the cheapest general volumes of clouds promise.
pub const DISK: Limit = Limit { op_us: 333.0, mbps: 1000.0 };
/// A gigabit link; a fragment costs a system call, an interrupt and a wake-up on each side.
pub const LINK: Limit = Limit { op_us: 100.0, mbps: 1000.0 };

impl Limit {
    fn time(self, bytes: usize) -> Duration {
        Duration::from_secs_f64((self.op_us + bytes as f64 * 8.0 / self.mbps) * 1e-6)
    }
}

/// Delays operations that complete too early.
#[derive(Debug)]
struct Pace {
    limit: Limit,
    /// Due time of the last fragment, and when its completion was noticed.
    due: Instant,
    done: Instant,
    alarm: Alarm,
}

impl Pace {
    fn new(limit: Limit) -> io::Result<Self> {
        Ok(Self { limit, due: now(), done: now(), alarm: Alarm::new()? })
    }

    fn begin(&mut self, bytes: usize) {
        let now = now();
        let idle = now.saturating_duration_since(self.done);
        let from = if idle < AT_ONCE { self.due } else { now };
        self.due = from + self.limit.time(bytes);
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = now();
            let left = self.due.saturating_duration_since(now);
            if left.is_zero() {
                self.done = now;
                return Poll::Ready(());
            }
            ready!(self.alarm.poll_after(cx, nanos(left)));
        }
    }
}

/// A source with a fixed rate. Every read is one operation over the requested bytes.
#[derive(Debug)]
pub struct PacedRead<R> {
    source: R,
    pace: Pace,
    begun: bool,
}

impl<R> PacedRead<R> {
    pub fn new(source: R, limit: Limit) -> io::Result<Self> {
        Ok(Self { source, pace: Pace::new(limit)?, begun: false })
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for PacedRead<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.begun {
            this.pace.begin(buf.remaining());
            this.begun = true;
        }
        ready!(this.pace.poll_due(cx));
        let read = ready!(Pin::new(&mut this.source).poll_read(cx, buf));
        this.begun = false;
        Poll::Ready(read)
    }
}

/// Writes fragments at a fixed rate: the last byte of each leaves when its time is over, so that the receiver cannot
/// have it earlier.
#[derive(Debug)]
pub struct PacedWrite<W> {
    sink: W,
    pace: Pace,
}

impl<W> PacedWrite<W> {
    pub fn new(sink: W, limit: Limit) -> io::Result<Self> {
        Ok(Self { sink, pace: Pace::new(limit)? })
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> StageWorker for PacedWrite<W> {
    async fn process(&mut self, fragment: Bytes) -> io::Result<Bytes> {
        self.pace.begin(fragment.len());
        let early = fragment.len().saturating_sub(1);
        self.sink.write_all(&fragment[..early]).await?;
        std::future::poll_fn(|cx| self.pace.poll_due(cx)).await;
        self.sink.write_all(&fragment[early..]).await?;
        self.sink.flush().await?;
        Ok(fragment)
    }
}
