//! A load board: workers publish how busy they are, and a balancer gives each job to the least busy one.
//!
//! To copy it: `midplane`, `clap` (feature `derive`), `tokio` (`full`).

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use clap::Parser;
use midplane::Node;
use tokio::process::{Child, Command};

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Workers of different speeds publish their loads in a map; a balancer reads it, and hands out jobs.
///
/// Starts the workers itself, as processes, and ends by itself: it prints the share of each worker. A worker that is
/// twice as slow gets about half of the jobs, and no job waits long, though nobody has told the balancer of speeds.
#[derive(Parser)]
struct Arguments {
    /// Workers to start; the n-th of them takes n times 4 ms for a job.
    #[arg(long, default_value_t = 4)]
    workers: u32,
    /// Jobs to hand out.
    #[arg(long, default_value_t = 500)]
    jobs: usize,
    /// Works as the worker of this number until it is killed, and does nothing else.
    #[arg(long, value_name = "NUMBER")]
    work: Option<u32>,
}

fn name(number: u32) -> String {
    format!("worker {number}")
}

/// Receives jobs, works on one after the other, and publishes how many wait.
async fn work(number: u32) -> Result<(), Fail> {
    let node = Node::builder().name(name(number)).start().await?;
    let board = node.latest_map::<String, u32>("load").await?;
    let (queue, mut jobs) = tokio::sync::watch::channel(0);
    board.set(&name(number), &0)?;
    let working = async {
        loop {
            jobs.wait_for(|waiting| *waiting > 0).await?;
            tokio::time::sleep(Duration::from_millis(4) * number).await;
            queue.send_modify(|waiting| *waiting -= 1);
            // Never waits: members that are slow get a later value instead.
            board.set(&name(number), &queue.borrow())?;
        }
    };
    let receiving = async {
        loop {
            node.receive().await?;
            queue.send_modify(|waiting| *waiting += 1);
            board.set(&name(number), &queue.borrow())?;
        }
    };
    tokio::select! {
        ended = working => ended,
        ended = receiving => ended,
    }
}

fn start(number: u32, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--work", &number.to_string()]).env("MIDPLANE_CLUSTER", cluster);
    Ok(command.stdin(Stdio::null()).kill_on_drop(true).spawn()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fail> {
    let Arguments { workers, jobs, work: number } = Arguments::parse();
    if let Some(number) = number {
        return work(number).await;
    }
    let cluster = format!("latest-map-{}", std::process::id());
    let _workers: Vec<Child> =
        (1..=workers).map(|number| start(number, &cluster)).collect::<Result<_, _>>()?;
    let node = Node::builder().cluster(&cluster).name("balancer").start().await?;
    let board = node.latest_map::<String, u32>("load").await?;
    let mut changes = board.watch();
    while board.snapshot().len() < workers as usize {
        changes.next().await.ok_or("the node was shut down")?;
    }
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    // What was given out is counted until the worker's own number has come.
    let mut given: BTreeMap<String, u32> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for _ in 0..jobs {
        while let Ok(Some(change)) =
            tokio::time::timeout(Duration::from_millis(1), changes.next()).await
        {
            given.remove(&change.key);
        }
        let board = board.snapshot();
        longest = longest.max(board.iter().map(|entry| entry.age).max().unwrap_or_default());
        let load = |name: &String, load: u32| load + given.get(name).copied().unwrap_or(0);
        let least =
            board.iter().min_by_key(|entry| load(&entry.key, entry.value.unwrap_or(u32::MAX / 2)));
        let least = least.ok_or("no worker is there")?.key.clone();
        node.send(least.as_str(), "a job").await?;
        *given.entry(least.clone()).or_insert(0) += 1;
        *shares.entry(least).or_insert(0) += 1;
    }
    for (worker, share) in &shares {
        println!("{worker}: {share} jobs");
    }
    println!("the oldest load that was read was {:.0} ms old", longest.as_secs_f64() * 1e3);
    Ok(())
}
