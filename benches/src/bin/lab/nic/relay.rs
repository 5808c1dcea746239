//! Messages between two processes by way of a third: a NIC daemon, or a loop that copies slots.

use std::time::Duration;

use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::nicd::{Client, ClientConfig, ServerConfig};
use midplane::simhw::shm::measure::Bare;
use midplane::simhw::shm::{ShmConfig, ShmNic};

use super::{BYTES, Part, name, start, unit};
use crate::pingpong::arguments::Wait;
use crate::pingpong::fabric::run;
use crate::pingpong::layers::EmptyPolls;
use crate::pingpong::measure::{Side, WORD, answer as answer_on, ask};
use crate::pingpong::raw::Raw;
use crate::pingpong::slots::Slots;
use crate::report::text;

/// Time limit for a daemon to start.
const PATIENCE: Duration = Duration::from_secs(10);
const ASKING: PortId = PortId(1);
const ANSWERING: PortId = PortId(2);

/// Returns the microseconds of one way between two clients of a daemon.
pub(crate) fn daemon_us(milliseconds: u32) -> Result<f64, String> {
    let name = name("daemon");
    let mut daemon = start(Part::Daemon, &name, 10)?;
    run(async {
        let (_client, mut side) = daemon.while_running(client(&name, ASKING, ANSWERING)).await?;
        let mut other = start(Part::Client, &name, milliseconds)?;
        let asked = async {
            // The other side has posted its buffers before it sends.
            side.receive(WORD).await?;
            ask(&mut side, &[BYTES], milliseconds).await
        };
        Ok(other.while_running(asked).await?[0].median_us)
    })
}

async fn client(name: &str, own: PortId, peer: PortId) -> Result<(Client, Raw), String> {
    let config = ClientConfig::new(name, NodeId(0));
    let client = Client::meet(config, PATIENCE).await.map_err(text)?;
    let side = Raw::new(&client.host(), own, (NodeId(0), peer), BYTES, Wait::Poll)?;
    Ok((client, side))
}

/// Runs the second client.
pub(crate) fn answer(name: &str, milliseconds: u32) -> Result<(), String> {
    run(async {
        let (_client, mut side) = client(name, ANSWERING, ASKING).await?;
        side.send(WORD).await?;
        answer_on(&mut side, &[BYTES], milliseconds).await?;
        // A port that closes cancels its messages that wait: the other side ends this process once it has the last one.
        std::future::pending().await
    })
}

/// Runs the daemon.
pub(crate) fn serve(name: &str) -> Result<(), String> {
    run(async {
        let nic = ShmNic::start(ShmConfig::new(name, NodeId(0), 1), unit()).map_err(text)?;
        let _server = nic.serve_ports(ServerConfig::new(name)).map_err(text)?;
        std::future::pending().await
    })
}

/// Returns the microseconds of one way between two processes, by way of one that relays slots.
pub(crate) fn slots_us(milliseconds: u32) -> Result<f64, String> {
    let name = name("relay");
    let _relay = start(Part::Relay, &name, 10)?;
    let mut other = start(Part::Slots, &name, milliseconds)?;
    let mut side = Slots::new(&format!("{name}-0"), NodeId(0), BYTES)?;
    run(async {
        Ok(other.while_running(ask(&mut side, &[BYTES], milliseconds)).await?[0].median_us)
    })
}

/// Runs the process at the other end of the relay.
pub(crate) fn answer_slots(name: &str, milliseconds: u32) -> Result<(), String> {
    let mut side = Slots::new(&format!("{name}-1"), NodeId(0), BYTES)?;
    run(answer_on(&mut side, &[BYTES], milliseconds))
}

/// Runs the relay.
pub(crate) fn relay(name: &str) -> Result<(), String> {
    let meet = |end: u16| Bare::meet(&ShmConfig::new(format!("{name}-{end}"), NodeId(1), 2));
    let (mut one, mut other) = (meet(0).map_err(text)?, meet(1).map_err(text)?);
    let (mut bytes, mut polls) = ([0; BYTES], EmptyPolls::default());
    loop {
        if !pass(&mut one, &mut other, &mut bytes) & !pass(&mut other, &mut one, &mut bytes) {
            let _ = polls.again();
        }
    }
}

/// Relays the next frame, if there is one.
fn pass(from: &mut Bare, to: &mut Bare, bytes: &mut [u8]) -> bool {
    let Some(length) = from.receive(bytes) else { return false };
    let header = midplane::simhw::frame::Header {
        source: NodeId(1),
        length: length as u16,
        ..Default::default()
    };
    while !to.send(&header, &bytes[..length]) {
        std::hint::spin_loop();
    }
    true
}
