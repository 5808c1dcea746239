//! Messages of several segments on unreliable interfaces, over every fabric. Received messages are whole and in order,
//! and a message that fits a frame is lost only with that frame.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::live;
use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, pattern, pause};
use futures_util::future::join;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_via::attributes::ViAttributes;
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::DescriptorError;

const FAULTS: Faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };
const LIMIT: Duration = Duration::from_secs(60);
/// Descriptors of several segments that are posted at once; a queue takes 64.
const POSTED: usize = 60;
/// Bytes for each posted descriptor.
const ROOM: usize = 3_000;
const SIZES: [usize; 5] = [1_000, 0, 64, 1_200, ROOM];

fn size(number: usize) -> usize {
    SIZES[number % SIZES.len()]
}

/// Divides a message's memory at an end into `count` segments, an empty one among them, and the last bytes first.
fn descriptor<H: Host>(end: &End<H>, number: usize, length: usize, count: usize) -> Descriptor {
    let most = length.div_ceil(count).max(1);
    let parts = (0..length).step_by(most).map(|at| (at, most.min(length - at)));
    let mut parts: Vec<_> = parts.rev().collect();
    parts.insert(parts.len() / 2, (0, 0));
    let segment = |(at, length)| end.memory.segment(number % POSTED * ROOM + at, length).unwrap();
    Descriptor::from(parts.into_iter().map(segment).collect::<Vec<_>>())
}

/// Reads the bytes in the segments of a descriptor, in order.
fn content<H: Host>(end: &End<H>, descriptor: &Descriptor) -> Vec<u8> {
    let read = |at: usize| {
        let segment = &descriptor.segments[at];
        end.bytes(segment.offset(), segment.len())
    };
    (0..descriptor.segments.len()).flat_map(read).collect()
}

/// Sends `count` messages, of 8 segments each.
async fn send<H: Host>(host: H, count: usize) {
    let mut end = End::new(host, ViAttributes::default(), POSTED * ROOM).await;
    end.connect().await;
    for number in 0..count + POSTED {
        if number >= POSTED {
            let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            assert_eq!((done.outcome, done.length), (Ok(()), size(number - POSTED)));
        }
        if number < count {
            let descriptor = descriptor(&end, number, size(number), 8);
            let mut bytes = pattern(number as u32, size(number));
            for segment in &descriptor.segments {
                let rest = bytes.split_off(segment.len());
                end.memory.write(segment.offset(), &bytes).unwrap();
                bytes = rest;
            }
            end.nic.post_send(end.vi, descriptor.immediate(number as u32)).unwrap();
        }
    }
    // Messages may still be under way.
    pause(&end.host, Duration::from_millis(200)).await;
    end.nic.disconnect(end.vi).await.unwrap();
}

/// Receives into descriptors of 3 segments until the other end disconnects. Returns the number of received messages.
async fn receive<H: Host>(host: H) -> usize {
    let mut end = End::new(host, ViAttributes::default(), POSTED * ROOM).await;
    for number in 0..POSTED {
        end.nic.post_receive(end.vi, descriptor(&end, number, ROOM, 3)).unwrap();
    }
    end.serve().await;
    let mut numbers = Vec::new();
    loop {
        let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
        if done.outcome == Err(DescriptorError::Flushed) {
            break;
        }
        assert_eq!(done.outcome, Ok(()));
        let number = done.immediate.unwrap();
        assert_eq!(done.length, size(number as usize));
        let mut bytes = content(&end, &done.descriptor);
        bytes.truncate(done.length);
        assert!(bytes == pattern(number, done.length), "message {number}");
        numbers.push(number);
        end.nic.post_receive(end.vi, done.descriptor).unwrap();
    }
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    numbers.len()
}

/// Sends as many messages over a live fabric as receives are posted. Returns how many arrive.
async fn both<H: Host>(mut hosts: Vec<H>) -> usize {
    let (server, client) = (hosts.pop().unwrap(), hosts.pop().unwrap());
    let ends = join(tokio::spawn(send(client, POSTED)), tokio::spawn(receive(server)));
    let (sent, received) = tokio::time::timeout(LIMIT, ends).await.expect("both end");
    sent.unwrap();
    received.unwrap()
}

#[test]
fn in_virtual_time_a_message_that_fits_a_frame_is_lost_with_that_frame_only() {
    let mut world = pair::world(Setting { seed: 5, faults: FAULTS, ..Setting::default() });
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    let received = Arc::new(Mutex::new(None));
    let to = Arc::clone(&received);
    world.spawn(SERVER, async move {
        let count = receive(server).await;
        *to.lock().unwrap() = Some(count);
    });
    world.block_on(CLIENT, send(client, 500)).expect("the client ends");
    world.run_until(world.now() + Duration::from_secs(5));
    let received = received.lock().unwrap().expect("the server ends");
    // Of a hundred frames, 5 are lost or late. A message in eight frames would be lost six times as often.
    assert!((450..500).contains(&received), "{received}");
}

#[test]
fn posted_sends_wait_in_their_queue_and_not_as_copies_in_the_nic() {
    let mut world = pair::world(Setting { seed: 5, ..Setting::default() });
    let (client, server) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(SERVER, async move { assert_eq!(receive(server).await, POSTED) });
    world.spawn(CLIENT, send(client, POSTED));
    let mut most = 0;
    for _ in 0..2_000 {
        world.run_until(world.now() + Duration::from_micros(5));
        most = most.max(world.firmware(CLIENT).pending(SERVER));
    }
    world.run();
    // Frames of eight messages, and control messages.
    assert!((1..=64).contains(&most), "{most} frames wait");
}

#[cfg(target_os = "linux")]
#[test]
fn over_shared_memory_all_messages_arrive() {
    live::over_shm(2, async |hosts| assert_eq!(both(hosts).await, POSTED));
}

#[test]
fn over_udp_most_messages_arrive_and_all_of_these_whole() {
    live::over_udp(2, FAULTS, async |hosts| {
        let received = both(hosts).await;
        assert!((POSTED / 2..=POSTED).contains(&received), "{received}");
    });
}
