//! The same program on two hosts: each greets the other, over UDP sealed with a key.
//!
//! ```text
//! (umask 077; two_hosts --make-key > fabric.key)                      # once; copy the file to the other host
//! two_hosts --key fabric.key --bind 10.0.0.1:4700                     # on the first host
//! two_hosts --key fabric.key --bind 10.0.0.2:4700 --peer 10.0.0.1:4700 # on the second
//! two_hosts                                                           # both here, as a trial
//! ```
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! getrandom = "0.3"
//! midplane = { path = "../midplane" } # where you have it
//! tokio = { version = "1", features = ["full"] }
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::prelude::*;
use midplane::{ErrorKind, Key, NodeBuilder};
use tokio::time::Instant;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Greets nodes of other hosts, and asks for their greetings.
///
/// Without options it plays both hosts, and ends after one answer.
#[derive(Parser)]
struct Options {
    /// Address of this host for the others; port 0 has the system choose
    #[arg(long, value_name = "ADDRESS:PORT", requires = "key")]
    bind: Option<SocketAddr>,
    /// Other host, or several with commas between; not all need to be up
    #[arg(long, value_name = "HOST:PORT,...", requires = "key")]
    peer: Option<String>,
    /// File with the key that all hosts share
    #[arg(long, visible_alias = "key-file", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Prints a new key, and ends
    #[arg(long)]
    make_key: bool,
    /// Answers to ask for; 0: until Ctrl-C
    #[arg(long, default_value_t = 0, requires = "key")]
    answers: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(options()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let kind = error.downcast_ref::<Error>().map(Error::kind);
            let is_input = matches!(kind, Some(ErrorKind::Config | ErrorKind::InUse));
            ExitCode::from(if is_input { 2 } else { 1 })
        }
    }
}

/// Parses the command line; bad input ends the program with one line and exit code 2.
fn options() -> Options {
    Options::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit(); // `--help`
        }
        let text = error.to_string();
        let line = text.split("\n\n").next().unwrap_or(&text).split_whitespace();
        eprintln!("{}", line.collect::<Vec<_>>().join(" "));
        std::process::exit(2)
    })
}

async fn run(options: Options) -> Result<(), Fault> {
    if options.make_key {
        println!("{}", make_key()?);
        return Ok(());
    }
    if let Some(path) = options.key {
        let node = Node::builder().key_file(path).discover(options.peer.unwrap_or_default());
        let node = if let Some(bind) = options.bind { node.bind(bind) } else { node };
        return take_part(node, options.answers).await;
    }
    let key: Key = make_key()?.parse()?;
    let first = Node::builder().key(key.clone()).bind("127.0.0.1:0".parse()?);
    let first = first.transports("udp").start().await?;
    let address = first.address().ok_or("a node with a key has an address")?.to_string();
    let greeting = tokio::spawn(async move { greet(&first).await });
    let second = Node::builder().key(key).transports("udp").discover(address);
    let asked = take_part(second, 1).await;
    greeting.abort();
    asked
}

/// Greets the other host and asks for its greetings, until Ctrl-C or after `answers` of them, unless 0.
async fn take_part(builder: NodeBuilder, answers: u32) -> Result<(), Fault> {
    let node = builder.start().await?;
    if let Some(address) = node.address() {
        println!("{} at {address}", node.name());
    }
    tokio::select! {
        greeted = greet(&node) => greeted?,
        asked = ask(&node, answers) => asked?,
        ended = tokio::signal::ctrl_c() => ended?,
    }
    node.shutdown().await;
    Ok(())
}

async fn greet(node: &Node) -> Result<(), Fault> {
    let mut listener = node.listen("greeting").await?;
    loop {
        let (mut stream, peer) = listener.accept().await?;
        let greeting = format!("hello {peer}, this is {}", node.name());
        tokio::spawn(async move { stream.write_all(greeting.as_bytes()).await });
    }
}

async fn ask(node: &Node, answers: u32) -> Result<(), Fault> {
    let mut count = 0;
    while answers == 0 || count < answers {
        let since = Instant::now();
        let answer = async {
            let mut text = String::new();
            node.connect("greeting").await?.read_to_string(&mut text).await.map(|_| text)
        };
        match answer.await {
            Ok(text) => {
                count += 1;
                println!("{text} (after {:?})", since.elapsed());
            }
            // The other host may restart: asks again.
            Err(error) => eprintln!("no answer: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

fn make_key() -> Result<String, Fault> {
    let mut secret = [0_u8; 32];
    getrandom::fill(&mut secret)?;
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("1:{digits}"))
}
