//! A client of this host's daemon: sends requests, and connects a job with the user's terminal.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Two Ctrl-C within this time end a job.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(1);
/// Most bytes that one read of standard input returns.
const PART: usize = 16 << 10;
/// Time for which a client searches its job's root again, and the shorter time if this host has no daemon.
const ROOT_TIMEOUT: Duration = Duration::from_secs(10);
const DAEMON_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a line with a label, after which the line is split.
const LONGEST_LINE: usize = 64 << 10;
/// Interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Reason why a request of a client failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon serves this socket.
    #[error("{}: no daemon answers ({}); start `midplane gang daemon`, or name its --socket", .0.display(), .1)]
    NoDaemon(PathBuf, io::Error),
    /// This user may not use this socket.
    #[error(
        "{}: this user may not use its daemon: ask root for the socket's group, or start `midplane gang daemon` and name its \
         --socket", .0.display()
    )]
    Denied(PathBuf),
    /// The daemon has refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon has exited, and this host reaches no daemon that has taken over.
    #[error(
        "the daemon is gone; what ran under it has ended, unless other hosts have taken over: ask there by `midplane \
         gang list`, and follow a job by `midplane gang attach`"
    )]
    Gone,
    /// No root carries the request out now, for this reason.
    #[error("{0}")]
    NoRoot(String),
    /// Setting up signals or the terminal failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Options of a job.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Number of ranks, at least 1.
    pub ranks: u16,
    /// Consecutive time slices of the job per round, at least 1.
    pub weight: u8,
    /// The program of every rank.
    pub program: Program,
    /// Options of the ranks' output.
    pub output: Output,
}

/// Options of writing the output of a job's ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Prefixes each line with the number of its rank.
    pub label: bool,
    /// Writes the ranks' standard output to standard error.
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
        Ok(Some(Reply::NoRoot(why))) => Err(ClientError::NoRoot(why)),
        Ok(Some(reply)) => Ok((reply, (sender, receiver))),
        _ => Err(ClientError::Gone),
    }
}

/// Sends the daemon a request that has one reply.
///
/// # Errors
/// [`ClientError`].
///
/// # Cancel safety
/// If this is dropped after its first poll, the daemon may still carry the request out.
pub async fn ask(socket: &Path, request: &Request) -> Result<Reply, ClientError> {
    begin(socket, request).await.map(|(reply, _)| reply)
}

/// Returns the size of the terminal on standard output, as rows and columns.
#[must_use]
pub fn terminal_size() -> Option<(u16, u16)> {
    tcgetwinsize(io::stdout()).ok().map(|size| (size.ws_row, size.ws_col))
}

/// Keeps the terminal in raw mode until dropped.
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

/// Runs a job with this process's input, output and signals. Calls `taken` with the job's number once the job is
/// accepted.
///
/// Forwards Ctrl-C to the job; two within a second end it. If this is dropped, the job ends.
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

/// Runs a job from a checkpoint in a folder on the daemon's host, like [`run`]; `weight` is as in [`RunOptions`]. The
/// job has no terminal.
///
/// # Errors
/// [`ClientError`]; `Refused` says what is wrong with the checkpoint and where.
///
/// # Cancel safety
/// If this is dropped, the job ends.
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

/// Saves a job to a folder on the daemon's host, which must not contain a checkpoint. With `end`, the job ends
/// afterwards. Returns once all ranks have reached a point where they can be saved and the checkpoint is on disk.
///
/// # Errors
/// [`ClientError`]; `Refused` says why the job was not saved. The job then continues.
///
/// # Cancel safety
/// If this is dropped after its first poll, the daemon may still save the job.
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

/// Becomes the client of a job that lost its client together with its root.
///
/// # Errors
/// [`ClientError`]; `Refused` if there is no such job or the job has a client.
///
/// # Cancel safety
/// If this is dropped, the job ends.
pub async fn attach(socket: &Path, job: JobId, output: Output) -> Result<Over, ClientError> {
    attend(socket, Request::Attach(job), false, output, |_| {}).await
}

/// Finds the root of a job again: another host may have taken over.
async fn begin_again(socket: &Path, job: JobId) -> Result<(Reply, Link), ClientError> {
    let lost_at = now();
    loop {
        // A root that was replaced without noticing does not know the job either, so a refusal is retried too.
        let longest = match begin(socket, &Request::Attach(job)).await {
            Ok(found) => return Ok(found),
            Err(ClientError::NoDaemon(..)) => DAEMON_TIMEOUT,
            Err(_) => ROOT_TIMEOUT,
        };
        if now() > lost_at + longest {
            return Err(ClientError::Gone);
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Serves a job as its client until it ends. If the root is lost, searches its successor.
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
    let labels = output.label.then(SharedLabels::default);
    let result = loop {
        let (job, mut sender, receiver) = match found {
            (Reply::Over(over), _) => break Ok(over),
            (Reply::Accepted(job), (sender, receiver)) => (job, sender, receiver),
            _ => break Err(ClientError::Gone),
        };
        let (over, mut ended) = mpsc::channel(1);
        let writing = write_out(receiver, output, labels.clone());
        let writing = tokio::spawn(async move {
            let _ = over.send(writing.await).await;
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
    for (stream, line) in labels.map(|it| rest_of(&it)).unwrap_or_default() {
        print(stream, output, &line).await;
    }
    result
}

/// Forwards signals to the job until it ends.
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
                let twice = before.is_some_and(|at| now().since(at) < DOUBLE_INTERRUPT);
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
        // If the daemon has exited, the receiving direction reports that.
        let _ = sender.send(&Frame::message(&request)).await;
    }
}

/// Reads standard input, as frames for rank 0.
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

/// Forwards standard input to a job, and connects again after each lost connection. Never returns.
async fn feed(socket: &Path, job: JobId, keys: &mut mpsc::Receiver<Frame>) -> ! {
    loop {
        feed_once(socket, job, keys).await;
        sleep(RETRY_INTERVAL).await;
    }
}

/// Forwards standard input to a job until the connection ends.
async fn feed_once(socket: &Path, job: JobId, keys: &mut mpsc::Receiver<Frame>) -> Option<()> {
    let begun = begin(socket, &Request::Feed(job)).await.ok()?;
    let (Reply::Accepted(_), (mut sender, mut receiver)) = begun else { return None };
    loop {
        let frame = tokio::select! {
            frame = keys.recv() => frame,
            // The daemon sends nothing more here, so any result means that the connection has ended.
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

/// Writes the ranks' output until the job ends; returns `None` if the daemon exits before that.
async fn write_out(
    mut receiver: Receiver,
    how: Output,
    labels: Option<SharedLabels>,
) -> Option<Over> {
    loop {
        match receiver.receive().await.ok()?? {
            Frame::Data { rank, stream, bytes } => {
                let labelled = match &labels {
                    Some(labels) => lock(labels).add(rank, stream, &bytes),
                    None => bytes.into(),
                };
                print(stream, how, &labelled).await;
            }
            frame => {
                if let Some(Reply::Over(over)) = frame.parse() {
                    return Some(over);
                }
            }
        }
    }
}

/// Writes a rank's output. If that fails, the client still waits for the job's result.
async fn print(stream: Stream, how: Output, bytes: &[u8]) {
    if stream == Stream::Error || how.to_error {
        let mut error = tokio::io::stderr();
        let _ = error.write_all(bytes).await;
        let _ = error.flush().await;
    } else {
        let mut output = tokio::io::stdout();
        let _ = output.write_all(bytes).await;
        let _ = output.flush().await;
    }
}

/// Labels that outlive a connection to the root.
type SharedLabels = Arc<Mutex<Labels>>;

fn lock(labels: &SharedLabels) -> std::sync::MutexGuard<'_, Labels> {
    labels.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rest_of(labels: &SharedLabels) -> Vec<(Stream, Vec<u8>)> {
    lock(labels).take_rest()
}

/// Prefixes whole lines with their rank.
#[derive(Default)]
struct Labels {
    /// Incomplete last lines, by rank and by whether they are of standard error.
    begun: std::collections::BTreeMap<(u16, bool), Vec<u8>>,
}

impl Labels {
    fn add(&mut self, rank: u16, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let begun = self.begun.entry((rank, stream == Stream::Error)).or_default();
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(part);
            let is_whole = part.ends_with(b"\n");
            if is_whole || begun.len() >= LONGEST_LINE {
                out.extend_from_slice(format!("[{rank}] ").as_bytes());
                out.append(begun);
                out.extend_from_slice(if is_whole { b"" } else { b"\n" });
            }
        }
        out
    }

    /// Returns the last lines that no newline has ended.
    fn take_rest(&mut self) -> Vec<(Stream, Vec<u8>)> {
        let begun = std::mem::take(&mut self.begun).into_iter();
        let lines = begun.filter(|(_, line)| !line.is_empty()).map(|((rank, is_error), line)| {
            let stream = if is_error { Stream::Error } else { Stream::Output };
            (stream, [format!("[{rank}] ").as_bytes(), &line, b"\n"].concat())
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_labels_keep_their_rest_and_are_split_if_too_long() {
        let mut labels = Labels::default();
        assert_eq!(labels.add(0, Stream::Output, b"a\nb"), b"[0] a\n");
        assert_eq!(labels.add(1, Stream::Error, b"c"), b"");
        assert_eq!(labels.add(2, Stream::Output, b"d\n"), b"[2] d\n");
        let rest = [(Stream::Output, b"[0] b\n".to_vec()), (Stream::Error, b"[1] c\n".to_vec())];
        assert_eq!(labels.take_rest(), rest);
        assert_eq!(labels.take_rest(), []);
        let long = labels.add(3, Stream::Output, &[b'x'; LONGEST_LINE]);
        assert!(long.starts_with(b"[3] xx") && long.ends_with(b"x\n"));
        assert_eq!(labels.take_rest(), []);
    }
}
