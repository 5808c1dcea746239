//! Messages in one direction over shared memory, with a window of them in flight.

use std::time::Duration;

use midplane::nicvm::messages::{receive as buffer, send};
use midplane::simhw::frame::Header;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::shm::measure::Bare;
use midplane::simhw::shm::{ShmConfig, ShmNic};

use super::{BYTES, Part, name, now, runtime, start, unit};
use crate::pingpong::layers::{EmptyPolls, failed};

/// Messages in flight.
const WINDOW: usize = 64;
/// Messages that one acknowledgement covers.
const ACKNOWLEDGED: usize = 32;
/// Buffers of each side: those of a window, and those that are posted with the next doorbell.
const BUFFERS: usize = WINDOW + ACKNOWLEDGED;
/// Messages between two readings of the clock.
const BATCH: u64 = 1_000;
const PORT: PortId = PortId(1);
const SENT: u64 = u64::MAX;

/// One side: a port with posted buffers.
struct End {
    nic: ShmNic,
    port: Port,
    buffers: Region,
    peer: NodeId,
}

impl End {
    fn open(place: &str, node: u16) -> Result<Self, String> {
        let nic = ShmNic::start(ShmConfig::new(place, NodeId(node), 2), unit()).map_err(failed)?;
        let options = PortOptions::default().number(PORT);
        let mut port = nic.host().open_port_with(options).map_err(failed)?;
        let buffers = port.register(BUFFERS * BYTES).map_err(failed)?;
        let mut end = Self { nic, port, buffers, peer: NodeId(1 - node) };
        for slot in 0..BUFFERS as u64 {
            end.post_buffer(slot)?;
        }
        end.port.ring();
        Ok(end)
    }

    fn post_buffer(&mut self, slot: u64) -> Result<(), String> {
        let range = self.buffers.range(slot as usize * BYTES, BYTES).expect("a slot of it");
        self.port.post(&buffer(range, slot)).map_err(failed)
    }

    /// Posts a message if the port has room.
    fn post_message(&mut self) -> bool {
        let range = self.buffers.range(0, BYTES).expect("a slot of it");
        self.port.post(&send(self.peer, PORT, range, SENT)).is_ok()
    }

    /// Takes the next completion; returns its buffer if it is that of a received message.
    fn take(&mut self) -> Result<Option<Option<u64>>, String> {
        let Some(done) = self.port.poll() else { return Ok(None) };
        match done.status {
            Status::Done => Ok(Some((done.cookie != SENT).then_some(done.cookie))),
            status => Err(format!("a message ended as {status:?}")),
        }
    }
}

/// Returns the millions of messages a second that two units and ports carry.
pub(crate) fn messages(time: Duration) -> Result<f64, String> {
    let name = name("rate");
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let mut end = End::open(&name, 0)?;
    let mut other = start(Part::Receiver, &name, 10)?;
    runtime.block_on(other.beside(async {
        end.nic.meet().await;
        // The other side has posted its buffers before it sends.
        let first = end.port.completion().await.map_err(failed)?;
        end.post_buffer(first.cookie)?;
        let (begin, mut sent, mut acknowledged, mut polls) = (now(), 0, 0, EmptyPolls::default());
        while acknowledged == 0 || begin.elapsed() < time {
            let until = acknowledged + BATCH;
            while acknowledged < until {
                let before = sent;
                while sent - acknowledged < WINDOW as u64 && end.post_message() {
                    sent += 1;
                }
                if sent > before {
                    end.port.ring();
                }
                match end.take()? {
                    Some(Some(slot)) => {
                        acknowledged += ACKNOWLEDGED as u64;
                        end.post_buffer(slot)?;
                    }
                    Some(None) => {}
                    None => polls.again(),
                }
            }
        }
        Ok(acknowledged as f64 / begin.elapsed().as_secs_f64() / 1e6)
    }))
}

/// Receives messages, and acknowledges them.
pub(crate) fn receive(place: &str) -> Result<(), String> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let mut end = End::open(place, 1)?;
    runtime.block_on(end.nic.meet());
    end.post_message();
    end.port.ring();
    let (mut received, mut polls, mut bytes) = (0, EmptyPolls::default(), [0; BYTES]);
    loop {
        match end.take()? {
            Some(Some(slot)) => {
                end.buffers.read(slot as usize * BYTES, &mut bytes).map_err(failed)?;
                end.post_buffer(slot)?;
                received += 1;
                if received % ACKNOWLEDGED == 0 {
                    end.post_message();
                    end.port.ring();
                }
            }
            Some(None) => {}
            None => polls.again(),
        }
    }
}

/// Returns the millions of frames a second that the bare slots carry.
pub(crate) fn slots(time: Duration) -> Result<f64, String> {
    let name = name("slots");
    let mut other = start(Part::BareReceiver, &name, 10)?;
    let mut bare = Bare::meet(&ShmConfig::new(name, NodeId(0), 2)).map_err(failed)?;
    let header = Header { length: BYTES as u16, ..Header::default() };
    let (begin, mut sent, mut polls) = (now(), 0_u64, EmptyPolls::default());
    while begin.elapsed() < time {
        for _ in 0..BATCH {
            while !bare.send(&header, &[7; BYTES]) {
                polls.again();
            }
            sent += 1;
        }
    }
    let rate = sent as f64 / begin.elapsed().as_secs_f64() / 1e6;
    other.complaint().map_or(Ok(rate), Err)
}

/// Receives frames, and reads them.
pub(crate) fn receive_slots(place: &str) -> Result<(), String> {
    let mut bare = Bare::meet(&ShmConfig::new(place, NodeId(1), 2)).map_err(failed)?;
    let (mut bytes, mut polls) = ([0; BYTES], EmptyPolls::default());
    loop {
        if bare.receive(&mut bytes).is_none() {
            polls.again();
        }
    }
}
