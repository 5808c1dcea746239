//! An axum service that nodes reach by its name, and a request to it.
//!
//! ```text
//! cargo run --features axum --example axum_service -- serve
//! cargo run --features axum --example axum_service -- /hello/Ada
//! ```
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! clap = { version = "4", features = ["derive"] }
//! midplane = { version = "0.1", features = ["axum"] }
//! tokio = { version = "1", features = ["full"] }
//! ```

use axum::Router;
use axum::extract::{ConnectInfo, Path};
use axum::routing::get;
use clap::Parser;
use midplane::PeerName;
use midplane::prelude::*;

/// An axum service under the name `greeter`, and a request to it.
#[derive(Parser)]
struct Options {
    /// `serve`, or the path of a request: `/`, `/hello/NAME`
    what: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Options { what } = Options::parse();
    let node = Node::builder().start().await?;
    if what == "serve" {
        let app = Router::new().route("/", get(who)).route("/hello/{name}", get(hello));
        let app = app.into_make_service_with_connect_info::<PeerName>();
        let listener = node.listen("greeter-http").await?;
        println!("{} serves until Ctrl-C", node.name());
        // The one line that differs from an axum service over TCP is the listener's.
        let ended = async { drop(tokio::signal::ctrl_c().await) };
        axum::serve(listener, app).with_graceful_shutdown(ended).await?;
    } else {
        let mut stream = node.connect("greeter-http").await?;
        let request = format!("GET {what} HTTP/1.1\r\nhost: greeter\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        println!("{}", answer.split_once("\r\n\r\n").map_or(&*answer, |(_, body)| body));
    }
    node.shutdown().await;
    Ok(())
}

async fn who(ConnectInfo(peer): ConnectInfo<PeerName>) -> String {
    format!("you are {peer}")
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello {name}")
}
