//! Interfaces that bypass their NIC while its gate is open: what was sent arrives once, in order and whole, whatever the
//! rings are like and whenever the gate moves; connections end as any other's do; no frame of a ring is trusted.

mod early;
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

/// A descriptor of these bytes of an end's memory, in segments of at most `most`.
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
    fn what_was_sent_arrives_once_in_order_and_whole(
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
            for (mut words, vi, connection, kind, is_near, bytes) in frames {
                if is_near {
                    // Near to what somebody of ours would say.
                    words[0] = vi | connection << 16 | kind << 32;
                    words[1] = bytes as u64 | (words[1] & 1) << 32;
                }
                to_server.send((words, vec![7; bytes]));
            }
            // However that ends: all that was posted comes back, and nothing beside it is touched.
            let mut back = 0;
            while back < 4 {
                let done = received(&mut end).await;
                assert!(done.length <= 500, "more than it has room for");
                back += 1;
            }
            assert!(end.bytes(2_000, 500).iter().all(|byte| *byte == 0));
            back
        };
        let attributes = ViAttributes { rdma_write, ..attributes() };
        let (_, back) = connected_over(Setting::default(), attributes, 2_500, both, client, server);
        prop_assert_eq!(back, 4);
    }
}

/// The errors that an end has been told of.
fn errors(end: &mut End) -> Vec<AsyncError> {
    std::iter::from_fn(|| end.nic.next_error().map(|(_, error)| error)).collect()
}

/// How a receive ended, if it did, and what its end was told.
type Told = (Option<Result<(), DescriptorError>>, Vec<AsyncError>);

/// Both ends, after the client has sent a message of `sent` bytes, and the server has posted a receive of
/// `room`, if any: how the receive ended, and what both were told.
fn met(sent: usize, room: Option<usize>) -> (Vec<AsyncError>, Told) {
    let (both, _) = rings(1_000, 8);
    let client = move |mut end: End| async move {
        end.opens().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, sent, sent)).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        let told = errors(&mut end);
        let state = end.nic.query_vi(end.vi).await.unwrap().0;
        assert_eq!(state == ViState::Error, !told.is_empty());
        // It can be used again.
        end.nic.disconnect(end.vi).await.unwrap();
        end.connect().await;
        end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        pause(&end.host, Duration::from_millis(5)).await;
        end.nic.poll();
        told
    };
    let server = move |mut end: End| async move {
        if let Some(room) = room {
            end.nic.post_receive(end.vi, descriptor(&end, 0, room, room)).unwrap();
        }
        pause(&end.host, Duration::from_millis(4)).await;
        end.nic.poll();
        let told = errors(&mut end);
        let done = end.nic.receive_done(end.vi).unwrap().map(|done| done.outcome);
        assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Error);
        // The other end knows by then.
        pause(&end.host, Duration::from_millis(4)).await;
        end.nic.disconnect(end.vi).await.unwrap();
        end.nic.post_receive(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        end.serve().await;
        assert_eq!(received(&mut end).await.outcome, Ok(()), "the next connection is a good one");
        (done, told)
    };
    connected_over(Setting::default(), attributes(), 4_000, both, client, server)
}

#[test]
fn a_message_that_nobody_has_room_for_ends_the_connection_at_both_ends() {
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

/// The server is connected when it has accepted, the client only when the news of that has come: a lane is
/// faster.
#[test]
fn what_is_sent_before_the_other_end_knows_of_the_connection_arrives_after() {
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

/// As of any other interface: the receives that it has are not touched.
#[test]
fn a_send_without_a_connection_comes_back_and_nothing_else_does() {
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
fn what_was_sent_before_its_sender_disconnected_arrives() {
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
        // The news of the end comes long before it looks.
        pause(&end.host, Duration::from_millis(20)).await;
        let mut outcomes = Vec::new();
        while outcomes.len() < 21 {
            outcomes.push(received(&mut end).await.outcome);
        }
        (outcomes, errors(&mut end))
    };
    let (_, (outcomes, told)) =
        connected_over(Setting::default(), attributes(), 1_000, both, client, server);
    assert_eq!(outcomes[..20], [Ok(()); 20]);
    assert_eq!(outcomes[20], Err(DescriptorError::Flushed));
    assert_eq!(told, [AsyncError::ConnectionLost]);
}

#[test]
fn a_completion_queue_is_told_of_each_descriptor_once() {
    let (both, _) = rings(1_000, 8);
    let told = |end: &mut End, cq| (0..20).filter_map(|_| end.nic.cq_done(cq)).collect::<Vec<_>>();
    let client = move |mut end: End| async move {
        let cq = end.nic.create_cq();
        end.vi = end.nic.create_vi_with(attributes(), Some(cq), Some(cq)).await.unwrap();
        end.connect().await;
        end.opens().await;
        for _ in 0..2 {
            end.nic.post_send(end.vi, descriptor(&end, 0, 10, 10)).unwrap();
        }
        pause(&end.host, Duration::from_millis(5)).await;
        assert_eq!(told(&mut end, cq), [(end.vi, WorkQueue::Send); 2]);
        end.nic.disconnect(end.vi).await.unwrap();
        assert_eq!(told(&mut end, cq), [], "nothing was left");
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
        assert_eq!(told(&mut end, cq), [(end.vi, WorkQueue::Receive); 2]);
        pause(&end.host, Duration::from_millis(50)).await;
        // The end flushes the third.
        assert_eq!(errors(&mut end), [AsyncError::ConnectionLost]);
        assert_eq!(told(&mut end, cq), [(end.vi, WorkQueue::Receive)]);
    };
    connected_over(Setting::default(), attributes(), 100, both, client, server);
}

#[test]
fn a_process_that_is_gone_ends_its_connections() {
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
    let (_, (done, sent, told)) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    let flushed = Err(DescriptorError::Flushed);
    assert_eq!((done, sent, told), (flushed, flushed, vec![AsyncError::ConnectionLost]));
}

#[test]
fn a_disconnect_that_nobody_waits_for_holds_nothing_that_is_posted_then() {
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
fn memory_that_may_not_be_read_is_not() {
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
fn what_a_descriptor_may_not_touch_ends_the_connection_and_the_descriptor_in_its_turn() {
    let (both, _) = rings(1_000, 1);
    let client = |mut end: End| async move {
        end.opens().await;
        let options = MemoryOptions { tag: ProtectionTag(9), ..MemoryOptions::default() };
        let foreign = end.nic.register(100, options).unwrap();
        // The ring takes one; the second one waits.
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
    let (outcomes, told) =
        connected_over(Setting::default(), attributes(), 100, both, client, server);
    let wrong = [Ok(()), Err(DescriptorError::Flushed), Err(DescriptorError::Protection)];
    assert_eq!(outcomes, wrong);
    assert_eq!(told, [AsyncError::ConnectionLost]);
}
