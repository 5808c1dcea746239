//! Futures of a NIC that are dropped after any number of polls: the next caller finds what they waited for, and nothing
//! stays under way.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::pair::{CLIENT, End, SERVER, Setting, address, name, pause, reliable, world};
use midplane_simhw::sim::SimHost;
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::{CqId, NicError, ViId, WorkQueue};

/// Polls a future so many times, and then drops it; returns its result, if it was ready.
async fn at_most<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

const POLLS: u32 = 6;

#[test]
fn dropped_commands_leave_nothing_under_way() {
    let mut world = world(Setting::default());
    let host = world.host(CLIENT);
    let done = world.block_on(CLIENT, async move {
        let mut end = End::new(host, reliable(), 64).await;
        let short = Some(Duration::from_millis(3));
        let mut dropped = 0;
        for polls in 0..POLLS {
            let vi = end.nic.create_vi(reliable()).await.unwrap();
            let nic = &mut end.nic;
            dropped += u32::from(at_most(polls, nic.query()).await.is_none());
            dropped += u32::from(at_most(polls, nic.query_vi(vi)).await.is_none());
            dropped += u32::from(at_most(polls, nic.create_vi(reliable())).await.is_none());
            let nobody = nic.connect(vi, address(SERVER, "nobody"), short);
            dropped += u32::from(at_most(polls, nobody).await.is_none());
            dropped +=
                u32::from(at_most(polls, nic.connect_wait(name("x"), short)).await.is_none());
            dropped += u32::from(at_most(polls, nic.disconnect(vi)).await.is_none());
            nic.disconnect(vi).await.unwrap();
            dropped += u32::from(at_most(polls, nic.destroy_vi(vi)).await.is_none());
            // The NIC may have destroyed it by now, and this process may have received the completion.
            assert!(matches!(nic.destroy_vi(vi).await, Ok(()) | Err(NicError::NoSuchVi)));
        }
        assert!(dropped >= 14, "some were dropped on the way: {dropped}");
        pause(&end.host, Duration::from_millis(20)).await;
        assert_eq!(end.nic.save().map(drop), Ok(()), "nothing is under way");
    });
    assert!(done.is_some());
}

const MESSAGES: u32 = 20;

/// Creates two interfaces that report their receives to one completion queue.
async fn two(end: &mut End) -> (CqId, [ViId; 2]) {
    let cq = end.nic.create_cq();
    let first = end.nic.create_vi_with(reliable(), None, Some(cq)).await.unwrap();
    let second = end.nic.create_vi_with(reliable(), None, Some(cq)).await.unwrap();
    (cq, [first, second])
}

async fn receiver(host: SimHost) -> u32 {
    let mut end = End::new(host, reliable(), 64).await;
    let (cq, vis) = two(&mut end).await;
    for vi in vis {
        for _ in 0..MESSAGES {
            end.nic.post_receive(vi, Descriptor::of(end.memory.whole())).unwrap();
        }
        end.vi = vi;
        end.serve().await;
    }
    let mut dropped = 0;
    for number in 0..MESSAGES {
        let mut polls = 0;
        let completed = loop {
            match at_most(polls, end.nic.cq_wait(cq)).await {
                Some(completed) => break completed.unwrap(),
                None => (polls, dropped) = (polls + 1, dropped + 1),
            }
        };
        let vi = vis[number as usize % 2];
        assert_eq!(completed, (vi, WorkQueue::Receive));
        let done = at_most(1, end.nic.wait(vi, WorkQueue::Receive)).await.unwrap().unwrap();
        assert_eq!(done.immediate, Some(number));
    }
    // One more message for each interface, received without the completion queue.
    for (vi, number) in vis.into_iter().zip(MESSAGES..) {
        let mut polls = 0;
        let done = loop {
            match at_most(polls, end.nic.wait(vi, WorkQueue::Receive)).await {
                Some(done) => break done.unwrap(),
                None => (polls, dropped) = (polls + 1, dropped + 1),
            }
        };
        assert_eq!(done.immediate, Some(number));
    }
    dropped
}

#[test]
fn a_wait_that_is_dropped_at_any_poll_loses_no_descriptor() {
    let mut world = world(Setting::default());
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(CLIENT, async move {
        let mut end = End::new(client, reliable(), 64).await;
        let (_, vis) = two(&mut end).await;
        for vi in vis {
            end.vi = vi;
            end.connect().await;
        }
        for number in 0..MESSAGES + 2 {
            pause(&end.host, Duration::from_millis(1)).await;
            let message = Descriptor::of(end.memory.whole()).immediate(number);
            end.nic.post_send(vis[number as usize % 2], message).unwrap();
        }
        pause(&end.host, Duration::from_secs(1)).await;
    });
    let dropped = world.block_on(SERVER, receiver(server)).expect("the receiver ends");
    assert!(dropped > MESSAGES, "each was dropped at least once: {dropped}");
}
