//! Connections between the daemons of different hosts.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::super::event::Event;
use super::super::link::{self, Frame, Link, Sender};
use super::super::refusals::{Refusal, report};
use super::super::routes::Routes;
use super::clients;
use super::unauthenticated::Unauthenticated;
use crate::node_core::message::{Cluster, Down, Hello, Purpose, RankEvent, Up};
use crate::node_core::user::User;
use crate::node_core::{Input, Peer};

/// Interval at which the daemons above are dialled again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Denials, without a connection in between, after which the key does not fit.
const DENIALS: u32 = 3;

/// Accepts daemons of other hosts of `cluster` that have a key for it.
pub(super) async fn take(listener: TcpListener, routes: Routes, cluster: Cluster) {
    let unauthenticated = Unauthenticated::default();
    let mut next = 0;
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        next += 1;
        let (connection, routes, waiting) = (next, routes.clone(), unauthenticated.clone());
        let dropped = waiting.add(connection, from.ip());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                admitted = admit(stream, from.ip(), &routes, cluster) => admitted,
                _ = dropped => None,
            };
            waiting.remove(connection);
            let Some((Hello { host, purpose }, link)) = admitted else { return };
            let events = &routes.events;
            match purpose {
                Purpose::Child(_) => serve_child((host, connection), link, &routes).await,
                Purpose::Streams(_) | Purpose::Images(..) => {
                    let _ = events.send(Event::Link(host, purpose, Box::new(link)));
                }
                Purpose::Ballot => {
                    let (_, mut receiver) = link;
                    if let Ok(Ok(Some(ballot))) = timeout(RETRY_INTERVAL, receiver.message()).await
                    {
                        let _ = events.send(Event::Core(Input::Ballot(host, ballot)));
                    }
                }
                // If this host is no longer the root, the connection closes and the client searches the root again.
                Purpose::Client(_) if *routes.root.borrow() != Some(routes.host) => {}
                Purpose::Client(user) => clients::serve_at_root(link, routes, user, true).await,
            }
        });
    }
}

/// Authenticates a dialling daemon. Returns its greeting if it is a host of this cluster and proves that it is that
/// host.
async fn admit(
    stream: TcpStream,
    from: IpAddr,
    routes: &Routes,
    cluster: Cluster,
) -> Option<(Hello, Link)> {
    let refuse = |refusal| {
        let _ = routes.events.send(Event::Refused(refusal));
    };
    let accepted = link::accept::<Hello>((stream, routes.patience), routes.credentials.as_ref()?);
    let accepted = accepted.await;
    let accepted = accepted.inspect_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => refuse(Refusal::Key(from)),
        io::ErrorKind::InvalidData => refuse(Refusal::Version(from)),
        _ => {}
    });
    let (proven, hello, link) = accepted.ok()?;
    let host = hello.host;
    let fits = match &hello.purpose {
        Purpose::Child(theirs) => {
            if *theirs != cluster {
                refuse(Refusal::Cluster(host));
            }
            *theirs == cluster
        }
        Purpose::Streams(_) | Purpose::Images(..) => true,
        Purpose::Client(user) => cluster.takes_over() && user.name.len() <= User::MOST_BYTES,
        Purpose::Ballot => cluster.takes_over(),
    };
    if let Some(node) = proven.filter(|node| *node != host) {
        refuse(Refusal::Another { node, claims: host });
        return None;
    }
    (fits && host < cluster.hosts && host != routes.host).then_some((hello, link))
}

/// Serves a child until its connection ends. Reads no further while too many chunks of ranks' states wait for the
/// connection to the parent; meanwhile, neither the child counts as silent, nor its orders as late.
async fn serve_child(
    (host, connection): (u16, u64),
    (sender, mut receiver): Link,
    routes: &Routes,
) {
    let (to, orders) = mpsc::unbounded_channel::<Down>();
    let events = &routes.events;
    let _ = events.send(Event::Child { host, connection, to });
    let reading = async {
        while let Ok(Some(mut up)) = receiver.message::<Up>().await {
            if let Up::Rank { event: RankEvent::Chunk(chunk), .. } = &mut up {
                let mut count = pin!(routes.budget.count(std::mem::take(&mut chunk.bytes)));
                chunk.bytes = loop {
                    tokio::select! {
                        biased;
                        bytes = &mut count => break bytes,
                        () = sleep(routes.patience / 4) => {
                            let _ = events.send(Event::Core(Input::Up(connection, Up::HasChunk)));
                        }
                    }
                };
            }
            if events.send(Event::Core(Input::Up(connection, up))).is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        // A child that the node core does not admit, or has lost, receives no further messages.
        () = send_all(sender, orders) => {}
    }
    let _ = events.send(Event::ChildLost(connection));
}

/// Sends messages until the connection ends or `messages` closes.
async fn send_all(mut sender: Sender, mut messages: mpsc::UnboundedReceiver<impl Serialize>) {
    while let Some(message) = messages.recv().await {
        if let Err(error) = sender.send(&Frame::message(&message)).await {
            if error.kind() == io::ErrorKind::InvalidInput {
                report(format_args!("a connection with another host ends: {error}"));
            }
            return;
        }
    }
}

/// Keeps a connection with a daemon above: dials them in turn, nearest first, until one admits this daemon.
pub(super) async fn stay_below(
    routes: Routes,
    cluster: Cluster,
    mut above: watch::Receiver<Vec<u16>>,
) {
    let mut changes = above.clone();
    let mut denials = 0_u32;
    loop {
        let all = above.borrow_and_update().clone();
        changes.mark_unchanged();
        // An election gives this daemon half of `patience` to join. The root is the last of these daemons.
        let limit = routes.patience / (4 * all.len().max(1) as u32);
        let stays = async {
            for (number, parent) in (1..).zip(&all) {
                let dial = routes.dial(*parent, Purpose::Child(cluster));
                let dialled = match number < all.len() {
                    true => timeout(limit, dial).await,
                    false => Ok(dial.await),
                };
                let dialled = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                match &dialled {
                    Ok(_) => denials = 0,
                    // A daemon that has another key, or that ends, closes the connection; the first does so each time.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        denials += 1;
                        if denials == DENIALS {
                            let _ = routes.events.send(Event::Refused(Refusal::Denied(*parent)));
                        }
                    }
                    Err(_) => {}
                }
                let Ok(link) = dialled else { continue };
                // A daemon that knows no root admits no children.
                if stay(link, &routes.events).await {
                    return sleep(RETRY_INTERVAL).await;
                }
            }
            match all.is_empty() {
                true => std::future::pending().await,
                false => sleep(RETRY_INTERVAL).await,
            }
        };
        let is_over = tokio::select! {
            () = stays => false,
            changed = changes.changed() => changed.is_err(),
        };
        let _ = routes.events.send(Event::Core(Input::Disconnected(Peer::Parent)));
        if is_over {
            return;
        }
    }
}

/// Receives from the daemon above until the connection ends or the daemon cuts it. Returns whether any message was
/// received.
async fn stay((sender, mut receiver): Link, events: &mpsc::UnboundedSender<Event>) -> bool {
    let (to, reports) = mpsc::unbounded_channel::<Up>();
    let _ = events.send(Event::Parent(to));
    let mut was_admitted = false;
    let reading = async {
        while let Ok(Some(down)) = receiver.message::<Down>().await {
            was_admitted = true;
            let is_cut = down == Down::Cut;
            let _ = events.send(Event::Core(Input::Down(down)));
            if is_cut {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = send_all(sender, reports) => {}
    }
    let _ = events.send(Event::Core(Input::Disconnected(Peer::Parent)));
    was_admitted
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::net::UnixStream;

    use super::super::super::snapshot::{Budget, WAITING};
    use super::*;
    use crate::names::JobId;
    use crate::node_core::state_chunk::{ChunkKind, StateChunk};

    /// Time in which an event would have arrived.
    const SILENCE: Duration = Duration::from_millis(50);

    /// Regression: a daemon read the states of all ranks below it as fast as they were sent, whatever its connection to
    /// the root sent. Then, a child whose chunk waited counted as silent.
    #[test]
    fn chunks_from_below_wait_until_the_parent_has_taken_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ((mut sender, _receiver), link) = (link::local(ours), link::local(theirs));
            let ((_root, root), (events, mut happens)) =
                (watch::channel(None), mpsc::unbounded_channel());
            let routes = Routes {
                host: 1,
                addresses: Vec::new().into(),
                credentials: None,
                patience: 20 * SILENCE,
                root,
                events,
                budget: Budget::default(),
            };
            tokio::spawn(async move { serve_child((2, 1), link, &routes).await });
            let (kind, bytes) = (ChunkKind::State, Bytes::from_static(b"1"));
            let chunk = StateChunk { kind, at: 0, bytes, is_last: true };
            let up = Up::Rank { job: JobId(1), rank: 0, event: RankEvent::Chunk(chunk) };
            for _ in 0..=WAITING {
                sender.send(&Frame::message(&up)).await.unwrap();
            }
            // Dropping its sender of orders would end the connection.
            let child = happens.recv().await;
            assert!(matches!(child, Some(Event::Child { .. })));
            let mut waiting = Vec::new();
            for _ in 0..WAITING {
                waiting.push(happens.recv().await);
            }
            assert!(timeout(SILENCE, happens.recv()).await.is_err());
            let sign = happens.recv().await;
            assert!(matches!(sign, Some(Event::Core(Input::Up(1, Up::HasChunk)))));
            // The connection to the parent has sent one.
            drop(waiting.pop());
            let next = happens.recv().await;
            assert!(matches!(next, Some(Event::Core(Input::Up(1, next))) if next == up));
        });
    }
}
