//! Connections that are made, and those that are refused: each refusal gives its reason and leaves the interface idle.

use std::future::Future;
use std::time::Duration;

use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, address, name, pause, reliable, world};
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::PortOptions;
use midplane_via::attributes::{ViAttributes, ViState};
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::{ConnectFailed, Nic, WorkQueue};
use midplane_via::outcome::{ConnectError, DescriptorError};

const SECOND: Option<Duration> = Some(Duration::from_secs(1));

/// Runs one program on the client of a cluster without a server.
fn alone<T: Send + 'static, F: Future<Output = T> + Send>(
    program: impl FnOnce(midplane_simhw::sim::SimHost) -> F + Send + 'static,
) -> T {
    let mut world = world(Setting::default());
    let host = world.host(CLIENT);
    world.block_on(CLIENT, async move { program(host).await }).expect("it ends")
}

#[test]
fn connecting_without_a_listener_fails_at_once_or_times_out() {
    alone(|host| async move {
        let mut end = End::new(host, reliable(), 64).await;
        let before = end.host.now();
        let unmatched = end.nic.connect(end.vi, address(SERVER, "service"), SECOND).await;
        assert_eq!(unmatched, Err(ConnectFailed::Connect(ConnectError::NoMatch)));
        assert!(end.host.now().nanos_since(before) < 5_000_000);
        // A node that does not exist never answers.
        let nowhere = end.nic.connect(end.vi, address(NodeId(77), "service"), SECOND).await;
        let expected = [ConnectError::TimedOut, ConnectError::Unreachable];
        assert!(expected.map(|e| Err(ConnectFailed::Connect(e))).contains(&nowhere), "{nowhere:?}");
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Idle);
        let waited = end.nic.connect_wait(name("x"), Some(Duration::from_millis(3))).await;
        assert_eq!(waited.unwrap_err(), ConnectFailed::Connect(ConnectError::TimedOut));
    });
}

#[test]
fn a_peer_that_starts_only_after_its_node_restarts_is_waited_for() {
    let mut world = world(Setting::default());
    let meet = |host: midplane_simhw::sim::SimHost, to: NodeId| async move {
        let mut end = End::new(host, reliable(), 64).await;
        let ticket = end.nic.connect_peer(end.vi, address(to, "b"), name("b"), SECOND).unwrap();
        end.nic.finish(&ticket).await.map(drop)
    };
    let host = world.host(CLIENT);
    let client = meet(host, SERVER);
    // The node receives the request before its restart, when no program runs there that would answer it.
    let host = world.host(CLIENT);
    let outcome = std::sync::Arc::new(std::sync::Mutex::new(None));
    let result = std::sync::Arc::clone(&outcome);
    world.spawn(CLIENT, async move {
        let connected = client.await;
        *result.lock().unwrap() = Some(connected);
    });
    world.run_until(pair::at(20_000_000));
    world.crash(SERVER);
    world.run_until(pair::at(40_000_000));
    world.restart(SERVER);
    let server = world.host(SERVER);
    let served = world.block_on(SERVER, async move { meet(server, CLIENT).await });
    assert_eq!(served, Some(Ok(())));
    world.block_on(CLIENT, async move { pause(&host, Duration::from_millis(50)).await });
    assert_eq!(outcome.lock().unwrap().take(), Some(Ok(())));
}

/// Five processes of a node connect with those of another one, which begins later, and has to drop requests.
#[test]
fn hundreds_of_interfaces_of_two_nodes_connect_at_once() {
    let mut world = world(Setting::default());
    let meet = |host: midplane_simhw::sim::SimHost, to: NodeId| async move {
        let mut nics = Vec::new();
        for process in 0..5 {
            let mut nic = Nic::open(&host, PortOptions::default()).await.unwrap();
            let mut tickets = Vec::new();
            for number in 0..60 {
                let vi = nic.create_vi(reliable()).await.unwrap();
                let (text, limit) = (format!("{process}, {number}"), Some(Duration::from_secs(10)));
                let ticket = nic.connect_peer(vi, address(to, &text), name(&text), limit);
                tickets.push(ticket.unwrap());
            }
            nics.push((nic, tickets));
        }
        for (nic, tickets) in &mut nics {
            for ticket in tickets {
                nic.finish(ticket).await.unwrap();
            }
        }
        (host, nics)
    };
    let hosts = [CLIENT, SERVER].map(|node| world.host(node));
    let [client, server] = hosts;
    world.spawn(CLIENT, async move {
        let (host, _nics) = meet(client, SERVER).await;
        pause(&host, Duration::from_secs(20)).await;
    });
    world.run_until(pair::at(20_000_000));
    let connected = world.block_on(SERVER, async move { drop(meet(server, CLIENT).await) });
    assert!(connected.is_some());
}

#[test]
fn an_idle_interface_sends_nothing() {
    alone(|host| async move {
        let mut end = End::new(host, reliable(), 64).await;
        end.nic.post_send(end.vi, Descriptor::of(end.memory.whole())).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Err(DescriptorError::Flushed));
    });
}

#[test]
fn ends_with_different_attributes_get_the_difference_and_may_try_another_interface() {
    let mut world = world(Setting::default());
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(SERVER, async move {
        let mut end = End::new(server, ViAttributes::default(), 64).await;
        let request = end.nic.connect_wait(name("service"), None).await.unwrap();
        let refused = end.nic.accept(&request, end.vi).await;
        assert_eq!(refused, Err(ConnectFailed::Connect(ConnectError::Reliability)));
        let long = ViAttributes { max_transfer: 77_777, ..reliable() };
        let other = end.nic.create_vi(long).await.unwrap();
        let refused = end.nic.accept(&request, other).await;
        assert_eq!(refused, Err(ConnectFailed::Connect(ConnectError::MaxTransfer)));
        let right = end.nic.create_vi(request.attributes).await.unwrap();
        end.nic.accept(&request, right).await.unwrap();
        let again = end.nic.accept(&request, right).await;
        assert_eq!(again, Err(ConnectFailed::Connect(ConnectError::Gone)));
        let request = end.nic.connect_wait(name("service"), None).await.unwrap();
        end.nic.reject(request).await.unwrap();
        pause(&end.host, Duration::from_secs(1)).await;
    });
    let done = world.block_on(CLIENT, async move {
        let mut end = End::new(client, reliable(), 64).await;
        end.connect().await;
        let again = end.nic.connect(end.vi, address(SERVER, "service"), SECOND).await;
        assert_eq!(again, Err(ConnectFailed::Connect(ConnectError::InvalidState)));
        let second = end.nic.create_vi(reliable()).await.unwrap();
        let refused = end.nic.connect(second, address(SERVER, "service"), SECOND).await;
        assert_eq!(refused, Err(ConnectFailed::Connect(ConnectError::Rejected)));
    });
    assert!(done.is_some());
}

#[test]
fn peers_that_request_each_other_connect_in_either_order() {
    for delay in [0, 3] {
        let mut world = world(Setting::default());
        let (client, server) = (world.host(CLIENT), world.host(SERVER));
        let peer = |host: midplane_simhw::sim::SimHost, me: &'static str, other: &'static str| async move {
            let node = NodeId(1 - host.node().0);
            let mut end = End::new(host, reliable(), 64).await;
            let to = address(node, other);
            let ticket = end.nic.connect_peer(end.vi, to, name(me), SECOND).unwrap();
            end.nic.finish(&ticket).await.unwrap();
            end.nic.post_receive(end.vi, Descriptor::of(end.memory.whole())).unwrap();
            pause(&end.host, Duration::from_millis(10)).await;
            end.nic.post_send(end.vi, Descriptor::of(end.memory.whole())).unwrap();
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap().outcome.unwrap();
            pause(&end.host, Duration::from_millis(10)).await;
        };
        world.spawn(SERVER, peer(server, "b", "a"));
        let late = world.host(CLIENT);
        let done = world.block_on(CLIENT, async move {
            pause(&late, Duration::from_millis(delay)).await;
            peer(client, "a", "b").await;
        });
        assert!(done.is_some(), "{delay}");
    }
}

#[test]
fn peers_with_different_attributes_both_get_the_difference() {
    let mut world = world(Setting::default());
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    let peer = |host: midplane_simhw::sim::SimHost, attributes: ViAttributes| async move {
        let node = NodeId(1 - host.node().0);
        let mut end = End::new(host, attributes, 64).await;
        let ticket = end.nic.connect_peer(end.vi, address(node, "a"), name("a"), SECOND).unwrap();
        let refused = end.nic.finish(&ticket).await;
        assert_eq!(refused, Err(ConnectFailed::Connect(ConnectError::Reliability)));
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Idle);
        pause(&end.host, Duration::from_millis(10)).await;
    };
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let place = std::sync::Arc::clone(&refused);
    world.spawn(SERVER, async move {
        peer(server, ViAttributes::default()).await;
        place.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let done = world.block_on(CLIENT, peer(client, reliable()));
    assert!(done.is_some());
    world.run_until(pair::at(2_000_000_000));
    assert!(refused.load(std::sync::atomic::Ordering::Relaxed), "the server was refused too");
}

#[test]
fn a_cancelled_listen_ends_as_timed_out() {
    alone(|host| async move {
        let mut end = End::new(host, reliable(), 64).await;
        let ticket = end.nic.listen_for(name("service"), None).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        assert!(end.nic.requested(&ticket).unwrap().is_none());
        end.nic.cancel_connect(&ticket).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        let gone = end.nic.requested(&ticket).unwrap_err();
        assert_eq!(gone, ConnectFailed::Connect(ConnectError::TimedOut));
        assert_eq!(end.nic.save().map(drop), Ok(()), "nothing is in progress");
    });
}
