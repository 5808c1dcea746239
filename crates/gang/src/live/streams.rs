//! What ranks read and write, on its way to and from their front end. All of it is bounded: a front end
//! that does not read makes its ranks wait, and nobody else.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use bytes::BytesMut;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::link::{Frame, Receiver, Sender, Stream};

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

/// Carries a job's streams over a link to the root.
pub(super) async fn to_root(
    (mut sender, mut receiver): (Sender, Receiver),
    output: &mut mpsc::Receiver<Frame>,
    input: mpsc::Sender<Frame>,
) {
    let reading = tokio::spawn(async move {
        // A message among them says that this was all.
        while let Ok(Some(frame @ Frame::Data { .. })) = receiver.receive().await {
            if input.send(frame).await.is_err() {
                break;
            }
        }
        drop(input);
        while let Ok(Some(_)) = receiver.receive().await {}
    });
    let mut there = true;
    while let Some(frame) = output.recv().await {
        there = there && sender.send(&frame).await.is_ok();
    }
    drop(sender);
    reading.abort();
}

/// Carries a job's streams at the root, from the link of the host of these ranks to the front end and back.
pub(super) async fn at_root(
    (mut sender, mut receiver): (Sender, Receiver),
    ranks: &BTreeSet<u16>,
    (output, input): (mpsc::Sender<Frame>, Option<mpsc::Receiver<Frame>>),
) {
    let writing = tokio::spawn(async move {
        let Some(mut input) = input else { return std::future::pending().await };
        while let Some(frame) = input.recv().await {
            if sender.send(&frame).await.is_err() {
                return;
            }
        }
        // Its end: what nothing else says.
        let end = Frame::message(&());
        let _ = sender.send(&end).await;
        std::future::pending().await
    });
    while let Ok(Some(frame)) = receiver.receive().await {
        // Nothing else comes on it, and no other host's ranks.
        if matches!(&frame, Frame::Data { rank, .. } if ranks.contains(rank)) {
            let _ = output.send(frame).await;
        }
    }
    writing.abort();
}
