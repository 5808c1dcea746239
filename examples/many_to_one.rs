//! Sends lines of text from many senders to one receiver. Their NICs take turns: no line is dropped for want of a buffer.
//!
//! ```text
//! many_to_one 0 127.0.0.1:4700 127.0.0.1:4701 127.0.0.1:4702   # prints the lines of ranks 1 and 2
//! many_to_one 1 127.0.0.1:4700 127.0.0.1:4701 127.0.0.1:4702   # sends the lines of its input
//! ```

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use midplane::nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::Port;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane_kit::report::{self, Failure};
use midplane_kit::{command_line, processes};

/// Bytes of a line at most.
const LINE: usize = 1_024;

/// Sends lines of text from many senders to one receiver, whose NICs take turns.
#[derive(Parser)]
struct Options {
    /// This process's place in the list, from 0; 0 receives
    rank: u16,
    /// Addresses of all processes, the receiver's first; the same list everywhere
    #[arg(required = true, value_name = "HOST:PORT")]
    peers: Vec<SocketAddr>,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    command_line::main(|options: &Options| {
        if usize::from(options.rank) >= options.peers.len() {
            let rank = options.rank;
            return Err(format!("rank {rank} has no address; name one for each rank").into());
        }
        processes::run(async { run(options).await.map(|()| 0).map_err(Failure::of_run) })
    })
}

async fn run(&Options { rank, ref peers }: &Options) -> Result<(), Fault> {
    let senders: Vec<NodeId> = (1..peers.len() as u16).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&[NodeId(0)], &senders);
    config = config.buffers(true); // a message is sent once a receive is posted for it
    let mut unit = Unit::default();
    unit.install(COORDINATION, Coordination::new(config)?)?;
    let nic = UdpNic::start(UdpConfig::new(NodeId(rank), peers.clone()), unit)?;
    let port = nic.host().open_port()?;
    if rank == 0 { receive(port).await } else { send(port).await }?;
    nic.shutdown().await;
    Ok(())
}

async fn receive(mut port: Port) -> Result<(), Fault> {
    let memory = port.register(LINE)?;
    loop {
        port.submit(&coordination::receive(memory.whole(), 0))?;
        let done = tokio::select! {
            done = port.completion() => done?,
            ended = tokio::signal::ctrl_c() => return Ok(ended?),
        };
        let mut line = vec![0; done.length as usize];
        memory.read(0, &mut line)?;
        let line = report::plain(&String::from_utf8_lossy(&line));
        writeln!(std::io::stdout(), "{}: {line}", done.node)?;
    }
}

async fn send(mut port: Port) -> Result<(), Fault> {
    let memory = port.register(LINE)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let message = memory.range(0, line.len()).ok_or("a line of more than 1,024 bytes")?;
        memory.write(0, line.as_bytes())?;
        port.submit(&coordination::send(NodeId(0), PortId(0), message, 0))?;
        port.completion().await?; // this sender had its turn, and the message is sent
    }
    Ok(())
}
