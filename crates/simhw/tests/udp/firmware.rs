//! A small firmware for the tests, and helpers that start NICs with it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, Frame, Header};
use midplane_simhw::hardware::{Dma, Firmware, Hardware, Source, TransmitRefused};
use midplane_simhw::id::{DmaId, ExtensionId, NodeId, PortId, TimerId};
use midplane_simhw::nic::StartError;
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::region::Payload;
use midplane_simhw::time::Instant;
use midplane_simhw::udp::{UdpConfig, UdpNic};

/// Sends the command's region to `node`; completes once the region is read.
pub(crate) const SEND: u8 = 1;
/// Receives the next frame into the command's region; completes with its length.
pub(crate) const RECEIVE: u8 = 2;
/// Copies the first half of the region to its second half; completes when the copy has ended.
pub(crate) const COPY: u8 = 3;
/// Sends, then aborts the turn.
pub(crate) const SEND_AND_ABORT: u8 = 4;
/// Flag of frames that are sent back, without the flag.
pub(crate) const ECHO: u8 = 1;

/// A frame as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) at: Instant,
}

/// The frames that the firmware of one NIC has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) arrivals: Vec<Arrival>,
    /// When the last bit of each frame was reported to leave.
    pub(crate) departures: Vec<Instant>,
    pub(crate) busy: usize,
}

impl Seen {
    pub(crate) fn with<T>(&self, use_record: impl FnOnce(&mut Record) -> T) -> T {
        use_record(&mut self.0.lock().unwrap())
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.with(|record| record.arrivals.clone())
    }

    /// Waits until `count` frames have arrived; panics after 10 s.
    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) -> impl Future<Output = Vec<Arrival>> {
        let caller = std::panic::Location::caller();
        let seen = self.clone();
        async move {
            for _ in 0..5_000 {
                let arrivals = seen.arrivals();
                if arrivals.len() >= count {
                    return arrivals;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            panic!("{} of {count} frames arrived, at {caller}", seen.arrivals().len());
        }
    }
}

/// A firmware that echoes frames and carries out the commands above.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    seen: Seen,
    waiting: VecDeque<(PortId, Command)>,
    receivers: VecDeque<(PortId, Command)>,
    /// Payloads for which no receive was posted yet.
    unexpected: VecDeque<Vec<u8>>,
    copies: VecDeque<(DmaId, PortId, Command)>,
    sequence: u32,
}

impl Probe {
    pub(crate) fn new() -> (Self, Seen) {
        let seen = Seen::default();
        (Self { seen: seen.clone(), ..Self::default() }, seen)
    }

    fn send_waiting(&mut self, hw: &mut impl Hardware) {
        while let Some((port, command)) = self.waiting.pop_front() {
            let header = Header {
                extension: ExtensionId(7),
                source: hw.node(),
                destination: command.node,
                incarnation: hw.incarnation(),
                length: u16::try_from(command.region.length).unwrap_or(u16::MAX),
                sequence: self.sequence,
                flags: u8::try_from(command.flags).unwrap(),
                // Requested in the arguments: [1, limit, _].
                hop_limit: match command.args {
                    [1, hops, _] => u8::try_from(hops).unwrap(),
                    _ => DEFAULT_HOP_LIMIT,
                },
                ..Header::default()
            };
            let status = match hw.transmit(&header, Source::Region(command.region)) {
                Ok(at) => {
                    self.seen.with(|record| record.departures.push(at));
                    Status::Done
                }
                Err(TransmitRefused::Busy { until }) => {
                    self.seen.with(|record| record.busy += 1);
                    self.waiting.push_front((port, command));
                    hw.set_timer(TimerId(0), until);
                    hw.commit();
                    return;
                }
                Err(TransmitRefused::Region(_)) => Status::Region,
                Err(_) => Status::Invalid,
            };
            if command.opcode == SEND_AND_ABORT {
                hw.abort();
            } else {
                self.sequence += 1;
            }
            complete(hw, port, &command, status, u64::from(command.region.length));
        }
    }

    fn match_received(&mut self, hw: &mut impl Hardware) {
        while !self.receivers.is_empty() && !self.unexpected.is_empty() {
            let (port, command) = self.receivers.pop_front().unwrap();
            let bytes = self.unexpected.pop_front().unwrap();
            let status = match hw.write(command.region, Payload::from(&bytes[..])) {
                Ok(()) => Status::Done,
                Err(_) => Status::Truncated,
            };
            complete(hw, port, &command, status, bytes.len() as u64);
        }
    }
}

fn complete(hw: &mut impl Hardware, port: PortId, of: &Command, status: Status, length: u64) {
    let completion =
        Completion { status, opcode: of.opcode, cookie: of.cookie, length, ..Default::default() };
    hw.complete(port, &completion);
    hw.commit();
}

impl Firmware for Probe {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            match command.opcode {
                SEND | SEND_AND_ABORT => {
                    self.waiting.push_back((port, command));
                    self.send_waiting(hw);
                }
                RECEIVE => {
                    self.receivers.push_back((port, command));
                    self.match_received(hw);
                }
                COPY => {
                    let half = command.region.length / 2;
                    let from = command.region.part(0, half).unwrap();
                    let to = command.region.part(half, half).unwrap();
                    match hw.dma(Dma { from, to }) {
                        Ok(id) => self.copies.push_back((id, port, command)),
                        Err(_) => complete(hw, port, &command, Status::Region, 0),
                    }
                    hw.commit();
                }
                _ => complete(hw, port, &command, Status::Invalid, 0),
            }
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        let payload = frame.payload.to_vec();
        let arrival = Arrival { header: frame.header, payload: payload.clone(), at: hw.now() };
        self.seen.with(|record| record.arrivals.push(arrival));
        if frame.header.flags & ECHO != 0 {
            let header = Header {
                source: hw.node(),
                destination: frame.header.source,
                flags: 0,
                ..frame.header
            };
            // A frame that does not fit the line is not echoed.
            let _ = hw.transmit(&header, Source::Bytes(Payload::from(&payload[..])));
            hw.commit();
        }
        self.unexpected.push_back(payload);
        self.match_received(hw);
    }

    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId) {
        let (id, port, command) = self.copies.pop_front().expect("begun by a command");
        assert_eq!(id, dma);
        complete(hw, port, &command, Status::Done, u64::from(command.region.length / 2));
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, _: TimerId) {
        self.send_waiting(hw);
    }
}

/// Returns addresses with ports that were free a moment ago.
pub(crate) fn free_addresses(ip: IpAddr, count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind((ip, 0)).unwrap()).collect();
    sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
}

/// NICs of one fabric, all in this process.
pub(crate) struct Cluster {
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) nics: Vec<UdpNic>,
    pub(crate) seen: Vec<Seen>,
}

impl Cluster {
    /// Starts `count` NICs on `ip`; `change` configures each.
    pub(crate) fn start(ip: &str, count: usize, change: impl Fn(UdpConfig) -> UdpConfig) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        loop {
            // Another test may have bound one of the ports since.
            match Self::try_start(free_addresses(ip, count), &change) {
                Ok(cluster) => return cluster,
                Err(StartError::PortInUse(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn try_start(
        peers: Vec<SocketAddr>,
        change: &impl Fn(UdpConfig) -> UdpConfig,
    ) -> Result<Self, StartError> {
        let (mut nics, mut seen) = (Vec::new(), Vec::new());
        for node in 0..peers.len() {
            let (probe, record) = Probe::new();
            let node = NodeId(u16::try_from(node).unwrap());
            nics.push(UdpNic::start(change(UdpConfig::new(node, peers.clone())), probe)?);
            seen.push(record);
        }
        Ok(Self { peers, nics, seen })
    }
}

/// Returns a command for `node` about the whole region.
pub(crate) fn command(opcode: u8, node: u16, region: &midplane_simhw::region::Region) -> Command {
    Command { opcode, node: NodeId(node), region: region.whole(), ..Command::default() }
}

/// Waits for the next completion; panics after 10 s.
#[track_caller]
pub(crate) fn completion(port: &mut Port) -> impl Future<Output = Completion> {
    let caller = std::panic::Location::caller();
    async move {
        let limit = Duration::from_secs(10);
        match tokio::time::timeout(limit, port.completion()).await {
            Ok(Ok(completion)) => completion,
            other => panic!("no completion ({other:?}), at {caller}"),
        }
    }
}

/// Runs a test on a runtime of its own.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}
