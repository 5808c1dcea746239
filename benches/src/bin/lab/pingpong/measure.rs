//! The game: so many messages there and back, and so many one way.

use std::time::{Duration, Instant};

/// One side of a connection. Messages have the length that both sides expect.
pub(crate) trait Side {
    /// Sends a message of `bytes`.
    async fn send(&mut self, bytes: usize) -> Result<(), String>;

    /// Receives a message, and reads every byte of it.
    async fn receive(&mut self, bytes: usize) -> Result<(), String>;

    /// Waits until all that was sent is the other side's.
    async fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What one contestant did at one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) gb_per_s: f64,
}

/// Messages that may be on their way one way before the receiver says that it has them.
pub(crate) const WINDOW: usize = 16;

/// Bytes of the first side's word on how many messages there are.
pub(crate) const WORD: usize = 8;

#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
fn now() -> Instant {
    Instant::now()
}

pub(crate) fn median(mut sorted: Vec<f64>) -> f64 {
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Round trips of one batch: enough to time, few enough to have many batches.
pub(crate) fn batch_of(bytes: usize) -> usize {
    (200_000 / (bytes + 2_000)).clamp(4, 100)
}

/// Batches that both sides play at one size, so that neither need tell the other.
pub(crate) fn batches(milliseconds: u32, bytes: usize) -> usize {
    // About 2 us a message and 1 ns a byte, to begin with.
    let nanos = 2 * (2_000 + bytes as u64) * batch_of(bytes) as u64;
    let wanted = u64::from(milliseconds) * 1_000_000 / nanos;
    usize::try_from(wanted.clamp(20, 5_000)).unwrap_or(20)
}

/// The side that asks, and measures.
pub(crate) async fn ask(
    side: &mut impl Side,
    sizes: &[usize],
    milliseconds: u32,
) -> Result<Vec<Figures>, String> {
    let mut figures = Vec::new();
    for bytes in sizes.iter().copied() {
        let (batch, batches) = (batch_of(bytes), batches(milliseconds, bytes));
        // As long again before it counts: two processes that have just begun may share a core still.
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
            times.push(micros(start.elapsed()) / (2 * batch) as f64);
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
        times.sort_by(f64::total_cmp);
        figures.push(Figures {
            median_us: times[times.len() / 2],
            p99_us: times[times.len() * 99 / 100],
            gb_per_s: (stream * bytes) as f64 / seconds / 1e9,
        });
    }
    Ok(figures)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The side that answers.
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
            // Half a window early: the sender need not stop for it.
            if number % WINDOW == WINDOW / 2 - 1 && number + WINDOW / 2 < batch * batches {
                side.send(WORD).await?;
            }
        }
        side.receive(WORD).await?;
        side.send(WORD).await?;
    }
    side.finish().await
}
