//! The firmware of a plain NIC: sends and receives datagrams, one in each frame.

use std::collections::VecDeque;
use std::sync::Arc;

use super::kernel::Hosts;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, Hardware, Source, TransmitRefused};
use crate::id::{PortId, TimerId};
use crate::port::{Command, Completion, Status};

/// Opcode of a command that sends its region as a datagram to its node.
pub(super) const SEND: u8 = 0;
/// Opcode of a command whose region receives a datagram.
pub(super) const RECEIVE: u8 = 1;

const LINE: TimerId = TimerId(0);
/// Most sent datagrams whose completions wait for that of a received one, so that the host is interrupted less often.
const UNREPORTED: usize = 32;

/// The firmware of a plain NIC: sends the datagrams that its host posts, and writes received ones to the
/// buffers that the host has posted. A datagram that finds no buffer is dropped ([`DropCause::NoBuffer`]).
#[derive(Debug)]
pub struct DatagramNic {
    hosts: Arc<Hosts>,
    /// Datagrams that wait for a transmit slot.
    sends: VecDeque<(PortId, Command)>,
    buffers: VecDeque<(PortId, Command)>,
    /// Completions of datagrams that were sent.
    sent: Vec<(PortId, Completion)>,
}

impl DatagramNic {
    /// Creates the firmware of a NIC of these hosts, which count the datagrams that it drops.
    #[must_use]
    pub const fn new(hosts: Arc<Hosts>) -> Self {
        Self { hosts, sends: VecDeque::new(), buffers: VecDeque::new(), sent: Vec::new() }
    }

    fn send(&mut self, hw: &mut impl Hardware) {
        while let Some((port, command)) = self.sends.front().copied() {
            let header = Header {
                source: hw.node(),
                destination: command.node,
                incarnation: hw.incarnation(),
                length: u16::try_from(command.region.length).unwrap_or(u16::MAX),
                words: [command.args[0], command.args[1]],
                ..Header::default()
            };
            let status = match hw.transmit(&header, Source::Region(command.region)) {
                Ok(_) => Status::Done,
                Err(TransmitRefused::Busy { until } | TransmitRefused::PeerBusy { until }) => {
                    hw.set_timer(LINE, until);
                    break;
                }
                Err(TransmitRefused::Length { .. }) => Status::Invalid,
                Err(TransmitRefused::Region(_)) => Status::Region,
            };
            self.sends.pop_front();
            self.sent.push((port, Completion::of(&command, status)));
            if self.sent.len() == UNREPORTED {
                self.report(hw);
            }
        }
        hw.commit();
    }

    /// Completes the datagrams that were sent.
    fn report(&mut self, hw: &mut impl Hardware) {
        for (port, completion) in self.sent.drain(..) {
            hw.complete(port, &completion);
        }
    }
}

impl Firmware for DatagramNic {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        let mut is_reminder = true;
        while let Some(command) = hw.next_command(port) {
            is_reminder = false;
            match command.opcode {
                SEND => self.sends.push_back((port, command)),
                RECEIVE => self.buffers.push_back((port, command)),
                _ => hw.complete(port, &Completion::of(&command, Status::Invalid)),
            }
        }
        if is_reminder {
            self.report(hw);
        }
        self.send(hw);
    }

    fn on_port_closed(&mut self, _: &mut impl Hardware, port: PortId) {
        self.sends.retain(|(of, _)| *of != port);
        self.buffers.retain(|(of, _)| *of != port);
        self.sent.retain(|(of, _)| *of != port);
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        if frame.header.destination != hw.node() {
            // A switch has forwarded the frame to the wrong node.
            return;
        }
        let Some((port, command)) = self.buffers.pop_front() else {
            return self.hosts.drop_frame(DropCause::NoBuffer);
        };
        let length = u32::from(frame.header.length);
        let written = match command.region.part(0, length) {
            Some(region) => hw.write(region, frame.payload).is_ok(),
            None => false,
        };
        let status = if written { Status::Done } else { Status::Truncated };
        let completion = Completion {
            node: frame.header.source,
            length: u64::from(length),
            args: [frame.header.words[0], frame.header.words[1], 0, 0],
            ..Completion::of(&command, status)
        };
        self.report(hw);
        hw.complete(port, &completion);
        hw.commit();
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        self.send(hw);
    }
}
