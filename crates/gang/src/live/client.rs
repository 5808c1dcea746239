//! A front end: asks this host's daemon, and stands between a job and whoever has started it.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use midplane_simhw::time::Instant;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::clock::now;
use super::link::{self, Frame, Link, Receiver, Sender, Stream};
use crate::names::JobId;
use crate::node_core::message::{Over, Program, Reply, Request, Saved};

/// Two Ctrl-C within that time end a job.
const TWICE: Duration = Duration::from_secs(1);
/// Bytes of standard input that are read at once.
const PART: usize = 16 << 10;
/// Time in which a front end searches the root of its job again; without a daemon on this host, a part of it.
const LOOKS_FOR: Duration = Duration::from_secs(10);
const LOOKS_FOR_A_DAEMON: Duration = Duration::from_secs(2);
/// Interval of these looks.
const AGAIN: Duration = Duration::from_millis(50);

/// Why a front end has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon serves this socket.
    #[error("{}: no daemon answers ({}); start `midplane gang daemon`, or name its --socket", .0.display(), .1)]
    NoDaemon(PathBuf, io::Error),
    /// This socket is not this user's.
    #[error(
        "{}: this user may not use its daemon: ask root for the socket's group, or start `midplane gang daemon` and name its \
         --socket", .0.display()
    )]
    Denied(PathBuf),
    /// It can't be done.
    #[error("{0}")]
    Refused(String),
    /// The daemon went away, and no other has taken over that this host reaches.
    #[error(
        "the daemon is gone; what ran under it has ended, unless other hosts have taken over: ask there by `midplane \
         gang list`, and follow a job by `midplane gang attach`"
    )]
    Gone,
    /// This process has no signals, or no terminal.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// How a job is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Ranks, at least 1.
    pub ranks: u16,
    /// Slices in a row, at least 1.
    pub weight: u8,
    /// What they run.
    pub program: Program,
    /// What becomes of what they write.
    pub output: Output,
}

/// What becomes of what a job's ranks write.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Each line says which rank has written it.
    pub label: bool,
    /// What goes to their standard output goes to standard error.
    pub to_error: bool,
}

async fn connect(socket: &Path) -> Result<Link, ClientError> {
    let stream = UnixStream::connect(socket).await;
    let no_daemon = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => ClientError::Denied(socket.to_owned()),
        _ => ClientError::NoDaemon(socket.to_owned(), error),
    };
    Ok(link::local(stream.map_err(no_daemon)?))
}

/// Sends a request over a new connection. Returns the first reply and the connection.
async fn begin(socket: &Path, request: &Request) -> Result<(Reply, Link), ClientError> {
    let (mut sender, mut receiver) = connect(socket).await?;
    sender.send(&Frame::message(request)).await.map_err(|_| ClientError::Gone)?;
    match receiver.message().await {
        Ok(Some(Reply::Refused(why))) => Err(ClientError::Refused(why)),
        Ok(Some(reply)) => Ok((reply, (sender, receiver))),
        _ => Err(ClientError::Gone),
    }
}

/// Asks the daemon for something that it answers once.
///
/// # Errors
/// [`ClientError`].
///
/// # Cancel safety
/// Dropped after its first poll, the daemon may do it all the same.
pub async fn ask(socket: &Path, request: &Request) -> Result<Reply, ClientError> {
    begin(socket, request).await.map(|(reply, _)| reply)
}

/// The size of the terminal that this process writes to, as rows and columns.
#[must_use]
pub fn terminal_size() -> Option<(u16, u16)> {
    tcgetwinsize(io::stdout()).ok().map(|size| (size.ws_row, size.ws_col))
}

/// A terminal that hands on every key as it is pressed, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok().filter(|_| isatty(io::stdin()))?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Runs a job, and stands in for it: its input, output and signals are this process's. `taken` hears
/// its number.
///
/// Ctrl-C goes to the job; twice within a second ends it. When this is dropped, the job is ended.
///
/// # Errors
/// [`ClientError`].
pub async fn run(
    socket: &Path,
    options: RunOptions,
    taken: impl FnOnce(JobId),
) -> Result<Over, ClientError> {
    let RunOptions { ranks, weight, program, output } = options;
    let terminal = program.terminal.is_some();
    attend(socket, Request::Run { ranks, weight, program }, terminal, output, taken).await
}

/// Runs a job that was saved in a folder on the daemon's host, as [`run`] does; `weight` as there. It has
/// no terminal.
///
/// # Errors
/// [`ClientError`]; `Refused` says what is wrong with the checkpoint, and where.
///
/// # Cancel safety
/// Dropped, the job is ended.
pub async fn restore(
    socket: &Path,
    folder: &Path,
    weight: u8,
    output: Output,
    taken: impl FnOnce(JobId),
) -> Result<Over, ClientError> {
    let folder = std::path::absolute(folder)?.into_os_string().into_vec();
    attend(socket, Request::Restore { folder, weight }, false, output, taken).await
}

/// Has a job saved in a folder on the daemon's host, which must not hold a checkpoint; with `end`, it
/// ends then. Waits until all ranks have come to a point where they can be saved, and it is on the disk.
///
/// # Errors
/// [`ClientError`]; `Refused` says why the job was not saved; the job then continues.
///
/// # Cancel safety
/// Dropped after its first poll, the daemon may save the job all the same.
pub async fn checkpoint(
    socket: &Path,
    job: JobId,
    folder: &Path,
    end: bool,
) -> Result<Saved, ClientError> {
    let folder = std::path::absolute(folder)?.into_os_string().into_vec();
    match ask(socket, &Request::Checkpoint { job, folder, end }).await? {
        Reply::Saved(saved) => Ok(saved),
        _ => Err(ClientError::Gone),
    }
}

/// Stands in for a job whose front end is gone with the root that it was connected with.
///
/// # Errors
/// [`ClientError`]; `Refused` if there is no such job, or it has a front end.
///
/// # Cancel safety
/// Dropped, the job is ended.
pub async fn attach(socket: &Path, job: JobId, output: Output) -> Result<Over, ClientError> {
    attend(socket, Request::Attach(job), false, output, |_| {}).await
}

/// Finds the root of a job again: another host may have taken over.
async fn begin_again(socket: &Path, job: JobId) -> Result<(Reply, Link), ClientError> {
    let lost_at = now();
    loop {
        // A root that is none any longer, and does not know, does not know the job either.
        let longest = match begin(socket, &Request::Attach(job)).await {
            Ok(found) => return Ok(found),
            Err(ClientError::NoDaemon(..)) => LOOKS_FOR_A_DAEMON,
            Err(_) => LOOKS_FOR,
        };
        if now() > lost_at + longest {
            return Err(ClientError::Gone);
        }
        sleep(AGAIN).await;
    }
}

/// Stands in for a job until it is over. If the root is lost, searches the one that has taken over.
async fn attend(
    socket: &Path,
    request: Request,
    terminal: bool,
    output: Output,
    taken: impl FnOnce(JobId),
) -> Result<Over, ClientError> {
    let mut found = begin(socket, &request).await?;
    if let (Reply::Accepted(job), _) = &found {
        taken(*job);
    }
    let _raw = if terminal { Raw::begin() } else { None };
    let (typed, mut keys) = mpsc::channel(1);
    let typing = tokio::spawn(read_input(typed));
    let result = loop {
        let (job, mut sender, receiver) = match found {
            (Reply::Over(over), _) => break Ok(over),
            (Reply::Accepted(job), (sender, receiver)) => (job, sender, receiver),
            _ => break Err(ClientError::Gone),
        };
        let (over, mut ended) = mpsc::channel(1);
        let writing = tokio::spawn(async move {
            let _ = over.send(write_out(receiver, output).await).await;
        });
        let result = tokio::select! {
            result = forward(&mut sender, job, &mut ended) => result,
            never = feed(socket, job, &mut keys) => never,
        };
        writing.abort();
        if !matches!(result, Err(ClientError::Gone)) {
            break result;
        }
        found = match begin_again(socket, job).await {
            Ok(found) => found,
            Err(error) => break Err(error),
        };
    };
    typing.abort();
    result
}

/// Hands signals on, until the job is over.
async fn forward(
    sender: &mut Sender,
    job: JobId,
    ended: &mut mpsc::Receiver<Option<Over>>,
) -> Result<Over, ClientError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut first = signal(SignalKind::user_defined1())?;
    let mut second = signal(SignalKind::user_defined2())?;
    let mut window = signal(SignalKind::window_change())?;
    let mut interrupted: Option<Instant> = None;
    loop {
        let request = tokio::select! {
            over = ended.recv() => return over.flatten().ok_or(ClientError::Gone),
            _ = interrupt.recv() => {
                let before = interrupted.replace(now());
                let twice = before.is_some_and(|at| now().nanos_since(at) < TWICE.as_nanos() as u64);
                match twice {
                    true => Request::Kill { job, signal: None },
                    false => Request::Signal(SignalKind::interrupt().as_raw_value()),
                }
            }
            _ = terminate.recv() => Request::Signal(SignalKind::terminate().as_raw_value()),
            _ = hangup.recv() => Request::Signal(SignalKind::hangup().as_raw_value()),
            _ = quit.recv() => Request::Signal(SignalKind::quit().as_raw_value()),
            _ = first.recv() => Request::Signal(SignalKind::user_defined1().as_raw_value()),
            _ = second.recv() => Request::Signal(SignalKind::user_defined2().as_raw_value()),
            _ = window.recv() => match terminal_size() {
                Some(size) => Request::Resize(size),
                None => continue,
            },
        };
        // When the daemon is gone, the other direction says so.
        let _ = sender.send(&Frame::message(&request)).await;
    }
}

/// Reads standard input, in frames for rank 0.
async fn read_input(to: mpsc::Sender<Frame>) {
    let mut input = tokio::io::stdin();
    loop {
        let mut bytes = BytesMut::with_capacity(PART);
        if !matches!(input.read_buf(&mut bytes).await, Ok(count) if count > 0) {
            return;
        }
        let frame = Frame::Data { rank: 0, stream: Stream::Input, bytes: bytes.freeze() };
        if to.send(frame).await.is_err() {
            return;
        }
    }
}

/// Hands standard input to a job, over one connection after the other. Never ends.
async fn feed(socket: &Path, job: JobId, keys: &mut mpsc::Receiver<Frame>) -> ! {
    loop {
        feed_once(socket, job, keys).await;
        sleep(AGAIN).await;
    }
}

/// Hands standard input to a job until the connection ends.
async fn feed_once(socket: &Path, job: JobId, keys: &mut mpsc::Receiver<Frame>) -> Option<()> {
    let begun = begin(socket, &Request::Feed(job)).await.ok()?;
    let (Reply::Accepted(_), (mut sender, mut receiver)) = begun else { return None };
    loop {
        let frame = tokio::select! {
            frame = keys.recv() => frame,
            // The daemon has no more to say: the connection has ended.
            _ = receiver.receive() => return None,
        };
        let Some(frame) = frame else {
            sender.send(&Frame::message(&())).await.ok()?;
            let _ = receiver.receive().await;
            return None;
        };
        sender.send(&frame).await.ok()?;
    }
}

/// Writes what ranks write, until the job is over; `None` if the daemon is gone before that.
async fn write_out(mut receiver: Receiver, how: Output) -> Option<Over> {
    let (mut output, mut error) = (tokio::io::stdout(), tokio::io::stderr());
    let mut labels = Labels::default();
    loop {
        match receiver.receive().await.ok()?? {
            Frame::Data { rank, stream, bytes } => {
                let labelled =
                    if how.label { labels.add(rank, stream, &bytes) } else { bytes.into() };
                // Who does not listen to the job may still want its end.
                if stream == Stream::Error || how.to_error {
                    let _ = error.write_all(&labelled).await;
                    let _ = error.flush().await;
                } else {
                    let _ = output.write_all(&labelled).await;
                    let _ = output.flush().await;
                }
            }
            frame => {
                if let Some(Reply::Over(over)) = frame.parse() {
                    return Some(over);
                }
            }
        }
    }
}

/// Whole lines with the rank before them.
#[derive(Default)]
struct Labels {
    /// What began a line that has not ended.
    begun: std::collections::BTreeMap<(u16, bool), Vec<u8>>,
}

impl Labels {
    fn add(&mut self, rank: u16, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let begun = self.begun.entry((rank, stream == Stream::Error)).or_default();
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                out.extend_from_slice(format!("[{rank}] ").as_bytes());
                out.append(begun);
            }
        }
        out
    }
}
