use std::time::Duration;

use super::*;
use crate::drops::DropCause;
use crate::fault::Faults;
use crate::frame::{Frame, Header};
use crate::hardware::{Hardware, STOP_TIMEOUT, Source};
use crate::live::clock::Clock;
use crate::nic::{FaultInjector, Nic};
use crate::passing::Socket;
use crate::region::Payload;
use crate::segment::{LINE, Segment, View};
use crate::shm::config::ShmConfig;
use crate::shm::lane::{Receiver, Sender};
use crate::shm::link::ShmLink;

const HERE: NodeId = NodeId(0);
const THERE: NodeId = NodeId(1);

/// Allows the NIC to stop once it has received one more frame.
struct Owed(bool);

impl Firmware for Owed {
    fn may_stop(&self) -> bool {
        self.0
    }

    fn on_frame(&mut self, _: &mut impl Hardware, _: Frame<'_>) {
        self.0 = true;
    }
}

fn socket() -> Arc<Socket> {
    Arc::new(Socket::pair().unwrap().0)
}

/// A NIC with one peer, the peer's sending end, and its memory.
fn joined<F: Firmware + Send>(
    firmware: F,
    faults: Option<FaultInjector>,
) -> (Core<F>, Sender, Arc<Segment>) {
    let config = ShmConfig::new("core", HERE, 2);
    let shape = config.shape();
    let mut nic = Nic::new(HERE, Clock::incarnation(), config.nic.mtu, ShmLink::new(&config));
    nic.set_faults(faults);
    let core = Core::new(HERE, Engine::new(firmware, nic, 8), Wakes::new().unwrap(), 0);
    let segment = Arc::new(Segment::private(2 * shape.lane_bytes()));
    let link = Link {
        node: THERE,
        sender: Sender::new(Arc::clone(&segment), 0, shape),
        receiver: Receiver::new(Arc::clone(&segment), shape.lane_bytes(), shape),
        channel: socket(),
        socket: socket(),
    };
    core.joined(link);
    (core, Sender::new(Arc::clone(&segment), shape.lane_bytes(), shape), segment)
}

fn drive<F: Firmware + Send>(core: &Core<F>) -> Next {
    loop {
        match core.drive(&mut 0, Clock::now(), 1) {
            Next::Again => {}
            next => return next,
        }
    }
}

#[test]
fn an_ending_nic_handles_the_owed_frame_of_a_disconnected_peer() {
    let (core, mut peer, _) = joined(Owed(false), None);
    assert_eq!(drive(&core), Next::Wait(Instant::FAR_FUTURE));
    core.end(true);
    assert!(matches!(drive(&core), Next::Wait(_)), "a frame is owed");
    peer.stage(&Header { source: THERE, ..Header::default() }.emit(), View::from(&[][..])).unwrap();
    peer.publish();
    core.left(THERE);
    assert_eq!(drive(&core), Next::End);
}

#[test]
fn an_ending_nic_waits_no_longer_than_the_stop_timeout() {
    let (core, ..) = joined(Owed(false), None);
    core.end(true);
    let ended = Clock::now();
    let Next::Wait(until) = drive(&core) else { panic!("a frame is owed") };
    assert!(until <= ended + STOP_TIMEOUT + Duration::from_secs(1), "it waits until {until:?}");
}

#[test]
fn copies_of_broadcasts_for_which_a_peer_has_no_space_are_counted() {
    let (core, _peer, _) = joined(Owed(false), None);
    drive(&core);
    let mut engine = core.engine();
    let nic = &mut engine.as_mut().unwrap().unit.nic;
    let header = Header { source: HERE, destination: NodeId::BROADCAST, ..Header::default() };
    // The peer does not poll its 64 slots.
    for _ in 0..100 {
        nic.transmit(&header, Source::Bytes(Payload::EMPTY)).unwrap();
        nic.commit();
    }
    // The peer has no space for either copy. The one that is aborted is not counted, also not by the next commit.
    nic.transmit(&header, Source::Bytes(Payload::EMPTY)).unwrap();
    nic.abort();
    nic.transmit(&header, Source::Bytes(Payload::EMPTY)).unwrap();
    nic.commit();
    let NicCounters { frames_sent, drops, .. } = nic.counters;
    assert_eq!(frames_sent + drops.of(DropCause::BufferFull), 101);
    assert!(frames_sent < 100, "{drops:?}");
}

/// Records whether a frame is for another node.
struct Misrouted(bool);

impl Firmware for Misrouted {
    fn on_frame(&mut self, _: &mut impl Hardware, frame: Frame<'_>) {
        self.0 |= frame.header.destination != HERE;
    }
}

/// Regression: with faults, the header was checked, and read again for the firmware.
#[test]
fn a_delayed_frame_has_the_header_that_was_checked_even_if_its_sender_changes_it() {
    let faults = FaultInjector::new(1);
    let delay = Duration::from_micros(1);
    faults.set(Faults { reorder: 1.0, delay, ..Faults::NONE }).unwrap();
    let (core, mut peer, segment) = joined(Misrouted(false), Some(faults));
    let header = Header { source: THERE, ..Header::default() };
    let [good, bad] = [HERE, THERE].map(|destination| {
        let bytes = Header { destination, ..header }.emit();
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    });
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Two lines precede the slots, which have two lines each. The header begins at their second word.
            let slots = (segment.len() / 2 + 2 * LINE..segment.len()).step_by(2 * LINE);
            let slots = slots.take(ShmConfig::new("core", HERE, 2).shape().slots);
            while !stops.load(Ordering::Relaxed) {
                for word in [bad, good] {
                    slots.clone().for_each(|slot| {
                        segment.line(slot)[1].store(word, Ordering::Relaxed);
                    });
                }
            }
        });
        for _ in 0..20_000 {
            // Without room, the frames before are handled first.
            let _ = peer.stage(&header.emit(), View::from(&[][..]));
            peer.publish();
            drive(&core);
        }
        stops.store(true, Ordering::Relaxed);
    });
    let engine = core.engine();
    let unit = &engine.as_ref().unwrap().unit;
    assert!(unit.nic.counters.frames_received > 0 && !unit.firmware.0);
}
