//! Both processes busy-poll: the bare ring slots, and messages through ports and units.

use std::time::Duration;

use midplane::nicvm::messages::{receive, send};
use midplane::simhw::frame::Header;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Port, PortOptions};
use midplane::simhw::region::Region;
use midplane::simhw::shm::ShmNic;
use midplane::simhw::shm::measure::Bare;

use crate::side::{ROUNDS, Side, median, nanos_of};

/// Round trips of one round.
const TRIPS: usize = 50;
/// Bytes of one bulk transfer.
const BULK: usize = 1 << 20;

pub(crate) fn run(side: &mut Side) {
    side.place(false);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut bare = Bare::meet(&side.config()).expect("the other side comes");
    let nic = runtime.block_on(side.nic(Duration::ZERO));
    side.say("two processes spinning, one way, ns (median of rounds in turn)");
    side.say("   bytes      slots alone   through ports and units   ratio   reach");
    for (number, bytes) in (0..).zip([8, 64, 1_024, 4_096, 16_384]) {
        let mut ports = Ports::open(&nic, PortId(number), side.other(), bytes, 1);
        latency(side, &mut bare, &mut ports, bytes);
    }
    side.say("in bulk, the receiver copying it out, GB/s (median of rounds in turn)");
    side.say("   bytes      slots alone   through ports and units");
    for (number, bytes) in (10..).zip([4_096, 16_384, 65_536]) {
        let mut ports = Ports::open(&nic, PortId(number), side.other(), bytes, 8);
        bulk(side, &mut bare, &mut ports, bytes);
    }
}

fn latency(side: &Side, bare: &mut Bare, ports: &mut Ports, bytes: usize) {
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    let mut payload = vec![7; bytes];
    for _ in 0..ROUNDS {
        let trips = 2.0 * TRIPS as f64;
        alone.push(nanos_of(|| bare_trips(side, bare, &mut payload)) / trips);
        through.push(nanos_of(|| ports.trips(side, &mut payload)) / trips);
    }
    let (alone, through) = (median(alone), median(through));
    let reach = if bytes <= 64 { "<= 1.25" } else { "" };
    let ratio = through / alone;
    side.say(&format!("{bytes:>8} {alone:>16.0} {through:>25.0} {ratio:>7.2}   {reach}"));
}

fn bare_trips(side: &Side, bare: &mut Bare, payload: &mut [u8]) {
    let header = header(side, payload.len());
    for _ in 0..TRIPS {
        if side.is_first {
            while !bare.send(&header, payload) {}
        }
        while bare.receive(payload).is_none() {
            std::hint::spin_loop();
        }
        if !side.is_first {
            while !bare.send(&header, payload) {}
        }
    }
}

fn bulk(side: &Side, bare: &mut Bare, ports: &mut Ports, bytes: usize) {
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    let mut payload = vec![7; bytes];
    for _ in 0..ROUNDS / 2 {
        alone.push(BULK as f64 / nanos_of(|| bare_bulk(side, bare, &mut payload)));
        through.push(BULK as f64 / nanos_of(|| ports.bulk(side, &mut payload)));
    }
    let (alone, through) = (median(alone), median(through));
    side.say(&format!("{bytes:>8} {alone:>16.1} {through:>25.1}"));
}

/// Sends `payload` from the first process to the second in frames; the second acknowledges all of it.
fn bare_bulk(side: &Side, bare: &mut Bare, payload: &mut [u8]) {
    let piece = payload.len().min(16_384);
    let header = header(side, piece);
    let mut moved = 0;
    if side.is_first {
        while moved < BULK {
            for part in payload.chunks_exact(piece) {
                while !bare.send(&header, part) {
                    std::hint::spin_loop();
                }
                moved += piece;
            }
        }
        while bare.receive(payload).is_none() {}
    } else {
        while moved < BULK {
            for part in payload.chunks_exact_mut(piece) {
                while bare.receive(part).is_none() {
                    std::hint::spin_loop();
                }
                moved += piece;
            }
        }
        while !bare.send(&Header { length: 1, ..header }, &[1]) {}
    }
}

fn header(side: &Side, length: usize) -> Header {
    let length = u16::try_from(length).expect("at most the MTU");
    Header { source: NodeId(u16::from(!side.is_first)), length, ..Header::default() }
}

/// A port of this side; each buffer is posted again once it has been read.
struct Ports {
    port: Port,
    to: NodeId,
    out: Region,
    buffers: Vec<Region>,
}

/// Cookie of sends; those of buffers are their numbers.
const SENT: u64 = u64::MAX;

impl Ports {
    /// Opens the port `number`, with `count` posted buffers of `bytes`.
    fn open(nic: &ShmNic, number: PortId, to: NodeId, bytes: usize, count: u64) -> Self {
        let options = PortOptions::default().number(number);
        let mut port = nic.host().open_port_with(options).expect("the NIC runs");
        let out = port.register(bytes).expect("within the limits");
        let mut buffers = Vec::new();
        for place in 0..count {
            let buffer = port.register(bytes).expect("within the limits");
            port.submit(&receive(buffer.whole(), place)).expect("room");
            buffers.push(buffer);
        }
        Self { port, to, out, buffers }
    }

    fn send(&mut self, payload: &[u8]) {
        self.out.write(0, payload).expect("as long as the region");
        let to = self.port.id();
        self.port.submit(&send(self.to, to, self.out.whole(), SENT)).expect("room");
    }

    /// Copies out the next message; its buffer is posted again with the next doorbell.
    fn take(&mut self, payload: &mut [u8]) -> bool {
        let Some(completion) = self.port.poll() else {
            std::hint::spin_loop();
            return false;
        };
        if completion.cookie == SENT {
            return false;
        }
        let place = completion.cookie as usize;
        let buffer = &self.buffers[place];
        let length = (completion.length as usize).min(payload.len());
        buffer.read(0, &mut payload[..length]).expect("as long as the region");
        self.port.post(&receive(buffer.whole(), completion.cookie)).expect("room");
        true
    }

    fn trips(&mut self, side: &Side, payload: &mut [u8]) {
        for _ in 0..TRIPS {
            if side.is_first {
                self.send(payload);
            }
            while !self.take(payload) {}
            if !side.is_first {
                self.send(payload);
            }
        }
        // Post the buffer of the last message before the next round.
        self.port.ring();
    }

    fn bulk(&mut self, side: &Side, payload: &mut [u8]) {
        let messages = BULK / payload.len();
        let mut acknowledged = 0;
        if side.is_first {
            // The other side has buffers for eight messages.
            for sent in 0..messages {
                while sent >= acknowledged + 8 {
                    acknowledged += 4 * usize::from(self.take(&mut [0]));
                }
                self.send(payload);
                self.port.ring();
            }
            while acknowledged < messages {
                acknowledged += 4 * usize::from(self.take(&mut [0]));
            }
            self.port.ring();
            return;
        }
        for taken in 1..=messages {
            while !self.take(payload) {}
            self.port.ring();
            if taken % 4 == 0 {
                self.send_short();
            }
        }
    }

    /// Sends a message of one byte.
    fn send_short(&mut self) {
        let short = self.out.range(0, 1).expect("a region has a byte");
        let to = self.port.id();
        self.port.submit(&send(self.to, to, short, SENT)).expect("room");
    }
}
