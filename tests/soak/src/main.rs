//! `soak serve FILE ADDRESS` stores entries in a file. `soak write SECONDS ADDRESS,...` sends entries, and prints each
//! that was acknowledged. `soak attack SECONDS ADDRESS,...` sends what no node sends. `MIDPLANE_CLUSTER` and
//! `MIDPLANE_TRANSPORTS` of the environment apply. `.ci/soak` kills, stops and counts these processes.
mod attack;

use std::fs::OpenOptions;
use std::future::ready;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::call::CallError;
use midplane::{Error, Node};
use tokio::time::{Instant, sleep};
use tower::service_fn;

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Entries that a client sends concurrently.
const AT_ONCE: u64 = 8;
/// Timeout of a call to a service that is stopped or restarting.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time from a caller's last acknowledgement to the end of its work; no process is killed or stopped during it.
const CALM: Duration = Duration::from_secs(4);

/// Serves until Ctrl-C. An entry is in the file, visible to other processes, before it is acknowledged.
async fn serve(path: &str, address: &str) -> Result<(), Fail> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let file = Arc::new(Mutex::new(file));
    let mut builder = Node::builder().allow_top();
    if address != "-" {
        builder = builder.bind(address.parse()?);
    }
    let node = builder.start().await?;
    let keep = service_fn(move |entry: String| {
        let written = file.lock().unwrap().write_all(format!("{entry}\n").as_bytes());
        ready(written.map_err(|error| error.to_string()))
    });
    let serving = node.serve("ledger", keep)?;
    tokio::signal::ctrl_c().await?;
    eprintln!("{} calls", serving.calls());
    node.shutdown().await;
    Ok(())
}

/// Sends entries for a time. Fails if a caller ends without a recent acknowledgement.
async fn write(seconds: &str, places: &str) -> Result<(), Fail> {
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let node = Node::builder().discover(places.trim_matches('-')).start().await?;
    let client = node.client::<String, (), String>("ledger").timeout(TIMEOUT).idempotent();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..AT_ONCE {
        let client = client.clone();
        callers.spawn(async move {
            let (mut entry, mut last, mut longest) = (0_u64, Instant::now(), Duration::ZERO);
            while Instant::now() < end {
                let name = format!("{}-{caller}-{entry}", std::process::id());
                match client.call(name.clone()).await {
                    Ok(()) => {
                        println!("{name}");
                        entry += 1;
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    Err(CallError::Service(error)) => return Err(error),
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
                // Yields the processors to other processes.
                sleep(Duration::from_millis(2)).await;
            }
            let since = last.elapsed();
            if since > CALM {
                Err(format!("hangs: no acknowledgement for {since:?}"))
            } else {
                Ok((entry, longest))
            }
        });
    }
    let (mut entries, mut longest) = (0, Duration::ZERO);
    while let Some(ended) = callers.join_next().await {
        let (own, wait) = ended??;
        entries += own;
        longest = longest.max(wait);
    }
    eprintln!("{entries} entries; the longest wait was {} ms", longest.as_millis());
    node.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["serve", path, address] => serve(path, address).await,
        ["write", seconds, places] => write(seconds, places).await,
        ["attack", seconds, places] => attack::attack(seconds, places),
        _ => {
            Err("soak serve FILE ADDRESS, soak write SECONDS PLACES or soak attack SECONDS PLACES"
                .into())
        }
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let is_input = error.downcast_ref::<Error>().is_none();
    ExitCode::from(if is_input { 2 } else { 1 })
}
