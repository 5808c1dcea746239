//! Connections between the daemons of different hosts.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use super::super::event::Event;
use super::super::link::{self, Credentials, Frame, Receiver, Sender};
use super::super::refusals::Refusal;
use crate::node_core::message::{Cluster, Down, Hello, Up};
use crate::tree::Tree;

/// Interval at which the daemons above are dialled again.
const AGAIN: Duration = Duration::from_millis(100);
/// Connections that have not said yet who they are; further ones wait in the system.
const STRANGERS: usize = 64;

/// Takes other hosts' daemons that have a key for it, at `place`: this host, of this cluster.
pub(super) async fn take(
    listener: TcpListener,
    credentials: Credentials,
    place: (u16, Cluster),
    events: mpsc::UnboundedSender<Event>,
) {
    let credentials = Arc::new(credentials);
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let mut next = 0;
    loop {
        let permit = Arc::clone(&strangers).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(AGAIN).await;
            continue;
        };
        next += 1;
        let (connection, credentials, events) = (next, Arc::clone(&credentials), events.clone());
        tokio::spawn(async move {
            let admitted = admit(stream, &credentials, place, &events).await;
            drop(permit);
            match admitted {
                Some((Hello::Child { host, .. }, link)) => {
                    serve_child((host, connection), link, &events).await;
                }
                Some((Hello::Streams { host, job }, link)) => {
                    let _ = events.send(Event::Streams { host, job, link: Box::new(link) });
                }
                None => {}
            }
        });
    }
}

/// Who dials, if it is the host that it says, of this cluster, and may say that here.
async fn admit(
    stream: TcpStream,
    credentials: &Credentials,
    (own, cluster): (u16, Cluster),
    events: &mpsc::UnboundedSender<Event>,
) -> Option<(Hello, (Sender, Receiver))> {
    let (proven, hello, link) = link::accept::<Hello>(stream, credentials).await.ok()?;
    let (host, fits) = match hello {
        Hello::Child { host, cluster: theirs } => {
            let tree = Tree::new(cluster.hosts, cluster.arity);
            // Somebody of another cluster, or another version, is no attempt.
            (host, theirs == cluster && host != own && tree.is_within(host, own))
        }
        Hello::Streams { host, .. } => (host, own == 0),
    };
    if let Some(node) = proven.filter(|node| *node != host) {
        let _ = events.send(Event::Refused(Refusal::Another { node, claims: host }));
        return None;
    }
    fits.then_some((hello, link))
}

async fn serve_child(
    (host, connection): (u16, u64),
    (mut sender, mut receiver): (Sender, Receiver),
    events: &mpsc::UnboundedSender<Event>,
) {
    let (to, mut orders) = mpsc::unbounded_channel::<Down>();
    let _ = events.send(Event::Child { host, connection, to });
    let writing = tokio::spawn(async move {
        while let Some(down) = orders.recv().await {
            if sender.send(&Frame::message(&down)).await.is_err() {
                return;
            }
        }
    });
    let abort = writing.abort_handle();
    let reading = async {
        while let Ok(Some(up)) = receiver.message::<Up>().await {
            let _ = events.send(Event::FromChild(connection, up));
        }
    };
    // A child that the daemon does not admit, or has lost, gets no further messages.
    tokio::select! {
        () = reading => {}
        _ = writing => {}
    }
    let _ = events.send(Event::ChildLost(connection));
    abort.abort();
}

/// Dials the daemons above in turn, until the nearest one that answers admits this daemon.
pub(super) async fn stay_below(
    addresses: Vec<String>,
    credentials: Credentials,
    (host, cluster): (u16, Cluster),
    events: mpsc::UnboundedSender<Event>,
) {
    let tree = Tree::new(cluster.hosts, cluster.arity);
    let above: Vec<u16> =
        std::iter::successors(tree.parent(host), |above| tree.parent(*above)).collect();
    loop {
        for parent in &above {
            let Some(address) = addresses.get(usize::from(*parent)) else { continue };
            let dialed = link::dial(address, *parent, &credentials).await;
            let Ok((mut sender, receiver)) = dialed else { continue };
            let hello = Hello::Child { host, cluster };
            if sender.send(&Frame::message(&hello)).await.is_ok() {
                stay(sender, receiver, &events).await;
                break;
            }
        }
        sleep(AGAIN).await;
    }
}

/// Hears whoever is above, until that is gone.
async fn stay(mut sender: Sender, mut receiver: Receiver, events: &mpsc::UnboundedSender<Event>) {
    let (to, mut reports) = mpsc::unbounded_channel::<Up>();
    let _ = events.send(Event::Parent(to));
    let writing = tokio::spawn(async move {
        while let Some(up) = reports.recv().await {
            if sender.send(&Frame::message(&up)).await.is_err() {
                return;
            }
        }
    });
    while let Ok(Some(down)) = receiver.message::<Down>().await {
        let is_cut = down == Down::Cut;
        let _ = events.send(Event::FromParent(down));
        if is_cut {
            break;
        }
    }
    let _ = events.send(Event::ParentLost);
    writing.abort();
}
