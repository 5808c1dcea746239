//! Tests links of three nodes of one process.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use midplane_ofi::endpoint::{Config, Endpoint};
use midplane_ofi::link::{LinkError, OfiLink, frame_bytes};
use midplane_ofi::meeting::exchange;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::custom::FrameLink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::over_each;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn links_distinguish_nodes_and_keep_the_order_of_each() {
    const FRAMES: u16 = 200;
    over_each(async |choice| {
        let config = Config::new(frame_bytes(20_000)).sends(16);
        let endpoints: Vec<_> = (0..3).map(|_| Endpoint::open(choice, &config).unwrap()).collect();
        let names: Vec<_> = endpoints.iter().map(|endpoint| endpoint.name().to_vec()).collect();
        let link = |(node, endpoint)| OfiLink::new(endpoint, NodeId(node), &names).unwrap();
        let mut links: Vec<OfiLink> = (0..).zip(endpoints).map(link).collect();
        let (mut sent, mut received) = ([[0_u16; 3]; 3], [[0_u16; 3]; 3]);
        let all = poll_fn(|context| {
            for (at, link) in (0..).zip(&mut links) {
                let node = usize::from(at);
                for to in (0..3).filter(|to| *to != at) {
                    let count = &mut sent[node][usize::from(to)];
                    while *count < FRAMES && link.has_room(NodeId(to), 0) {
                        // Long frames may complete after short ones sent later.
                        let length = if *count % 3 == 0 { 20_000 } else { 40 };
                        let mut frame = vec![at as u8; length];
                        frame[..2].copy_from_slice(&count.to_le_bytes());
                        link.send(NodeId(to), &frame).unwrap();
                        *count += 1;
                    }
                }
                while let Poll::Ready((from, frame)) = link.poll_receive(context) {
                    let count = &mut received[node][from.index()];
                    assert_eq!(frame[..2], count.to_le_bytes(), "{choice}: {from} to {node}");
                    assert_eq!(frame[2], from.0 as u8, "{choice}");
                    *count += 1;
                }
            }
            let is_all = received.iter().flatten().filter(|count| **count == FRAMES).count() == 6;
            if is_all { Poll::Ready(()) } else { Poll::Pending }
        });
        let done = tokio::time::timeout(LIMIT, all).await;
        assert!(done.is_ok(), "{choice}: {sent:?} {received:?}");
    });
}

#[test]
fn frames_that_no_link_sends_are_dropped() {
    over_each(async |choice| {
        let config = Config::new(frame_bytes(100));
        let mut stranger = Endpoint::open(choice, &config).unwrap();
        let endpoints: Vec<_> = (0..2).map(|_| Endpoint::open(choice, &config).unwrap()).collect();
        let names: Vec<_> = endpoints.iter().map(|endpoint| endpoint.name().to_vec()).collect();
        // libfabric 1.17's shm reports an unknown sender as the first one it knows.
        let has_source = stranger.provider().has_source && stranger.provider().name != "shm";
        let mut endpoints = endpoints.into_iter();
        let (first, mut second) = (endpoints.next().unwrap(), endpoints.next().unwrap());
        let mut link = OfiLink::new(first, NodeId(0), &names).unwrap();
        let (to, own) = (second.insert(&names[0]).unwrap(), stranger.insert(&names[0]).unwrap());
        if has_source {
            stranger.send(own, &[&[1, 0, 0, 0, 0, 0, 0, 0], b"in the name of node 1"]).unwrap();
        }
        // Empty, too short, another node, the receiver itself, no node, a reserved byte that is set.
        for frame in [
            &[][..],
            &[1, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[255, 255, 0, 0, 0, 0, 0, 0],
            &[1, 0, 1, 0, 0, 0, 0, 0],
        ] {
            second.send(to, &[frame]).unwrap();
        }
        second.send(to, &[&[1, 0, 0, 0, 0, 0, 0, 0], b"whole"]).unwrap();
        let received = poll_fn(|context| {
            let _ = stranger.poll_event(context, true, |_| ());
            let _ = second.poll_event(context, true, |_| ());
            link.poll_receive(context)
        });
        let received = tokio::time::timeout(LIMIT, received).await.expect("a frame arrives");
        assert_eq!(received, (NodeId(1), b"whole".to_vec()), "{choice}");
    });
}

#[test]
fn a_list_of_names_that_fits_no_fabric_is_refused() {
    over_each(async |choice| {
        let open = || Endpoint::open(choice, &Config::new(100)).unwrap();
        // libfabric 1.17's shm crashes when it inserts the name of a closed endpoint.
        let other = open();
        let name = other.name();
        let none = OfiLink::new(open(), NodeId(2), &[name, name]);
        assert!(matches!(none, Err(LinkError::NoSuchNode(NodeId(2), 2))));
        let twice = OfiLink::new(open(), NodeId(2), &[name, name, name]);
        assert!(matches!(twice, Err(LinkError::Twice(NodeId(0), NodeId(1)))), "{twice:?}");
        let wrong = OfiLink::new(open(), NodeId(0), &[name, b""]);
        assert!(matches!(wrong, Err(LinkError::Name(NodeId(1), _))), "{wrong:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_exchange_names_although_strangers_connect() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [free; 3];
    let name = |node: u16| vec![node as u8; usize::from(node) * 100];
    let exchanges = |node: u16| async move { exchange(node, &addresses, &name(node)).await };
    let first = tokio::spawn(exchanges(0));
    let node = |node: u16, nodes: u16, length: u16| {
        let numbers = [node, nodes, length].map(u16::to_le_bytes).concat();
        [b"mpofi\0\0\x01".to_vec(), numbers].concat()
    };
    // No greeting, another program, other fabrics, unknown nodes, too long a name.
    for greeting in [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        node(1, 4, 0),
        node(0, 3, 0),
        node(3, 3, 0),
        node(1, 3, 513),
    ] {
        let mut stranger = loop {
            match tokio::net::TcpStream::connect(free).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        stranger.write_all(&greeting).await.unwrap();
        stranger.shutdown().await.unwrap();
        let answer = tokio::time::timeout(LIMIT, stranger.read_to_end(&mut Vec::new())).await;
        assert!(matches!(answer, Ok(Ok(0) | Err(_))), "no stranger learns the names");
    }
    // A node that connects twice counts once.
    let lost = tokio::time::timeout(Duration::from_millis(100), exchanges(2)).await;
    assert!(lost.is_err(), "node 1 is missing");
    let others = [tokio::spawn(exchanges(2)), tokio::spawn(exchanges(1))];
    for exchanged in [first].into_iter().chain(others) {
        let names = tokio::time::timeout(LIMIT, exchanged).await.unwrap().unwrap().unwrap();
        assert_eq!(names, (0..3).map(name).collect::<Vec<_>>());
    }
}
