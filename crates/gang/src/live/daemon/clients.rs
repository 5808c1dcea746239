//! Serves clients: those of this host, and, at the root, those that other hosts' daemons relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::super::event::Event;
use super::super::link::{self, Frame, Link, Receiver, Sender};
use super::super::rights::{Places, Users};
use super::super::routes::Routes;
use super::super::streams;
use crate::names::JobId;
use crate::node_core::Input;
use crate::node_core::message::{Purpose, Reply, Request};
use crate::node_core::user::{Caller, User};

/// Pause after a failed `accept`.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after each request except [`Request::Feed`], so that no client floods the daemons with them.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(1);
/// Most connections of one foreign user at a time. A command that follows a job has two.
const MOST: usize = 256;
/// Number of the next client's connection.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Accepts clients of this host. The system reports the user of each.
pub(super) async fn take(listener: UnixListener, routes: Routes, users: Users) {
    let places = Places::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        let is_own = users.is_own(peer.uid());
        let place = if is_own { Some(Arc::default()) } else { places.reserve(peer.uid(), MOST) };
        let (link, routes, users) = (link::local(stream), routes.clone(), users.clone());
        tokio::spawn(async move {
            let Some(place) = place else {
                // The reply has little time, because this connection exceeds the user's limit.
                let why =
                    format!("this user has {MOST} connections with the daemon: end some jobs");
                return drop(timeout(RETRY_INTERVAL, refuse(link, Reply::Refused(why))).await);
            };
            let admitted = spawn_blocking(move || users.admit(peer.uid())).await;
            match admitted.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(user) => serve(link, routes, user).await,
                Err(why) => refuse(link, Reply::Refused(why)).await,
            }
            drop(place);
        });
    }
}

/// Serves a client of this host: here if this host is the root, otherwise by relaying its frames to the root.
async fn serve(link: Link, mut routes: Routes, user: User) {
    match routes.find_root().await {
        Some(root) if root == routes.host || routes.addresses.len() < 3 => {
            serve_at_root(link, routes, user, false).await;
        }
        Some(root) => match routes.dial(root, Purpose::Client(user)).await {
            Ok(far) => tokio::select! {
                () = join(link, far) => {}
                // The client finds the next root. The former root's host may have closed nothing.
                () = routes.root_leaves(root) => {}
            },
            Err(_) => {
                let why = format!("the root, host {root}, does not answer: ask again");
                refuse(link, Reply::NoRoot(why)).await;
            }
        },
        None => {
            let hosts = routes.addresses.len();
            let why = format!(
                "there is no root: this daemon does not reach a majority, {} of the {hosts} daemons",
                hosts / 2 + 1
            );
            refuse(link, Reply::NoRoot(why)).await;
        }
    }
}

async fn refuse((mut sender, mut receiver): Link, reply: Reply) {
    let _ = receiver.receive().await;
    let _ = sender.send(&Frame::message(&reply)).await;
}

/// Relays frames both ways until one side ends. If the client has ended, notifies the root.
async fn join(mut near: Link, mut far: Link) {
    let has_left = tokio::select! {
        () = copy(&mut near.1, &mut far.0) => true,
        () = copy(&mut far.1, &mut near.0) => false,
    };
    if has_left {
        let _ = far.0.send(&Frame::message(&Request::Leave)).await;
    }
}

async fn copy(from: &mut Receiver, to: &mut Sender) {
    while let Ok(Some(frame)) = from.receive().await {
        if to.send(&frame).await.is_err() {
            return;
        }
    }
}

/// Serves a client at the root, until the client leaves or this host is no longer the root. If `is_carried`, another
/// daemon relays the connection.
pub(super) async fn serve_at_root(link: Link, mut routes: Routes, user: User, is_carried: bool) {
    let (mut sender, receiver) = link;
    let client = NEXT.fetch_add(1, Ordering::Relaxed);
    let (reply, mut replies) = mpsc::channel::<Frame>(streams::QUEUE);
    let events = routes.events.clone();
    let host = routes.host;
    let writing = tokio::spawn(async move { streams::send_all(&mut sender, &mut replies).await });
    let mut may_return = is_carried;
    tokio::select! {
        left = requests(Caller { client, user }, receiver, reply, &events) => may_return &= !left,
        _ = routes.root.wait_for(|root| *root != Some(host)), if routes.addresses.len() > 2 => {
            writing.abort();
        }
    }
    let _ = events.send(Event::ClientGone { client, may_return });
}

/// Forwards a client's requests as events. Returns whether the client has left.
///
/// A client that has not read its replies is not heard further. It can only signal its job, and end one once.
async fn requests(
    caller: Caller,
    mut receiver: Receiver,
    reply: mpsc::Sender<Frame>,
    events: &mpsc::UnboundedSender<Event>,
) -> bool {
    let mut has_ended = false;
    while let Ok(Some(request)) = receiver.message::<Request>().await {
        match request {
            Request::Leave => return true,
            Request::Feed(job) => {
                feed((caller.user.clone(), job), &mut receiver, &reply, events).await;
            }
            request => {
                let is_heard = match request {
                    Request::Signal(_) | Request::Resize(_) => true,
                    // Its reply waits for the client, so only one is heard.
                    Request::Kill { .. } => !std::mem::replace(&mut has_ended, true),
                    _ => false,
                };
                if !is_heard {
                    drop(reply.reserve_many(streams::QUEUE).await);
                }
                let (handled, is_handled) = oneshot::channel();
                let event = Event::Request(caller.clone(), request, reply.clone(), handled);
                let _ = events.send(event);
                // The event loop only drops its end.
                let _ = is_handled.await;
                sleep(BETWEEN_REQUESTS).await;
            }
        }
    }
    false
}

/// Forwards a client's standard input to a job, once the previous connection that fed the job has ended.
async fn feed(
    (user, job): (User, JobId),
    receiver: &mut Receiver,
    reply: &mpsc::Sender<Frame>,
    events: &mpsc::UnboundedSender<Event>,
) {
    let (to, feed) = oneshot::channel();
    let _ = events.send(Event::Feed(user, job, to));
    let Ok(feed) = feed.await else {
        let why = format!("no job {job} takes input of this client");
        return drop(reply.send(Frame::message(&Reply::Refused(why))).await);
    };
    // The client sends input only after this reply, so that none is lost.
    let _ = reply.send(Frame::message(&Reply::Accepted(job))).await;
    while let Ok(Some(frame)) = receiver.receive().await {
        // A message instead of data marks the end of the input.
        if !matches!(frame, Frame::Data { .. }) || feed.send(frame).await.is_err() {
            return;
        }
        let _ = events.send(Event::Core(Input::Fed(job)));
    }
    let _ = events.send(Event::Unfed(job, feed));
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    /// Time in which an event would have arrived.
    const SILENCE: Duration = Duration::from_millis(20);

    /// Regression: the daemon answered thousands of requests of a client that read nothing, and had no memory left.
    #[test]
    fn a_client_that_reads_no_replies_is_not_heard_further() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ((mut sender, _), (_, receiver)) = (link::local(ours), link::local(theirs));
            let (events, mut happens) = mpsc::unbounded_channel();
            let (reply, mut replies) = mpsc::channel(streams::QUEUE);
            let caller = Caller { client: 1, user: User::default() };
            tokio::spawn(async move { requests(caller, receiver, reply, &events).await });
            for _ in 0..100 {
                sender.send(&Frame::message(&Request::Slices)).await.unwrap();
            }
            for _ in 0..3 {
                let event = happens.recv().await;
                let Some(Event::Request(_, Request::Slices, reply, handled)) = event else {
                    panic!("no request")
                };
                assert!(timeout(SILENCE, happens.recv()).await.is_err(), "one is being handled");
                reply.try_send(Frame::message(&Reply::Done)).unwrap();
                drop(handled);
                assert!(timeout(SILENCE, happens.recv()).await.is_err(), "a reply is not read");
                assert!(replies.recv().await.is_some());
            }
        });
    }

    /// Regression: a client whose job's output was not read could not end the job.
    #[test]
    fn a_client_that_reads_no_output_can_end_its_job_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ((mut sender, _), (_, receiver)) = (link::local(ours), link::local(theirs));
            let (events, mut happens) = mpsc::unbounded_channel();
            let (reply, _replies) = mpsc::channel(streams::QUEUE);
            reply.try_send(Frame::message(&Reply::Done)).unwrap();
            let caller = Caller { client: 1, user: User::default() };
            tokio::spawn(async move { requests(caller, receiver, reply, &events).await });
            let kill = Request::Kill { job: JobId(1), signal: None };
            for _ in 0..2 {
                sender.send(&Frame::message(&kill)).await.unwrap();
            }
            let Some(Event::Request(_, request, _, handled)) = happens.recv().await else {
                panic!("no request")
            };
            assert_eq!(request, kill);
            drop(handled);
            assert!(timeout(SILENCE, happens.recv()).await.is_err(), "a reply is not read");
        });
    }
}
