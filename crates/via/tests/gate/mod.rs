//! Interfaces that bypass their NIC while its gate is open. Messages arrive once, in order and complete, with any rings
//! and any movement of the gate. Connections end as those over NICs do. No frame of a ring is trusted.

mod early;
mod full;
mod moves;
mod rings;
mod saving;
#[cfg(target_os = "linux")]
mod shm;
#[cfg(target_os = "linux")]
mod writes;

use std::future::Future as _;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::pair;
use crate::pair::{End, Setting, connected_over, pattern, pause};
use midplane_simhw::host::Host as _;
use midplane_simhw::peer_rings::WORDS;
use midplane_simhw::region::ProtectionTag;
use midplane_via::attributes::{Reliability, ViAttributes, ViState};
use midplane_via::descriptor::{Completed, Descriptor};
use midplane_via::memory::MemoryOptions;
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::{AsyncError, DescriptorError};
use proptest::prelude::*;
use rings::{Forger, rings};

pub(crate) fn attributes() -> ViAttributes {
    ViAttributes { reliability: Reliability::ReliableDelivery, ..ViAttributes::default() }
}

/// Makes a descriptor of `bytes` bytes of an end's memory, in segments of at most `most` bytes.
pub(crate) fn descriptor<H: midplane_simhw::host::Host>(
    end: &End<H>,
    offset: usize,
    bytes: usize,
    most: usize,
) -> Descriptor {
    let parts = (0..bytes).step_by(most.max(bytes / 60 + 1));
    let most = most.max(bytes / 60 + 1);
    let segments = parts.map(|at| end.memory.segment(offset + at, most.min(bytes - at)).unwrap());
    segments.collect::<Vec<_>>().into()
}

async fn received(end: &mut End) -> Completed {
    end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap()
}

const ROOM: usize = 6_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_once_in_order_and_complete(
        lengths in proptest::collection::vec(0_usize..ROOM, 0..12),
        mtu in 1_usize..3_000, depth in 1_usize..6, most in 1_usize..ROOM,
    ) {
        let (both, _) = rings(mtu, depth);
        let (total, sent) = (lengths.len(), lengths.clone());
        let client = move |mut end: End| async move {
            for (number, length) in sent.iter().enumerate() {
                let at = number * ROOM;
                end.memory.write(at, &pattern(number as u32, *length)).unwrap();
                let mut message = descriptor(&end, at, *length, most);
                message.immediate = (number % 2 == 0).then_some(number as u32);
                end.nic.post_send(end.vi, message).unwrap();
            }
            for length in sent {
                let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                assert_eq!((done.outcome, done.length), (Ok(()), length));
            }
            end
        };
        let server = move |mut end: End| async move {
            for number in 0..total {
                let receive = descriptor(&end, number * ROOM, ROOM, most);
                end.nic.post_receive(end.vi, receive).unwrap();
            }
            let mut messages = Vec::new();
            for number in 0..total {
                let done = received(&mut end).await;
                assert_eq!(done.outcome, Ok(()));
                messages.push((end.bytes(number * ROOM, done.length), done.immediate));
            }
            messages
        };
        let bytes = ROOM * total.max(1);
        let (_, messages) = connected_over(Setting::default(), attributes(), bytes, both, client, server);
        prop_assert_eq!(messages.len(), total);
        for (number, (bytes, immediate)) in messages.into_iter().enumerate() {
            prop_assert_eq!(bytes, pattern(number as u32, lengths[number]));
            prop_assert_eq!(immediate, (number % 2 == 0).then_some(number as u32));
        }
    }

    #[test]
    fn no_frame_of_a_ring_is_trusted(
        frames in proptest::collection::vec(
            (any::<[u64; WORDS]>(), 0_u64..4, 0_u64..4, 0_u64..7, any::<bool>(), 0_usize..300), 1..20,
        ),
        rdma_write: bool,
    ) {
        let (both, [_, to_server]) = rings(1_000, 8);
        let client = |mut end: End| async move {
            pause(&end.host, Duration::from_millis(20)).await;
            end.nic.poll();
            end.nic.disconnect(end.vi).await.unwrap();
        };
        let server = move |mut end: End| async move {
            for number in 0..4 {
                let receive = descriptor(&end, number * 500, 500, 500);
                end.nic.post_receive(end.vi, receive).unwrap();
            }
            end.opens().await;
            for (mut words, vi, connection, kind, is_plausible, bytes) in frames {
                if is_plausible {
                    // Similar to the words of a valid frame.
                    words[0] = vi | connection << 16 | kind << 32;
                    words[1] = bytes as u64 | (words[1] & 1) << 32;
                }
                to_server.send((words, vec![7; bytes]));
            }
            // In every case, all posted receives complete, and no other memory is written.
            let mut completed = 0;
            while completed < 4 {
                let done = received(&mut end).await;
                assert!(done.length <= 500, "more than the receive has room for");
                completed += 1;
            }
            assert!(end.bytes(2_000, 500).iter().all(|byte| *byte == 0));
            completed
        };
        let attributes = ViAttributes { rdma_write, ..attributes() };
        let (_, completed) = connected_over(Setting::default(), attributes, 2_500, both, client, server);
        prop_assert_eq!(completed, 4);
    }
}

/// Returns the errors that an end's NIC has reported.
fn errors(end: &mut End) -> Vec<AsyncError> {
    std::iter::from_fn(|| end.nic.next_error().map(|(_, error)| error)).collect()
}

/// The outcome of a receive, if it completed, and the errors reported to its end.
type Ended = (Option<Result<(), DescriptorError>>, Vec<AsyncError>);

/// Has the client send a message of `sent` bytes to a server with a receive of `room` bytes, if any. Returns the
/// client's errors, and the receive's outcome with the server's errors.
fn met(sent: usize, room: Option<usize>) -> (Vec<AsyncError>, Ended) {
    let (both, _) = rings(1_000, 8);
    let client = move |mut end: End| async move {
        end.opens().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, sent, sent)).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        let reported = errors(&mut end);
        let state = end.nic.query_vi(end.vi).await.unwrap().0;
        assert_eq!(state == ViState::Error, !reported.is_empty());
        // The interface can be used again.
        end.nic.disconnect(end.vi).await.unwrap();
        end.connect().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        end.nic.poll();
        reported
    };
    let server = move |mut end: End| async move {
        if let Some(room) = room {
            end.nic.post_receive(end.vi, descriptor(&end, 0, room, room)).unwrap();
        }
        pause(&end.host, Duration::from_millis(4)).await;
        end.nic.poll();
        let reported = errors(&mut end);
        let done = end.nic.receive_done(end.vi).unwrap().map(|done| done.outcome);
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Error);
        // The client has learned of the error by then.
        pause(&end.host, Duration::from_millis(4)).await;
        end.nic.disconnect(end.vi).await.unwrap();
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.serve().await;
        assert_eq!(received(&mut end).await.outcome, Ok(()), "the next connection works");
        (done, reported)
    };
    connected_over(Setting::default(), attributes(), 4_000, both, client, server)
}

#[test]
fn a_message_without_a_receive_ends_the_connection_at_both_ends() {
    let (client, (done, server)) = met(100, None);
    assert_eq!(client, [AsyncError::ConnectionLost]);
    assert_eq!(done, None);
    assert_eq!(server, [AsyncError::ReceiveQueueEmpty, AsyncError::ConnectionLost]);
}

#[test]
fn a_message_longer_than_its_receive_ends_the_connection_at_both_ends() {
    let (client, (done, server)) = met(101, Some(100));
    assert_eq!(client, [AsyncError::ConnectionLost]);
    assert_eq!(done, Some(Err(DescriptorError::Length)));
    assert_eq!(server, [AsyncError::ConnectionLost]);
}

/// The server is connected once it has accepted, the client only once the acceptance has arrived: a message over the
/// rings may overtake that.
#[test]
fn a_message_that_arrives_before_the_acceptance_of_its_connection_is_received() {
    let (both, _) = rings(1_000, 64);
    let client = |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        received(&mut end).await.outcome
    };
    let server = |mut end: End| async move {
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
    };
    let ended = connected_over(Setting::default(), attributes(), 10, both, client, server);
    assert_eq!(ended, (Ok(()), Ok(())));
}

/// Checks that the posted receives stay posted, as those of any other interface.
#[test]
fn a_send_without_a_connection_is_flushed_and_receives_are_not() {
    let (both, _) = rings(1_000, 8);
    let client = |mut end: End| async move {
        end.nic.disconnect(end.vi).await.unwrap();
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        let sent = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome;
        end.connect().await;
        (sent, received(&mut end).await.outcome)
    };
    let server = |mut end: End| async move {
        while end.nic.query_vi(end.vi).await.unwrap().0 != ViState::Error {
            end.nic.progress().await.unwrap();
        }
        end.nic.disconnect(end.vi).await.unwrap();
        end.serve().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
    };
    let ((refused, arrived), sent) =
        connected_over(Setting::default(), attributes(), 10, both, client, server);
    assert_eq!(refused, Err(DescriptorError::Flushed));
    assert_eq!((arrived, sent), (Ok(()), Ok(())));
}

#[test]
fn messages_sent_before_a_disconnect_arrive() {
    let (both, _) = rings(1_000, 64);
    let client = |mut end: End| async move {
        end.opens().await;
        for _ in 0..20 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 900, 900)).unwrap();
        }
        end.nic.disconnect(end.vi).await.unwrap();
    };
    let server = |mut end: End| async move {
        for _ in 0..21 {
            end.nic.post_receive(end.vi, descriptor(&end, 0, 900, 900)).unwrap();
        }
        // The disconnect arrives long before the server polls.
        pause(&end.host, Duration::from_millis(20)).await;
        let mut outcomes = Vec::new();
        while outcomes.len() < 21 {
            outcomes.push(received(&mut end).await.outcome);
        }
        (outcomes, errors(&mut end))
    };
    let (_, (outcomes, reported)) =
        connected_over(Setting::default(), attributes(), 1_000, both, client, server);
    assert_eq!(outcomes[..20], [Ok(()); 20]);
    assert_eq!(outcomes[20], Err(DescriptorError::Flushed));
    assert_eq!(reported, [AsyncError::ConnectionLost]);
}

#[test]
fn a_completion_queue_gets_each_descriptor_once() {
    let (both, _) = rings(1_000, 8);
    let entries =
        |end: &mut End, cq| (0..20).filter_map(|_| end.nic.cq_done(cq)).collect::<Vec<_>>();
    let client = move |mut end: End| async move {
        let cq = end.nic.create_cq();
        end.vi = end.nic.create_vi_with(attributes(), Some(cq), Some(cq)).await.unwrap();
        end.connect().await;
        end.opens().await;
        for _ in 0..2 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        pause(&end.host, Duration::from_millis(5)).await;
        assert_eq!(entries(&mut end, cq), [(end.vi, WorkQueue::Send); 2]);
        end.nic.disconnect(end.vi).await.unwrap();
        assert_eq!(entries(&mut end, cq), [], "nothing was left");
    };
    let server = move |mut end: End| async move {
        let cq = end.nic.create_cq();
        end.vi = end.nic.create_vi_with(attributes(), Some(cq), Some(cq)).await.unwrap();
        for _ in 0..3 {
            end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        end.serve().await;
        end.opens().await;
        pause(&end.host, Duration::from_millis(3)).await;
        assert_eq!(entries(&mut end, cq), [(end.vi, WorkQueue::Receive); 2]);
        pause(&end.host, Duration::from_millis(50)).await;
        // The end of the connection flushes the third receive.
        assert_eq!(errors(&mut end), [AsyncError::ConnectionLost]);
        assert_eq!(entries(&mut end, cq), [(end.vi, WorkQueue::Receive)]);
    };
    connected_over(Setting::default(), attributes(), 100, both, client, server);
}

#[test]
fn the_exit_of_a_process_ends_its_connections() {
    let (both, forgers) = rings(1_000, 8);
    let [_, to_server]: [Forger; 2] = forgers;
    let client = |mut end: End| async move {
        pause(&end.host, Duration::from_millis(30)).await;
        end.nic.poll();
    };
    let server = move |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.opens().await;
        let before = end.host.now();
        to_server.end();
        let done = received(&mut end).await;
        assert!(end.host.now().since(before) < Duration::from_millis(1), "at once");
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        let sent = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome;
        (done.outcome, sent, errors(&mut end))
    };
    let (_, (done, sent, reported)) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    let flushed = Err(DescriptorError::Flushed);
    assert_eq!((done, sent, reported), (flushed, flushed, vec![AsyncError::ConnectionLost]));
}

#[test]
fn a_dropped_disconnect_holds_back_no_later_descriptor() {
    let (both, _) = rings(1_000, 8);
    let client = |mut end: End| async move {
        let mut ending = Box::pin(end.nic.disconnect(end.vi));
        assert!(ending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(ending);
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
        assert_eq!(done.outcome, Err(DescriptorError::Flushed));
        pause(&end.host, Duration::from_millis(5)).await;
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Idle);
    };
    let server = |end: End| async move { pause(&end.host, Duration::from_millis(20)).await };
    connected_over(Setting::default(), attributes(), 100, both, client, server);
}

#[test]
fn memory_without_read_permission_is_not_read() {
    let (both, _) = rings(1_000, 8);
    let client = |mut end: End| async move {
        let read = descriptor(&end, 0, 10, 10).read(end.memory.remote());
        end.nic.post_send(end.vi, read).unwrap();
        end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome
    };
    let server = |end: End| async move { pause(&end.host, Duration::from_millis(20)).await };
    let (outcome, ()) = connected_over(Setting::default(), attributes(), 100, both, client, server);
    assert_eq!(outcome, Err(DescriptorError::RdmaProtection));
}

#[test]
fn a_descriptor_of_foreign_memory_fails_in_its_turn_and_ends_the_connection() {
    let (both, _) = rings(1_000, 1);
    let client = |mut end: End| async move {
        end.opens().await;
        let options = MemoryOptions { tag: ProtectionTag(9), ..MemoryOptions::default() };
        let foreign = end.nic.register(100, options).unwrap();
        // The ring has room for one; the second descriptor waits.
        for _ in 0..2 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        end.nic.post_send(end.vi, Descriptor::of(foreign.whole())).unwrap();
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            outcomes.push(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome);
        }
        outcomes
    };
    let server = |mut end: End| async move {
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        pause(&end.host, Duration::from_millis(20)).await;
        end.nic.poll();
        errors(&mut end)
    };
    let (outcomes, reported) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    let expected = [Ok(()), Err(DescriptorError::Flushed), Err(DescriptorError::Protection)];
    assert_eq!(outcomes, expected);
    assert_eq!(reported, [AsyncError::ConnectionLost]);
}
