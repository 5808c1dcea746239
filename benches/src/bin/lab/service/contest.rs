//! The server's part: runs every contest in the client's order.

use std::net::SocketAddr;

use midplane::via::message::envelope::Tag;
use midplane::via::message::group::Rank;
use midplane::via::service::{Server, Streams};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::handler::Reverse;
use crate::service::arguments::{Arguments, Fabric, Way};
use crate::service::call::{self, World};
use crate::stream;

/// Place of a process in a run.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// 0 is the client, 1 the server.
    pub(crate) rank: u16,
    /// Name of the shared memory.
    pub(crate) name: String,
    /// Addresses of the client and the server, for TCP and UDP.
    pub(crate) peers: Vec<SocketAddr>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Serves all contests of all rounds.
///
/// # Errors
/// One line that says what failed.
pub(crate) async fn serve_all(arguments: &Arguments, site: &Site) -> Result<(), String> {
    let connections = arguments.bytes.len() * usize::from(arguments.concurrency);
    let contests = arguments.contests();
    let turns = (0..arguments.rounds).flat_map(|_| contests.iter());
    for (number, (fabric, way)) in turns.enumerate() {
        match (fabric, way) {
            (Fabric::Tcp, _) => serve_tcp(site, connections).await?,
            (fabric, Way::Stream) => {
                call::over(*fabric, site, number, async |world| {
                    serve_streams(world, connections).await
                })
                .await?;
            }
            (fabric, Way::Call) => call::over(*fabric, site, number, serve_calls).await?,
        }
    }
    Ok(())
}

async fn serve_tcp(site: &Site, connections: usize) -> Result<(), String> {
    let listener = TcpListener::bind(site.peers[1]).await;
    let listener = listener.map_err(|error| format!("--peers {}: {error}", site.peers[1]))?;
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (socket, _) = listener.accept().await.map_err(text)?;
        socket.set_nodelay(true).map_err(text)?;
        tasks.spawn(stream::serve(socket, Reverse));
    }
    end(tasks).await
}

/// Serves our streams; only the listener differs from TCP.
async fn serve_streams(world: World, connections: usize) -> Result<(), String> {
    let listener = Streams::new(world.duplicate().await.map_err(text)?);
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(stream::serve(listener.accept().await.map_err(text)?, Reverse));
    }
    end(tasks).await
}

async fn end(mut tasks: JoinSet<std::io::Result<()>>) -> Result<(), String> {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(text)?.map_err(|error| format!("a connection failed: {error}"))?;
    }
    Ok(())
}

/// Tag of the client's message that it is done.
pub(crate) const DONE: Tag = Tag(1);

async fn serve_calls(world: World) -> Result<(), String> {
    let own = world.duplicate().await.map_err(text)?;
    let stop = async { drop(world.receive(Rank(0), DONE).await) };
    let served = Server::new(own).depth(256).serve_until(Reverse, stop).await;
    served.map(drop).map_err(text)
}
