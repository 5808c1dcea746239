//! Sends from many nodes to one whose port may be narrow: with receive tokens the senders take turns.
//!
//! ```text
//! narrow_port                                                    # a receiver and three senders here, as a trial
//! narrow_port --bind 10.0.0.1:4700 --senders 3 --tokens on       # receives from three, measures, and ends
//! narrow_port --to 10.0.0.1:4700                                 # sends until the receiver ends, on other hosts
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use midplane::prelude::*;
use midplane_benches::counts::{Counts, jain};
use midplane_kit::report::Failure;
use midplane_kit::{command_line, processes};
use tokio::io::AsyncWriteExt;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a body.
const BODY: usize = 1_000_000;

/// True if the receiver grants tokens.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Tokens {
    On,
    Off,
}

/// Many nodes send bodies of 1 MB to one, which measures the goodput.
#[derive(Parser)]
struct Options {
    /// Receives at this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "to")]
    bind: Option<SocketAddr>,
    /// Sends to the receiver at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: Option<SocketAddr>,
    /// Senders that the receiver waits for, from 1 to 100
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    senders: u8,
    /// Choose whether the receiver grants tokens
    #[arg(long, value_enum, default_value = "on")]
    tokens: Tokens,
    /// Seconds that are measured, from 1 to 60
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=60))]
    seconds: u8,
    /// Prints one JSON document
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    command_line::main(|options| {
        processes::run(async { run(options).await.map(|()| 0).map_err(Failure::of_run) })
    })
}

async fn run(options: &Options) -> Result<(), Fault> {
    let builder = Node::builder().cluster("narrow-port").transports("udp").trusted_network();
    if let Some(to) = options.to {
        return send(builder.discover(to.to_string()).start().await?).await;
    }
    let receiver = builder.clone().bind(options.bind.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()));
    let receiver = match options.tokens {
        Tokens::On => receiver.receive_tokens(),
        Tokens::Off => receiver,
    };
    let receiver = receiver.name("receiver").start().await?;
    if options.bind.is_none() {
        let address = receiver.address().ok_or("the receiver has an address")?.to_string();
        for _ in 0..options.senders {
            let sender = builder.clone().discover(&address).start().await?;
            tokio::spawn(send(sender));
        }
    }
    receive(receiver, options).await
}

/// Sends bodies over one stream until the receiver ends.
async fn send(node: Node) -> Result<(), Fault> {
    let mut stream = node.connect("bodies").await?;
    let body = vec![7; BODY];
    while stream.write_all(&body).await.is_ok() {}
    Ok(())
}

/// Waits for all senders, then measures their goodput for `--seconds`.
async fn receive(node: Node, options: &Options) -> Result<(), Fault> {
    let mut listener = node.listen("bodies").await?;
    let counts = Counts::default();
    for sender in 0..options.senders {
        counts.read(sender, listener.accept().await?.0);
    }
    let measured = Duration::from_secs(options.seconds.into());
    let received = counts.rates(Duration::ZERO, measured).await;
    if counts.has_lost() {
        return Err("a sender was lost".into());
    }
    let (goodput, jain) = (received.iter().sum::<f64>(), jain(&received));
    let tokens = node.explain().tokens;
    if options.json {
        let granted = tokens.map(|tokens| tokens.granted);
        let document = serde_json::json!({
            "senders": options.senders, "goodput_mbps": goodput, "jain": jain, "tokens_granted": granted
        });
        println!("{document}");
    } else {
        println!("{} senders: {goodput:.1} Mb/s, Jain's index {jain:.3}", options.senders);
        println!("{}", node.explain());
    }
    // Nothing is read any more, and the streams are closed, which ends the senders.
    drop(counts);
    node.shutdown().await;
    Ok(())
}
