//! Processes that a program starts on this host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::report::Failure;

/// Ports that a run may request in a row; runs that start at once begin as far apart.
const STRIDE: u32 = 32;
/// Lowest port that is tried; services of the host use those below.
const LOWEST: u16 = 10_000;
/// Default range of ephemeral ports, if the system does not report it.
const EPHEMERAL: (u16, u16) = (32_768, 65_535);
/// Interval at which the exit of a child is polled.
const POLL: Duration = Duration::from_millis(20);
/// Time limit for this side after a child has exited without an error.
const REST: Duration = Duration::from_secs(10);

/// Returns `count` addresses of this host whose ports are free for TCP and UDP. Ports outside the ephemeral range come
/// first: they stay free until the caller binds them, unless another program asks for them by number.
///
/// # Errors
/// One line, if there are too few.
pub fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, String> {
    free_at(Ipv4Addr::LOCALHOST.into(), count)
}

/// Returns such addresses at one of this host's IP addresses.
///
/// # Errors
/// One line, if there are too few, or the address is another host's.
pub fn free_at(ip: IpAddr, count: usize) -> Result<Vec<SocketAddr>, String> {
    find_free(ip, count, ephemeral_ports())
}

fn find_free(ip: IpAddr, count: usize, ephemeral: (u16, u16)) -> Result<Vec<SocketAddr>, String> {
    let is_ephemeral = |port: &u16| (ephemeral.0..=ephemeral.1).contains(port);
    let (mut inside, mut outside): (Vec<u16>, Vec<u16>) =
        (LOWEST..=u16::MAX).partition(is_ephemeral);
    for ports in [&mut inside, &mut outside] {
        // Runs in other processes start at other ports.
        let first = std::process::id().wrapping_mul(STRIDE) as usize % ports.len().max(1);
        ports.rotate_left(first);
    }
    let addresses = outside.into_iter().chain(inside).map(|port| SocketAddr::from((ip, port)));
    let free: Vec<_> = addresses.filter(is_free).take(count).collect();
    if free.len() < count {
        return Err(format!("{ip} has no {count} free ports: {} of them", free.len()));
    }
    Ok(free)
}

/// Returns the first and the last ephemeral port.
fn ephemeral_ports() -> (u16, u16) {
    let file = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let range = file.and_then(|text| {
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    range.unwrap_or(EPHEMERAL)
}

/// Returns true if the port is free for TCP and UDP.
pub fn is_free(address: &SocketAddr) -> bool {
    UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
}

/// Completes at Ctrl-C, at SIGTERM, and at the latest after `limit`.
///
/// Cancel safe.
pub async fn until_asked(limit: Option<Duration>) {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    };
    let limit = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
        () = limit => {}
    }
}

/// Runs a program's task on this thread. Does not wait for tasks that it has spawned.
///
/// # Errors
/// The task's; or the system's, if it refuses a runtime.
pub fn run<T>(task: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::of_run(format!("the system refused a runtime: {error}")))?;
    let done = runtime.block_on(task);
    runtime.shutdown_background();
    done
}

/// Completes `part`, unless Ctrl-C or SIGTERM stops it.
///
/// # Errors
/// The error of `part`, or that it was stopped.
pub async fn until_stopped<T>(
    part: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = part => done,
        () = until_asked(None) => Err(Failure::of_run("stopped")),
    }
}

/// Exits when standard input closes: a child exits with its parent.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        // Any end means that the parent has exited.
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        std::process::exit(0);
    });
}

/// A child process; it exits with this process, and is killed when this is dropped.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    /// Pipe to the child's standard input: the child exits when it closes.
    stdin: Option<ChildStdin>,
    /// Reads the child's standard error to its end, and returns the last line.
    errors: Option<JoinHandle<String>>,
    /// The last line of the child's standard error, once it has exited.
    complaint: String,
}

impl Peer {
    /// Starts this program once more with `arguments`, and passes it the addresses of its peers.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub fn start(arguments: &[String], peers: &[SocketAddr]) -> Result<Self, String> {
        Self::launch(&[], arguments, peers)
    }

    /// Starts this program through `launcher`, a command that starts it on another host, where it has the same path.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub fn launch(
        launcher: &[String],
        arguments: &[String],
        peers: &[SocketAddr],
    ) -> Result<Self, String> {
        let what = launcher.first().map_or("a process", String::as_str);
        let failed = |error| format!("starting {what}: {error}");
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = match launcher {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let mut stdin = process.stdin.take().expect("it is a pipe");
        let list: String = peers.iter().map(|peer| format!("{peer}\n")).collect();
        // A child that has exited reports the reason itself.
        let _ = stdin.write_all(format!("{list}\n").as_bytes());
        let errors = process.stderr.take().map(|pipe| thread::spawn(move || last_line(pipe)));
        Ok(Self { process, stdin: Some(stdin), errors, complaint: String::new() })
    }

    /// Closes the child's standard input, so that it exits.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Kills the child, and waits until it has exited.
    pub fn kill(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the child's error, if it has exited.
    pub fn complaint(&mut self) -> Option<String> {
        let ended = self.process.try_wait().ok().flatten()?;
        if let Some(errors) = self.errors.take() {
            self.complaint = errors.join().unwrap_or_default();
        }
        let line = (!self.complaint.is_empty())
            .then(|| self.complaint.trim_start_matches("error: ").to_owned());
        line.or_else(|| (!ended.success()).then(|| "it was ended".to_owned()))
    }

    /// Runs `part` while the child runs.
    ///
    /// # Errors
    /// The error of `part`, or the child's own error if it has one: the child knows the cause. If the child exits
    /// without an error, `part` may continue for a time limit; then the child counts as exited too early.
    pub async fn while_running<T>(
        &mut self,
        part: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let done = tokio::select! {
            biased;
            done = part => done,
            () = self.ended() => Err("the other process ended too early".into()),
        };
        done.map_err(|what| self.complaint().unwrap_or(what))
    }

    /// Completes once the child has exited: with an error at once, else after a time limit.
    async fn ended(&mut self) {
        while matches!(self.process.try_wait(), Ok(None)) {
            tokio::time::sleep(POLL).await;
        }
        if self.complaint().is_none() {
            tokio::time::sleep(REST).await;
        }
    }

    /// Waits for the child to exit; returns its output.
    ///
    /// # Errors
    /// The last line of the child's standard error.
    pub fn output(mut self) -> Result<String, String> {
        let mut output = String::new();
        if let Some(mut pipe) = self.process.stdout.take() {
            let _ = pipe.read_to_string(&mut output);
        }
        let succeeded = self.process.wait().is_ok_and(|status| status.success());
        // A report of a failed claim is a report.
        if succeeded || !output.is_empty() {
            return Ok(output);
        }
        Err(self.complaint().unwrap_or_else(|| "a process of this run was ended".into()))
    }
}

/// Reads lines until the end; returns the last.
fn last_line(from: impl Read) -> String {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.last().map(|line| String::from_utf8_lossy(&line).into_owned()).unwrap_or_default()
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_found_inside_an_ephemeral_range_that_leaves_none_outside() {
        let free = |ephemeral| find_free(Ipv4Addr::LOCALHOST.into(), 6, ephemeral).unwrap();
        assert_eq!(free((1_024, u16::MAX)).len(), 6);
        assert!(free((20_000, u16::MAX)).iter().all(|address| address.port() < 20_000));
    }
}
