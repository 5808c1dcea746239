//! The measurement: messages back and forth, then messages one way.

use midplane_kit::claims::median;
use midplane_kit::clock::now;
use midplane_kit::report::quantile;

/// One side of a connection. Both sides know the length of each message.
pub(crate) trait Side {
    /// Sends a message of `bytes`.
    async fn send(&mut self, bytes: usize) -> Result<(), String>;

    /// Receives a message, and reads every byte of it.
    async fn receive(&mut self, bytes: usize) -> Result<(), String>;

    /// Waits until all sends have completed.
    async fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// One side's part in a measurement over a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement<'a> {
    pub(crate) sizes: &'a [usize],
    pub(crate) milliseconds: u32,
    pub(crate) asks: bool,
}

impl Measurement<'_> {
    /// Runs one side; the side that asks returns the numbers at each size.
    pub(crate) async fn run(self, side: &mut impl Side) -> Result<Vec<Figures>, String> {
        match self.asks {
            true => ask(side, self.sizes, self.milliseconds).await,
            false => answer(side, self.sizes, self.milliseconds).await.map(|()| Vec::new()),
        }
    }
}

/// A contestant's numbers at one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) gb_per_s: f64,
}

/// One-way messages in flight before the receiver acknowledges them.
pub(crate) const WINDOW: usize = 16;

/// Bytes of the acknowledgement.
pub(crate) const WORD: usize = 8;

/// Returns the round trips of one batch: enough to time, few enough for many batches.
pub(crate) fn batch_of(bytes: usize) -> usize {
    (200_000 / (bytes + 2_000)).clamp(4, 100)
}

/// Returns the batches at one size; both sides compute the same number.
pub(crate) fn batches(milliseconds: u32, bytes: usize) -> usize {
    // An estimate: 2 us a message and 1 ns a byte.
    let nanos = 2 * (2_000 + bytes as u64) * batch_of(bytes) as u64;
    let wanted = u64::from(milliseconds) * 1_000_000 / nanos;
    usize::try_from(wanted.clamp(20, 5_000)).unwrap_or(20)
}

/// Runs the measuring side.
pub(crate) async fn ask(
    side: &mut impl Side,
    sizes: &[usize],
    milliseconds: u32,
) -> Result<Vec<Figures>, String> {
    let mut figures = Vec::new();
    for bytes in sizes.iter().copied() {
        let (batch, batches) = (batch_of(bytes), batches(milliseconds, bytes));
        // A warm-up of the same length: two new processes may still share a core.
        for _ in 0..batch * batches {
            side.send(bytes).await?;
            side.receive(bytes).await?;
        }
        let mut times = Vec::with_capacity(batches);
        for _ in 0..batches {
            let start = now();
            for _ in 0..batch {
                side.send(bytes).await?;
                side.receive(bytes).await?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / (2 * batch) as f64);
        }
        let stream = batch * batches;
        let start = now();
        for number in 0..stream {
            side.send(bytes).await?;
            if number % WINDOW == WINDOW - 1 {
                side.receive(WORD).await?;
            }
        }
        side.send(WORD).await?;
        side.receive(WORD).await?;
        let seconds = start.elapsed().as_secs_f64();
        figures.push(Figures {
            median_us: median(times.clone()),
            p99_us: quantile(times, 0.99),
            gb_per_s: (stream * bytes) as f64 / seconds / 1e9,
        });
    }
    Ok(figures)
}

/// Runs the answering side.
pub(crate) async fn answer(
    side: &mut impl Side,
    sizes: &[usize],
    milliseconds: u32,
) -> Result<(), String> {
    for bytes in sizes.iter().copied() {
        let (batch, batches) = (batch_of(bytes), batches(milliseconds, bytes));
        for _ in 0..2 * batch * batches {
            side.receive(bytes).await?;
            side.send(bytes).await?;
        }
        for number in 0..batch * batches {
            side.receive(bytes).await?;
            // Half a window early, so that the sender need not stop.
            if number % WINDOW == WINDOW / 2 - 1 && number + WINDOW / 2 < batch * batches {
                side.send(WORD).await?;
            }
        }
        side.receive(WORD).await?;
        side.send(WORD).await?;
    }
    side.finish().await
}
