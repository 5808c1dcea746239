//! Calls between processes, typed on both sides: three services of prices, one of which is killed while it is called.
//!
//! To copy it: `midplane`, `clap` (feature `derive`), `serde` (`derive`), `tokio` (`full`), `tower` (`util`).

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use midplane::Node;
use midplane::call::{CallError, Client, Context};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tower::service_fn;

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Calls a service that three processes offer, and kills one of them in the middle.
///
/// Starts the three itself, and ends by itself: it prints who has answered how many calls, and what became of calls with
/// an error, with a deadline, and to the process that was killed. Fails if a call was lost.
///
/// Each service runs alone as well: give `--serve a`, `--serve b` in terminals of their own, with the same
/// MIDPLANE_CLUSTER as a client of yours.
#[derive(Parser)]
struct Arguments {
    /// Calls to make.
    #[arg(long, default_value_t = 3_000)]
    calls: usize,
    /// Calls under way at once.
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    /// Serves under this name until it is killed, and does nothing else.
    #[arg(long, value_name = "NAME")]
    serve: Option<String>,
}

#[derive(Clone, Deserialize, Serialize)]
enum Request {
    Price { item: String },
    Audit,
}

#[derive(Deserialize, Serialize)]
struct Price {
    cents: u64,
    /// The process that has answered.
    by: String,
}

/// The service's own error arrives as what it is.
#[derive(Debug, Deserialize, Serialize, thiserror::Error)]
enum PriceError {
    #[error("{item:?} is not for sale")]
    NotForSale { item: String },
}

/// The service: any `tower` service of serde types.
async fn price(request: Request, by: String) -> Result<Price, PriceError> {
    match request {
        Request::Price { item } if item.is_empty() => Err(PriceError::NotForSale { item }),
        Request::Price { item } => Ok(Price { cents: 100 * item.len() as u64, by }),
        Request::Audit => {
            let deadline = Context::current().and_then(|context| context.deadline());
            let wait = deadline.map(|at| at - Instant::now()).unwrap_or_default();
            eprintln!("{by}: begins an audit of an hour; its caller waits {wait:.0?}");
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            Ok(Price { cents: 0, by })
        }
    }
}

async fn serve(name: String) -> Result<(), Fail> {
    let node = Node::builder().name(&name).start().await?;
    let service = service_fn(move |request| price(request, name.clone()));
    let _serving = node.serve("prices", service)?;
    println!("ready");
    std::future::pending().await
}

/// Starts this program as a service, and waits until it serves.
async fn start(name: &str, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--serve", name]).env("MIDPLANE_CLUSTER", cluster);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("it has an output")?).lines();
    lines.next_line().await?.ok_or("a service has not started")?;
    Ok(child)
}

type Prices = Client<Request, Price, PriceError>;

/// Makes calls, kills `victim` in the middle, and returns how many calls each process has answered.
async fn load(
    prices: &Prices,
    Arguments { calls, at_once, .. }: &Arguments,
    victim: Option<Child>,
) -> Result<BTreeMap<String, usize>, Fail> {
    let (calls, at_once) = (*calls, (*at_once).max(1));
    let state = Arc::new(Mutex::new((BTreeMap::new(), victim)));
    let callers = (0..at_once).map(|caller| {
        let (prices, state) = (prices.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            for call in (caller..calls).step_by(at_once) {
                let price = prices.call(Request::Price { item: format!("item {call}") }).await?;
                let mut state = state.lock().expect("no caller panics");
                *state.0.entry(price.by).or_insert(0) += 1;
                if call >= calls / 2 {
                    drop(state.1.take()); // kills it
                }
            }
            Ok::<_, CallError<PriceError>>(())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    let answered = std::mem::take(&mut state.lock().expect("no caller panics").0);
    Ok(answered)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fail> {
    let arguments = Arguments::parse();
    if let Some(name) = arguments.serve {
        return serve(name).await;
    }
    let cluster = format!("tower-calls-{}", std::process::id());
    let _others = [start("a", &cluster).await?, start("b", &cluster).await?];
    let victim = start("c", &cluster).await?;
    let node = Node::builder().cluster(&cluster).start().await?;
    // A price may be asked for twice, so calls to a process that is gone are made again at another one.
    let prices: Prices = node.client("prices").idempotent();
    let calls = arguments.calls;
    println!("{calls} calls: {:?}", load(&prices, &arguments, None).await?);
    let answered = load(&prices, &arguments, Some(victim)).await?;
    let lost = calls - answered.values().sum::<usize>();
    println!("{calls} calls while `c` is killed: {answered:?}, {lost} lost");
    if let Err(error) = prices.call(Request::Price { item: String::new() }).await {
        println!("the service's own error: {error}");
    }
    let hasty = prices.clone().timeout(Duration::from_millis(100));
    if let Err(error) = hasty.call(Request::Audit).await {
        println!("a call of an hour, with a deadline of 100 ms: {error}");
    }
    Ok(())
}
