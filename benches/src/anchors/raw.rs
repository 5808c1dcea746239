//! Firmware for raw transfers: sends the regions that ports post, fills posted buffers, and answers pings itself.

use std::collections::VecDeque;

use midplane::simhw::frame::{Frame, Header};
use midplane::simhw::hardware::{Firmware, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{DmaId, NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion};
use midplane::simhw::profile::Machine;
use midplane::simhw::region::{Payload, RegionRef};
use midplane::simhw::sim::World;

/// Opcode of "send this region to that node".
pub(super) const SEND: u8 = 0;
/// Opcode of "receive into this region".
pub(super) const RECEIVE: u8 = 1;
/// Opcode of "bounce a frame off that node's firmware `args[0]` times"; the completion's `args[0]` is the time in ns.
pub(super) const PING: u8 = 2;

const LINE: TimerId = TimerId(0);

#[derive(Debug, Default)]
pub(super) struct Raw {
    waiting: VecDeque<(PortId, Command)>,
    buffers: VecDeque<(PortId, u64, RegionRef)>,
    ping: Option<(PortId, u64, u64)>,
}

/// Creates two hosts of a machine, with this firmware.
pub(super) fn world(machine: &Machine) -> World<Raw> {
    let mut world = World::new(&machine.topology(2), machine.nic, 1, |_, _| Raw::default());
    world.set_hosts(machine.host);
    world
}

/// Builds a command about `region` whose peer is the other one of the two hosts.
pub(super) fn command(opcode: u8, from: NodeId, region: RegionRef) -> Command {
    Command { opcode, node: NodeId(1 - from.0), region, ..Command::default() }
}

fn header(hw: &dyn Hardware, to: NodeId, length: u32, bounces: u64) -> Header {
    Header {
        source: hw.node(),
        destination: to,
        incarnation: hw.incarnation(),
        length: u16::try_from(length).expect("anchors send less than 64 KiB at once"),
        flags: u8::from(bounces > 0) << 4,
        words: [bounces, 0],
        ..Header::default()
    }
}

impl Raw {
    fn serve(&mut self, hw: &mut dyn Hardware) {
        while let Some((port, command)) = self.waiting.pop_front() {
            let (cookie, region) = (command.cookie, command.region);
            let header = header(hw, command.node, region.length, 0);
            match hw.transmit(&header, Source::Region(region)) {
                Ok(leaves) => {
                    let on_line =
                        hw.line_rate().nanos_for(u64::from(hw.wire_bytes(region.length as usize)));
                    let args = [leaves.as_nanos() - on_line, 0, 0, 0];
                    hw.complete(port, &Completion { cookie, args, ..Completion::default() });
                }
                Err(TransmitRefused::Busy { until }) => {
                    self.waiting.push_front((port, command));
                    hw.set_timer(LINE, until);
                    break;
                }
                Err(refused) => panic!("{refused}"),
            }
        }
        hw.commit();
    }

    fn bounce(hw: &mut dyn Hardware, to: NodeId, bounces: u64) {
        let header = header(hw, to, 0, bounces);
        hw.transmit(&header, Source::Bytes(Payload::EMPTY)).expect("the line is free");
        hw.commit();
    }
}

impl Firmware for Raw {
    fn on_start(&mut self, _: &mut impl Hardware) {}

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            match command.opcode {
                RECEIVE => self.buffers.push_back((port, command.cookie, command.region)),
                PING => {
                    self.ping = Some((port, command.cookie, hw.now().as_nanos()));
                    Self::bounce(hw, command.node, 2 * command.args[0]);
                }
                _ => self.waiting.push_back((port, command)),
            }
        }
        self.serve(hw);
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let header = frame.header;
        if header.flags > 0 && header.words[0] > 1 {
            Self::bounce(hw, header.source, header.words[0] - 1);
        } else if header.flags > 0 {
            let Some((port, cookie, began)) = self.ping.take() else { return };
            let args = [hw.now().as_nanos() - began, 0, 0, 0];
            hw.complete(port, &Completion { cookie, args, ..Completion::default() });
            hw.commit();
        } else if let Some((port, cookie, region)) = self.buffers.pop_front() {
            hw.write(region, frame.payload).expect("the buffer is large enough");
            let length = frame.payload.len() as u64;
            hw.complete(port, &Completion { cookie, length, ..Completion::default() });
            hw.commit();
        }
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        self.serve(hw);
    }

    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}
}
