//! The process of a client: does a row's work for the seconds in each line of its input.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{MissedTickBehavior, interval};

use crate::arguments::{Row, What};
use crate::place::{Host, Io, Target, write_line};
use crate::{Failure, bulk, calls, grpc, http};

/// The period of requests of [`What::Paced`].
const PERIOD: Duration = Duration::from_millis(3);
/// The time that connections have to give memory back once they are idle.
const SETTLE: Duration = Duration::from_secs(3);

/// Writes that it is ready. Then, for each line of its input with seconds, does the work and writes its amount.
pub async fn run(row: Row, place: &str, host: Host) -> Result<(), Failure> {
    let target = Target::new(row.transport, place, host).await?;
    let mut callers = Caller::all(&target, row).await?;
    let mut held = Vec::new();
    for caller in &mut callers {
        caller.call().await?;
    }
    write_line("ready");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        let time = Duration::from_secs_f64(order.parse()?);
        let done = match row.what {
            What::Idle => idle(time).await,
            What::Paced => paced(&mut callers, time).await?,
            What::Memory => hold(&target, row.connections, &mut held).await?,
            _ => answers(&mut callers, time).await?,
        };
        write_line(done);
    }
    Ok(())
}

/// A caller of any service, with one request under way.
enum Caller {
    Http(http::Caller),
    Grpc(grpc::Caller),
    Call(calls::Caller),
}

impl Caller {
    async fn all(target: &Target, row: Row) -> Result<Vec<Self>, Failure> {
        let bytes = match row.what {
            What::Tonic64 | What::Call64 => 64,
            What::Call65536 => 65_536,
            _ => 4096,
        };
        let mut all = Vec::new();
        match row.what {
            What::Tonic64 | What::Tonic4096 => {
                let caller = grpc::Caller::new(target, bytes).await?;
                all.extend((0..row.connections).map(|_| Self::Grpc(caller.clone())));
            }
            What::Call64 | What::Call4096 | What::Call65536 => {
                let callers = calls::Caller::new(target, bytes, row.connections).await?;
                all.extend(callers.into_iter().map(Self::Call));
            }
            What::Memory => {}
            _ => {
                for _ in 0..row.connections {
                    let is_large = row.what == What::Axum4mib;
                    all.push(Self::Http(http::Caller::new(target, is_large).await?));
                }
            }
        }
        Ok(all)
    }

    async fn call(&mut self) -> Result<(), Failure> {
        match self {
            Self::Http(caller) => caller.call().await,
            Self::Grpc(caller) => caller.call().await,
            Self::Call(caller) => caller.call().await,
        }
    }
}

/// Counts the answers of all callers at once.
async fn answers(callers: &mut Vec<Caller>, time: Duration) -> Result<f64, Failure> {
    let (answers, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let start = |mut caller: Caller| {
        let (answers, ends) = (Arc::clone(&answers), Arc::clone(&ends));
        tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                caller.call().await?;
                answers.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Failure>(caller)
        })
    };
    let tasks: Vec<_> = std::mem::take(callers).into_iter().map(start).collect();
    let since = Instant::now();
    tokio::time::sleep(time).await;
    let (count, taken) = (answers.load(Ordering::Relaxed), since.elapsed());
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        callers.push(task.await??);
    }
    // A timer may be late.
    Ok(count as f64 * time.as_secs_f64() / taken.as_secs_f64())
}

async fn idle(time: Duration) -> f64 {
    tokio::time::sleep(time).await;
    0.0
}

/// Has each caller ask once in each period.
async fn paced(callers: &mut [Caller], time: Duration) -> Result<f64, Failure> {
    let (mut ticks, since, mut count) = (interval(PERIOD), Instant::now(), 0.0);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while since.elapsed() < time {
        ticks.tick().await;
        for caller in &mut *callers {
            caller.call().await?;
            count += 1.0;
        }
    }
    Ok(count)
}

/// Has `count` connections carry 1 MiB, eight at once, and keeps them.
async fn hold(target: &Target, count: u16, held: &mut Vec<Box<dyn Io>>) -> Result<f64, Failure> {
    let mut left = count;
    while left > 0 {
        let at_once = left.min(8);
        let start = |_| {
            let target = target.clone();
            tokio::spawn(async move { bulk::carry(&target).await })
        };
        let tasks: Vec<_> = (0..at_once).map(start).collect();
        for task in tasks {
            held.push(task.await??);
        }
        left -= at_once;
    }
    tokio::time::sleep(SETTLE).await;
    Ok(held.len() as f64)
}
