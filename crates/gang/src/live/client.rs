//! A client of this host's daemon: sends requests, and connects a job with the user's terminal.

mod output;

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use midplane_simhw::time::Instant;
use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::process::{geteuid, getpgrp};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};
use rustix::thread::{Timespec, nanosleep};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::clock::now;
use super::daemon::{is_foreign, is_temporary};
use super::link::{self, Frame, Link, Sender, Stream};
use crate::names::JobId;
use crate::node_core::message::{Over, Program, Reply, Request, Saved};
use output::{SharedLabels, Written, print, rest_of, write_out};

/// Two Ctrl-C within this time end a job.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(1);
/// Most bytes that one read of standard input returns.
const PART: usize = 16 << 10;
/// Time for which a client searches its job's root again, and the shorter time if this host has no daemon.
const ROOT_TIMEOUT: Duration = Duration::from_secs(10);
const DAEMON_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before standard input is read again, while this process is in the background of its terminal.
const BACKGROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
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
    /// Another user may have created the default socket.
    #[error(
        "{}: another user may have made this default socket: set XDG_RUNTIME_DIR, or name the daemon's --socket",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The daemon has refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon has exited, and this host reaches no daemon that has taken over.
    #[error(
        "the daemon is gone; what ran under it has ended, unless other hosts have taken over: ask there by `midplane \
         gang list`, and follow a job by `midplane gang attach`"
    )]
    Gone,
    /// The job has ended, but this process could not write all of its output. If its reader had closed a pipe, the
    /// client has ended the job.
    #[error("not all output of the job was written: {0}")]
    Output(io::Error),
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

/// Connects to a daemon's socket. In a folder for temporary files, it must be of this user or of root.
async fn connect(socket: &Path) -> Result<Link, ClientError> {
    let foreign = || ClientError::Foreign(socket.to_owned());
    if is_foreign(socket) {
        return Err(foreign());
    }
    let stream = UnixStream::connect(socket).await;
    let no_daemon = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => ClientError::Denied(socket.to_owned()),
        _ => ClientError::NoDaemon(socket.to_owned(), error),
    };
    let stream = stream.map_err(no_daemon)?;
    if is_temporary(socket) && ![0, geteuid().as_raw()].contains(&stream.peer_cred()?.uid()) {
        return Err(foreign());
    }
    Ok(link::local(stream))
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

/// Returns whether this process is in the background of the terminal on standard input.
fn is_in_background() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != getpgrp())
}

/// Keeps the terminal in raw mode until dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> Option<Self> {
        // In the background, the system would stop this process.
        let may_set = isatty(io::stdin()) && !is_in_background();
        let before = tcgetattr(io::stdin()).ok().filter(|_| may_set)?;
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
    std::thread::Builder::new().spawn(move || read_input(&typed))?;
    let mut failed = None;
    let labels = output.label.then(SharedLabels::default);
    let result = loop {
        let (job, mut sender, receiver) = match found {
            (Reply::Over(over), _) => break Ok(over),
            (Reply::Accepted(job), (sender, receiver)) => (job, sender, receiver),
            _ => break Err(ClientError::Gone),
        };
        let (events, mut written) = mpsc::channel(1);
        let writing = tokio::spawn(write_out(receiver, output, labels.clone(), events));
        let result = tokio::select! {
            result = forward(&mut sender, job, &mut written, &mut failed) => result,
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
    for (stream, line) in labels.map(|it| rest_of(&it)).unwrap_or_default() {
        if let Err(error) = print(stream, output, &line).await {
            failed.get_or_insert(error);
        }
    }
    match failed {
        Some(error) if result.is_ok() => Err(ClientError::Output(error)),
        _ => result,
    }
}

/// Forwards signals to the job until it ends. Ends the job once the reader of its output has closed the pipe. Sets
/// `failed` if output could not be written.
async fn forward(
    sender: &mut Sender,
    job: JobId,
    written: &mut mpsc::Receiver<Written>,
    failed: &mut Option<io::Error>,
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
            event = written.recv() => match event {
                Some(Written::Failed(error)) => {
                    let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
                    failed.get_or_insert(error);
                    if !is_closed {
                        continue;
                    }
                    Request::Kill { job, signal: None }
                }
                Some(Written::Over(over)) => return over.ok_or(ClientError::Gone),
                None => return Err(ClientError::Gone),
            },
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

/// Reads standard input, as frames for rank 0. While this process is in the background of its terminal, input waits.
/// Blocks.
fn read_input(to: &mpsc::Sender<Frame>) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTIN);
    // Reads in the background then fail. Otherwise they would stop this process, and the job's output with it.
    let _ = signals.thread_block();
    let mut bytes = vec![0; PART];
    loop {
        let count = match rustix::io::read(io::stdin(), &mut bytes[..]) {
            Ok(0) => return,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(Errno::IO) if is_in_background() => {
                let _ = nanosleep(&BACKGROUND);
                continue;
            }
            Err(_) => return,
        };
        let bytes = Bytes::copy_from_slice(&bytes[..count]);
        let frame = Frame::Data { rank: 0, stream: Stream::Input, bytes };
        if to.blocking_send(frame).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_core::message::User;

    /// Regression: the client took the output of a job for ever after its reader had closed the pipe, and exited with
    /// the job's code although output was lost.
    #[test]
    fn a_closed_pipe_ends_the_job_and_other_errors_only_fail_the_client() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (kind, ends) in
                [(io::ErrorKind::BrokenPipe, true), (io::ErrorKind::StorageFull, false)]
            {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let ((mut sender, _), (_, mut daemon)) = (link::local(ours), link::local(theirs));
                let (events, mut written) = mpsc::channel(2);
                let (job, ranks, run_seconds, preemptions) = (JobId(3), Vec::new(), 0.0, 0);
                let (user, why, seconds) = (User::default(), None, 0.0);
                let over = Over { job, user, ranks, why, seconds, run_seconds, preemptions };
                events.try_send(Written::Failed(kind.into())).unwrap();
                events.try_send(Written::Over(Some(over.clone()))).unwrap();
                let mut failed = None;
                let result = forward(&mut sender, job, &mut written, &mut failed).await;
                assert_eq!(result.unwrap(), over);
                assert_eq!(failed.map(|error| error.kind()), Some(kind));
                drop(sender);
                let request = daemon.message().await.unwrap();
                assert_eq!(request, ends.then_some(Request::Kill { job, signal: None }));
            }
        });
    }
}
