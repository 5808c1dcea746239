//! Errors: each with its own outcome, and the interface in the state that the architecture specifies.

use std::time::Duration;

use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, connected, pause, reliable, world};
use midplane_simhw::fault::{Fault, Incident};
use midplane_simhw::port::PortOptions;
use midplane_via::attributes::{ViAttributes, ViState};
use midplane_via::descriptor::{Completed, Descriptor};
use midplane_via::firmware::ViaConfig;
use midplane_via::memory::{MemoryOptions, OutOfRange};
use midplane_via::nic::{MAX_SEGMENTS, Nic, NicError, WorkQueue};
use midplane_via::outcome::{AsyncError, DescriptorError, Operation};

/// The outcomes of a sender's and a receiver's first descriptors, both states, and the receiver's errors.
#[derive(Debug, PartialEq)]
struct Seen {
    send: Result<(), DescriptorError>,
    receive: Option<Result<(), DescriptorError>>,
    states: (ViState, ViState),
    errors: Vec<AsyncError>,
}

fn outcome(completed: &Completed) -> Result<(), DescriptorError> {
    completed.outcome
}

/// Has the client send `sent` bytes; the server has posted a receive of `room` bytes, if any.
fn mismatch(attributes: ViAttributes, sent: usize, room: Option<usize>) -> Seen {
    let ((send, ours), (receive, theirs, errors)) = connected(
        Setting::default(),
        attributes,
        16_384,
        move |mut end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            let segment = end.memory.segment(0, sent).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            pause(&end.host, Duration::from_millis(15)).await;
            (outcome(&done), end.nic.query_vi(end.vi).await.unwrap().0)
        },
        move |mut end| async move {
            if let Some(room) = room {
                let segment = end.memory.segment(0, room).unwrap();
                end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
            }
            pause(&end.host, Duration::from_millis(2)).await;
            let done = end.nic.receive_done(end.vi).unwrap();
            let mut errors = Vec::new();
            for _ in 0..5 {
                errors.extend(end.nic.next_error().map(|(_, error)| error));
                pause(&end.host, Duration::from_millis(1)).await;
            }
            let state = end.nic.query_vi(end.vi).await.unwrap().0;
            pause(&end.host, Duration::from_millis(20)).await;
            (done.as_ref().map(outcome), state, errors)
        },
    );
    Seen { send, receive, states: (ours, theirs), errors }
}

#[test]
fn a_message_without_a_receive_breaks_a_reliable_connection() {
    let seen = mismatch(reliable(), 100, None);
    assert_eq!(
        seen,
        Seen {
            send: Err(DescriptorError::RemoteDescriptor),
            receive: None,
            states: (ViState::Error, ViState::Error),
            errors: vec![AsyncError::ReceiveQueueEmpty, AsyncError::ConnectionLost],
        }
    );
}

#[test]
fn errors_of_a_connection_end_with_it() {
    let ((), errors) = connected(
        Setting::default(),
        reliable(),
        4096,
        |mut end| async move {
            let segment = end.memory.segment(0, 100).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            pause(&end.host, Duration::from_millis(20)).await;
        },
        |mut end| async move {
            pause(&end.host, Duration::from_millis(5)).await;
            // The poll takes the errors of the broken connection from the NIC.
            assert!(end.nic.receive_done(end.vi).unwrap().is_none());
            end.nic.disconnect(end.vi).await.unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
            std::iter::from_fn(|| end.nic.next_error()).collect::<Vec<_>>()
        },
    );
    assert_eq!(errors, []);
}

#[test]
fn a_message_without_a_receive_is_lost_on_an_unreliable_one() {
    let seen = mismatch(ViAttributes::default(), 100, None);
    assert_eq!(
        seen,
        Seen {
            send: Ok(()),
            receive: None,
            states: (ViState::Connected, ViState::Connected),
            errors: vec![AsyncError::ReceiveQueueEmpty],
        }
    );
}

#[test]
fn a_message_longer_than_its_receive_fails_it() {
    for sent in [101, 5_000] {
        let seen = mismatch(reliable(), sent, Some(100));
        assert_eq!(
            seen,
            Seen {
                send: Err(DescriptorError::RemoteDescriptor),
                receive: Some(Err(DescriptorError::Length)),
                states: (ViState::Error, ViState::Error),
                errors: vec![AsyncError::ConnectionLost],
            }
        );
        let seen = mismatch(ViAttributes::default(), sent, Some(100));
        assert_eq!(seen.receive, Some(Err(DescriptorError::Length)));
        assert_eq!(seen.states, (ViState::Connected, ViState::Connected));
    }
}

/// Posts the descriptor that `make` returns, on a connection; returns its operation and outcome, and the client's
/// state.
fn posted(
    attributes: ViAttributes,
    make: impl FnOnce(&mut End) -> Descriptor + Send + 'static,
) -> (Operation, Result<(), DescriptorError>, ViState) {
    let (seen, _) = connected(
        Setting::default(),
        attributes,
        4096,
        move |mut end| async move {
            let descriptor = make(&mut end);
            end.nic.post_send(end.vi, descriptor).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
            let state = end.nic.query_vi(end.vi).await.unwrap().0;
            (done.operation, done.outcome, state)
        },
        |end| async move {
            pause(&end.host, Duration::from_millis(100)).await;
            drop(end);
        },
    );
    seen
}

#[test]
fn memory_with_another_tag_is_not_sent() {
    let other_tag = |end: &mut End| {
        let tag = end.nic.create_tag();
        let options = MemoryOptions { tag, ..MemoryOptions::default() };
        Descriptor::of(end.nic.register(64, options).unwrap().whole())
    };
    let expected = (Operation::Send, Err(DescriptorError::Protection));
    let (operation, outcome, state) = posted(reliable(), other_tag);
    assert_eq!(((operation, outcome), state), (expected, ViState::Error));
    let (operation, outcome, state) = posted(ViAttributes::default(), other_tag);
    assert_eq!(((operation, outcome), state), (expected, ViState::Connected));
}

#[test]
fn a_message_longer_than_the_largest_transfer_is_not_sent() {
    let attributes = ViAttributes { max_transfer: 1000, ..reliable() };
    let (_, outcome, state) =
        posted(attributes, |end| Descriptor::of(end.memory.segment(0, 1001).unwrap()));
    assert_eq!((outcome, state), (Err(DescriptorError::Length), ViState::Error));
}

#[test]
fn memory_that_the_other_end_does_not_open_is_not_written() {
    // The name is that of the client's own memory, not of the server's.
    let forged = |end: &mut End| {
        let whole = end.memory.remote();
        Descriptor::of(end.memory.segment(0, 100).unwrap()).write(whole.at(4050).unwrap())
    };
    let (operation, outcome, state) = posted(reliable(), forged);
    assert_eq!(operation, Operation::RdmaWrite);
    assert_eq!((outcome, state), (Err(DescriptorError::RdmaProtection), ViState::Error));
    let closed = ViAttributes { rdma_write: false, ..reliable() };
    let (_, outcome, _) = posted(closed, forged);
    assert_eq!(outcome, Err(DescriptorError::RdmaProtection));
}

#[test]
fn memory_that_the_other_end_does_not_open_is_not_read() {
    let forged = |end: &mut End| {
        let whole = end.memory.remote();
        Descriptor::of(end.memory.segment(0, 100).unwrap()).read(whole.at(4050).unwrap())
    };
    let refused = (Operation::RdmaRead, Err(DescriptorError::RdmaProtection));
    let (operation, outcome, state) = posted(reliable(), forged);
    assert_eq!(((operation, outcome), state), (refused, ViState::Error));
    let closed = ViAttributes { rdma_read: false, ..reliable() };
    let (operation, outcome, state) = posted(closed, forged);
    assert_eq!(((operation, outcome), state), (refused, ViState::Error));
    // An unreliable interface allows no reads, because lost frames are not sent again.
    let unreliable = ViAttributes { rdma_read: true, ..ViAttributes::default() };
    let (operation, outcome, state) = posted(unreliable, forged);
    assert_eq!(((operation, outcome), state), (refused, ViState::Connected));
}

/// Checks that the name of deregistered memory does not reach memory that is registered in its place.
#[test]
fn a_stale_name_writes_neither_deregistered_memory_nor_its_successor() {
    let (seen, place) = connected(
        Setting::default(),
        reliable(),
        4096,
        |mut end| async move {
            let segment = end.memory.segment(0, 16).unwrap();
            end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            let gone = midplane_simhw::wire::decode(&end.bytes(0, 16)).unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
            end.memory.write(0, &[7; 100]).unwrap();
            let write = Descriptor::of(end.memory.segment(0, 100).unwrap()).write(gone);
            end.nic.post_send(end.vi, write).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            (done.outcome, end.nic.query_vi(end.vi).await.unwrap().0)
        },
        |mut end| async move {
            let options = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
            let memory = end.nic.register(4096, options).unwrap();
            let words = midplane_simhw::wire::encode(&memory.remote()).unwrap();
            end.memory.write(0, &words).unwrap();
            pause(&end.host, Duration::from_millis(1)).await;
            let segment = end.memory.segment(0, 16).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            drop(memory);
            let place = end.nic.register(4096, options).unwrap();
            pause(&end.host, Duration::from_millis(100)).await;
            let mut bytes = vec![1; 4096];
            place.read(0, &mut bytes).unwrap();
            bytes
        },
    );
    assert_eq!(seen, (Err(DescriptorError::RdmaProtection), ViState::Error));
    assert_eq!(place, [0; 4096]);
}

#[test]
fn a_segment_beyond_the_end_of_its_memory_is_refused_before_it_is_posted() {
    let (refused, _) = connected(
        Setting::default(),
        reliable(),
        4096,
        |end| async move {
            assert!(end.memory.remote().at(4097).is_none());
            assert!(end.memory.segment(usize::MAX, 2).is_err());
            end.memory.segment(4000, 97).unwrap_err()
        },
        |end| async move { pause(&end.host, Duration::from_millis(1)).await },
    );
    assert_eq!(refused, OutOfRange { offset: 4000, length: 97, bytes: 4096 });
}

#[test]
fn descriptors_with_too_many_segments_are_returned_at_once() {
    let (refused, _) = connected(
        Setting::default(),
        reliable(),
        4096,
        |mut end| async move {
            let segment = end.memory.segment(0, 1).unwrap();
            let segments = vec![segment; MAX_SEGMENTS + 1];
            let failed = end.nic.post_send(end.vi, segments.into());
            let failed = failed.unwrap_err();
            assert_eq!(failed.descriptor.segments.len(), MAX_SEGMENTS + 1);
            failed.error
        },
        |end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            drop(end);
        },
    );
    assert_eq!(refused, NicError::TooManySegments(MAX_SEGMENTS + 1));
}

/// Posts more descriptors that need a segment table than the NIC has tables: a refused one keeps no table.
#[test]
fn refused_descriptors_of_many_segments_keep_no_table() {
    let ((after_gone, after_full), _) = connected(
        Setting::default(),
        reliable(),
        4096,
        |mut end| async move {
            let segment = end.memory.segment(0, 1).unwrap();
            let many = || Descriptor::from(vec![segment.clone(); 2]);
            let gone = end.nic.create_vi(reliable()).await.unwrap();
            end.nic.destroy_vi(gone).await.unwrap();
            for _ in 0..100 {
                assert_eq!(end.nic.post_send(gone, many()).unwrap_err().error, NicError::NoSuchVi);
            }
            let after_gone = end.nic.post_receive(end.vi, many()).map_err(|failed| failed.error);
            while end.nic.post_send(end.vi, Descriptor::default()).is_ok() {}
            for _ in 0..100 {
                let failed = end.nic.post_send(end.vi, many()).unwrap_err();
                assert_eq!(failed.error, NicError::QueueFull);
            }
            // The server has no receives: the sends fail and free their tables.
            pause(&end.host, Duration::from_millis(1)).await;
            while end.nic.send_done(end.vi).unwrap().is_some() {}
            // The first receive was flushed, which freed its table: two receives need one table more.
            end.nic.post_receive(end.vi, many()).unwrap();
            (after_gone, end.nic.post_receive(end.vi, many()).map_err(|failed| failed.error))
        },
        |end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            drop(end);
        },
    );
    assert_eq!((after_gone, after_full), (Ok(()), Ok(())));
}

#[test]
fn a_full_queue_returns_the_descriptor_and_nothing_is_lost() {
    let (sent, received) = connected(
        Setting::default(),
        reliable(),
        4096,
        |mut end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            let (mut sent, mut refused) = (0, 0);
            while sent < 600 {
                let segment = end.memory.segment(0, 8).unwrap();
                match end.nic.post_send(end.vi, Descriptor::of(segment)) {
                    Ok(()) => sent += 1,
                    Err(failed) => {
                        assert_eq!(failed.error, NicError::QueueFull);
                        refused += 1;
                        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                        assert_eq!(done.outcome, Ok(()));
                    }
                }
            }
            assert!(refused > 0);
            pause(&end.host, Duration::from_millis(50)).await;
            sent
        },
        |mut end| async move {
            let mut received = 0;
            for _ in 0..200 {
                end.nic.post_receive(end.vi, Descriptor::of(end.memory.whole())).unwrap();
            }
            while received < 600 {
                let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
                assert_eq!(done.outcome, Ok(()));
                received += 1;
                end.nic.post_receive(end.vi, done.descriptor).unwrap();
            }
            received
        },
    );
    assert_eq!((sent, received), (600, 600));
}

/// Suspends both NICs for 2 s, as when a machine sleeps: neither could have answered meanwhile.
#[test]
fn nics_that_were_suspended_do_not_declare_their_peers_dead() {
    let mut world = world(Setting::default());
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    for node in [CLIENT, SERVER] {
        let fault = Fault::Overrun { node, by: Duration::from_secs(2) };
        let (at, lasts) = (pair::at(100_000_000), Duration::from_secs(3));
        world.schedule(Incident { at, lasts, fault });
    }
    world.spawn(SERVER, async move {
        let mut end = End::new(server, reliable(), 4096).await;
        end.serve().await;
        end.nic.post_receive(end.vi, Descriptor::of(end.memory.whole())).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        assert_eq!((done.outcome, done.length), (Ok(()), 100));
        std::future::pending::<()>().await;
    });
    let sent = world.block_on(CLIENT, async move {
        let mut end = End::new(client, reliable(), 4096).await;
        end.connect().await;
        end.nic.post_receive(end.vi, Descriptor::of(end.memory.whole())).unwrap();
        pause(&end.host, Duration::from_secs(4)).await;
        let segment = end.memory.segment(0, 100).unwrap();
        end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
        let sent = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        (sent.outcome, end.nic.query_vi(end.vi).await.unwrap().0)
    });
    assert_eq!(sent, Some((Ok(()), ViState::Connected)));
}

#[test]
fn opening_a_nic_without_the_extension_fails() {
    use midplane_nicvm::unit::Unit;
    use midplane_simhw::link::LinkProfile;
    use midplane_simhw::profile::NicProfile;
    use midplane_simhw::sim::World;
    use midplane_simhw::switch::{Buffer, SwitchProfile};
    use midplane_simhw::time::LineRate;
    use midplane_simhw::topology::Topology;

    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let topology = Topology::star(1, link, SwitchProfile::new(Buffer::Bytes(1 << 20)));
    let mut world: World<Unit> =
        World::new(&topology, NicProfile::MODERN, 1, |_, _| Unit::default());
    let host = world.host(CLIENT);
    let opened = world.block_on(CLIENT, async move {
        Nic::open(&host, PortOptions::default()).await.map(|_| ()).unwrap_err()
    });
    assert_eq!(opened, Some(NicError::NoExtension));
}

#[test]
fn a_nic_reports_its_limits_and_refuses_interfaces_beyond_them() {
    let setting = Setting { config: ViaConfig::default().max_vis(2), ..Setting::default() };
    let mut world = world(setting);
    let host = world.host(CLIENT);
    let done = world.block_on(CLIENT, async move {
        let mut nic = Nic::open(&host, PortOptions::default().depth(32)).await.unwrap();
        let has = nic.query().await.unwrap();
        assert_eq!((has.node, has.max_vis, has.vis), (CLIENT, 2, 0));
        assert_eq!((has.mtu, has.max_posted, has.max_segments), (1500, 32, MAX_SEGMENTS));
        let first = nic.create_vi(reliable()).await.unwrap();
        nic.create_vi(reliable()).await.unwrap();
        assert_eq!(nic.create_vi(reliable()).await, Err(NicError::TooManyVis));
        assert_eq!(nic.query().await.unwrap().vis, 2);
        nic.destroy_vi(first).await.unwrap();
        assert_eq!(nic.query().await.unwrap().vis, 1);
        nic.create_vi(reliable()).await.unwrap();
    });
    assert_eq!(done, Some(()), "it ends");
}

/// Checks that a control segment alone is a message of no bytes.
#[test]
fn a_descriptor_without_segments_is_a_message_of_no_bytes() {
    let (sent, received) = connected(
        Setting::default(),
        reliable(),
        64,
        |mut end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            end.nic.post_send(end.vi, Descriptor::default()).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            (done.outcome, done.length)
        },
        |mut end| async move {
            end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
            (done.outcome, done.length)
        },
    );
    assert_eq!((sent, received), ((Ok(()), 0), (Ok(()), 0)));
}
