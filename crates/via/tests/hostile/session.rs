//! A victim with one Virtual Interface, on a NIC in memory, and a peer that connects and then sends forged frames:
//! thousands of sessions a second.

use std::time::Duration;

use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, Header, Kind};
use midplane_simhw::hardware::{Firmware, Hardware};
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::region::{Payload, ProtectionTag, RegionRef, Rights};
use midplane_simhw::wire;
use midplane_via::VIA;
use midplane_via::attributes::{Discriminator, Reliability};
use midplane_via::firmware::{Via, ViaConfig};

use super::memory_nic::{MemoryNic, Sent, Slab};

/// Opcodes, as the host's side writes them into a port's ring.
const CREATE: u8 = 1;
const POST_RECEIVE: u8 = 5;
const CONNECT_REQUEST: u8 = 6;
const CONNECT_WAIT: u8 = 7;
const CONNECT_ACCEPT: u8 = 8;

const VICTIM: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);
const PORT: PortId = PortId(0);
const TAG: ProtectionTag = ProtectionTag(7);

/// The victim's regions, by their slots: parameters of commands, then memory that is open to no access, to posted
/// receives, to writes, to writes under another tag, and to reads.
const PARAMETERS: u16 = 0;
const CLOSED: u16 = 1;
const RECEIVES: u16 = 2;
const WRITABLE: u16 = 3;
const FOREIGN: u16 = 4;
const READABLE: u16 = 5;
const REGION: usize = 4_096;
/// Number of posted receives, one after another in their region; the rest of the region is not posted.
const SLOTS: u32 = 4;
const SLOT: u32 = 1_000;
/// The value of every byte that a peer may read; no other memory contains it.
const OPEN_BYTE: u8 = 0x55;

struct Side {
    unit: Unit,
    nic: MemoryNic,
}

impl Side {
    fn new(node: NodeId) -> Self {
        let slab = |rights, tag, byte| Slab { bytes: vec![byte; REGION], rights, tag };
        let slabs = vec![
            slab(Rights::LOCAL, TAG, 0),
            slab(Rights::LOCAL, TAG, 0xEE),
            slab(Rights::LOCAL, TAG, 0),
            slab(Rights::LOCAL | Rights::REMOTE_WRITE, TAG, 0),
            slab(Rights::LOCAL | Rights::REMOTE_WRITE, ProtectionTag(8), 0xDD),
            slab(Rights::LOCAL | Rights::REMOTE_READ, TAG, OPEN_BYTE),
        ];
        let mut unit = Unit::default();
        let config = ViaConfig::default().dead_after(Duration::from_millis(500));
        unit.install(VIA, Via::new(config)).unwrap();
        let mut nic = MemoryNic::new(node, slabs);
        unit.on_start(&mut nic);
        Self { unit, nic }
    }

    fn command(&mut self, command: Command) {
        self.nic.commands.push_back(Command { extension: VIA, ..command });
        self.unit.on_doorbell(&mut self.nic, PORT);
    }

    /// Creates the interface of this side.
    fn create(&mut self, level: Reliability) {
        let remote = 3 << 8;
        let bits = level as u64 | remote | 1 << 32 << 20;
        self.command(Command {
            opcode: CREATE,
            args: [bits, TAG.0.into(), 0],
            ..Command::default()
        });
    }

    /// Posts a command about a connection.
    fn connect(&mut self, opcode: u8) {
        let name = Discriminator::new(b"service").unwrap();
        // The node, the name requested, the name of the requester, and no timeout.
        let bytes = wire::encode(&(VICTIM.0, name, name, 0_u64)).unwrap();
        self.nic.slabs[usize::from(PARAMETERS)].bytes[..bytes.len()].copy_from_slice(&bytes);
        let region = range(PARAMETERS, 0, bytes.len() as u32);
        self.command(Command { opcode, region, ..Command::default() });
    }

    fn post(&mut self, slot: u64) {
        let region = range(RECEIVES, slot as u32 * SLOT, SLOT);
        let (opcode, cookie) = (POST_RECEIVE, slot);
        self.command(Command { opcode, cookie, region, ..Command::default() });
    }

    fn receive(&mut self, header: Header, payload: &[u8]) {
        self.unit.on_frame(&mut self.nic, Frame { header, payload: Payload::from(payload) });
    }

    /// Advances time, and handles the timers that expire.
    fn pass(&mut self, nanos: u64) {
        self.nic.pass(nanos);
        while let Some(timer) = self.nic.expired() {
            self.unit.on_timer(&mut self.nic, timer);
        }
    }

    fn answer(&mut self, opcode: u8) -> Option<Completion> {
        let at = self.nic.completions.iter().position(|done| done.opcode == opcode)?;
        Some(self.nic.completions.remove(at))
    }
}

const fn range(slot: u16, offset: u32, length: u32) -> RegionRef {
    RegionRef { port: PORT, slot, generation: 1, offset, length }
}

/// A frame of the peer, decoded from the input.
#[derive(Clone, Copy, Debug)]
struct Forged {
    /// True if the frame has the sequence number that the victim expects next.
    follows: bool,
    header: Header,
    length: usize,
}

/// Bytes of the input for one frame.
pub(crate) const FRAME: usize = 22;

impl Forged {
    /// Decodes a frame: most fields have values that a valid connection might send; any may be wrong.
    fn of(bytes: &[u8; FRAME]) -> Self {
        let short = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let long = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let length = short(4) % 1_400;
        let connection = if bytes[2] < 224 { 1 } else { u64::from(bytes[2]) };
        let generation = match bytes[6] % 4 {
            0 => 1,
            1 => length,
            2 => short(8),
            _ => long(8),
        };
        let offset = match bytes[7] % 4 {
            0 => 0,
            1 => short(12) % (REGION as u32 + 64),
            2 => short(12),
            _ => long(12),
        };
        let value = if bytes[7] < 128 { short(16) % (REGION as u32 + 64) } else { long(16) };
        let slot = u64::from(bytes[3] % 8);
        let handle = connection | slot << 16 | u64::from(generation) << 32;
        let header = Header {
            port: PortId(u16::from(bytes[1].saturating_sub(224))),
            flags: bytes[0] & 0x7F,
            sequence: u32::from(bytes[20]),
            acknowledgement: u32::from(bytes[21]) % 4,
            words: [handle, u64::from(offset) | u64::from(value) << 32],
            ..Header::default()
        };
        let forged = Self { follows: bytes[0] & 0x80 != 0, header, length: length as usize };
        if bytes[19].is_multiple_of(8) { forged } else { forged.repaired() }
    }

    /// Corrects the frame to one that an honest peer might send: a whole message in one frame.
    fn repaired(mut self) -> Self {
        const WHOLE: u8 = 3 << 3;
        let [.., place] = self.header.words;
        let kind = self.header.flags & 7;
        self.follows = true;
        self.header.port = PortId(0);
        self.header.flags = kind | WHOLE | self.header.flags & 1 << 5;
        self.length %= SLOT as usize;
        let words = |slot: u16, generation: u64, offset: u64, value: u64| {
            [1 | u64::from(slot) << 16 | generation << 32, offset | value << 32]
        };
        let offset = place % (REGION as u64 - u64::from(SLOT));
        match kind {
            1 => self.header.words = words(WRITABLE, 1, offset, 5),
            2 => {
                self.length = 0;
                self.header.words = words(READABLE, 1, offset, u64::from(SLOT));
            }
            4 => self.follows = false,
            _ => {
                self.header.flags &= !7;
                self.header.words = words(0, self.length as u64, 0, 5);
            }
        }
        self
    }
}

/// The result of a session.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Verdict {
    /// True if memory that is not open to writes was written.
    pub(crate) touched: bool,
    /// True if memory that is not open to reads was sent.
    pub(crate) leaked: bool,
    /// Number of handlers that panicked.
    pub(crate) traps: u64,
    /// Number of receives completed with a message, of bytes written, and of frames sent with memory that was read.
    pub(crate) received: u64,
    pub(crate) written: u64,
    pub(crate) read: u64,
}

/// A connected victim and peer.
struct Session {
    victim: Side,
    peer: Side,
    verdict: Verdict,
    /// The sequence number that the victim most likely expects next.
    next: u32,
}

impl Session {
    fn new(level: Reliability) -> Self {
        let (mut victim, mut peer) = (Side::new(VICTIM), Side::new(PEER));
        victim.create(level);
        peer.create(level);
        (0..u64::from(SLOTS)).for_each(|slot| victim.post(slot));
        victim.connect(CONNECT_WAIT);
        peer.connect(CONNECT_REQUEST);
        let mut session = Self { victim, peer, verdict: Verdict::default(), next: 0 };
        let request = session.run_until(|session| session.victim.answer(CONNECT_WAIT));
        let args = [request.args[3] & 0xFFFF_FFFF, 0, 0];
        let accept = Command { opcode: CONNECT_ACCEPT, args, ..Command::default() };
        session.victim.command(accept);
        let answer = session.run_until(|session| session.peer.answer(CONNECT_REQUEST));
        assert_eq!(answer.args[0], 0, "they are connected");
        session
    }

    /// Runs both sides until `found` returns a value.
    fn run_until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..1_000 {
            if let Some(found) = found(self) {
                return found;
            }
            let Self { victim, peer, .. } = self;
            while let Some(Sent { header, payload }) = victim.nic.sent.pop_front() {
                peer.receive(header, &payload);
            }
            while let Some(Sent { header, payload }) = peer.nic.sent.pop_front() {
                victim.receive(header, &payload);
            }
            if victim.nic.sent.is_empty() && peer.nic.sent.is_empty() {
                victim.pass(20_000);
                peer.pass(20_000);
            }
        }
        panic!("two honest units do not connect");
    }

    fn attack(&mut self, forged: &Forged) {
        let payload = vec![0xAA; forged.length];
        let header = Header {
            kind: Kind::Data,
            extension: VIA,
            source: PEER,
            destination: VICTIM,
            incarnation: self.peer.nic.incarnation(),
            destination_incarnation: self.victim.nic.incarnation(),
            length: forged.length as u16,
            sequence: if forged.follows { self.next } else { forged.header.sequence },
            ..forged.header
        };
        self.next = self.next.wrapping_add(u32::from(forged.follows));
        self.victim.receive(header, &payload);
        self.victim.pass(1_000);
        self.collect();
    }

    /// Collects the victim's frames and completions, and posts its receives again.
    fn collect(&mut self) {
        while let Some(Sent { header, payload }) = self.victim.nic.sent.pop_front() {
            if header.kind == Kind::Data {
                self.next = header.acknowledgement;
                self.verdict.leaked |= payload.iter().any(|byte| *byte != OPEN_BYTE);
                self.verdict.read += u64::from(!payload.is_empty());
            }
        }
        while let Some(done) = self.victim.answer(POST_RECEIVE) {
            if done.flags & 0xFF == 0 {
                self.verdict.received += 1;
                self.victim.post(done.cookie);
            }
        }
    }

    fn end(mut self) -> Verdict {
        self.victim.pass(2_000_000_000);
        self.collect();
        let slabs = &self.victim.nic.slabs;
        let is = |slot: u16, from: usize, byte: u8| {
            slabs[usize::from(slot)].bytes[from..].iter().all(|other| *other == byte)
        };
        let whole = is(CLOSED, 0, 0xEE)
            && is(FOREIGN, 0, 0xDD)
            && is(READABLE, 0, OPEN_BYTE)
            && is(RECEIVES, (SLOTS * SLOT) as usize, 0);
        let written = slabs[usize::from(WRITABLE)].bytes.iter().filter(|byte| **byte != 0).count();
        Verdict {
            touched: !whole,
            traps: self.victim.unit.counters().traps,
            written: written as u64,
            ..self.verdict
        }
    }
}

/// Runs a session: the first byte of the input selects the reliability, the others are the peer's frames.
pub(crate) fn run(input: &[u8]) -> Verdict {
    let (level, frames) = input.split_first().map_or((0, input), |(level, rest)| (*level, rest));
    let level = match level % 4 {
        0 => Reliability::Unreliable,
        1 => Reliability::ReliableDelivery,
        _ => Reliability::ReliableReception,
    };
    let mut session = Session::new(level);
    for bytes in frames.as_chunks::<FRAME>().0 {
        session.attack(&Forged::of(bytes));
    }
    session.end()
}
