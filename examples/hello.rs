//! A service and its client, which find each other by name: the README's two programs in one.
//!
//! ```text
//! hello serve   # greets until Ctrl-C
//! hello Ada     # asks for a greeting, and waits for the service if it is not there yet
//! ```
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! midplane = "0.1"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread", "signal"] }
//! ```

use clap::Parser;
use midplane::prelude::*;

/// A service and its client, on one host, in whichever order they start.
#[derive(Parser)]
#[command(after_help = "Try:  hello serve &  hello Ada")]
struct Options {
    /// `serve`, or whom to greet
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Options { name } = Options::parse();
    let node = Node::builder().start().await?;
    if name == "serve" {
        tokio::select! {
            served = serve(&node) => return served,
            ended = tokio::signal::ctrl_c() => ended?,
        }
    } else {
        greet(&node, &name).await?;
    }
    node.shutdown().await;
    Ok(())
}

async fn serve(node: &Node) -> Result<(), Box<dyn std::error::Error>> {
    let mut listener = node.listen("greeter").await?;
    loop {
        let (mut stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let mut name = String::new();
            stream.read_to_string(&mut name).await?;
            stream.write_all(format!("hello {name}, of {peer}").as_bytes()).await
        });
    }
}

async fn greet(node: &Node, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut stream = node.connect("greeter").await?;
    stream.write_all(name.as_bytes()).await?;
    stream.shutdown().await?;
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).await?;
    println!("{greeting}");
    Ok(())
}
