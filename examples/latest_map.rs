//! A load board: workers publish how busy they are, and a balancer gives each job to the least busy one.
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! midplane = { path = "../midplane" } # where you have it
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use midplane::Node;
use midplane::latest::Latest;
use tokio::time::{Instant, sleep_until, timeout};

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Workers of different speeds publish their loads in a map; a balancer reads it, and hands out jobs.
///
/// Starts the workers itself, and prints the share of each: one that is twice as slow gets about half as many jobs.
#[derive(Parser)]
struct Arguments {
    /// Workers to start; the n-th of them takes n times 4 ms for a job.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=50))]
    workers: u32,
    /// Jobs to hand out.
    #[arg(long, default_value_t = 500)]
    jobs: u32,
    /// Works as the worker of this number until its input ends, and does nothing else.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
    work: Option<u32>,
}

fn name(number: u32) -> String {
    format!("worker {number}")
}

/// Receives jobs, works on one after the other, and publishes how many wait.
async fn work(number: u32) -> Result<(), Fail> {
    let node = Node::builder().name(name(number)).start().await?;
    let board = node.latest_map::<String, u32>("load").await?;
    let (takes, mut waiting, mut done) = (Duration::from_millis(4) * number, 0, Instant::now());
    loop {
        // Never waits: slow members receive a later value instead.
        board.set(&name(number), &waiting)?;
        tokio::select! {
            job = node.receive() => {
                job?;
                done = if waiting == 0 { Instant::now() + takes } else { done };
                waiting += 1;
            }
            () = sleep_until(done), if waiting > 0 => {
                done += takes;
                waiting -= 1;
            }
        }
    }
}

fn start(number: u32, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--work", &number.to_string()]).env("MIDPLANE_CLUSTER", cluster);
    Ok(command.stdin(Stdio::piped()).spawn()?)
}

async fn run(Arguments { workers, jobs, work: number }: Arguments) -> Result<(), Fail> {
    if let Some(number) = number {
        // Exits with the process that started it, which holds the input open.
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        });
        return work(number).await;
    }
    let cluster = format!("latest-map-{}", std::process::id());
    let started = (1..=workers).map(|number| start(number, &cluster));
    let _workers = started.collect::<Result<Vec<_>, _>>()?;
    let node = Node::builder().cluster(&cluster).name("balancer").start().await?;
    let board = node.latest_map::<String, u32>("load").await?;
    let mut changes = board.watch();
    while board.snapshot().len() < workers as usize {
        changes.next().await.ok_or("the node was shut down")?;
    }
    // Jobs are counted here until the worker has published its own number.
    let (mut given, mut shares, mut longest) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
    for _ in 0..jobs {
        while let Ok(Some(change)) = timeout(Duration::from_millis(1), changes.next()).await {
            given.remove(&change.key);
        }
        let board = board.snapshot();
        longest = board.iter().map(|entry| entry.age).fold(longest, Duration::max);
        let loads = board.iter().filter_map(|Latest { key, value, .. }| {
            Some((value.as_ref()? + given.get(key).unwrap_or(&0), key))
        });
        let (_, least) = loads.min().ok_or("no worker has published a load")?;
        node.send(least.as_str(), "a job").await?;
        *given.entry(least.clone()).or_insert(0) += 1;
        *shares.entry(least.clone()).or_insert(0_u32) += 1;
    }
    shares.iter().for_each(|(worker, share)| println!("{worker}: {share} jobs"));
    println!("the oldest load that was read was {longest:.0?} old");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Err(bad) if bad.use_stderr() => {
            eprintln!("{}", bad.to_string().replace("\n  ", " ").lines().next().unwrap_or(""));
            return ExitCode::from(2);
        }
        parsed => parsed.unwrap_or_else(|help| help.exit()),
    };
    let Err(error) = run(arguments).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
