//! A host's use of its NIC: posts datagrams and receive buffers, and takes received datagrams.

use std::future::Future as _;
use std::task::{Context, Poll};

use super::firmware::{RECEIVE, SEND};
use super::label::{Arrived, Label, Outgoing};
use crate::frame::HEADER_BYTES;
use crate::host::Host;
use crate::link::Framing;
use crate::port::{Command, Completion, Port, PortOptions, Status};
use crate::region::Region;
use crate::sim::SimHost;

/// Most bytes of a datagram in an Ethernet packet of 1,500 bytes.
pub const MAX_DATAGRAM: usize = 1_472;
/// Ethernet that carries a datagram of up to [`MAX_DATAGRAM`] bytes as one packet, with 66 bytes of headers and
/// framing: those of the frame count among them.
pub const DATAGRAM_FRAMING: Framing = Framing::Packets {
    mtu: (HEADER_BYTES + MAX_DATAGRAM) as u32,
    overhead: 66 - HEADER_BYTES as u32,
};

/// Number of receive buffers, and of datagrams that the NIC may have to send.
const SLOTS: usize = 256;
/// Receive buffers that are reposted before the doorbell is rung for them alone.
const UNRUNG: usize = 64;

/// Reminders without a sent datagram after which the host resets its port: a completion may have been lost.
const STALLED: u32 = 200;

/// A port of the host's NIC, with memory for datagrams.
#[derive(Debug)]
pub(super) struct HostNic {
    port: Port,
    memory: Region,
    slot_bytes: usize,
    /// Free slots for sending; their numbers follow those of the receive buffers.
    free: Vec<usize>,
    /// For each slot for sending, whether it is in use.
    is_used: [bool; SLOTS],
    /// Receive buffers posted since the doorbell was rung.
    unrung: usize,
    /// Reminders since a datagram was sent.
    stalled: u32,
}

impl HostNic {
    /// Opens a port and posts receive buffers; `None` if the NIC is down.
    pub(super) fn open(host: &SimHost, mtu: usize) -> Option<Self> {
        let mut port = host.open_port_with(PortOptions::default().depth(2 * SLOTS)).ok()?;
        let memory = port.register(2 * SLOTS * mtu).ok()?;
        let free = (SLOTS..2 * SLOTS).collect();
        let is_used = [false; SLOTS];
        let mut this = Self { port, memory, slot_bytes: mtu, free, is_used, unrung: 0, stalled: 0 };
        (0..SLOTS).for_each(|slot| this.post_buffer(slot));
        this.ring();
        Some(this)
    }

    /// Returns whether the NIC has stopped since the port was opened.
    pub(super) fn is_closed(&self) -> bool {
        self.port.is_closed()
    }

    /// Rings the doorbell again if the NIC has datagrams to send: an earlier ring may have been lost. Returns `false`
    /// if the NIC has sent none of them for [`STALLED`] calls.
    pub(super) fn remind(&mut self) -> bool {
        if self.free.len() < SLOTS {
            self.stalled += 1;
            self.ring();
        }
        self.stalled < STALLED
    }

    fn post_buffer(&mut self, slot: usize) {
        let region = self.memory.range(slot * self.slot_bytes, self.slot_bytes);
        let region = region.expect("the memory has all slots");
        let command =
            Command { opcode: RECEIVE, cookie: slot as u64, region, ..Command::default() };
        // If the NIC has stopped, this fails, and the host opens the port again later.
        let _ = self.port.post(&command);
        self.unrung += 1;
    }

    /// Posts a datagram; returns `false` if all slots are in use. The NIC sends it after [`HostNic::ring`].
    pub(super) fn post(&mut self, datagram: &Outgoing) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        self.is_used[slot - SLOTS] = true;
        let offset = slot * self.slot_bytes;
        self.memory.write(offset, &datagram.bytes).expect("a datagram fits its slot");
        let region = self.memory.range(offset, datagram.bytes.len()).expect("a slot's beginning");
        let [ports, sequence] = datagram.label.to_words();
        let command = Command {
            opcode: SEND,
            node: datagram.to,
            cookie: slot as u64,
            region,
            args: [ports, sequence, 0],
            ..Command::default()
        };
        let _ = self.port.post(&command);
        true
    }

    pub(super) fn ring(&mut self) {
        self.unrung = 0;
        self.port.ring();
    }

    /// Rings the doorbell if the NIC may soon lack receive buffers.
    pub(super) fn ring_for_buffers(&mut self) {
        if self.unrung >= UNRUNG {
            self.ring();
        }
    }

    /// Waits for the next completion; ready as well if the NIC has stopped.
    pub(super) fn poll_completion(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Completion>> {
        std::pin::pin!(self.port.completion()).poll(context).map(Result::ok)
    }

    /// Takes the next completion, if there is one.
    pub(super) fn take(&mut self) -> Option<Completion> {
        self.port.take()
    }

    /// Handles a completion; returns the received datagram, if it is that of a receive buffer. A damaged command may
    /// complete with any cookie.
    pub(super) fn handle(&mut self, completion: &Completion) -> Option<Arrived> {
        let slot = usize::try_from(completion.cookie).unwrap_or(usize::MAX);
        if (SLOTS..2 * SLOTS).contains(&slot) {
            self.stalled = 0;
            if std::mem::take(&mut self.is_used[slot - SLOTS]) {
                self.free.push(slot);
            }
            return None;
        }
        if slot >= SLOTS {
            return None;
        }
        if completion.length as usize > self.slot_bytes {
            self.post_buffer(slot);
            return None;
        }
        let mut bytes = vec![0; completion.length as usize];
        let read = self.memory.read(slot * self.slot_bytes, &mut bytes);
        self.post_buffer(slot);
        let label = Label::from_words([completion.args[0], completion.args[1]])?;
        let is_whole = completion.status == Status::Done && read.is_ok();
        is_whole.then_some(Arrived { from: completion.node, label, bytes })
    }
}
