//! Channels of slots: whatever is kept, dropped and cancelled, credits come back and nothing is lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::pair::{CLIENT, SERVER, Setting, address, name, pattern, pause, world};
use bytes::Bytes;
use midplane_simhw::fault::Faults;
use midplane_simhw::port::PortOptions;
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::{Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::{MemoryOptions, RemoteMemory};
use midplane_via::nic::{Nic, WorkQueue};
use midplane_via::slots::{Channel, ChannelError, SlotsConfig};
use proptest::prelude::*;

const SLOTS: u16 = 4;
const BYTES: usize = 2_000;

async fn channel(host: &SimHost) -> Channel {
    let mut nic = Nic::open(host, PortOptions::default()).await.unwrap();
    let reliability = Reliability::ReliableReception;
    let attributes = ViAttributes { reliability, rdma_write: true, ..ViAttributes::default() };
    let vi = nic.create_vi(attributes).await.unwrap();
    let mut channel =
        Channel::new(nic, vi, SlotsConfig::default().slots(SLOTS).bytes(BYTES)).unwrap();
    let (nic, vi) = channel.interface();
    let (own, other) = if host_is(host, CLIENT) { ("a", SERVER) } else { ("b", CLIENT) };
    let to = address(other, if own == "a" { "b" } else { "a" });
    let ticket = nic.connect_peer(vi, to, name(own), None).unwrap();
    nic.finish(&ticket).await.unwrap();
    channel
}

fn host_is(host: &SimHost, node: midplane_simhw::id::NodeId) -> bool {
    use midplane_simhw::host::Host as _;
    host.node() == node
}

/// Runs a program on each end; what they return.
fn run<T: Send + 'static, A, B>(
    setting: Setting,
    client: impl FnOnce(Channel, SimHost) -> A + Send + 'static,
    server: impl FnOnce(Channel, SimHost) -> B + Send + 'static,
) -> Vec<T>
where
    A: Future<Output = T> + Send + 'static,
    B: Future<Output = T> + Send + 'static,
{
    let mut world = world(setting);
    let results = Arc::new(Mutex::new(vec![None, None]));
    let (first, second) = (Arc::clone(&results), Arc::clone(&results));
    let (asking, serving) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(CLIENT, async move {
        let result = client(channel(&asking).await, asking).await;
        first.lock().unwrap()[0] = Some(result);
    });
    world.spawn(SERVER, async move {
        let result = server(channel(&serving).await, serving).await;
        second.lock().unwrap()[1] = Some(result);
    });
    let limit = world.now() + Duration::from_secs(30);
    while results.lock().unwrap().iter().any(Option::is_none) && world.now() < limit {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    let mut results = results.lock().unwrap();
    results.drain(..).map(|result| result.expect("both come to their ends")).collect()
}

/// Sends as many messages as it receives, keeps some of them for a while, and gives up waiting at
/// random: after so many polls of each future, counted from the first.
async fn exchange(mut channel: Channel, host: SimHost, seed: u64, messages: u32) -> Channel {
    let mut rng = Rng::new(seed, &format!("{host:?}"));
    let mut kept: Vec<Bytes> = Vec::new();
    let (mut sent, mut received) = (0, 0);
    while sent < messages || received < messages {
        if kept.len() >= usize::from(SLOTS) - 1 || rng.below(3) == 0 {
            let at = rng.below(kept.len().max(1) as u64) as usize;
            if at < kept.len() {
                drop(kept.swap_remove(at));
            }
        }
        let patience = rng.below(4) as usize;
        if sent < messages && rng.below(2) == 0 {
            if let Some(room) = polls(patience, channel.reserve()).await {
                room.unwrap().send(&pattern(sent, (sent as usize * 37) % BYTES)).unwrap();
                sent += 1;
            }
        } else if let Some(came) = polls(patience, channel.receive()).await {
            let came = came.unwrap();
            assert!(came[..] == pattern(received, (received as usize * 37) % BYTES), "{received}");
            received += 1;
            kept.push(came);
        }
        pause(&host, Duration::from_micros(rng.below(20))).await;
    }
    drop(kept);
    channel.flush().await.unwrap();
    channel
}

/// What a future has come to after so many more polls than one; it is dropped then.
async fn polls<T>(most: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = most;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            // Woken by whatever comes first.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// All credits are back: as many messages leave at once as there are slots.
async fn is_whole(mut channel: Channel, host: SimHost) -> usize {
    // What the other end still owes comes while both look.
    for _ in 0..200 {
        let _ = polls(0, channel.receive()).await;
        pause(&host, Duration::from_micros(100)).await;
    }
    let mut rooms = 0;
    while let Some(room) = polls(0, channel.reserve()).await {
        room.unwrap().send(b"last").unwrap();
        rooms += 1;
    }
    channel.flush().await.unwrap();
    // The other end may still be at it.
    pause(&host, Duration::from_millis(500)).await;
    rooms
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_is_kept_and_cancelled_nothing_is_lost_and_credits_come_back(
        seed in 0_u64..1_000_000,
    ) {
        let faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };
        let program = move |channel, host: SimHost| async move {
            let channel = exchange(channel, host.clone(), seed, 60).await;
            pause(&host, Duration::from_millis(50)).await;
            is_whole(channel, host).await
        };
        let rooms = run(Setting { seed, faults, ..Setting::default() }, program, program);
        // A question is open only where a quarter or less is left: what is not asked for is owed still.
        for rooms in rooms {
            prop_assert!((2..=usize::from(SLOTS)).contains(&rooms), "{rooms} rooms");
        }
    }
}

/// Who keeps all that came holds the sender up, to the message; each drop lets one more through.
#[test]
fn kept_messages_hold_the_sender_up_and_a_drop_lets_it_go_on() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    run(
        Setting::default(),
        move |mut channel, _| async move {
            for number in 0..3 * u32::from(SLOTS) {
                channel.reserve().await.unwrap().send(&pattern(number, 100)).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            channel.flush().await.unwrap();
        },
        move |mut channel, host| async move {
            let mut kept = Vec::new();
            for _ in 0..SLOTS {
                kept.push(channel.receive().await.unwrap());
            }
            for dropped in 0..usize::from(SLOTS) {
                for _ in 0..10 {
                    assert!(polls(0, channel.receive()).await.is_none());
                    pause(&host, Duration::from_micros(100)).await;
                }
                assert_eq!(sent.load(Ordering::Relaxed), usize::from(SLOTS) + dropped);
                let message = kept.remove(0);
                let clone = message.slice(10..);
                drop(message);
                assert!(polls(0, channel.receive()).await.is_none(), "a clone is left");
                assert_eq!(clone[..], pattern(dropped as u32, 100)[10..]);
                drop(clone);
                kept.push(channel.receive().await.unwrap());
            }
            drop(kept);
            for _ in 0..SLOTS {
                channel.receive().await.unwrap();
            }
        },
    );
}

/// A message that is dropped by another task wakes the channel, which then lets the sender go on.
#[test]
fn a_drop_elsewhere_wakes_the_channel() {
    run(
        Setting::default(),
        |mut channel, _| async move {
            for _ in 0..=SLOTS {
                channel.reserve().await.unwrap().send(b"x").unwrap();
            }
            channel.flush().await.unwrap();
        },
        |mut channel, host| async move {
            let mut kept = Vec::new();
            for _ in 0..SLOTS {
                kept.push(channel.receive().await.unwrap());
            }
            let elsewhere = host.clone();
            midplane_simhw::host::Host::spawn(&host, async move {
                pause(&elsewhere, Duration::from_millis(5)).await;
                drop(kept);
            });
            assert_eq!(channel.receive().await.unwrap(), &b"x"[..]);
        },
    );
}

#[test]
fn a_message_longer_than_a_slot_and_an_end_that_is_gone_are_told() {
    run(
        Setting::default(),
        |mut channel, _| async move {
            let most = BYTES;
            let long = channel.reserve().await.unwrap().send(&vec![0; most + 1]);
            assert_eq!(long, Err(ChannelError::TooLong { length: most + 1, most }));
            channel.reserve().await.unwrap().send(b"last").unwrap();
            channel.flush().await.unwrap();
        },
        |mut channel, _| async move {
            assert_eq!(channel.receive().await.unwrap(), &b"last"[..]);
            let ended = channel.receive().await.unwrap_err();
            assert!(matches!(ended, ChannelError::Ended(_)), "{ended}");
            assert_eq!(channel.reserve().await.unwrap_err(), ended);
        },
    );
}

/// Its length is what the writer says, and its bytes lie elsewhere: no slot was filled.
#[test]
fn a_write_that_says_it_filled_a_slot_is_refused() {
    let (tell, told) = tokio::sync::oneshot::channel::<RemoteMemory>();
    run(
        Setting::default(),
        |mut channel, host| async move {
            let elsewhere = told.await.unwrap();
            let (nic, vi) = channel.interface();
            let memory = nic.register(2 * BYTES, MemoryOptions::default()).unwrap();
            // Data, and no credit.
            let write = Descriptor::of(memory.whole()).write(elsewhere).immediate(0);
            nic.post_send(vi, write).unwrap();
            let done = nic.wait(vi, WorkQueue::Send).await.unwrap();
            assert_eq!(done.outcome, Ok(()));
            pause(&host, Duration::from_millis(5)).await;
        },
        |mut channel, _| async move {
            let (nic, _) = channel.interface();
            // Nothing is posted here afterwards: the NIC knows of it all the same.
            let options = MemoryOptions { rdma_write: true, ..MemoryOptions::default() };
            let own = nic.register(2 * BYTES, options).unwrap();
            tell.send(own.remote()).unwrap();
            assert_eq!(channel.receive().await.unwrap_err(), ChannelError::Malformed);
        },
    );
}

#[test]
fn bytes_outlive_their_channel() {
    let came = run(
        Setting::default(),
        |mut channel, host| async move {
            channel.reserve().await.unwrap().send(b"outlives").unwrap();
            channel.flush().await.unwrap();
            pause(&host, Duration::from_millis(1)).await;
            Bytes::new()
        },
        |mut channel, _| async move { channel.receive().await.unwrap() },
    );
    assert_eq!(came[1], &b"outlives"[..]);
}
