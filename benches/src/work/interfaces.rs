//! Messages there and back over two NICs on one thread, on each layer over shared memory.

use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages, receive, send};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::via::VIA;
use midplane::via::descriptor::{Completed, Descriptor};
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::lanes::LaneCarrier;
use midplane::via::memory::Memory;
use midplane::via::message::carrier::Carrier;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::{CommHandle, Rank};
use midplane::via::message::process::Process;
use midplane::via::message::request::{Load, Mode, Request, State};
use midplane::via::message::transport::Wait;
use midplane::via::nic::{Nic, ViId, WorkQueue};
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};
use tokio::runtime::{Builder, Runtime};

use super::descriptors::{BYTES, connect};

/// Two NICs of one fabric, and their runtime.
pub struct Nics {
    runtime: Runtime,
    nics: Vec<ShmNic>,
}

impl Nics {
    /// Starts the NICs of a fabric that no other process uses.
    pub fn start(purpose: &str) -> Self {
        Self::with(purpose, ViaConfig::default().shut_gate())
    }

    /// Starts such NICs, whose gates open: Virtual Interfaces bypass them.
    pub fn start_gated(purpose: &str) -> Self {
        Self::with(purpose, ViaConfig::default())
    }

    fn with(purpose: &str, via: ViaConfig) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let nics = runtime.block_on(nics(&format!("bench {purpose} {}", std::process::id()), via));
        Self { runtime, nics }
    }
}

async fn nics(name: &str, via: ViaConfig) -> Vec<ShmNic> {
    let start = |node| {
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).expect("the unit is empty");
        unit.install(VIA, Via::new(via)).expect("a second one");
        let config = ShmConfig::new(name, NodeId(node), 2).spin(Duration::ZERO);
        ShmNic::start(config, unit).expect("the fabric is new")
    };
    let nics: Vec<_> = (0..2).map(start).collect();
    for nic in &nics {
        nic.meet().await;
    }
    nics
}

/// Returns a round trip of the unit's own messages, through ports.
pub fn units(both: &Nics) -> impl FnMut() + use<> {
    let mut ports: Vec<_> =
        both.nics.iter().map(|nic| nic.host().open_port().expect("runs")).collect();
    let buffers: Vec<_> =
        ports.iter_mut().map(|port| port.register(BYTES).expect("room")).collect();
    move || {
        for (from, to) in [(0, 1), (1, 0)] {
            let name = (NodeId(to as u16), ports[to].id());
            ports[to].post(&receive(buffers[to].whole(), 1)).expect("room");
            ports[from].submit(&send(name.0, name.1, buffers[from].whole(), 2)).expect("room");
            while ports[to].poll().is_none() {}
            while ports[from].poll().is_none() {}
        }
    }
}

/// An interface with its memory and its two reused descriptors.
struct Interface {
    nic: Nic,
    vi: ViId,
    /// The received message, and the one to send.
    memory: Memory,
    spare: Vec<Descriptor>,
}

impl Interface {
    async fn connect(nic: &ShmNic) -> Self {
        let (nic, vi, memory) = connect(&nic.host(), 2, 8).await;
        Self { nic, vi, memory, spare: Vec::new() }
    }

    fn send(&mut self) {
        while let Some(Completed { descriptor, .. }) =
            self.nic.taken(self.vi, WorkQueue::Send).expect("connected")
        {
            self.spare.push(descriptor);
        }
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(self.memory.segment(BYTES, BYTES).expect("half of it"));
        self.nic.post_send(self.vi, descriptor).expect("room");
    }

    fn has_received(&mut self) -> bool {
        let Some(done) = self.nic.receive_done(self.vi).expect("connected") else { return false };
        self.nic.post_receive(self.vi, done.descriptor).expect("room");
        true
    }

    fn receive(&mut self) {
        while !self.has_received() {}
    }

    /// Receives a message of `other`, and polls for `other` meanwhile, on this thread.
    fn receive_while_polling(&mut self, other: &mut Self) {
        while !self.has_received() {
            other.nic.poll();
        }
    }
}

/// Returns a round trip of descriptors of two Virtual Interfaces: posted, processed, reaped.
pub fn interfaces(both: &Nics) -> impl FnMut() + use<> {
    let (mut a, mut b) = met(both);
    move || round_trip(&mut a, &mut b)
}

/// Returns the same round trip between two that bypass their NICs.
pub fn gated(both: &Nics) -> impl FnMut() + use<> {
    let (mut a, mut b) = met(both);
    while !(a.nic.is_gate_open(a.vi) && b.nic.is_gate_open(b.vi)) {
        a.send();
        b.receive_while_polling(&mut a);
        b.send();
        a.receive_while_polling(&mut b);
    }
    move || round_trip(&mut a, &mut b)
}

fn round_trip(a: &mut Interface, b: &mut Interface) {
    a.send();
    b.receive();
    b.send();
    a.receive();
}

fn met(both: &Nics) -> (Interface, Interface) {
    let Nics { runtime, nics } = both;
    let both = async { tokio::join!(Interface::connect(&nics[0]), Interface::connect(&nics[1])) };
    let (mut a, mut b) = runtime.block_on(both);
    // Until both sides are connected, this thread must poll for both.
    a.send();
    b.receive_while_polling(&mut a);
    b.send();
    a.receive_while_polling(&mut b);
    (a, b)
}

/// One process of the message layer.
struct Talker {
    process: Process,
    scope: CommHandle,
    peer: Rank,
    storage: Vec<u8>,
}

impl Talker {
    fn over(carrier: impl Carrier + 'static) -> Self {
        let peer = Rank(1 - carrier.own().0);
        let engine = Engine::new(carrier, Config::default());
        let (process, scope) = Process::new(engine, 2).expect("two of them");
        Self { process, scope, peer, storage: vec![0; BYTES] }
    }

    fn send(&mut self) -> Request {
        let Self { process, scope, peer, .. } = self;
        let load = Load::Copy(&[1; BYTES]);
        process.isend(scope, Mode::Standard, *peer, Tag(1), load).expect("two of them")
    }

    fn receive(&mut self) -> Request {
        let Self { process, scope, peer, storage } = self;
        let load = Load::Room { room: BYTES, storage: std::mem::take(storage) };
        process.ireceive(scope, Some(*peer), Some(Tag(1)), load).expect("two of them")
    }

    /// Returns whether a request is done, and frees it if so.
    fn has_ended(&mut self, request: Request) -> bool {
        let engine = self.process.engine_mut();
        if engine.requests().state(request) != Some(State::Done) {
            engine.advance(Wait::Not);
            return false;
        }
        let outcome = engine.requests().take(request).expect("it is done");
        self.process.free(request);
        outcome.result.expect("connected");
        if !outcome.bytes.is_empty() {
            self.storage = outcome.bytes;
        }
        true
    }
}

async fn carrier(nic: &ShmNic) -> RdmaCarrier {
    let own = Peer(nic.host().node().0.into());
    let nodes = [NodeId(0), NodeId(1)];
    RdmaCarrier::open(&nic.host(), own, &nodes, RdmaConfig::default()).await.expect("it runs")
}

/// Returns a round trip of tagged messages over Virtual Interfaces.
pub fn messages(both: &Nics) -> impl FnMut() + use<> {
    let Nics { runtime, nics } = both;
    let (a, b) = runtime.block_on(async { tokio::join!(carrier(&nics[0]), carrier(&nics[1])) });
    there_and_back(a, b)
}

/// Returns a round trip of tagged messages over shared memory, bypassing the NICs.
pub fn lanes(both: &Nics) -> impl FnMut() + use<> {
    let _entered = both.runtime.enter();
    let name = format!("bench lanes {}", std::process::id());
    let open = |node| {
        LaneCarrier::open(&ShmConfig::new(&name, NodeId(node), 2)).expect("the fabric is new")
    };
    there_and_back(open(0), open(1))
}

fn there_and_back<C: Carrier + 'static>(a: C, b: C) -> impl FnMut() + use<C> {
    let (mut a, mut b) = (Talker::over(a), Talker::over(b));
    let pass = |from: &mut Talker, to: &mut Talker| {
        let (received, sent) = (to.receive(), from.send());
        let (mut is_received, mut is_sent) = (false, false);
        while !(is_received && is_sent) {
            is_sent = is_sent || from.has_ended(sent);
            is_received = is_received || to.has_ended(received);
        }
    };
    move || {
        pass(&mut a, &mut b);
        pass(&mut b, &mut a);
    }
}
