//! Firmware of the path's two ends: the prober sends frames with a hop limit, the mirror answers those that arrive.

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

/// Bytes of the longest probe.
const LONGEST: usize = 2_000;
/// Time after which a probe without an answer counts as lost.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Flag in the header of an answer.
const ANSWER: u8 = 1;
/// Node that answers.
const MIRROR: NodeId = NodeId(1);

/// Number of an answered probe, and the time of its answer.
type Answer = (u32, Instant);

/// Sends a probe for each command: argument 0 is the probe's number, argument 1 the number of switches that it may pass.
#[derive(Debug)]
pub(crate) struct Prober(Sender<Answer>);

impl Prober {
    /// Creates the firmware, and the receiver of its answers.
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
            // A probe that the line refuses is lost, and times out.
            let _ = hw.transmit(&header, Source::Region(command.region));
            hw.complete(port, &Completion { cookie: command.cookie, ..Completion::default() });
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let back = frame.header.kind == Kind::Returned || frame.header.flags == ANSWER;
        if back && frame.header.source == MIRROR {
            // After the measurement nothing receives.
            let _ = self.0.send((frame.header.sequence, hw.now()));
        }
    }

    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}

    fn on_timer(&mut self, _: &mut impl Hardware, _: TimerId) {}
}

/// Firmware that answers each frame with a header without data.
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

/// Path that is measured by probes, for the planners.
pub(crate) struct ProbedPath<H> {
    host: H,
    port: Port,
    memory: Region,
    answers: Receiver<Answer>,
    next: u32,
}

impl<H: Host> ProbedPath<H> {
    /// Opens a port of `host` for probes.
    pub(crate) fn new(
        host: &H,
        answers: Receiver<Answer>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut port = host.open_port()?;
        let memory = port.register(LONGEST)?;
        Ok(Self { host: host.clone(), port, memory, answers, next: 0 })
    }
}

impl<H: Host> HopPath for ProbedPath<H> {
    /// Returns the microseconds until the answer. The answer has no data, so its part of the time is the same for all sizes.
    fn probe(&mut self, bytes: f64, hops: usize) -> Option<f64> {
        let number = self.next;
        self.next += 1;
        let region = self.memory.range(0, bytes as usize)?;
        // Hop 1 is the switch; the last hop is the other host.
        let passes = if hops == 1 { 0 } else { u64::from(u8::MAX) };
        let args = [u64::from(number), passes, 0];
        let begin = self.host.now();
        self.port.submit(&Command { node: MIRROR, region, args, ..Command::default() }).ok()?;
        loop {
            let answer = self.answers.recv_timeout(TIMEOUT);
            // Removes the completions of sent probes.
            while self.port.poll().is_some() {}
            let (answered, at) = answer.ok()?;
            if answered == number {
                return Some(at.nanos_since(begin) as f64 / 1e3);
            }
        }
    }
}
