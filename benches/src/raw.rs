//! Firmware for raw transfers: sends the regions that ports post, fills posted buffers in order, and answers pings itself.

use std::collections::VecDeque;

use midplane::simhw::frame::{Frame, Header};
use midplane::simhw::hardware::{Firmware, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::profile::Machine;
use midplane::simhw::region::{Payload, RegionRef};
use midplane::simhw::sim::World;
use midplane::simhw::time::Instant;

/// Opcode of "send this region to that node"; the completion's `args[0]` is when the frame reached the line, in ns.
pub const SEND: u8 = 0;
/// Opcode of "receive into this region"; if the NIC takes one frame at a time, the completion's `args[0]` is when the frame
/// was in memory, in ns.
pub const RECEIVE: u8 = 1;
/// Opcode of "bounce a frame off that node's firmware `args[0]` times"; the completion's `args[0]` is the time in ns.
pub const PING: u8 = 2;

/// Expires when the line has room for a frame again.
const LINE: TimerId = TimerId(0);

/// The firmware.
#[derive(Debug, Default)]
pub struct Raw {
    /// Instructions to process a command or a frame.
    handler: u64,
    waiting: VecDeque<(PortId, Command)>,
    buffers: VecDeque<(PortId, u64, RegionRef)>,
    ping: Option<(PortId, u64, u64)>,
    /// When the last payload is in the host's memory, if this NIC takes one frame at a time.
    in_memory: Option<Instant>,
}

/// Creates two hosts of a machine, with this firmware.
pub fn world(machine: &Machine) -> World<Raw> {
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| Raw::default());
    world.set_hosts(machine.host);
    world
}

fn header(hw: &dyn Hardware, to: NodeId, length: u32, bounces: u64) -> Header {
    Header {
        source: hw.node(),
        destination: to,
        incarnation: hw.incarnation(),
        length: u16::try_from(length).expect("raw frames have less than 64 KiB"),
        flags: u8::from(bounces > 0) << 4,
        words: [bounces, 0],
        ..Header::default()
    }
}

fn bounce(hw: &mut dyn Hardware, to: NodeId, bounces: u64) {
    let header = header(hw, to, 0, bounces);
    hw.transmit(&header, Source::Bytes(Payload::EMPTY)).expect("the line is free");
}

impl Raw {
    /// Creates firmware that takes `handler` instructions for a command or a frame.
    pub fn new(handler: u64) -> Self {
        Self { handler, ..Self::default() }
    }

    /// Creates firmware that takes a frame from the line only when the frame before it is in the host's memory.
    pub fn one_at_a_time() -> Self {
        Self { in_memory: Some(Instant::ZERO), ..Self::default() }
    }

    /// Waits for as long as the frame would have occupied the line, if the NIC takes one at a time.
    fn take_from_line(&mut self, hw: &mut dyn Hardware, bytes: usize) {
        let (Some(before), Some(costs)) = (self.in_memory, hw.costs()) else { return };
        let on_line = hw.line_rate().nanos_for(hw.wire_bytes(bytes).into());
        let wait = before.plus_nanos(on_line).nanos_since(hw.now());
        let instruction_ps = u64::from(costs.nic.instruction_ps);
        let waited = (wait * 1_000).div_ceil(instruction_ps);
        hw.charge(waited);
        let instructions = u64::from(costs.nic.event_instructions) + self.handler + waited;
        let handled = (instructions * instruction_ps).div_ceil(1_000);
        self.in_memory = Some(hw.now().plus_nanos(handled + costs.nic.scatter.nanos(bytes)));
    }

    /// Sends waiting frames while the line has room.
    fn serve(&mut self, hw: &mut dyn Hardware) {
        while let Some((port, command)) = self.waiting.front() {
            let (cookie, region) = (command.cookie, command.region);
            let header = header(hw, command.node, region.length, 0);
            match hw.transmit(&header, Source::Region(region)) {
                Ok(leaves) => {
                    let on_line = u64::from(hw.wire_bytes(region.length as usize));
                    let begins = leaves.as_nanos() - hw.line_rate().nanos_for(on_line);
                    let args = [begins, 0, 0, 0];
                    hw.complete(*port, &Completion { cookie, args, ..Completion::default() });
                    self.waiting.pop_front();
                }
                Err(TransmitRefused::Busy { until }) => return hw.set_timer(LINE, until),
                Err(refused) => panic!("{refused}"),
            }
        }
    }
}

impl Firmware for Raw {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.charge(self.handler);
            match command.opcode {
                RECEIVE => self.buffers.push_back((port, command.cookie, command.region)),
                PING => {
                    self.ping = Some((port, command.cookie, hw.now().as_nanos()));
                    bounce(hw, command.node, 2 * command.args[0]);
                }
                _ => self.waiting.push_back((port, command)),
            }
        }
        self.serve(hw);
        hw.commit();
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        hw.charge(self.handler);
        let header = frame.header;
        if header.flags > 0 && header.words[0] > 1 {
            bounce(hw, header.source, header.words[0] - 1);
        } else if header.flags > 0 {
            let Some((port, cookie, began)) = self.ping.take() else { return };
            let args = [hw.now().as_nanos() - began, 0, 0, 0];
            hw.complete(port, &Completion { cookie, args, ..Completion::default() });
        } else if let Some((port, cookie, region)) = self.buffers.pop_front() {
            self.take_from_line(hw, frame.payload.len());
            hw.write(region, frame.payload).expect("the buffer is large enough");
            let length = frame.payload.len() as u64;
            let args = [self.in_memory.map_or(0, Instant::as_nanos), 0, 0, 0];
            hw.complete(port, &Completion { cookie, length, args, ..Completion::default() });
        }
        hw.commit();
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        self.serve(hw);
        hw.commit();
    }
}
