//! An axum service on a node's listener: the app itself needs no change.
//!
//! ```toml
//! [dependencies]
//! axum = { version = "0.8", default-features = false, features = ["http1", "tokio"] }
//! clap = { version = "4", features = ["derive"] }
//! midplane = { path = "../midplane", features = ["axum"] } # where you have it
//! tokio = { version = "1", features = ["io-util", "macros", "rt-multi-thread", "signal"] }
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{ConnectInfo, Path, State};
use axum::routing::{get, post};
use clap::Parser;
use midplane::{ErrorKind, Node, PeerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Serves orders over HTTP to other processes, without an address or a port.
///
/// Start `axum_service --serve` once or more, and `axum_service POST /orders/3` and `axum_service GET /orders` in another
/// terminal, as the same user. Requests go to one of the services that run.
#[derive(Parser)]
struct Arguments {
    /// Serves until Ctrl-C; requests under way are answered first.
    #[arg(long, conflicts_with_all = ["method", "path"])]
    serve: bool,
    /// The method of the request: GET or POST.
    #[arg(required_unless_present = "serve", value_parser = ["GET", "POST"])]
    method: Option<String>,
    /// The path to request: /orders or /orders/COUNT.
    #[arg(required_unless_present = "serve", value_parser = path)]
    path: Option<String>,
}

fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_path.then(|| text.to_owned()).ok_or_else(|| "a path is like /orders".into())
}

type Orders = Arc<AtomicU64>;

async fn order(
    State(orders): State<Orders>,
    ConnectInfo(peer): ConnectInfo<PeerName>,
    Path(count): Path<u32>,
) -> String {
    let all = orders.fetch_add(count.into(), Ordering::Relaxed) + u64::from(count);
    format!("{count} for {peer}; {all} in all\n")
}

fn app() -> Router {
    let all = |State(orders): State<Orders>| async move { format!("{orders:?} in all\n") };
    let routes = Router::new().route("/orders", get(all)).route("/orders/{count}", post(order));
    routes.with_state(Orders::default())
}

async fn serve() -> Result<(), Fail> {
    let node = Node::builder().start().await?;
    let listener = node.listen("orders").await?;
    println!("serving; Ctrl-C ends it");
    let app = app().into_make_service_with_connect_info::<PeerName>();
    let pressed = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(pressed).await?;
    node.shutdown().await;
    Ok(())
}

/// Writes an HTTP request by hand. Your program can use hyper-util's client instead, with the feature `hyper` and
/// `node.connector("orders")`; chapter 1 of the guide shows it.
async fn ask(method: &str, path: &str) -> Result<(), Fail> {
    let node = Node::builder().start().await?;
    let mut stream = node.connect("orders").await?;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: orders\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("the service has ended")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{method} {path}: {}", head.lines().next().unwrap_or_default()).into());
    }
    print!("{body}");
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
    let ended = match arguments() {
        Arguments { method: Some(method), path: Some(path), .. } => ask(&method, &path).await,
        _ => serve().await,
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let kind = error.downcast_ref::<midplane::Error>().map(midplane::Error::kind);
    let is_input = matches!(kind, Some(ErrorKind::Config | ErrorKind::InUse));
    ExitCode::from(if is_input { 2 } else { 1 })
}
