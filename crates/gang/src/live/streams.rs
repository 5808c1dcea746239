//! Carries the standard streams of ranks to and from their client. All queues are bounded: a client that does not read
//! blocks only its own job's ranks.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use midplane_simhw::time::Instant;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::clock::now;
use super::link::{Frame, Link, Sender, Stream};
use super::routes::Routes;

/// The daemon's ends of a started rank's standard streams.
#[derive(Debug)]
pub(super) struct Opened {
    pub rank: u16,
    /// File to which rank 0's input is written.
    pub input: Option<OwnedFd>,
    /// Files from which the rank's output is read.
    pub outputs: Vec<(Stream, OwnedFd)>,
}

/// Most frames that wait in a queue of streams.
pub(super) const QUEUE: usize = 16;
/// Most bytes of a stream that one frame carries.
const PART: usize = 16 << 10;

/// Makes a file non-blocking, so that the daemon never waits for a rank in a system call.
fn without_blocking(file: OwnedFd) -> std::io::Result<OwnedFd> {
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
    Ok(file)
}

/// Reads a rank's output until no process has its end open.
async fn read(output: OwnedFd, rank: u16, stream: Stream, to: mpsc::Sender<Frame>) {
    let output = without_blocking(output).and_then(pipe::Receiver::from_owned_fd_unchecked);
    let Ok(mut output) = output else { return };
    loop {
        let mut bytes = BytesMut::with_capacity(PART);
        // A terminal reports an error when its other side is closed.
        match output.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // If the client has left, output is still read and dropped, so that ranks don't block.
        let _ = to.send(Frame::Data { rank, stream, bytes: bytes.freeze() }).await;
    }
}

/// Writes a rank's input.
async fn write(input: OwnedFd, mut from: mpsc::Receiver<Frame>) {
    let input = without_blocking(input).and_then(pipe::Sender::from_owned_fd_unchecked);
    let Ok(mut input) = input else { return };
    while let Some(frame) = from.recv().await {
        let Frame::Data { bytes, .. } = frame else { continue };
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Starts the tasks that carry a rank's streams.
pub(super) fn carry(
    opened: Opened,
    output: &mpsc::Sender<Frame>,
    input: Option<mpsc::Receiver<Frame>>,
) {
    let rank = opened.rank;
    for (stream, from) in opened.outputs {
        let to = output.clone();
        tokio::spawn(read(from, rank, stream, to));
    }
    if let (Some(to), Some(from)) = (opened.input, input) {
        tokio::spawn(write(to, from));
    }
}

/// Sends output from the root to a job's client, which may change.
#[derive(Clone)]
pub(super) struct Outlet {
    client: watch::Receiver<Option<mpsc::Sender<Frame>>>,
    /// End of the time for which output waits for a client.
    waits_until: Instant,
    waiting: Arc<Mutex<Waiting>>,
}

/// Records how long frames wait until the client takes them.
#[derive(Debug, Default)]
struct Waiting {
    /// Number of frames that wait.
    frames: usize,
    /// When the first of them began to wait, or the client took the last frame.
    since: Option<Instant>,
    /// When the client took a frame that had waited for [`PAUSE`].
    paused_at: Option<Instant>,
}

/// Time that a frame waits for a client that has paused reading.
const PAUSE: Duration = Duration::from_millis(10);
/// Time after which a client that takes no frame counts as one that never reads again.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

impl Waiting {
    fn begin(&mut self, now: Instant) {
        if self.frames == 0 {
            self.since = Some(now);
        }
        self.frames += 1;
    }

    fn end(&mut self, now: Instant) {
        self.frames -= 1;
        if self.since.replace(now).is_some_and(|since| now.since(since) >= PAUSE) {
            self.paused_at = Some(now);
        }
    }

    fn paused_at(&self, now: Instant) -> Option<Instant> {
        let since = self.since.filter(|_| self.frames > 0);
        match since.map(|since| now.since(since)) {
            Some(pause) if pause >= PAUSE && pause < LONGEST_PAUSE => Some(now),
            _ => self.paused_at,
        }
    }
}

/// Time that a client gets to find a new root before its job's output is dropped.
const CLIENT_WAIT: Duration = Duration::from_secs(5);

impl Outlet {
    pub(super) fn new(client: watch::Receiver<Option<mpsc::Sender<Frame>>>) -> Self {
        Self { client, waits_until: now() + CLIENT_WAIT, waiting: Arc::default() }
    }

    /// Returns when the job's client last kept output waiting: `now` if it does at present.
    pub(super) fn paused_at(&self, now: Instant) -> Option<Instant> {
        self.waiting().paused_at(now)
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame to the client; waits for one if none is connected, and then drops the frame.
    async fn send(&mut self, frame: Frame) {
        let left = self.waits_until.since(now());
        let client = match timeout(left, self.client.wait_for(Option::is_some)).await {
            Ok(Ok(client)) => client.clone(),
            _ => None,
        };
        if let Some(client) = client {
            self.waiting().begin(now());
            let _ = client.send(frame).await;
            self.waiting().end(now());
        }
    }
}

/// Sends frames until the queue is closed. Returns whether all were sent.
pub(super) async fn send_all(sender: &mut Sender, frames: &mut mpsc::Receiver<Frame>) -> bool {
    while let Some(frame) = frames.recv().await {
        if sender.send(&frame).await.is_err() {
            return false;
        }
    }
    true
}

/// Message to the host of ranks whose job is over.
const OVER: bool = true;

/// Ends a link for the streams of a job that is over, at the root.
pub(super) async fn refuse((mut sender, mut receiver): Link) {
    let _ = sender.send(&Frame::message(&OVER)).await;
    // If output that was not received closed the link, the message could be lost.
    while let Ok(Some(_)) = receiver.receive().await {}
}

/// Carries a job's streams over a link to the root. Returns true if all output and the mark of its end were sent, or
/// the job is over; the input is carried until the root closes the link. Returns false if the link ended before; frames
/// in transit on it are lost.
pub(super) async fn to_root(
    (mut sender, mut receiver): Link,
    output: &mut mpsc::Receiver<Frame>,
    input: &mut Option<mpsc::Sender<Frame>>,
) -> bool {
    let mut reading = pin!(async {
        while let Ok(Some(frame)) = receiver.receive().await {
            if frame.parse::<bool>() == Some(OVER) {
                return true;
            }
            // A message instead of data marks the end of the input.
            let is_data = matches!(frame, Frame::Data { .. });
            let Some(to) = input.as_ref() else { continue };
            if !is_data || to.send(frame).await.is_err() {
                *input = None;
            }
        }
        false
    });
    let is_done = tokio::select! {
        is_over = &mut reading => return is_over,
        is_done = send_all(&mut sender, output) => is_done,
    };
    // A message instead of data marks the end of the output.
    let is_marked = is_done && sender.send(&Frame::message(&())).await.is_ok();
    if is_marked {
        reading.await;
    }
    is_marked
}

/// The input of a job's rank 0, at the root. Only one link at a time takes frames from it.
pub(super) type SharedInput = Arc<tokio::sync::Mutex<mpsc::Receiver<Frame>>>;
/// The input of a link, until the sender is dropped because a later link takes the input.
pub(super) type LinkInput = (SharedInput, oneshot::Receiver<()>);

/// Carries a job's streams at the root, between the link of the host of these ranks and the client, until input and
/// output have ended, the link has ended, or the job is over. Calls `done` once the ranks have closed their output. The
/// host's next link continues; frames in transit are lost.
pub(super) async fn at_root(
    (mut sender, mut receiver): Link,
    ranks: &BTreeSet<u16>,
    (mut output, input): (Outlet, Option<LinkInput>),
    routes: &Routes,
    done: impl FnOnce(),
) {
    let mut client = output.client.clone();
    let (ended, has_ended) = oneshot::channel();
    let reading = async {
        while let Ok(Some(frame)) = receiver.receive().await {
            let Frame::Data { rank, stream, bytes } = frame else {
                // A message instead of data marks the end of the output.
                done();
                let _ = ended.send(());
                // The host sends nothing more, so any result means that the link has ended.
                let _ = receiver.receive().await;
                return;
            };
            // Accepts data of this host's ranks only.
            if ranks.contains(&rank) {
                output.send(Frame::Data { rank, stream, bytes }).await;
            }
        }
    };
    let writing = async {
        if let Some((input, replaced)) = input {
            let sending = async { send_all(&mut sender, &mut *input.lock().await).await };
            let is_sent = tokio::select! {
                biased;
                // This link may be dead.
                _ = replaced => false,
                is_sent = sending => is_sent,
            };
            // Otherwise the job's input continues at the next root.
            if is_sent && *routes.root.borrow() == Some(routes.host) {
                // Marks the end of the input, which no data frame can express.
                let _ = sender.send(&Frame::message(&())).await;
            }
        }
        // The link stays open for the output.
        let _ = has_ended.await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
        () = async { while client.changed().await.is_ok() {} } => {}
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::net::UnixStream;

    use super::*;
    use crate::live::link;
    use crate::live::snapshot::Budget;

    fn frame(stream: Stream) -> Frame {
        Frame::Data { rank: 0, stream, bytes: Bytes::from_static(b"text") }
    }

    /// Returns the routes of the root, and the sender that must be kept.
    fn routes_of_root() -> (watch::Sender<Option<u16>>, Routes) {
        let (root, root_is) = watch::channel(Some(0));
        let routes = Routes {
            host: 0,
            addresses: Vec::new().into(),
            credentials: None,
            patience: PAUSE,
            root: root_is,
            events: mpsc::unbounded_channel().0,
            budget: Budget::default(),
        };
        (root, routes)
    }

    /// Regression: once a link broke, the root dropped the rest of the job's input, and reported that all output had
    /// been received.
    #[test]
    fn the_streams_of_a_broken_link_continue_over_the_next_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_root, routes) = routes_of_root();
            let ((feed, input), (client, mut received)) =
                (mpsc::channel(QUEUE), mpsc::channel(QUEUE));
            let input = Arc::new(tokio::sync::Mutex::new(input));
            let (_client, client_is) = watch::channel(Some(client));
            let (outlet, ranks) = (Outlet::new(client_is), BTreeSet::from([0]));
            for is_last in [false, true] {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let ((mut sender, mut receiver), link) = (link::local(ours), link::local(theirs));
                let mut is_done = false;
                let (_later, replaced) = oneshot::channel();
                let ends = (outlet.clone(), Some((Arc::clone(&input), replaced)));
                let carrying = at_root(link, &ranks, ends, &routes, || is_done = true);
                let host = async {
                    feed.send(frame(Stream::Input)).await.unwrap();
                    assert_eq!(receiver.receive().await.unwrap(), Some(frame(Stream::Input)));
                    sender.send(&frame(Stream::Output)).await.unwrap();
                    assert_eq!(received.recv().await, Some(frame(Stream::Output)));
                    if is_last {
                        sender.send(&Frame::message(&())).await.unwrap();
                    }
                    drop((sender, receiver));
                };
                tokio::join!(carrying, host);
                assert_eq!(is_done, is_last);
            }
        });
    }

    /// Regression: a dead link took the job's input until the system reported its end.
    #[test]
    fn the_next_link_takes_the_input_from_one_that_is_dead() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_root, routes) = routes_of_root();
            let (feed, input) = mpsc::channel(QUEUE);
            let input = Arc::new(tokio::sync::Mutex::new(input));
            let (_client, client_is) = watch::channel(None);
            let (outlet, ranks) = (Outlet::new(client_is), BTreeSet::from([0]));
            let links = [(); 2].map(|()| UnixStream::pair().unwrap());
            let [(first, mut dead), (second, mut next)] =
                links.map(|(ours, theirs)| (link::local(theirs), link::local(ours)));
            let [(later, replaced), (_last, stays)] = [(); 2].map(|()| oneshot::channel());
            let ends = |replaced| (outlet.clone(), Some((Arc::clone(&input), replaced)));
            let first = at_root(first, &ranks, ends(replaced), &routes, || ());
            let second = at_root(second, &ranks, ends(stays), &routes, || ());
            let host = async {
                feed.send(frame(Stream::Input)).await.unwrap();
                assert_eq!(dead.1.receive().await.unwrap(), Some(frame(Stream::Input)));
                drop(later);
                feed.send(frame(Stream::Input)).await.unwrap();
                assert_eq!(next.1.receive().await.unwrap(), Some(frame(Stream::Input)));
            };
            tokio::select! {
                biased;
                () = first => panic!("the first link has ended"),
                () = second => panic!("the second link has ended"),
                () = host => {}
            }
        });
    }

    #[test]
    fn a_client_pauses_once_a_frame_has_waited_and_not_for_ever() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut waiting = Waiting::default();
        waiting.begin(at(0));
        waiting.begin(at(1));
        assert_eq!(waiting.paused_at(at(9)), None);
        assert_eq!(waiting.paused_at(at(5_000)), Some(at(5_000)));
        waiting.end(at(6_000));
        assert_eq!(waiting.paused_at(at(6_001)), Some(at(6_000)));
        assert_eq!(waiting.paused_at(at(605_999)), Some(at(605_999)));
        assert_eq!(waiting.paused_at(at(606_001)), Some(at(6_000)));
        waiting.end(at(700_000));
        assert_eq!(waiting.paused_at(at(800_000)), Some(at(700_000)));
    }
}
