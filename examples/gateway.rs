//! A TCP gateway: programs that speak TCP reach a service of a node by its name.
//!
//! ```toml
//! [dependencies]
//! midplane = { path = "../midplane" } # where you have it
//! clap = { version = "4", features = ["derive"] }
//! tokio = { version = "1", features = ["full"] }
//! ```

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use midplane::{ErrorKind, Node, NodeBuilder};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Accepts TCP connections and forwards each one to a service of a node, found by the service's name:
///
///     gateway orders --bind 127.0.0.1:8080
///     curl http://127.0.0.1:8080/
///
/// Ctrl-C stops it: it accepts no more connections, and waits for those that are open; a second Ctrl-C ends them.
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Arguments {
    /// Service to forward to: the name that its node listens at.
    service: String,
    /// Address of the TCP listener; port 0 has the system choose. Every host that reaches the address can connect.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    bind: SocketAddr,
    /// Cluster of the service's node [default: MIDPLANE_CLUSTER, or `default`].
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Addresses of nodes on other hosts, with commas between. Nodes of this host are found without.
    #[arg(long, value_name = "HOST:PORT,...", default_value = "", hide_default_value = true)]
    discover: String,
    /// File with the cluster's key: a number, a colon and 64 hexadecimal digits.
    #[arg(long, visible_alias = "key-file", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Connections at once; further ones wait to be accepted.
    #[arg(long, value_name = "COUNT", default_value = "1024")]
    connections: NonZeroU16,
    /// Seconds to wait for open connections after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u32,
}

type Fail = Box<dyn std::error::Error + Send + Sync>;

fn builder(arguments: &Arguments) -> NodeBuilder {
    let mut builder = Node::builder().discover(&arguments.discover);
    if let Some(cluster) = &arguments.cluster {
        builder = builder.cluster(cluster);
    }
    if let Some(path) = &arguments.key {
        builder = builder.key_file(path);
    }
    builder
}

/// Forwards a connection until both sides have closed their sending direction.
async fn forward(mut client: TcpStream, node: Node, service: Arc<str>, _: OwnedSemaphorePermit) {
    let forwarded = async {
        client.set_nodelay(true)?;
        let mut stream = node.connect(&service).await?;
        copy_bidirectional(&mut client, &mut stream).await?;
        Ok::<_, Fail>(())
    };
    if let Err(error) = forwarded.await {
        eprintln!("gateway: a connection has ended: {error}");
        // A reset tells the client that bytes are missing; an ordinary close would not.
        let _ = client.set_zero_linger();
    }
}

/// Waits for Ctrl-C, or for the signal of a service manager.
async fn stop([interrupt, terminate]: &mut [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn run(arguments: Arguments) -> Result<(), Fail> {
    let mut signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let node = builder(&arguments).start().await?;
    let listener = TcpListener::bind(arguments.bind).await;
    let listener = listener.map_err(|error| format!("--bind {}: {error}", arguments.bind))?;
    println!("{} -> {}", listener.local_addr()?, arguments.service);
    let service: Arc<str> = arguments.service.into();
    let room = Arc::new(Semaphore::new(arguments.connections.get().into()));
    let mut open = JoinSet::new();
    let next = async || (Arc::clone(&room).acquire_owned().await, listener.accept().await);
    loop {
        tokio::select! {
            (permit, accepted) = next() => match accepted {
                Ok((client, _)) => drop(open.spawn(forward(client, node.clone(), service.clone(), permit?))),
                Err(error) => {
                    // The process may have too many open files: tries again later.
                    eprintln!("gateway: no connection can be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = open.join_next() => {}
            () = stop(&mut signals) => break,
        }
    }
    drop(listener);
    if !open.is_empty() {
        eprintln!("gateway: waits for {} connections; Ctrl-C again ends them", open.len());
    }
    let ended = async {
        while open.join_next().await.is_some() {}
        node.shutdown().await; // waits until written bytes have arrived
    };
    tokio::select! {
        _ = tokio::time::timeout(Duration::from_secs(arguments.drain.into()), ended) => {}
        () = stop(&mut signals) => {}
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit(); // help was asked for
        }
        let text = error.to_string();
        let what = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
        eprintln!("{}; see --help", what.collect::<Vec<_>>().join(" "));
        std::process::exit(2)
    });
    let Err(error) = run(arguments).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let is_input = match error.downcast_ref::<midplane::Error>() {
        Some(error) => matches!(error.kind(), ErrorKind::Config | ErrorKind::InUse),
        None => !error.is::<std::io::Error>(), // the refusal of --bind is a text
    };
    ExitCode::from(if is_input { 2 } else { 1 })
}
