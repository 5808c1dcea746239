//! A kernel's TCP to compare with: one stream to each peer, charged to the host's processor.
//!
//! A model of costs, not of the protocol's variants. Segments have at most [`TcpCosts::mss`] bytes; the window
//! is fixed. Every second segment and the last of a write are acknowledged. After a timeout, the sender resends
//! from the first unacknowledged byte. There is no congestion control: compare it where nothing is congested.
//! It belongs on hosts that run firmware
//! ([`HostProfile::runs_firmware`](midplane::simhw::profile::HostProfile::runs_firmware)): received bytes are then copied
//! at the host's cost.

use std::collections::{BTreeMap, VecDeque};

use midplane::simhw::frame::{Frame, Header, Kind};
use midplane::simhw::hardware::{Firmware, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{DmaId, NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion, Status};
use midplane::simhw::region::{Payload, RegionRef};
use midplane::simhw::time::Instant;

/// Opcode of a command that writes its region to the stream to its node.
pub const SEND: u8 = 0;
/// Opcode of a command that fills its region from its node's stream.
pub const RECEIVE: u8 = 1;

const RETRANSMIT: TimerId = TimerId(0);
const LINE: TimerId = TimerId(1);
/// Set on the last segment of a write.
const PUSH: u8 = 1 << 4;

/// The protocol's costs and parameters. Instructions are those of the host's processor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TcpCosts {
    /// Instructions of a write or read, without the costs below.
    pub call: u64,
    /// Instructions to copy one byte into the socket's buffer.
    pub copy_byte: u64,
    /// Instructions of a segment that is sent.
    pub segment_out: u64,
    /// Instructions of a segment that is received.
    pub segment_in: u64,
    /// Instructions of an acknowledgement, sent or received.
    pub acknowledge: u64,
    /// Most bytes of one segment.
    pub mss: usize,
    /// Most unacknowledged bytes.
    pub window: usize,
    /// Nanoseconds without an acknowledgement after which the sender resends.
    pub timeout_ns: u64,
}

impl TcpCosts {
    /// Linux 2.2 on a Pentium II. Fitted to 100 us (LAM-VIA paper, section 2.1). Window and timeout are that
    /// kernel's.
    pub const LINUX_2_2: Self = Self {
        call: 1_200,
        copy_byte: 3,
        segment_out: 4_500,
        segment_in: 5_500,
        acknowledge: 2_500,
        mss: 1_452,
        window: 32_120,
        timeout_ns: 200_000_000,
    };
}

/// The firmware of a host that speaks TCP.
#[derive(Debug)]
pub struct KernelTcp {
    costs: TcpCosts,
    streams: BTreeMap<NodeId, Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Writes that are not yet wholly in the socket's buffer, and the bytes of the first that are (`taken`).
    writes: VecDeque<(PortId, Command)>,
    taken: u32,
    /// Bytes from the first unacknowledged one on, and the sequence numbers at which writes end (`pushes`).
    unacknowledged: VecDeque<u8>,
    pushes: VecDeque<u32>,
    first: u32,
    next: u32,
    expires: Option<Instant>,
    /// Pending reads, the filled bytes of the first (`filled`), and received bytes that are not read yet.
    reads: VecDeque<(PortId, u64, RegionRef)>,
    filled: u32,
    received: VecDeque<u8>,
    expected: u32,
    /// Segments received since the last acknowledgement.
    owed: u8,
}

impl KernelTcp {
    /// Creates a kernel without streams.
    #[must_use]
    pub const fn new(costs: TcpCosts) -> Self {
        Self { costs, streams: BTreeMap::new() }
    }

    /// Copies writes into the socket's buffer, and sends what the window allows.
    fn push(&mut self, hw: &mut dyn Hardware, peer: NodeId) {
        self.take_writes(hw, peer);
        let (costs, stream) = (self.costs, self.streams.entry(peer).or_default());
        loop {
            let sent = stream.next.wrapping_sub(stream.first) as usize;
            let bytes = (stream.unacknowledged.len() - sent).min(costs.mss);
            if bytes == 0 {
                break;
            }
            let segment: Vec<u8> =
                stream.unacknowledged.iter().skip(sent).take(bytes).copied().collect();
            let end = stream.next.wrapping_add(bytes as u32);
            let header = Header {
                source: hw.node(),
                destination: peer,
                incarnation: hw.incarnation(),
                length: bytes as u16,
                sequence: stream.next,
                acknowledgement: stream.expected,
                flags: if stream.pushes.contains(&end) { PUSH } else { 0 },
                ..Header::default()
            };
            hw.charge(costs.segment_out);
            match hw.transmit(&header, Source::Bytes(Payload::from(&segment[..]))) {
                Ok(_) => stream.next = end,
                Err(TransmitRefused::Busy { until }) => {
                    hw.set_timer(LINE, until);
                    break;
                }
                Err(refused) => panic!("a segment fits a frame: {refused}"),
            }
        }
        if stream.next != stream.first && stream.expires.is_none() {
            stream.expires = Some(hw.now().plus_nanos(costs.timeout_ns));
            self.set_alarm(hw);
        }
    }

    fn take_writes(&mut self, hw: &mut dyn Hardware, peer: NodeId) {
        let (costs, stream) = (self.costs, self.streams.entry(peer).or_default());
        while let Some((port, command)) = stream.writes.front().copied() {
            let room = costs.window - stream.unacknowledged.len();
            let part = (command.region.length - stream.taken).min(room as u32);
            let range = command.region.part(stream.taken, part).expect("within the region");
            let status = match hw.read(range).map(|bytes| bytes.to_vec()) {
                Ok(bytes) => {
                    stream.unacknowledged.extend(bytes);
                    hw.charge(u64::from(part) * costs.copy_byte);
                    stream.taken += part;
                    if stream.taken < command.region.length {
                        return;
                    }
                    let end = stream.first.wrapping_add(stream.unacknowledged.len() as u32);
                    stream.pushes.push_back(end);
                    Status::Done
                }
                Err(_) => Status::Region,
            };
            let length = u64::from(std::mem::take(&mut stream.taken));
            stream.writes.pop_front();
            let cookie = command.cookie;
            hw.complete(port, &Completion { status, cookie, length, ..Completion::default() });
        }
    }

    fn set_alarm(&self, hw: &mut dyn Hardware) {
        let next = self.streams.values().filter_map(|stream| stream.expires).min();
        hw.set_timer(RETRANSMIT, next.unwrap_or(Instant::FAR_FUTURE));
    }

    fn acknowledge(&mut self, hw: &mut dyn Hardware, peer: NodeId) {
        hw.charge(self.costs.acknowledge);
        let stream = self.streams.entry(peer).or_default();
        let header = Header {
            kind: Kind::Acknowledge,
            source: hw.node(),
            destination: peer,
            incarnation: hw.incarnation(),
            acknowledgement: stream.expected,
            ..Header::default()
        };
        // Without a free slot the acknowledgement is skipped: the next one covers it.
        if hw.transmit(&header, Source::Bytes(Payload::EMPTY)).is_ok() {
            stream.owed = 0;
        }
    }

    /// Handles an acknowledgement of all bytes before `upto`.
    fn on_acknowledged(&mut self, hw: &mut dyn Hardware, peer: NodeId, upto: u32) {
        let stream = self.streams.entry(peer).or_default();
        let bytes = upto.wrapping_sub(stream.first) as usize;
        let sent = stream.next.wrapping_sub(stream.first) as usize;
        if bytes == 0 || bytes > stream.unacknowledged.len() {
            return;
        }
        if bytes > sent {
            // Segments sent before the timeout have arrived after all.
            stream.next = upto;
        }
        stream.unacknowledged.drain(..bytes);
        stream.first = upto;
        stream.pushes.retain(|end| end.wrapping_sub(upto) as i32 > 0);
        stream.expires = (stream.next != upto).then(|| hw.now().plus_nanos(self.costs.timeout_ns));
        self.set_alarm(hw);
        self.push(hw, peer);
    }

    /// Copies received bytes into the pending reads.
    fn fill(&mut self, hw: &mut dyn Hardware, peer: NodeId) {
        let stream = self.streams.entry(peer).or_default();
        while let Some((port, cookie, region)) = stream.reads.front().copied() {
            let part = (region.length - stream.filled).min(stream.received.len() as u32);
            let range = region.part(stream.filled, part).expect("within the region");
            let bytes: Vec<u8> = stream.received.iter().take(part as usize).copied().collect();
            let status = match hw.write(range, Payload::from(&bytes[..])) {
                Ok(()) => {
                    stream.received.drain(..part as usize);
                    stream.filled += part;
                    if stream.filled < region.length {
                        return;
                    }
                    Status::Done
                }
                Err(_) => Status::Region,
            };
            let length = u64::from(std::mem::take(&mut stream.filled));
            stream.reads.pop_front();
            hw.complete(port, &Completion { status, cookie, length, ..Completion::default() });
        }
    }
}

impl Firmware for KernelTcp {
    fn on_start(&mut self, _: &mut impl Hardware) {}

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.charge(self.costs.call);
            let peer = command.node;
            let stream = self.streams.entry(peer).or_default();
            if command.opcode == SEND {
                stream.writes.push_back((port, command));
                self.push(hw, peer);
            } else {
                stream.reads.push_back((port, command.cookie, command.region));
                self.fill(hw, peer);
            }
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let (header, peer) = (frame.header, frame.header.source);
        if header.kind == Kind::Acknowledge {
            hw.charge(self.costs.acknowledge);
        } else {
            hw.charge(self.costs.segment_in);
            let stream = self.streams.entry(peer).or_default();
            let in_order = header.sequence == stream.expected;
            if in_order && stream.received.len() + frame.payload.len() <= self.costs.window {
                stream.expected = stream.expected.wrapping_add(frame.payload.len() as u32);
                stream.received.extend(frame.payload.to_vec());
                stream.owed += 1;
                self.fill(hw, peer);
            }
            let owed = self.streams.entry(peer).or_default().owed;
            if !in_order || owed >= 2 || header.flags & PUSH != 0 {
                self.acknowledge(hw, peer);
            }
        }
        self.on_acknowledged(hw, peer, header.acknowledgement);
        hw.commit();
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        let peers: Vec<NodeId> = self.streams.keys().copied().collect();
        for peer in peers {
            let stream = self.streams.entry(peer).or_default();
            if timer == RETRANSMIT && stream.expires.is_some_and(|at| at <= hw.now()) {
                stream.next = stream.first;
                stream.expires = None;
            }
            self.push(hw, peer);
        }
        self.set_alarm(hw);
        hw.commit();
    }

    fn on_dma_done(&mut self, _: &mut impl Hardware, _: DmaId) {}
}

#[cfg(test)]
mod tests {
    use midplane::simhw::fault::Faults;
    use midplane::simhw::host::Host;
    use midplane::simhw::profile::Machine;
    use midplane::simhw::sim::World;
    use proptest::prelude::*;

    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    /// Sends `writes` from B to A, each with its length, and reads as many bytes in reads of `read`;
    /// whether every byte arrived in its place.
    fn stream(writes: &[usize], read: usize, loss: f64, seed: u64) -> bool {
        let machine = Machine::TCP_FAST_ETHERNET;
        let kernel = |_, _| KernelTcp::new(TcpCosts::LINUX_2_2);
        let mut world = World::new(&machine.topology(2), machine.nic, seed, kernel);
        world.set_hosts(machine.host);
        world.set_faults(Faults { loss, ..Default::default() });
        let byte = |at: usize| (at * 31 % 251) as u8;
        let total: usize = writes.iter().sum();
        let (host, writes) = (world.host(B), writes.to_vec());
        world.spawn(B, async move {
            let mut port = host.open_port().unwrap();
            let mut sent = 0;
            for length in writes {
                let region = port.register(length).unwrap();
                let bytes: Vec<u8> = (sent..sent + length).map(byte).collect();
                region.write(0, &bytes).unwrap();
                let (node, region_ref) = (A, region.whole());
                let write =
                    Command { opcode: SEND, node, region: region_ref, ..Command::default() };
                port.submit(&write).unwrap();
                assert_eq!(port.completion().await.unwrap().status, Status::Done);
                sent += length;
            }
        });
        let host = world.host(A);
        let held = world.block_on(A, async move {
            let mut port = host.open_port().unwrap();
            let mut got = 0;
            while got < total {
                let length = read.min(total - got);
                let region = port.register(length).unwrap();
                let (node, region_ref) = (B, region.whole());
                let read =
                    Command { opcode: RECEIVE, node, region: region_ref, ..Command::default() };
                port.submit(&read).unwrap();
                assert_eq!(port.completion().await.unwrap().length, length as u64);
                let mut bytes = vec![0; length];
                region.read(0, &mut bytes).unwrap();
                assert!(bytes.iter().zip(got..).all(|(seen, at)| *seen == byte(at)));
                got += length;
            }
        });
        held.is_some()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_kernels_stream_arrives_whole_and_in_order_whatever_is_lost(
            writes in proptest::collection::vec(1_usize..40_000, 1..8), read in 1_usize..20_000,
            loss in 0.0..0.1_f64, seed: u64,
        ) {
            prop_assert!(stream(&writes, read, loss, seed));
        }
    }
}
