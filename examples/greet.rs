//! A service and its client, found by name: `greet serve` on the one side, `greet NAME` on the other.

use midplane::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let node = Node::builder().start().await?;
    let name = std::env::args().nth(1).ok_or("say `greet serve`, or `greet NAME`")?;
    if name != "serve" {
        let mut stream = node.connect("greeter").await?;
        stream.write_all(name.as_bytes()).await?;
        stream.shutdown().await?;
        let mut greeting = String::new();
        stream.read_to_string(&mut greeting).await?;
        println!("{greeting}");
        return Ok(());
    }
    let mut listener = node.listen("greeter").await?;
    loop {
        let (mut stream, peer) = listener.accept().await?;
        let mut name = String::new();
        stream.read_to_string(&mut name).await?;
        stream.write_all(format!("hello {name}, of {peer}").as_bytes()).await?;
    }
}
