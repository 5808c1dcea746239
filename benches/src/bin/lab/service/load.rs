//! The client's part: callers that repeat requests, and their measurement.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use midplane::via::message::group::Rank;
use midplane::via::service::{Client, Streams};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower_service::Service;

use crate::handler::reversed;
use crate::service::Run;
use crate::service::arguments::{Arguments, Fabric, Way};
use crate::service::call::{self, Lower, PATIENCE, World};
use crate::service::contest::{DONE, Site};
use crate::stream;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
fn now() -> Instant {
    Instant::now()
}

/// Results of one measurement.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests_per_s: f64,
    median_us: f64,
    p99_us: f64,
}

/// A caller with one request at a time.
trait Caller: Send + 'static {
    fn ask(&mut self, request: Bytes) -> impl Future<Output = Result<Bytes, String>> + Send;

    /// Closes the caller's connection.
    fn close(self) -> impl Future<Output = Result<(), String>> + Send;
}

struct OverStream<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Caller for OverStream<S> {
    async fn ask(&mut self, request: Bytes) -> Result<Bytes, String> {
        stream::ask(&mut self.0, &request).await.map_err(text)
    }

    async fn close(mut self) -> Result<(), String> {
        stream::close(&mut self.0).await.map_err(text)
    }
}

impl Caller for Client<Lower> {
    async fn ask(&mut self, request: Bytes) -> Result<Bytes, String> {
        poll_fn(|context| self.poll_ready(context)).await.map_err(text)?;
        self.call(request).await.map_err(text)
    }

    async fn close(self) -> Result<(), String> {
        Ok(())
    }
}

/// Measures every contest in every round; returns the medians over the rounds.
///
/// # Errors
/// One line: an answer was wrong, or the server is missing.
pub(crate) async fn ask_all(arguments: &Arguments, site: &Site) -> Result<Vec<Run>, String> {
    let contests = arguments.contests();
    let bar = ProgressBar::new(contests.len() as u64 * u64::from(arguments.rounds));
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a constant"));
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds as usize {
        let mut figures = Vec::new();
        for (at, contest) in contests.iter().enumerate() {
            bar.set_message(format!("{} {}", contest.0, contest.1));
            let number = round * contests.len() + at;
            figures.push(measure(arguments, site, *contest, number).await?);
            bar.inc(1);
        }
        rounds.push(figures);
    }
    bar.finish_and_clear();
    Ok(rows(arguments, &contests, &rounds))
}

/// Converts `rounds[round][contest][size]` into rows.
fn rows(
    arguments: &Arguments,
    contests: &[(Fabric, Way)],
    rounds: &[Vec<Vec<Figures>>],
) -> Vec<Run> {
    let median = |pick: &dyn Fn(&Vec<Vec<Figures>>) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(pick).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let mut rows = Vec::new();
    for (size, bytes) in arguments.bytes.iter().enumerate() {
        for (at, (fabric, way)) in contests.iter().enumerate() {
            let rate = |round: &Vec<Vec<Figures>>| round[at][size].requests_per_s;
            rows.push(Run {
                fabric: *fabric,
                way: *way,
                bytes: *bytes,
                concurrency: arguments.concurrency.into(),
                requests_per_s: median(&rate),
                median_us: median(&|round| round[at][size].median_us),
                p99_us: median(&|round| round[at][size].p99_us),
                ratio: (at > 0)
                    .then(|| median(&|round| rate(round) / round[0][size].requests_per_s)),
            });
        }
    }
    rows
}

async fn measure(
    arguments: &Arguments,
    site: &Site,
    (fabric, way): (Fabric, Way),
    number: usize,
) -> Result<Vec<Figures>, String> {
    match (fabric, way) {
        (Fabric::Tcp, _) => {
            sizes(arguments, async || connect_tcp(site).await.map(OverStream)).await
        }
        (fabric, Way::Stream) => {
            call::over(fabric, site, number, async |world| {
                let streams = Streams::new(world.duplicate().await.map_err(text)?);
                let connect = async || streams.connect(Rank(1)).await.map(OverStream).map_err(text);
                sizes(arguments, connect).await
            })
            .await
        }
        (fabric, Way::Call) => {
            call::over(fabric, site, number, async |world| calls(arguments, world).await).await
        }
    }
}

async fn calls(arguments: &Arguments, world: World) -> Result<Vec<Figures>, String> {
    let own = world.duplicate().await.map_err(text)?;
    let client = Client::new(own, Rank(1)).depth(arguments.concurrency.into());
    let figures = sizes(arguments, async || Ok(client.clone())).await?;
    world.send(Rank(1), DONE, vec![]).await.map_err(text)?;
    Ok(figures)
}

/// Connects to the server, which may still be starting.
async fn connect_tcp(site: &Site) -> Result<TcpStream, String> {
    let until = now() + PATIENCE;
    loop {
        match TcpStream::connect(site.peers[1]).await {
            Ok(socket) => {
                socket.set_nodelay(true).map_err(text)?;
                return Ok(socket);
            }
            Err(error) if now() > until => return Err(format!("{}: {error}", site.peers[1])),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

/// Measures all sizes, each with callers of its own.
async fn sizes<C: Caller>(
    arguments: &Arguments,
    connect: impl AsyncFn() -> Result<C, String>,
) -> Result<Vec<Figures>, String> {
    let mut figures = Vec::new();
    for bytes in arguments.bytes.iter().copied() {
        let mut callers = Vec::new();
        for _ in 0..arguments.concurrency {
            callers.push(connect().await?);
        }
        figures.push(together(callers, bytes, arguments.milliseconds).await?);
    }
    Ok(figures)
}

/// Runs all callers at once, for a fixed time.
async fn together<C: Caller>(
    callers: Vec<C>,
    bytes: usize,
    milliseconds: u64,
) -> Result<Figures, String> {
    let mut tasks = JoinSet::new();
    let begin = now();
    let end = begin + Duration::from_millis(milliseconds);
    for (seed, caller) in callers.into_iter().enumerate() {
        tasks.spawn(ask_until(caller, bytes, seed as u8, end));
    }
    let mut all = Histogram::<u64>::new(3).map_err(text)?;
    let mut last = begin;
    while let Some(ended) = tasks.join_next().await {
        let (latencies, at) = ended.map_err(text)??;
        all.add(&latencies).map_err(text)?;
        last = last.max(at);
    }
    let us = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
    let seconds = last.duration_since(begin).as_secs_f64();
    let requests_per_s = all.len() as f64 / seconds;
    Ok(Figures { requests_per_s, median_us: us(0.5), p99_us: us(0.99) })
}

/// Runs one caller; returns the time of each request in ns, and when the last was answered.
async fn ask_until(
    mut caller: impl Caller,
    bytes: usize,
    seed: u8,
    end: Instant,
) -> Result<(Histogram<u64>, Instant), String> {
    let request: Bytes = (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
    let expected = reversed(&request);
    let mut latencies = Histogram::new(3).map_err(text)?;
    let mut begin = now();
    loop {
        let answer = caller.ask(request.clone()).await?;
        if answer != expected {
            return Err(format!("a request of {bytes} bytes has a wrong answer"));
        }
        let done = now();
        latencies.record(done.duration_since(begin).as_nanos() as u64).map_err(text)?;
        if done >= end {
            caller.close().await?;
            return Ok((latencies, done));
        }
        begin = done;
    }
}
