//! Crashes of the other node: posted descriptors complete, whether they were in progress or not.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, pause, reliable, world};
use midplane_simhw::host::Host as _;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::ViState;
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::{NicError, WorkQueue};
use midplane_via::outcome::{AsyncError, DescriptorError};

/// Runs a client for three seconds; its server crashes after 100 ms.
fn with_server_crash<F: Future<Output = ()> + Send>(
    client: impl FnOnce(End) -> F + Send + 'static,
) {
    let mut world = world(Setting::default());
    let (host, server): (SimHost, SimHost) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(SERVER, async move {
        let mut end = End::new(server, reliable(), 4096).await;
        end.serve().await;
        std::future::pending::<()>().await;
    });
    let waiting = world.host(CLIENT);
    let done = Arc::new(AtomicBool::new(false));
    let place = Arc::clone(&done);
    world.spawn(CLIENT, async move {
        let mut end = End::new(host, reliable(), 4096).await;
        end.connect().await;
        client(end).await;
        place.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    });
    world.run_until(pair::at(100_000_000));
    world.crash(SERVER);
    let end = world.block_on(CLIENT, async move { pause(&waiting, Duration::from_secs(3)).await });
    assert!(end.is_some());
    assert!(done.load(Ordering::Relaxed), "the client has ended");
    assert_eq!(world.firmware(CLIENT).counters().traps, 0);
}

#[test]
fn a_crash_of_the_other_node_completes_all_posted_descriptors() {
    with_server_crash(|mut end| async move {
        // Nothing is in flight when the server crashes: only the posted receive detects it.
        let segment = end.memory.segment(0, 100).unwrap();
        end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        assert_eq!(done.outcome, Err(DescriptorError::Flushed));
        let took = end.host.now();
        assert!(took < pair::at(1_200_000_000), "{took}");
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Error);
        let segment = end.memory.segment(0, 100).unwrap();
        end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Err(DescriptorError::Flushed));
        let lost = end.nic.next_error().unwrap();
        assert_eq!(lost, (end.vi, AsyncError::ConnectionLost));
        // The interface can be used again.
        end.nic.disconnect(end.vi).await.unwrap();
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Idle);
        end.nic.destroy_vi(end.vi).await.unwrap();
        assert_eq!(end.nic.receive_done(end.vi).unwrap_err(), NicError::NoSuchVi);
    });
}

#[test]
fn a_send_in_flight_when_the_other_node_crashes_fails_with_a_transport_error() {
    with_server_crash(|mut end| async move {
        pause(&end.host, Duration::from_millis(150)).await;
        let segment = end.memory.segment(0, 100).unwrap();
        end.nic.post_send(end.vi, Descriptor::of(segment.clone())).unwrap();
        end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
        let sent = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(sent.outcome, Err(DescriptorError::Transport));
        let received = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        assert_eq!(received.outcome, Err(DescriptorError::Flushed));
        pause(&end.host, Duration::from_millis(1)).await;
        assert_eq!(end.nic.next_error(), Some((end.vi, AsyncError::ConnectionLost)));
    });
}
