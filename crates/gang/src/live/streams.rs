//! What ranks read and write, on its way to and from their front end. All of it is bounded: a front end
//! that does not read makes its ranks wait, and nobody else.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::BytesMut;
use midplane_simhw::time::Instant;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::clock::now;
use super::link::{Frame, Link, Sender, Stream};

/// Files for the standard streams of a rank that was started.
#[derive(Debug)]
pub(super) struct Opened {
    pub rank: u16,
    /// Rank 0's input is written here.
    pub input: Option<OwnedFd>,
    /// Outputs are read here.
    pub outputs: Vec<(Stream, OwnedFd)>,
}

/// Frames on their way.
pub(super) const QUEUE: usize = 16;
/// Bytes that are read at once.
const PART: usize = 16 << 10;

/// The daemon never waits in a call for what a rank does.
fn without_blocking(file: OwnedFd) -> std::io::Result<OwnedFd> {
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
    Ok(file)
}

/// Reads what a rank writes, until nobody has it open.
async fn read(output: OwnedFd, rank: u16, stream: Stream, to: mpsc::Sender<Frame>) {
    let output = without_blocking(output).and_then(pipe::Receiver::from_owned_fd_unchecked);
    let Ok(mut output) = output else { return };
    loop {
        let mut bytes = BytesMut::with_capacity(PART);
        // A terminal that is closed on its other side is an error.
        match output.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // Once the front end is gone, it is read all the same: nobody waits for who is gone.
        let _ = to.send(Frame::Data { rank, stream, bytes: bytes.freeze() }).await;
    }
}

/// Writes what a rank is to read.
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

/// Starts what carries a rank's streams.
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

/// The way from the root to a job's front end, which may change.
#[derive(Clone)]
pub(super) struct Outlet {
    front: watch::Receiver<Option<mpsc::Sender<Frame>>>,
    /// Until then, output waits for a front end.
    waits_until: Instant,
}

/// Time in which a front end finds a new root.
const FRONT_WAIT: Duration = Duration::from_secs(5);

impl Outlet {
    pub(super) fn new(front: watch::Receiver<Option<mpsc::Sender<Frame>>>) -> Self {
        Self { front, waits_until: now() + FRONT_WAIT }
    }

    /// Sends a frame to the front end; drops it if there is none.
    async fn send(&mut self, frame: Frame) {
        let left = Duration::from_nanos(self.waits_until.nanos_since(now()));
        let front = match timeout(left, self.front.wait_for(Option::is_some)).await {
            Ok(Ok(front)) => front.clone(),
            _ => None,
        };
        if let Some(front) = front {
            let _ = front.send(frame).await;
        }
    }
}

/// Sends frames until there are no more. Returns whether all are sent.
pub(super) async fn send_all(sender: &mut Sender, frames: &mut mpsc::Receiver<Frame>) -> bool {
    while let Some(frame) = frames.recv().await {
        if sender.send(&frame).await.is_err() {
            return false;
        }
    }
    true
}

/// Carries a job's streams over a link to the root. Returns true if all output is sent and closed, false if the link has
/// ended before; what was under way on it is lost.
pub(super) async fn to_root(
    (mut sender, mut receiver): Link,
    output: &mut mpsc::Receiver<Frame>,
    input: &mut Option<mpsc::Sender<Frame>>,
) -> bool {
    let reading = async {
        while let Ok(Some(frame)) = receiver.receive().await {
            // A message among them says that this was all.
            let is_data = matches!(frame, Frame::Data { .. });
            let to = input.take().filter(|_| is_data);
            if let Some(to) = to
                && to.send(frame).await.is_ok()
            {
                *input = Some(to);
            }
        }
    };
    tokio::select! {
        () = reading => false,
        is_done = send_all(&mut sender, output) => is_done,
    }
}

/// Carries a job's streams at the root, from the link of the host of these ranks to the front end and back.
pub(super) async fn at_root(
    (mut sender, mut receiver): Link,
    ranks: &BTreeSet<u16>,
    (mut output, input): (Outlet, Option<mpsc::Receiver<Frame>>),
) {
    let writing = tokio::spawn(async move {
        let Some(mut input) = input else { return std::future::pending().await };
        if !send_all(&mut sender, &mut input).await {
            return;
        }
        // Its end: what nothing else says.
        let _ = sender.send(&Frame::message(&())).await;
        std::future::pending().await
    });
    while let Ok(Some(frame)) = receiver.receive().await {
        // Nothing else comes on it, and no other host's ranks.
        if matches!(&frame, Frame::Data { rank, .. } if ranks.contains(rank)) {
            output.send(frame).await;
        }
    }
    writing.abort();
}
