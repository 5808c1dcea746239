//! The firmware of the two ends: one sends frames that go so far, the other answers those that arrive.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use midplane::pipeline::estimate::HopPath;
use midplane::simhw::frame::{Frame, Header, Kind};
use midplane::simhw::hardware::{Firmware, Hardware, Source};
use midplane::simhw::host::Host;
use midplane::simhw::id::{DmaId, NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion, Port};
use midplane::simhw::region::{Payload, Region};
use midplane::simhw::time::Instant;

/// Longest probe.
const LONGEST: usize = 2_000;
/// A probe that has not come back by then is lost.
const PATIENCE: Duration = Duration::from_millis(300);
/// A flag of an answer.
const ANSWER: u8 = 1;
/// The node that answers.
const MIRROR: NodeId = NodeId(1);

/// A probe that has come back: its number, and when.
type Answer = (u32, Instant);

/// Sends what its port asks for: argument 0 is the probe's number, argument 1 how many switches it may
/// pass.
#[derive(Debug)]
pub(crate) struct Prober(Sender<Answer>);

impl Prober {
    /// The firmware, and where it tells of what has come back.
    pub(crate) fn new() -> (Self, Receiver<Answer>) {
        let (answer, answers) = channel();
        (Self(answer), answers)
    }
}

impl Firmware for Prober {
    fn on_start(&mut self, _: &mut impl Hardware) {}

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            let header = Header {
                source: hw.node(),
                destination: command.node,
                incarnation: hw.incarnation(),
                length: u16::try_from(command.region.length).unwrap_or(u16::MAX),
                sequence: command.args[0] as u32,
                hop_limit: command.args[1] as u8,
                ..Header::default()
            };
            // What the line refuses is a probe lost.
            let _ = hw.transmit(&header, Source::Region(command.region));
            hw.complete(port, &Completion { cookie: command.cookie, ..Completion::default() });
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let back = frame.header.kind == Kind::Returned || frame.header.flags == ANSWER;
        if back && frame.header.source == MIRROR {
            // Nobody waits any more once the measuring has ended.
            let _ = self.0.send((frame.header.sequence, hw.now()));
        }
    }

    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}

    fn on_timer(&mut self, _: &mut impl Hardware, _: TimerId) {}
}

/// Answers each frame with a bare header.
#[derive(Debug)]
pub(crate) struct Mirror;

impl Firmware for Mirror {
    fn on_start(&mut self, _: &mut impl Hardware) {}

    fn on_doorbell(&mut self, _: &mut impl Hardware, _: PortId) {}

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let header = Header {
            source: hw.node(),
            destination: frame.header.source,
            incarnation: hw.incarnation(),
            length: 0,
            flags: ANSWER,
            hop_limit: u8::MAX,
            ..frame.header
        };
        let _ = hw.transmit(&header, Source::Bytes(Payload::from(&[][..])));
        hw.commit();
    }

    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}

    fn on_timer(&mut self, _: &mut impl Hardware, _: TimerId) {}
}

/// The path as the planners ask for it.
pub(crate) struct Way<H> {
    host: H,
    port: Port,
    memory: Region,
    answers: Receiver<Answer>,
    next: u32,
}

impl<H: Host> Way<H> {
    /// A path from `host`.
    pub(crate) fn new(
        host: &H,
        answers: Receiver<Answer>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut port = host.open_port()?;
        let memory = port.register(LONGEST)?;
        Ok(Self { host: host.clone(), port, memory, answers, next: 0 })
    }
}

impl<H: Host> HopPath for Way<H> {
    /// Until a bare header is back from there: what that takes is the same for all sizes.
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64> {
        let number = self.next;
        self.next += 1;
        let region = self.memory.range(0, bytes as usize)?;
        // The last hop is the other host, however far it is.
        let passes = if hops == 1 { 0 } else { u64::from(u8::MAX) };
        let args = [u64::from(number), passes, 0];
        let begin = self.host.now();
        self.port.submit(&Command { node: MIRROR, region, args, ..Command::default() }).ok()?;
        loop {
            let answer = self.answers.recv_timeout(PATIENCE);
            // The sent ones are done with, too.
            while self.port.poll().is_some() {}
            let (answered, at) = answer.ok()?;
            if answered == number {
                return Some(at.nanos_since(begin) as f64 / 1e3);
            }
        }
    }
}
