//! Tests NICs behind a switch in software.

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig, UdpNic};

use crate::udp::firmware::{Cluster, SEND, command, completion, free_addresses, run};

/// Starts a switch and the NICs behind it, each at a port of 100 Mb/s.
pub(crate) fn start(
    ip: &str,
    count: usize,
    profile: SwitchProfile,
    change: impl Fn(UdpConfig) -> UdpConfig,
) -> (SoftSwitch, Cluster) {
    let link = LinkProfile::ethernet(LineRate::mbps(100), std::time::Duration::from_micros(1));
    loop {
        let address = free_addresses(ip.parse().unwrap(), 1)[0];
        let cluster = Cluster::start(ip, count, |config| change(config.via(address).line(link)));
        let config = SwitchConfig::new(address, cluster.peers.clone()).link(link).profile(profile);
        if let Ok(switch) = SoftSwitch::start(config) {
            return (switch, cluster);
        }
    }
}

#[test]
fn three_senders_overload_one_output_and_every_loss_has_its_cause() {
    const SENDERS: usize = 3;
    const FRAMES: usize = 100;
    run(async {
        // The test counts frames, so each is one datagram.
        let whole = |config: UdpConfig| config.datagram_bytes(65_507);
        let profile = SwitchProfile::new(Buffer::Bytes(32 << 10));
        let (switch, cluster) = start("127.0.0.1", SENDERS + 1, profile, whole);
        let mut ports = Vec::new();
        for nic in &cluster.nics[1..] {
            let mut port = nic.host().open_port().unwrap();
            let region = port.register(4_000).unwrap();
            for _ in 0..FRAMES {
                port.post(&command(SEND, 0, &region)).unwrap();
            }
            port.ring();
            ports.push((port, region));
        }
        for (port, _) in &mut ports {
            for _ in 0..FRAMES {
                completion(port).await;
            }
        }
        let sent = (SENDERS * FRAMES) as u64;
        let mut counters = switch.counters();
        for _ in 0..1_000 {
            if counters.frames_in == sent && counters.frames_queued == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            counters = switch.counters();
        }
        assert_eq!(counters.frames_in, sent, "{counters:?}");
        assert_eq!(counters.frames_in, counters.frames_out + counters.frame_drops.total());
        assert_eq!(counters.pieces_in, counters.pieces_out + counters.piece_drops.total());
        assert!(counters.frame_drops.of(DropCause::BufferFull) > 0, "{counters:?}");
        assert!(counters.peaks[0] <= 32 << 10 && counters.peaks[0] > 16 << 10);
        assert!(counters.peaks[1..].iter().all(|peak| *peak == 0));
        let out = usize::try_from(counters.frames_out).unwrap();
        let arrived = cluster.seen[0].wait_for(out).await;
        assert_eq!(arrived.len(), out);
        for source in 1..=SENDERS {
            let of_it = arrived.iter().filter(|a| usize::from(a.header.source.0) == source);
            assert!(of_it.map(|arrival| arrival.header.sequence).is_sorted());
        }
        let last = switch.shutdown().await;
        assert_eq!(last.frames_out, counters.frames_out);
    });
}

#[test]
fn behind_a_switch_a_peer_that_bypasses_it_is_a_stranger() {
    run(async {
        let (_switch, mut cluster) =
            start("127.0.0.1", 2, SwitchProfile::new(Buffer::Cells(9)), |c| c);
        // A socket that bypasses the switch takes node 0's address.
        cluster.nics.remove(0).shutdown().await;
        let peer = std::net::UdpSocket::bind(cluster.peers[0]).unwrap();
        let header = Header { destination: NodeId(1), hop_limit: 1, ..Header::default() };
        peer.send_to(&header.emit(), cluster.peers[1]).unwrap();
        for _ in 0..2_000 {
            let counters = cluster.nics[0].counters();
            if counters.drops.of(DropCause::Stranger) == 1 {
                assert_eq!(counters.frames_received, 0);
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("never counted");
    });
}

#[test]
fn a_frame_passes_as_many_switches_as_its_hop_limit_allows() {
    run(async {
        let (switch, cluster) = start("::1", 2, SwitchProfile::new(Buffer::Bytes(32 << 10)), |c| c);
        let mut port = cluster.nics[0].host().open_port().unwrap();
        let region = port.register(10).unwrap();
        for args in [[0, 0, 0], [1, 0, 0], [1, 1, 0]] {
            let mut send = command(SEND, 1, &region);
            send.args = args;
            port.submit(&send).unwrap();
            completion(&mut port).await;
        }
        let arrived = cluster.seen[1].wait_for(2).await;
        assert_eq!(arrived[0].header.hop_limit, 63);
        assert_eq!(arrived[1].header.hop_limit, 0);
        let counters = switch.shutdown().await;
        assert_eq!(counters.frame_drops.of(DropCause::HopLimit), 1, "{counters:?}");
        let back = cluster.seen[0].wait_for(1).await;
        assert_eq!(back[0].header.kind, Kind::Returned);
        assert_eq!(back[0].header.source, NodeId(1));
        assert_ne!(back[0].header.words[1], 0);
        for nic in cluster.nics {
            assert_eq!(UdpNic::shutdown(nic).await.drops.total(), 0);
        }
    });
}
