//! The processes that an example starts on this host.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Ports that a run may ask for next to each other; runs that begin at once begin as far apart.
const STRIDE: u32 = 32;
/// The lowest port that is tried: below it are services of the host.
const LOWEST: u16 = 10_000;
/// What the system gives to sockets that ask for no port, where it does not say.
const EPHEMERAL: (u16, u16) = (32_768, 65_535);
/// How often it is looked whether a child has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long this side may go on after a child has done its part.
const REST: Duration = Duration::from_secs(10);

/// Addresses of this host whose ports nobody uses at the moment, neither of TCP nor of UDP, and
/// which the system gives to nobody who asks for none: they are free until who asked binds them.
///
/// # Errors
/// One line, if the system has none.
pub fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, String> {
    free_at(Ipv4Addr::LOCALHOST.into(), count)
}

/// The same, at one of this host's own addresses.
///
/// # Errors
/// One line, if the system has none, or the address is another host's.
pub fn free_at(ip: IpAddr, count: usize) -> Result<Vec<SocketAddr>, String> {
    let ephemeral = ephemeral_ports();
    let ports: Vec<u16> =
        (LOWEST..=u16::MAX).filter(|port| *port < ephemeral.0 || *port > ephemeral.1).collect();
    // Other runs of this host are other processes, and begin elsewhere.
    let first = std::process::id().wrapping_mul(STRIDE) as usize % ports.len().max(1);
    let in_turn = ports.iter().cycle().skip(first).take(ports.len());
    let addresses = in_turn.map(|port| SocketAddr::from((ip, *port)));
    let free: Vec<_> = addresses.filter(is_free).take(count).collect();
    if free.len() < count {
        return Err(format!("{ip} has no {count} free ports: {} of them", free.len()));
    }
    Ok(free)
}

/// First and last of the ports that the system gives to sockets that ask for none.
fn ephemeral_ports() -> (u16, u16) {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let range = said.and_then(|text| {
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    range.unwrap_or(EPHEMERAL)
}

fn is_free(address: &SocketAddr) -> bool {
    UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
}

/// Ends this process when its standard input does: a child, when its parent is gone.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        // However it ends, nobody is there any more.
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
        std::process::exit(0);
    });
}

/// A process that this one has started; it ends with this one, and when it is dropped.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    /// Open for as long as the child may live.
    life: Option<ChildStdin>,
    /// What was read of what it has complained of.
    complaint: String,
}

impl Peer {
    /// Starts this program once more, with `arguments`, and tells it who its peers are.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub fn start(arguments: &[String], peers: &[SocketAddr]) -> Result<Self, String> {
        Self::launch(&[], arguments, peers)
    }

    /// The same by another program with its own arguments, which starts it on another host, where it has the same path.
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
        let mut process = match launcher {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut process = Command::new(first);
                process.args(rest).arg(program);
                process
            }
        };
        process.args(arguments);
        Self::spawn(process, peers).map_err(|error| format!("starting {what}: {error}"))
    }

    /// Starts a program, and writes the addresses of its peers to its standard input.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn spawn(mut process: Command, peers: &[SocketAddr]) -> std::io::Result<Self> {
        let mut process =
            process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut life = process.stdin.take().expect("it is a pipe");
        let list: String = peers.iter().map(|peer| format!("{peer}\n")).collect();
        // A child that is gone already says why itself.
        let _ = life.write_all(format!("{list}\n").as_bytes());
        Ok(Self { process, life: Some(life), complaint: String::new() })
    }

    /// Tells it that it is not needed any more.
    pub fn close(&mut self) {
        self.life = None;
    }

    /// What it complained of, if it has ended already.
    pub fn complaint(&mut self) -> Option<String> {
        let ended = self.process.try_wait().ok().flatten()?;
        if let Some(mut pipe) = self.process.stderr.take() {
            let _ = pipe.read_to_string(&mut self.complaint);
        }
        let line = self.complaint.lines().last();
        let line = line.map(|line| line.trim_start_matches("error: ").to_owned());
        line.or_else(|| (!ended.success()).then(|| "it was ended".to_owned()))
    }

    /// This side's part, for as long as the child does its own.
    ///
    /// # Errors
    /// That of the part; where the child has complained, its complaint: it knows better than who
    /// misses it. One that has done its part complains of nothing, and has ended too early only if
    /// this side does not come to its end soon.
    pub async fn beside<T>(
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

    /// Ready once it has ended, and nobody can need it any more.
    async fn ended(&mut self) {
        while matches!(self.process.try_wait(), Ok(None)) {
            tokio::time::sleep(LOOK).await;
        }
        if self.complaint().is_none() {
            tokio::time::sleep(REST).await;
        }
    }

    /// What it has printed, once it has ended by itself.
    ///
    /// # Errors
    /// The last line that it complained with.
    pub fn output(mut self) -> Result<String, String> {
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
