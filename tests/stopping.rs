//! Tests that a NIC that shuts down returns tokens that other NICs wait for, and that one whose link fails stops.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use midplane::nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
use midplane::nicvm::messages::{self, MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::drops::DropCause;
use midplane::simhw::hardware::STOP_TIMEOUT;
use midplane::simhw::host::{Host, OpenError};
use midplane::simhw::id::{Incarnation, NodeId, PortId};
use midplane::simhw::nic::custom::{CustomConfig, CustomNic, FrameLink};
use midplane::simhw::port::Status;
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{UdpConfig, UdpNic};

/// Token lease: too long for a lost token to return before the test times out.
const LEASE: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(10);
const RECEIVER: NodeId = NodeId(0);

fn unit() -> Unit {
    let mut config = CoordinationConfig::star(&[RECEIVER], &[NodeId(1), NodeId(2), NodeId(3)]);
    config = config.genesis(true).lease(LEASE);
    let mut unit = Unit::default();
    unit.install(COORDINATION, Coordination::new(config).unwrap()).unwrap();
    unit
}

/// Sends one message; returns when it was sent.
async fn send(host: impl Host) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(1_000).unwrap();
    port.submit(&coordination::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
    let sent = tokio::time::timeout(TIMEOUT, port.completion()).await;
    assert_eq!(sent.expect("the token comes").unwrap().status, Status::Done);
}

fn start_all() -> [UdpNic; 4] {
    let sockets = [(); 4].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let peers: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
    drop(sockets);
    [0, 1, 2, 3].map(|node| {
        let config = UdpConfig::new(NodeId(node), peers.clone()).incarnation(Incarnation::FIRST);
        UdpNic::start(config, unit()).unwrap()
    })
}

/// Tests that senders return their tokens to the receiver, which has none to return and answers them.
#[expect(clippy::disallowed_methods, reason = "how long they take is what is tried")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nics_that_shut_down_together_do_not_wait_for_a_timeout() {
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let nics = start_all();
        send(nics[1].host()).await;
        let begun = Instant::now();
        let ends = nics.map(|nic| tokio::spawn(nic.shutdown()));
        for end in ends {
            end.await.unwrap();
        }
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < STOP_TIMEOUT / 2, "{fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_sender_that_stops_is_free_for_the_next() {
    let [receiver, first, second, third] = start_all();
    // The token begins at the first NIC, and stays with the last sender.
    send(first.host()).await;
    send(second.host()).await;
    send(third.host()).await;
    third.shutdown().await;
    send(second.host()).await;
    second.shutdown().await;
    send(first.host()).await;
    first.shutdown().await;
    receiver.shutdown().await;
}

/// A link that fails when it sends a frame.
#[derive(Default)]
struct FailingLink {
    has_failed: bool,
}

impl FrameLink for FailingLink {
    fn nodes(&self) -> u16 {
        2
    }

    fn line_rate(&self) -> LineRate {
        LineRate::mbps(10_000)
    }

    fn has_room(&mut self, _: NodeId, _: usize) -> bool {
        true
    }

    fn send(&mut self, _: NodeId, _: &[u8]) -> Result<(), DropCause> {
        self.has_failed = true;
        Err(DropCause::System)
    }

    fn poll_receive(&mut self, _: &mut Context<'_>) -> Poll<(NodeId, Vec<u8>)> {
        Poll::Pending
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }
}

#[tokio::test]
async fn a_nic_whose_link_fails_stops() {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).unwrap();
    let nic = CustomNic::start(CustomConfig::new(NodeId(0)), unit, FailingLink::default()).unwrap();
    let mut port = nic.host().open_port().unwrap();
    let memory = port.register(5).unwrap();
    port.submit(&messages::send(NodeId(1), PortId(0), memory.whole(), 0)).unwrap();
    // The message may complete before the port closes.
    let closes = async { while port.completion().await.is_ok() {} };
    tokio::time::timeout(TIMEOUT, closes).await.expect("the port closes");
    assert!(matches!(nic.host().open_port(), Err(OpenError::Stopped(NodeId(0)))));
}
