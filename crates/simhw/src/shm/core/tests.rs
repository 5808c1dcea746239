use std::time::Duration;

use super::*;
use crate::frame::{Frame, Header};
use crate::hardware::{Hardware, STOP_TIMEOUT};
use crate::live::clock::Clock;
use crate::nic::Nic;
use crate::passing::Socket;
use crate::segment::{Segment, View};
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

/// A NIC with one peer, and the peer's sending end.
fn joined() -> (Core<Owed>, Sender) {
    let config = ShmConfig::new("core", HERE, 2);
    let shape = config.shape();
    let nic = Nic::new(HERE, Clock::incarnation(), config.nic.mtu, ShmLink::new(&config));
    let core = Core::new(HERE, Engine::new(Owed(false), nic, 8), Wakes::new().unwrap(), 0);
    let segment = Arc::new(Segment::private(2 * shape.lane_bytes()));
    let link = Link {
        node: THERE,
        sender: Sender::new(Arc::clone(&segment), 0, shape),
        receiver: Receiver::new(Arc::clone(&segment), shape.lane_bytes(), shape),
        channel: socket(),
        socket: socket(),
    };
    core.joined(link);
    (core, Sender::new(segment, shape.lane_bytes(), shape))
}

fn drive(core: &Core<Owed>) -> Next {
    loop {
        match core.drive(&mut 0, Clock::now(), 1) {
            Next::Again => {}
            next => return next,
        }
    }
}

#[test]
fn an_ending_nic_handles_the_owed_frame_of_a_disconnected_peer() {
    let (core, mut peer) = joined();
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
    let (core, _peer) = joined();
    core.end(true);
    let ended = Clock::now();
    let Next::Wait(until) = drive(&core) else { panic!("a frame is owed") };
    assert!(until <= ended + STOP_TIMEOUT + Duration::from_secs(1), "it waits until {until:?}");
}
