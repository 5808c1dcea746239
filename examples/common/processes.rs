//! The processes that an example starts on this host.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Addresses of this host that nobody uses at the moment.
///
/// # Errors
/// One line, if the system has none.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, String> {
    let bound: Result<Vec<_>, _> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0")).collect();
    let addresses = bound.and_then(|sockets| sockets.iter().map(UdpSocket::local_addr).collect());
    addresses.map_err(|error| format!("this host has no free ports: {error}"))
}

/// Ends this process when its standard input does: a child, when its parent is gone.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        // However it ends, nobody is there any more.
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        std::process::exit(0);
    });
}

/// A process that this one has started; it ends with this one, and when it is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    /// Open for as long as the child may live.
    life: Option<ChildStdin>,
}

impl Peer {
    /// Starts this program once more, with `arguments`, and tells it who its peers are.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub(crate) fn start(arguments: &[String], peers: &[SocketAddr]) -> Result<Self, String> {
        let failed = |error| format!("starting a process: {error}");
        let program = std::env::current_exe().map_err(failed)?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut life = process.stdin.take().expect("it is a pipe");
        let list: String = peers.iter().map(|peer| format!("{peer}\n")).collect();
        // A child that is gone already says why itself.
        let _ = life.write_all(format!("{list}\n").as_bytes());
        Ok(Self { process, life: Some(life) })
    }

    /// Tells it that it is not needed any more.
    pub(crate) fn close(&mut self) {
        self.life = None;
    }

    /// What it complained of, if it has ended already.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        let ended = self.process.try_wait().ok().flatten()?;
        let mut complaint = String::new();
        if let Some(mut pipe) = self.process.stderr.take() {
            let _ = pipe.read_to_string(&mut complaint);
        }
        let line =
            complaint.lines().last().map(|line| line.trim_start_matches("error: ").to_owned());
        line.or_else(|| (!ended.success()).then(|| "it was ended".to_owned()))
    }

    /// What it has printed, once it has ended by itself.
    ///
    /// # Errors
    /// The last line that it complained with.
    pub(crate) fn output(mut self) -> Result<String, String> {
        let mut output = String::new();
        let mut complaint = String::new();
        if let Some(mut pipe) = self.process.stdout.take() {
            let _ = pipe.read_to_string(&mut output);
        }
        if let Some(mut pipe) = self.process.stderr.take() {
            let _ = pipe.read_to_string(&mut complaint);
        }
        let succeeded = self.process.wait().is_ok_and(|status| status.success());
        // A report that says what did not hold is a report.
        if succeeded || !output.is_empty() {
            return Ok(output);
        }
        let line = complaint.lines().last().unwrap_or("a process of this run was ended");
        Err(line.trim_start_matches("error: ").to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
