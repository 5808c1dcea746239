//! Tests the executor with real stages: it delivers the bytes that it read, cut as planned.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use midplane_pipeline::executor::{Copy, ExecutionError, Executor, StageWorker, Write};
use midplane_pipeline::gantt::{Chart, chrome_trace, svg};
use midplane_pipeline::{Pipeline, Request, Stage, fixed};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::timeout;

struct Broken;

impl StageWorker for Broken {
    async fn process(&mut self, _: Bytes) -> io::Result<Bytes> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

/// Passes on some fragments, then breaks.
struct BreaksLater(usize);

impl StageWorker for BreaksLater {
    async fn process(&mut self, fragment: Bytes) -> io::Result<Bytes> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(fragment)
    }
}

fn sizes(bytes: f64) -> Vec<u64> {
    let stages = [(7.2, 0.0072), (5.2, 0.0249), (7.4, 0.0079)];
    let chain =
        Pipeline::new(stages.iter().map(|&(g, c)| Stage::new(g, c).unwrap()).collect()).unwrap();
    fixed(&chain, &Request::new(bytes)).unwrap().whole_bytes()
}

#[tokio::test]
async fn bytes_cross_memory_and_a_pipe_unchanged() {
    let message: Vec<u8> = (0..100_003_u32).map(|i| (i * 31 % 251) as u8).collect();
    let (near, mut far) = tokio::io::duplex(4096);
    let sizes = sizes(message.len() as f64);
    let executor = Executor::source(io::Cursor::new(message.clone()), sizes.clone())
        .stage(Copy)
        .stage(Write(near));
    let reader = tokio::spawn(async move {
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.map(|_| all)
    });
    let rows = executor.run().await.unwrap();
    assert_eq!(reader.await.unwrap().unwrap(), message);
    assert_eq!(rows.len(), 3 * sizes.len());
    for row in &rows {
        assert_eq!(row.bytes, sizes[row.fragment] as f64);
        assert!(row.end >= row.start);
    }
    let charts = [Chart { title: "measured <&>", rows: &rows }];
    assert!(svg(&charts, &["read", "copy", "write"]).contains("measured &lt;&amp;&gt;"));
    assert!(chrome_trace(&charts, &[]).contains("\"ph\":\"X\""));
}

#[tokio::test]
async fn a_source_that_ends_early_and_a_broken_stage_are_named() {
    let short = Executor::source(io::Cursor::new(vec![0; 10]), vec![8, 8]).stage(Copy).run().await;
    assert!(matches!(short, Err(ExecutionError::Io { stage: 0, .. })), "{short:?}");
    let broken = Executor::source(io::Cursor::new(vec![0; 10]), vec![5, 5])
        .stage(Copy)
        .stage(Broken)
        .run()
        .await;
    assert!(matches!(broken, Err(ExecutionError::Io { stage: 2, .. })), "{broken:?}");
}

#[tokio::test]
async fn a_broken_stage_ends_the_run_while_its_neighbours_wait_for_io() {
    // The source has one of two fragments, and the pipe that the last stage writes to is never read.
    let (mut source, read) = tokio::io::duplex(64);
    source.write_all(&[1; 8]).await.unwrap();
    let run = Executor::source(read, vec![8, 8]).stage(Broken).run();
    let ended = timeout(Duration::from_secs(10), run).await.expect("it ends");
    assert!(matches!(ended, Err(ExecutionError::Io { stage: 1, .. })), "{ended:?}");

    let (full, _unread) = tokio::io::duplex(4);
    let run = Executor::source(io::Cursor::new(vec![0; 16]), vec![8, 8])
        .stage(BreaksLater(1))
        .stage(Write(full))
        .run();
    let ended = timeout(Duration::from_secs(10), run).await.expect("it ends");
    assert!(matches!(ended, Err(ExecutionError::Io { stage: 1, .. })), "{ended:?}");
}

/// An endless source that counts the bytes that were read.
struct Counted(Arc<AtomicU64>);

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.fetch_add(into.remaining() as u64, Ordering::Relaxed);
        into.put_slice(&vec![1; into.remaining()]);
        Poll::Ready(Ok(()))
    }
}

/// Passes on a fragment for each permit.
struct Stalled(Arc<Semaphore>);

impl StageWorker for Stalled {
    async fn process(&mut self, fragment: Bytes) -> io::Result<Bytes> {
        self.0.acquire().await.map_err(io::Error::other)?.forget();
        Ok(fragment)
    }
}

#[tokio::test]
async fn a_fast_source_fills_neither_the_memory_nor_more_than_the_plans_limit() {
    const SIZE: u64 = 1 << 10;
    const COUNT: u64 = 1_000;
    for (limit, most) in [(None, 20), (Some(0), 1), (Some(3), 3)] {
        let (count, permits) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let (source, sizes) = (Counted(Arc::clone(&count)), vec![SIZE; COUNT as usize]);
        let executor = match limit {
            Some(limit) => Executor::limited(source, sizes, limit),
            None => Executor::source(source, sizes),
        };
        let run = tokio::spawn(executor.stage(Copy).stage(Stalled(Arc::clone(&permits))).run());
        for left in 0..50 {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            let inside = count.load(Ordering::Relaxed) / SIZE - left;
            assert!(inside <= most, "{inside} fragments in a chain limited to {limit:?}");
            permits.add_permits(1);
        }
        permits.add_permits(COUNT as usize);
        assert_eq!(run.await.unwrap().unwrap().len() as u64, 3 * COUNT);
    }
}
