//! A service and its client, found by name: `hello --serve` on the one side, `hello NAME` on the other.
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! midplane = { path = "../midplane" } # where you have it
//! tokio = { version = "1", features = ["io-util", "macros", "rt-multi-thread", "signal"] }
//! ```

use std::process::ExitCode;

use clap::Parser;
use midplane::{ErrorKind, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Greets by name, from a service in another process.
///
/// Start `hello --serve` in one terminal and `hello Ada` in another one, in whichever order: they find each other by the
/// service's name. Both have to run as the same user.
#[derive(Parser)]
struct Arguments {
    /// Serves names until Ctrl-C.
    #[arg(long, conflicts_with = "name")]
    serve: bool,
    /// The name to greet, 1 to 1,000 bytes.
    #[arg(required_unless_present = "serve", value_parser = name)]
    name: Option<String>,
}

fn name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=1_000 => Ok(text.to_owned()),
        length => Err(format!("a name has 1 to 1,000 bytes, not {length}")),
    }
}

async fn serve(node: Node) -> Result<(), midplane::Error> {
    let mut listener = node.listen("greeter").await?;
    loop {
        let (mut stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let mut name = String::new();
            (&mut stream).take(1_000).read_to_string(&mut name).await?;
            stream.write_all(format!("hello {name}, of {peer}").as_bytes()).await
        });
    }
}

async fn greet(node: &Node, name: &str) -> std::io::Result<String> {
    let mut stream = node.connect("greeter").await?;
    stream.write_all(name.as_bytes()).await?;
    stream.shutdown().await?;
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).await?;
    Ok(greeting)
}

async fn run(Arguments { name, .. }: Arguments) -> Result<(), Fail> {
    // `midplane top` in another terminal shows the node.
    let node = Node::builder().allow_top().start().await?;
    if let Some(name) = name {
        println!("{}", greet(&node, &name).await?);
        return Ok(());
    }
    println!("serving; Ctrl-C ends it");
    tokio::select! {
        served = serve(node.clone()) => served?,
        pressed = tokio::signal::ctrl_c() => pressed?,
    }
    node.shutdown().await;
    Ok(())
}

/// Parses the command line; bad input ends the program with one line and exit code 2.
fn arguments() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit(); // `--help`
        }
        let text = error.to_string();
        let line = text.split("\n\n").next().unwrap_or(&text).split_whitespace();
        eprintln!("{}", line.collect::<Vec<_>>().join(" "));
        std::process::exit(2)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run(arguments()).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let kind = error.downcast_ref::<midplane::Error>().map(midplane::Error::kind);
    let is_input = matches!(kind, Some(ErrorKind::Config | ErrorKind::InUse));
    ExitCode::from(if is_input { 2 } else { 1 })
}
