//! A kernel's TCP to compare with: streams to each peer, charged to the host's processor. A stream to the own host, which
//! passes frames internally, has its own number in each direction, since both of its ends are here.
//!
//! A model of costs over a network that loses nothing and reorders nothing, not of the protocol's variants. Segments have at
//! most [`TcpCosts::mss`] bytes; the window is fixed. Every second segment and the last of a write are acknowledged.
//! It belongs on hosts that run firmware
//! ([`HostProfile::runs_firmware`](midplane::simhw::profile::HostProfile::runs_firmware)): received bytes are then copied
//! at the host's cost.

use std::collections::{BTreeMap, VecDeque};

use midplane::simhw::frame::{Frame, Header, Kind};
use midplane::simhw::hardware::{Firmware, Hardware, Source, TransmitRefused};
use midplane::simhw::id::{NodeId, PortId, TimerId};
use midplane::simhw::port::{Command, Completion, Status};
use midplane::simhw::region::{Payload, RegionRef};

/// Opcode of a command that writes its region to the stream to its node, of the number `args[0]`.
pub const SEND: u8 = 0;
/// Opcode of a command that fills its region from its node's stream of the number `args[0]`.
pub const RECEIVE: u8 = 1;

/// Expires when the line has room for a segment again.
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
}

impl TcpCosts {
    /// Linux 2.2 on a Pentium II. Fitted to 100 us (LAM-VIA paper, section 2.1). The window is that kernel's.
    /// [`Self::LINUX_2_2_LOOPBACK`] has the segments of its loopback device.
    pub const LINUX_2_2: Self = Self {
        call: 1_200,
        copy_byte: 3,
        segment_out: 4_500,
        segment_in: 5_500,
        acknowledge: 2_500,
        mss: 1_452,
        window: 32_120,
    };

    /// The same kernel's TCP to the own host. Read: that kernel's loopback device takes packets of 3,924 bytes, 52 of
    /// which are the headers of a segment with timestamps.
    pub const LINUX_2_2_LOOPBACK: Self = Self { mss: 3_924 - 52, ..Self::LINUX_2_2 };
}

/// The firmware of a host that speaks TCP.
#[derive(Debug)]
pub struct KernelTcp {
    costs: TcpCosts,
    streams: BTreeMap<Peer, Stream>,
}

/// The other end of a stream: its node, and the stream's number.
type Peer = (NodeId, u64);

#[derive(Debug, Default)]
struct Stream {
    /// Writes that are not yet wholly in the socket's buffer, and the bytes of the first that are (`taken`).
    writes: VecDeque<(PortId, Command)>,
    taken: u32,
    /// Bytes of the socket's buffer that have not left, and the numbers of bytes at which writes end.
    unsent: VecDeque<u8>,
    pushes: VecDeque<u64>,
    /// Numbers of bytes that have left, and that the peer has acknowledged.
    sent: u64,
    acknowledged: u64,
    /// Pending reads, the filled bytes of the first (`filled`), and received bytes that are not read yet.
    reads: VecDeque<(PortId, u64, RegionRef)>,
    filled: u32,
    unread: VecDeque<u8>,
    /// Number of received bytes, and the segments since the last acknowledgement.
    received: u64,
    owed: u8,
}

impl KernelTcp {
    /// Creates a kernel without streams.
    #[must_use]
    pub const fn new(costs: TcpCosts) -> Self {
        Self { costs, streams: BTreeMap::new() }
    }

    fn stream(&mut self, peer: Peer) -> &mut Stream {
        self.streams.entry(peer).or_default()
    }

    /// Copies writes into the socket's buffer, and sends what the line takes.
    fn push(&mut self, hw: &mut dyn Hardware, peer: Peer) {
        let costs = self.costs;
        let stream = self.stream(peer);
        stream.take_writes(hw, costs);
        while !stream.unsent.is_empty() {
            let bytes = stream.unsent.len().min(costs.mss);
            let segment: Vec<u8> = stream.unsent.iter().take(bytes).copied().collect();
            let end = stream.sent + bytes as u64;
            let header = Header {
                length: bytes as u16,
                flags: if stream.pushes.contains(&end) { PUSH } else { 0 },
                ..header(hw, peer, stream)
            };
            hw.charge(costs.segment_out);
            match hw.transmit(&header, Source::Bytes(Payload::from(&segment[..]))) {
                Ok(_) => {
                    stream.sent = end;
                    stream.unsent.drain(..bytes);
                }
                Err(TransmitRefused::Busy { until }) => return hw.set_timer(LINE, until),
                Err(refused) => panic!("a segment fits a frame: {refused}"),
            }
        }
    }

    fn acknowledge(&mut self, hw: &mut dyn Hardware, peer: Peer) {
        hw.charge(self.costs.acknowledge);
        let stream = self.stream(peer);
        let header = Header { kind: Kind::Acknowledge, ..header(hw, peer, stream) };
        // Without a free slot the acknowledgement is skipped: the next one covers it.
        if hw.transmit(&header, Source::Bytes(Payload::EMPTY)).is_ok() {
            stream.owed = 0;
        }
    }
}

/// Starts the header of a frame of a stream. Its `words` are the number of received bytes, and that of the stream.
fn header(hw: &dyn Hardware, (peer, number): Peer, stream: &Stream) -> Header {
    Header {
        source: hw.node(),
        destination: peer,
        incarnation: hw.incarnation(),
        words: [stream.received, number],
        ..Header::default()
    }
}

fn complete(hw: &mut dyn Hardware, port: PortId, status: Status, cookie: u64, length: u32) {
    let length = length.into();
    hw.complete(port, &Completion { status, cookie, length, ..Completion::default() });
}

impl Stream {
    /// Copies writes into the socket's buffer, as far as the window allows.
    fn take_writes(&mut self, hw: &mut dyn Hardware, costs: TcpCosts) {
        while let Some((port, command)) = self.writes.front().copied() {
            let in_flight = (self.sent - self.acknowledged) as usize;
            let room = costs.window - self.unsent.len() - in_flight;
            let part = (command.region.length - self.taken).min(room as u32);
            let range = command.region.part(self.taken, part).expect("within the region");
            let status = match hw.read(range).map(|bytes| bytes.to_vec()) {
                Ok(bytes) => {
                    self.unsent.extend(bytes);
                    hw.charge(u64::from(part) * costs.copy_byte);
                    self.taken += part;
                    if self.taken < command.region.length {
                        return;
                    }
                    self.pushes.push_back(self.sent + self.unsent.len() as u64);
                    Status::Done
                }
                Err(_) => Status::Region,
            };
            self.writes.pop_front();
            complete(hw, port, status, command.cookie, std::mem::take(&mut self.taken));
        }
    }

    /// Handles the peer's number of received bytes; returns whether it has grown.
    fn on_acknowledged(&mut self, upto: u64) -> bool {
        let grows = upto > self.acknowledged && upto <= self.sent;
        if grows {
            self.acknowledged = upto;
            self.pushes.retain(|end| *end > upto);
        }
        grows
    }

    /// Copies received bytes into the pending reads.
    fn fill(&mut self, hw: &mut dyn Hardware) {
        while let Some((port, cookie, region)) = self.reads.front().copied() {
            let part = (region.length - self.filled).min(self.unread.len() as u32);
            let range = region.part(self.filled, part).expect("within the region");
            let bytes: Vec<u8> = self.unread.iter().take(part as usize).copied().collect();
            let status = match hw.write(range, Payload::from(&bytes[..])) {
                Ok(()) => {
                    self.unread.drain(..part as usize);
                    self.filled += part;
                    if self.filled < region.length {
                        return;
                    }
                    Status::Done
                }
                Err(_) => Status::Region,
            };
            self.reads.pop_front();
            complete(hw, port, status, cookie, std::mem::take(&mut self.filled));
        }
    }
}

impl Firmware for KernelTcp {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.charge(self.costs.call);
            let peer = (command.node, command.args[0]);
            let stream = self.stream(peer);
            if command.opcode == SEND {
                stream.writes.push_back((port, command));
                self.push(hw, peer);
            } else {
                stream.reads.push_back((port, command.cookie, command.region));
                stream.fill(hw);
            }
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let header = frame.header;
        let peer = (header.source, header.words[1]);
        if header.kind == Kind::Acknowledge {
            hw.charge(self.costs.acknowledge);
        } else {
            hw.charge(self.costs.segment_in);
            let stream = self.stream(peer);
            stream.received += frame.payload.len() as u64;
            stream.unread.extend(frame.payload.to_vec());
            stream.owed += 1;
            stream.fill(hw);
            if stream.owed >= 2 || header.flags & PUSH != 0 {
                self.acknowledge(hw, peer);
            }
        }
        if self.stream(peer).on_acknowledged(header.words[0]) {
            self.push(hw, peer);
        }
        hw.commit();
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        let peers: Vec<Peer> = self.streams.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.push(hw, peer));
        hw.commit();
    }
}

#[cfg(test)]
mod tests {
    use midplane::simhw::host::Host;
    use midplane::simhw::port::Port;
    use midplane::simhw::profile::Machine;
    use midplane::simhw::region::Region;
    use midplane::simhw::sim::World;
    use proptest::prelude::*;

    use super::*;

    /// Writes a region to the other node's stream, or fills it from there.
    async fn run(port: &mut Port, opcode: u8, node: NodeId, region: &Region) {
        let region = region.whole();
        port.submit(&Command { opcode, node, region, ..Command::default() }).unwrap();
        let done = port.completion().await.unwrap();
        assert_eq!((done.status, done.length), (Status::Done, u64::from(region.length)));
    }

    /// Sends `writes` from one node to the other, each with its length, and reads as many bytes in reads of `read`;
    /// returns whether every byte arrived in its place.
    fn stream(writes: &[usize], read: usize) -> bool {
        let machine = Machine::TCP_FAST_ETHERNET;
        let kernel = |_, _| KernelTcp::new(TcpCosts::LINUX_2_2);
        let mut world = World::new(&machine.topology(2), machine.nic, 1, kernel);
        world.set_hosts(machine.host);
        let byte = |at: usize| (at * 31 % 251) as u8;
        let [here, there] = [NodeId(0), NodeId(1)];
        let (host, writes, total) = (world.host(there), writes.to_vec(), writes.iter().sum());
        world.spawn(there, async move {
            let mut port = host.open_port().unwrap();
            let mut sent = 0;
            for length in writes {
                let region = port.register(length).unwrap();
                region.write(0, &(sent..sent + length).map(byte).collect::<Vec<_>>()).unwrap();
                run(&mut port, SEND, here, &region).await;
                sent += length;
            }
        });
        let host = world.host(here);
        let held = world.block_on(here, async move {
            let mut port = host.open_port().unwrap();
            let mut got = 0;
            while got < total {
                let mut bytes = vec![0; read.min(total - got)];
                let region = port.register(bytes.len()).unwrap();
                run(&mut port, RECEIVE, there, &region).await;
                region.read(0, &mut bytes).unwrap();
                assert!(bytes.iter().zip(got..).all(|(seen, at)| *seen == byte(at)));
                got += bytes.len();
            }
        });
        held.is_some()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_kernels_stream_arrives_whole_and_in_order(
            writes in proptest::collection::vec(1_usize..40_000, 1..8), read in 1_usize..20_000,
        ) {
            prop_assert!(stream(&writes, read));
        }
    }
}
