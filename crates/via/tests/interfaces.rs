//! Guarantees of a connected interface, over every fabric: in virtual time and over sockets, where
//! frames are lost, duplicated and reordered, and over shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::live;
use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, pattern};
use futures_util::future::join;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::{Reliability, ViAttributes, ViState};
use midplane_via::descriptor::{Completed, Descriptor};
use midplane_via::memory::RemoteMemory;
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::{DescriptorError, Operation};

const FAULTS: Faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };
/// Real time after which a case counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of memory of each end.
const MEMORY: usize = 200_000;

fn attributes() -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableReception,
        rdma_write: true,
        rdma_read: true,
        max_transfer: 100_000,
        ..ViAttributes::default()
    }
}

/// Makes a test for each case and fabric, from the two programs of the case.
macro_rules! cases {
    ($($name:ident: $client:ident, $server:ident;)+) => {
        mod sim {
            use super::*;
            $(
                #[test]
                fn $name() {
                    in_virtual_time($client, $server);
                }
            )+
        }
        #[cfg(target_os = "linux")]
        mod shm {
            use super::*;
            $(
                #[test]
                fn $name() {
                    live::over_shm(2, async |hosts| both(hosts, $client, $server).await);
                }
            )+
        }
        mod udp {
            use super::*;
            $(
                #[test]
                fn $name() {
                    live::over_udp(2, FAULTS, async |hosts| both(hosts, $client, $server).await);
                }
            )+
        }
    };
}

cases! {
    messages_of_all_sizes_arrive_in_order: sends_all_sizes, receives_all_sizes;
    memory_is_written_and_read_in_order: writes_and_reads, is_written_and_read;
    a_message_that_does_not_fit_breaks_the_connection_for_both: sends_too_much, has_too_little;
    posted_receives_are_flushed_when_a_connection_ends: disconnects, is_left;
}

/// Runs the client: posts the receive of the server's first message, connects, then runs `client`.
async fn connect<H: Host, F: Future<Output = ()>>(host: H, client: impl FnOnce(End<H>) -> F) {
    assert_eq!(host.node(), CLIENT);
    let mut end = End::new(host, attributes(), MEMORY).await;
    listen(&mut end);
    end.connect().await;
    client(end).await;
}

async fn serve<H: Host, F: Future<Output = ()>>(host: H, server: impl FnOnce(End<H>) -> F) {
    assert_eq!(host.node(), SERVER);
    let mut end = End::new(host, attributes(), MEMORY).await;
    end.serve().await;
    server(end).await;
}

fn in_virtual_time<C, S>(
    client: impl FnOnce(End<SimHost>) -> C + Send + 'static,
    server: impl FnOnce(End<SimHost>) -> S + Send + 'static,
) where
    C: Future<Output = ()> + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let setting = Setting { seed: 5, faults: FAULTS, ..Setting::default() };
    let mut world = pair::world(setting);
    let (connecting, serving) = (world.host(CLIENT), world.host(SERVER));
    let done = Arc::new(AtomicBool::new(false));
    let served = Arc::clone(&done);
    world.spawn(SERVER, async move {
        serve(serving, server).await;
        served.store(true, Ordering::Relaxed);
    });
    world.block_on(CLIENT, connect(connecting, client)).expect("the client ends");
    world.run_until(world.now() + Duration::from_secs(5));
    assert!(done.load(Ordering::Relaxed), "the server ends");
}

/// Runs both programs on a live fabric.
async fn both<H: Host, C, S>(
    mut hosts: Vec<H>,
    client: impl FnOnce(End<H>) -> C + Send + 'static,
    server: impl FnOnce(End<H>) -> S + Send + 'static,
) where
    C: Future<Output = ()> + Send + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let (serving, connecting) = (hosts.pop().unwrap(), hosts.pop().unwrap());
    let ends =
        join(tokio::spawn(connect(connecting, client)), tokio::spawn(serve(serving, server)));
    let (client, server) = tokio::time::timeout(LIMIT, ends).await.expect("both end");
    client.unwrap();
    server.unwrap();
}

async fn next<H: Host>(end: &mut End<H>, queue: WorkQueue) -> Completed {
    end.nic.wait(end.vi, queue).await.unwrap()
}

fn post_receive<H: Host>(end: &mut End<H>, offset: usize, room: usize) {
    let segment = end.memory.segment(offset, room).unwrap();
    end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
}

fn post_send<H: Host>(end: &mut End<H>, offset: usize, length: usize, number: u32) {
    let segment = end.memory.segment(offset, length).unwrap();
    end.nic.post_send(end.vi, Descriptor::of(segment).immediate(number)).unwrap();
}

/// Sends the server's first message: it is ready, and this is its memory.
async fn send_memory<H: Host>(end: &mut End<H>) {
    let words = midplane_simhw::wire::encode(&end.memory.remote()).unwrap();
    end.memory.write(MEMORY - 16, &words).unwrap();
    post_send(end, MEMORY - 16, 16, 0);
    assert_eq!(next(end, WorkQueue::Send).await.outcome, Ok(()));
}

fn listen<H: Host>(end: &mut End<H>) {
    post_receive(end, MEMORY - 16, 16);
}

/// Receives the server's first message; returns its memory.
async fn receive_memory<H: Host>(end: &mut End<H>) -> RemoteMemory {
    assert_eq!(next(end, WorkQueue::Receive).await.outcome, Ok(()));
    midplane_simhw::wire::decode(&end.bytes(MEMORY - 16, 16)).unwrap()
}

const SIZES: [usize; 12] = [0, 1, 8, 64, 1399, 1400, 1401, 4096, 9000, 16_385, 65_536, 99_999];
/// Rounds of all sizes.
const ROUNDS: u32 = 5;

/// Returns the number, offset and length of each message of a round.
fn places(round: u32) -> impl Iterator<Item = (u32, usize, usize)> {
    let mut end = 0;
    (round * 100..).zip(SIZES).map(move |(number, length)| {
        end += length;
        (number, end - length, length)
    })
}

async fn sends_all_sizes<H: Host>(mut end: End<H>) {
    for round in 0..ROUNDS {
        receive_memory(&mut end).await;
        listen(&mut end);
        for (number, at, length) in places(round) {
            end.memory.write(at, &pattern(number, length)).unwrap();
            post_send(&mut end, at, length, number);
        }
        for (_, _, length) in places(round) {
            let sent = next(&mut end, WorkQueue::Send).await;
            assert_eq!((sent.outcome, sent.length), (Ok(()), length));
        }
    }
}

async fn receives_all_sizes<H: Host>(mut end: End<H>) {
    for round in 0..ROUNDS {
        for (_, at, length) in places(round) {
            post_receive(&mut end, at, length);
        }
        send_memory(&mut end).await;
        for (number, at, length) in places(round) {
            let done = next(&mut end, WorkQueue::Receive).await;
            assert_eq!((done.outcome, done.length), (Ok(()), length));
            assert_eq!((done.operation, done.immediate), (Operation::Receive, Some(number)));
            assert!(end.bytes(at, length) == pattern(number, length), "message {number}");
        }
    }
}

async fn writes_and_reads<H: Host>(mut end: End<H>) {
    const LENGTH: usize = 90_000;
    let remote = receive_memory(&mut end).await;
    end.memory.write(0, &pattern(1, LENGTH)).unwrap();
    let mine = end.memory.segment(0, LENGTH).unwrap();
    end.nic.post_send(end.vi, Descriptor::of(mine).write(remote).immediate(77)).unwrap();
    let back = end.memory.segment(LENGTH, LENGTH).unwrap();
    end.nic.post_send(end.vi, Descriptor::of(back).read(remote)).unwrap();
    let fenced = Descriptor::default().fenced();
    end.nic.post_send(end.vi, fenced).unwrap();
    for expected in [Operation::RdmaWrite, Operation::RdmaRead, Operation::Send] {
        let done = next(&mut end, WorkQueue::Send).await;
        assert_eq!((done.operation, done.outcome), (expected, Ok(())));
    }
    assert!(end.bytes(LENGTH, LENGTH) == pattern(1, LENGTH));
}

async fn is_written_and_read<H: Host>(mut end: End<H>) {
    for _ in 0..2 {
        end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
    }
    send_memory(&mut end).await;
    let written = next(&mut end, WorkQueue::Receive).await;
    assert_eq!((written.operation, written.immediate), (Operation::RemoteRdmaWrite, Some(77)));
    assert!(end.bytes(0, 90_000) == pattern(1, 90_000));
    // The fenced message arrives once the memory was read.
    assert_eq!(next(&mut end, WorkQueue::Receive).await.operation, Operation::Receive);
}

async fn is_broken<H: Host>(end: &mut End<H>) {
    assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Error);
    post_send(end, 0, 1, 0);
    let flushed = next(end, WorkQueue::Send).await;
    assert_eq!(flushed.outcome, Err(DescriptorError::Flushed));
    end.nic.disconnect(end.vi).await.unwrap();
    assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, ViState::Idle);
}

async fn sends_too_much<H: Host>(mut end: End<H>) {
    receive_memory(&mut end).await;
    post_receive(&mut end, 100_000, 8);
    post_send(&mut end, 0, 5_000, 1);
    let refused = next(&mut end, WorkQueue::Send).await;
    assert_eq!(refused.outcome, Err(DescriptorError::RemoteDescriptor));
    let flushed = next(&mut end, WorkQueue::Receive).await;
    assert_eq!(flushed.outcome, Err(DescriptorError::Flushed));
    is_broken(&mut end).await;
}

async fn has_too_little<H: Host>(mut end: End<H>) {
    post_receive(&mut end, 0, 4_999);
    send_memory(&mut end).await;
    let short = next(&mut end, WorkQueue::Receive).await;
    assert_eq!(short.outcome, Err(DescriptorError::Length));
    is_broken(&mut end).await;
}

async fn disconnects<H: Host>(mut end: End<H>) {
    receive_memory(&mut end).await;
    for at in 0..5 {
        post_receive(&mut end, at * 10, 10);
    }
    end.nic.disconnect(end.vi).await.unwrap();
    for at in 0..5 {
        let flushed = next(&mut end, WorkQueue::Receive).await;
        assert_eq!(flushed.outcome, Err(DescriptorError::Flushed));
        assert_eq!(flushed.descriptor.segments[0].offset(), at * 10);
    }
    end.nic.destroy_vi(end.vi).await.unwrap();
}

async fn is_left<H: Host>(mut end: End<H>) {
    post_receive(&mut end, 0, 10);
    send_memory(&mut end).await;
    let flushed = next(&mut end, WorkQueue::Receive).await;
    assert_eq!(flushed.outcome, Err(DescriptorError::Flushed));
}
