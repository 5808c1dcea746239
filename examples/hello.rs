//! The README's first program: lines of text from many senders to one receiver.

use midplane::nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::udp::{UdpConfig, UdpNic};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // `hello 0 HOST:PORT HOST:PORT ...` receives; `hello 1`, `hello 2`, ... with the same list send
    // the lines of their input.
    let me = NodeId(std::env::args().nth(1).unwrap_or_default().parse()?);
    let peers = std::env::args().skip(2).map(|peer| peer.parse()).collect::<Result<Vec<_>, _>>()?;
    let senders: Vec<NodeId> = (1..peers.len() as u16).map(NodeId).collect();
    let mut config = CoordinationConfig::star(&[NodeId(0)], &senders);
    config.buffers(true); // a message leaves once a receive is posted for it
    let mut unit = Unit::default();
    unit.install(COORDINATION, Coordination::new(config)?)?;
    let nic = UdpNic::start(UdpConfig::new(me, peers), unit)?;
    let mut port = nic.host().open_port()?;
    let memory = port.register(1024)?;
    while me == NodeId(0) {
        port.submit(&coordination::receive(memory.whole(), 0))?;
        let done = port.completion().await?;
        let mut line = vec![0; done.length as usize];
        memory.read(0, &mut line)?;
        println!("{}: {}", done.node, String::from_utf8_lossy(&line));
    }
    for line in std::io::stdin().lines() {
        let line = line?;
        let message = memory.range(0, line.len()).ok_or("a line of more than 1024 bytes")?;
        memory.write(0, line.as_bytes())?;
        port.submit(&coordination::send(NodeId(0), PortId(0), message, 0))?;
        port.completion().await?; // it was our turn, and it has left
    }
    nic.shutdown().await;
    Ok(())
}
