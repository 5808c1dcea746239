//! Calls between processes, typed on both sides: three services of prices, one of which is killed while it is called.
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! midplane = { path = "../midplane" } # where you have it
//! serde = { version = "1", features = ["derive"] }
//! thiserror = "2"
//! tokio = { version = "1", features = ["io-std", "io-util", "macros", "process", "rt", "time"] }
//! tower = { version = "0.5", features = ["util"] }
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use midplane::Node;
use midplane::call::{CallError, Client, Context};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tower::service_fn;

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Calls a service that three processes offer, and kills one of them in the middle.
///
/// Starts the three itself, and ends by itself: it prints how many calls each process has answered, and the results of
/// calls with an error, with a deadline, and to the killed process. Fails if a call was lost.
#[derive(Parser)]
struct Arguments {
    /// Calls to make in each of two rounds.
    #[arg(long, default_value_t = 3_000)]
    calls: usize,
    /// Calls under way at once.
    #[arg(long, default_value = "16")]
    at_once: NonZeroUsize,
    /// Serves under this name until its input ends, and does nothing else.
    #[arg(long, value_name = "NAME")]
    serve: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Price {
    cents: u64,
    /// Name of the process that answered.
    by: String,
}

/// Error of the service; the caller receives it with its type.
#[derive(Debug, Deserialize, Serialize, thiserror::Error)]
enum PriceError {
    #[error("{item:?} is not for sale")]
    NotForSale { item: String },
}

/// The service: any `tower` service of serde types.
async fn price(item: String, by: String) -> Result<Price, PriceError> {
    if item == "audit" {
        let deadline = Context::current().and_then(|context| context.deadline());
        let wait = deadline.map(|at| at - Instant::now()).unwrap_or_default();
        eprintln!("{by}: begins an audit of an hour; its caller waits {wait:.0?}");
        sleep(Duration::from_secs(3_600)).await;
    }
    match item.len() as u64 {
        0 => Err(PriceError::NotForSale { item }),
        length => Ok(Price { cents: 100 * length, by }),
    }
}

async fn serve(name: String) -> Result<(), Fail> {
    let node = Node::builder().name(&name).start().await?;
    let _serving = node.serve("prices", service_fn(move |item| price(item, name.clone())))?;
    println!("ready");
    // Exits with the process that started it, which holds the input open.
    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await?;
    Ok(())
}

/// Starts this program as a service, and waits until it serves.
async fn start(name: &str, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--serve", name]).env("MIDPLANE_CLUSTER", cluster);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    child.stdout.take().ok_or("it has an output")?.read_u8().await?;
    Ok(child)
}

/// Makes calls, kills `victim` in the middle, and returns how many calls each process has answered.
async fn load(
    prices: &Client<String, Price, PriceError>,
    &Arguments { calls, at_once, .. }: &Arguments,
    mut victim: Option<Child>,
) -> Result<BTreeMap<String, usize>, Fail> {
    let callers = (0..at_once.get()).map(|caller| {
        let (prices, mut victim) = (prices.clone(), victim.take());
        tokio::spawn(async move {
            let mut answered = Vec::new();
            for call in (caller..calls).step_by(at_once.get()) {
                victim.take_if(|_| call >= calls / 2); // kills it
                answered.push(prices.call(format!("item {call}")).await?.by);
            }
            Ok::<_, CallError<PriceError>>(answered)
        })
    });
    let mut all = BTreeMap::new();
    for caller in callers.collect::<Vec<_>>() {
        caller.await??.into_iter().for_each(|by| *all.entry(by).or_insert(0) += 1);
    }
    Ok(all)
}

async fn run(arguments: Arguments) -> Result<(), Fail> {
    if let Some(name) = arguments.serve {
        return serve(name).await;
    }
    let cluster = format!("tower-calls-{}", std::process::id());
    let _others = [start("a", &cluster).await?, start("b", &cluster).await?];
    let victim = start("c", &cluster).await?;
    let node = Node::builder().cluster(&cluster).start().await?;
    // Requests are idempotent, so calls to a process that has exited are repeated at another one.
    let prices: Client<_, _, PriceError> = node.client("prices").idempotent();
    let calls = arguments.calls;
    println!("{calls} calls: {:?}", load(&prices, &arguments, None).await?);
    let answered = load(&prices, &arguments, Some(victim)).await?;
    println!("{calls} calls while `c` is killed, none lost: {answered:?}");
    println!("the service's own error: {:?}", prices.call(String::new()).await);
    let hasty = prices.timeout(Duration::from_millis(100));
    println!("an hour's call, with a deadline of 100 ms: {:?}", hasty.call("audit".into()).await);
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
