//! Waiting tasks are woken for packets of which the carrier wakes none: messages of a process to itself, and packets
//! that were refused after the carrier was armed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::communicator::{Communicator, Pending, Received};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Envelope, Kind, Marks, Peer};
use midplane_via::message::memory::{MemoryCarrier, MemoryConfig, network};
use midplane_via::message::process::MessageError;
use midplane_via::message::request::Mode;
use midplane_via::message::transport::InitError;

use crate::message_futures::Count;
use crate::scenarios::{harness, rank, tag};

/// A task that waits for a message.
struct Waiting {
    receive: Pending,
    wakes: Arc<Count>,
    waker: Waker,
}

impl Waiting {
    fn new(receive: Pending) -> Self {
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut waiting = Self { receive, wakes, waker };
        waiting.park();
        waiting
    }

    /// Polls until the task is not woken by its own poll.
    fn park(&mut self) {
        self.park_after(|| ());
    }

    /// Polls until the task, which does `work` first in each poll, is not woken by its own poll.
    fn park_after(&mut self, mut work: impl FnMut()) {
        for _ in 0..10 {
            work();
            assert!(self.poll().is_pending());
            if !self.was_woken() {
                return;
            }
        }
        panic!("the task wakes itself again and again");
    }

    fn poll(&mut self) -> Poll<Result<Received, MessageError>> {
        Pin::new(&mut self.receive).poll(&mut Context::from_waker(&self.waker))
    }

    /// Returns whether the task was woken since the last call.
    fn was_woken(&self) -> bool {
        self.wakes.0.swap(0, Ordering::Relaxed) > 0
    }
}

#[test]
fn a_message_to_oneself_wakes_the_receiving_task() {
    let world = harness::world(1, MemoryConfig::default(), Config::default()).remove(0);
    let mut waiting = Waiting::new(world.ireceive(rank(0), tag(1)).unwrap());
    let mut send = pin!(world.send(rank(0), tag(1), vec![7]));
    assert!(send.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(waiting.was_woken());
    let Poll::Ready(received) = waiting.poll() else { panic!("the message has arrived") };
    assert_eq!(received.unwrap().bytes, [7]);
}

/// A carrier without room while its gate is closed. Once there is room, it wakes the task that has armed it, if it had
/// refused a packet before.
struct Gated {
    carrier: MemoryCarrier,
    gate: Arc<Mutex<Gate>>,
}

#[derive(Default)]
struct Gate {
    is_closed: bool,
    has_refused: bool,
    armed: Option<Waker>,
}

impl Gate {
    fn open(gate: &Mutex<Self>) {
        let mut gate = gate.lock().unwrap();
        gate.is_closed = false;
        let armed = gate.armed.take();
        drop(gate);
        armed.into_iter().for_each(Waker::wake);
    }
}

impl Carrier for Gated {
    fn own(&self) -> Peer {
        self.carrier.own()
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        self.carrier.connect(peers)
    }

    fn room(&self) -> usize {
        self.carrier.room()
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let mut gate = self.gate.lock().unwrap();
        if gate.is_closed {
            gate.has_refused = true;
            return Err(Refusal::Full);
        }
        drop(gate);
        self.carrier.post(to, envelope, payload)
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        self.carrier.poll()
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        let mut gate = self.gate.lock().unwrap();
        if !gate.is_closed && std::mem::take(&mut gate.has_refused) {
            return false;
        }
        gate.armed = gate.has_refused.then(|| waker.clone());
        drop(gate);
        self.carrier.arm_wakeup(waker)
    }

    fn close(&mut self) {
        self.carrier.close();
    }
}

#[test]
fn a_packet_refused_after_the_carrier_was_armed_is_sent_once_there_is_room() {
    let gate = Arc::new(Mutex::new(Gate::default()));
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    let (here, there) = (ends.next().unwrap(), ends.next().unwrap());
    let here = Engine::new(Gated { carrier: here, gate: Arc::clone(&gate) }, Config::default());
    let there = Engine::new(there, Config::default());
    let [here, there] = [here, there].map(|engine| Communicator::world(engine, 2).unwrap());
    let mut waiting = Waiting::new(here.ireceive(rank(1), tag(1)).unwrap());
    gate.lock().unwrap().is_closed = true;
    here.isend(Mode::Standard, rank(1), tag(2), vec![7]).unwrap().free();
    assert!(waiting.was_woken(), "no other task sends the packet");
    waiting.park();
    Gate::open(&gate);
    assert!(waiting.was_woken(), "there is room");
    waiting.park();
    let mut receive = there.ireceive(rank(0), tag(2)).unwrap();
    let received = (0..5).find_map(|_| receive.test()).expect("the message has arrived");
    assert_eq!(received.unwrap().bytes, [7]);
}

/// Has a process send an RTS but no credit: messages to it wait for its window, and its RTS is answered all the same.
#[test]
fn an_answer_refused_after_the_carrier_was_armed_is_sent_although_a_message_waits_for_the_window() {
    let gate = Arc::new(Mutex::new(Gate::default()));
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    let (here, mut there) = (ends.next().unwrap(), ends.next().unwrap());
    let here = Engine::new(Gated { carrier: here, gate: Arc::clone(&gate) }, Config::default());
    let here = Communicator::world(here, 2).unwrap();
    let rts = Envelope {
        length: 9,
        tag: tag(2),
        kind: Kind::Rts,
        marks: Marks::NONE,
        source: Peer(1),
        context: here.handle().context(),
        sequence: 0,
        to: 0,
        from: 1,
    };
    there.post(Peer(0), &rts, &[]).unwrap();
    here.isend(Mode::Standard, rank(1), tag(3), vec![7]).unwrap().free();
    let mut waiting = Waiting::new(here.ireceive(rank(1), tag(1)).unwrap());
    gate.lock().unwrap().is_closed = true;
    let mut receive = here.ireceive(rank(1), tag(2)).unwrap();
    assert!(waiting.was_woken(), "no other task sends the CTS");
    waiting.park_after(|| {
        here.with(|_| ());
        assert!(receive.test().is_none());
    });
    Gate::open(&gate);
    assert!(waiting.was_woken(), "there is room");
    waiting.park();
    let mut packets = std::iter::from_fn(|| match there.poll()? {
        Event::Packet { envelope, .. } => Some(envelope.kind),
        event => panic!("{event:?}"),
    });
    assert!(packets.any(|kind| kind == Kind::Cts));
}
