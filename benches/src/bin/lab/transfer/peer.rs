//! The two processes and their connection; they leave no files and no processes behind.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;

use crate::claims::Verdict;
use crate::ranks;
use crate::transfer::{Arguments, compare};
use midplane_benches::transfer::wire::{Hand, end, serve};
use midplane_benches::transfer::{self, Fault};

/// Attempts to reach the receiver, 50 ms apart.
const TRIES: u32 = 200;

/// Creates a file without a name: it vanishes when its process exits, however that happens.
fn temporary(arguments: &Arguments) -> Result<File, Fault> {
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    tempfile::tempfile_in(&directory)
        .map_err(|problem| Fault::Input(format!("--directory {}: {problem}", directory.display())))
}

/// Plays the part that the arguments give this process; the sender returns a verdict.
pub(crate) fn run(runtime: &Runtime, arguments: &Arguments) -> Result<Option<Verdict>, Fault> {
    if arguments.child {
        return receive(runtime, arguments, (Ipv4Addr::LOCALHOST, 0).into());
    }
    match arguments.ranks.place().map_err(Fault::Input)? {
        Some(place) if place.size() != 2 => Err(Fault::Input(format!(
            "--peers: must name two host:port, a sender and a receiver, not {}",
            place.size()
        ))),
        Some(place) => {
            let peers = place.addresses(Duration::ZERO);
            let at = peers.map_err(|error| Fault::Input(format!("--peers: {error}")))?[1];
            match place.rank {
                0 => send(runtime, arguments, at, &source(arguments)?),
                _ => receive(runtime, arguments, at),
            }
        }
        None => {
            let file = source(arguments)?;
            let (child, address) = runtime
                .block_on(start_child(arguments))
                .map_err(Fault::lost("starting the receiver"))?;
            let outcome = send(runtime, arguments, address, &file);
            runtime.block_on(end_child(child));
            outcome
        }
    }
}

async fn start_child(arguments: &Arguments) -> io::Result<(Child, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["transfer", "--child"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    if arguments.sync {
        command.arg("--sync");
    }
    if arguments.unlimited {
        command.arg("--unlimited");
    } else {
        command.arg(format!("--disk-mbps={}", arguments.disk_mbps));
        command.arg(format!("--disk-us={}", arguments.disk_us));
    }
    if let Some(directory) = &arguments.directory {
        command.arg("--directory").arg(directory);
    }
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let address =
        BufReader::new(stdout).lines().next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let address = address.parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((child, address))
}

/// Waits for the receiver, which exits because the connection is closed; at most a second.
async fn end_child(mut child: Child) {
    drop(child.stdin.take());
    if tokio::time::timeout(Duration::from_secs(1), child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn receive(
    runtime: &Runtime,
    arguments: &Arguments,
    own: SocketAddr,
) -> Result<Option<Verdict>, Fault> {
    let file = temporary(arguments)?;
    let listener = ranks::listen(own).map_err(Fault::Input)?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).map_err(Fault::lost(own))?;
        if arguments.child {
            println!("{}", listener.local_addr().map_err(Fault::lost(own))?);
        }
        let work = async {
            let (stream, _) = listener.accept().await?;
            serve(stream, &file, arguments.sync, arguments.limits()).await
        };
        tokio::select! {
            done = work => done.map(|()| None).map_err(Fault::lost("the sender")),
            _ = tokio::signal::ctrl_c() => Err(Fault::Lost("stopped".into())),
            () = orphaned(), if arguments.child => Err(Fault::Lost("the sender has ended".into())),
        }
    })
}

/// Completes when the parent process has closed its end of standard input.
async fn orphaned() {
    let mut sink = tokio::io::sink();
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut sink).await;
}

/// Creates the file to send.
fn source(arguments: &Arguments) -> Result<File, Fault> {
    let mut file = temporary(arguments)?;
    file.write_all(&transfer::contents(compare::FILE))
        .map_err(Fault::lost("writing the file to send"))?;
    Ok(file)
}

fn send(
    runtime: &Runtime,
    arguments: &Arguments,
    address: SocketAddr,
    file: &File,
) -> Result<Option<Verdict>, Fault> {
    let hand = runtime.block_on(connect(address)).map_err(Fault::lost(address))?;
    let verdict = runtime.block_on(compare::run(arguments, &hand, file))?;
    runtime.block_on(end(&hand)).map_err(Fault::lost("the receiver"))?;
    Ok(Some(verdict))
}

async fn connect(address: SocketAddr) -> io::Result<Hand> {
    let mut tries = 0;
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => return Hand::new(stream),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
