//! The levels of reliability: when a send or a write completes, and which errors its sender gets.

use std::time::Duration;

use crate::pair::{End, Setting, connected, pattern, pause};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host as _;
use midplane_simhw::profile::DmaCost;
use midplane_simhw::time::Instant;
use midplane_via::attributes::{Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::RemoteMemory;
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::DescriptorError;
use proptest::prelude::*;

const ROOM: usize = 5_000;
/// A host into whose memory its NIC writes 5 bytes a microsecond.
const SLOW: DmaCost = DmaCost { setup_ns: 1_000, byte_ps: 200_000 };

fn attributes(reliability: Reliability) -> ViAttributes {
    ViAttributes { reliability, rdma_write: true, rdma_read: true, ..ViAttributes::default() }
}

/// A descriptor that the client posts, with its bytes.
#[derive(Clone, Copy, Debug)]
enum Posted {
    Send(usize),
    /// A write with immediate data.
    Write(usize),
    Read(usize),
}

/// The number of the pattern that the client reads.
const READ: u32 = 1_000_000;

/// The completions of the client's descriptors or of the server's receives: the time and the outcome of each.
type Times = Vec<(Instant, Result<(), DescriptorError>)>;

/// Runs a client that posts descriptors, and a server that has posted `receives` receives of [`ROOM`] bytes. Returns
/// the completions of the client, without successful reads, and of the server.
fn run(
    setting: Setting,
    level: Reliability,
    posted: Vec<Posted>,
    receives: usize,
) -> (Times, Times) {
    let total = posted.len();
    connected(
        setting,
        attributes(level),
        (total.max(receives) + 2) * ROOM,
        move |mut end| async move {
            let window = receive_memory_name(&mut end).await;
            let mut receive = 0;
            for (number, posted) in posted.iter().enumerate() {
                let (Posted::Send(bytes) | Posted::Write(bytes) | Posted::Read(bytes)) = *posted;
                end.memory.write(number * ROOM, &pattern(number as u32, bytes)).unwrap();
                let segment = end.memory.segment(number * ROOM, bytes).unwrap();
                let descriptor = Descriptor::of(segment).immediate(number as u32);
                let at = |place: usize| window.at((place * ROOM) as u32).unwrap();
                let descriptor = match posted {
                    Posted::Send(_) => descriptor,
                    Posted::Write(_) => descriptor.write(at(receive)),
                    Posted::Read(_) => descriptor.read(at(receives)),
                };
                receive += usize::from(!matches!(posted, Posted::Read(_)));
                end.nic.post_send(end.vi, descriptor).unwrap();
            }
            let mut times = Times::new();
            for (number, posted) in posted.iter().enumerate() {
                let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                assert_eq!(done.descriptor.immediate, Some(number as u32), "in order");
                match posted {
                    Posted::Read(bytes) if done.outcome.is_ok() => {
                        let read = end.bytes(number * ROOM, *bytes);
                        assert!(read == pattern(READ, *bytes), "read {number}");
                    }
                    _ => times.push((end.host.now(), done.outcome)),
                }
            }
            times
        },
        move |mut end| async move {
            for place in 0..receives {
                let segment = end.memory.segment(place * ROOM, ROOM).unwrap();
                end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
            }
            end.memory.write(receives * ROOM, &pattern(READ, ROOM)).unwrap();
            send_memory_name(&mut end).await;
            let (mut times, mut last) = (Times::new(), None);
            for place in 0..receives {
                let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
                if done.outcome.is_ok() {
                    assert!(done.immediate > last, "in order");
                    last = done.immediate;
                    let bytes = end.bytes(place * ROOM, done.length);
                    assert!(bytes == pattern(last.unwrap(), done.length), "message {place}");
                }
                times.push((end.host.now(), done.outcome));
            }
            // The last acknowledgements, and what reads, are sent meanwhile, maybe several times.
            pause(&end.host, Duration::from_secs(10)).await;
            times
        },
    )
}

/// Receives the name of the other end's memory.
async fn receive_memory_name(end: &mut End) -> RemoteMemory {
    let segment = end.memory.segment(0, 16).unwrap();
    end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
    end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
    midplane_simhw::wire::decode(&end.bytes(0, 16)).unwrap()
}

async fn send_memory_name(end: &mut End) {
    let words = midplane_simhw::wire::encode(&end.memory.remote()).unwrap();
    let at = end.memory.len() - words.len();
    end.memory.write(at, &words).unwrap();
    // The client has posted its receive by then.
    pause(&end.host, Duration::from_millis(1)).await;
    let segment = end.memory.segment(at, words.len()).unwrap();
    end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
}

const POSTED: [Posted; 4] =
    [Posted::Send(1_000), Posted::Write(4_000), Posted::Send(1), Posted::Write(3_000)];

#[test]
fn with_reliable_reception_a_send_completes_once_its_bytes_are_in_the_memory_of_a_slow_host() {
    let setting = Setting { scatter: SLOW, ..Setting::default() };
    let (sent, received) = run(setting, Reliability::ReliableReception, POSTED.to_vec(), 4);
    for ((sent, _), (received, _)) in sent.iter().zip(&received) {
        assert!(sent >= received, "{sent} {received}");
    }
}

#[test]
fn with_reliable_delivery_a_send_completes_before_its_bytes_are_in_the_memory_of_a_slow_host() {
    let setting = Setting { scatter: SLOW, ..Setting::default() };
    let (sent, received) = run(setting, Reliability::ReliableDelivery, POSTED.to_vec(), 4);
    let early = received[3].0.nanos_since(sent[3].0);
    // 8,001 bytes take 1.6 ms; the NIC has them after some 0.1 ms.
    assert!(early > 1_000_000, "{early}");
}

/// The third message finds no receive, while the second is on its way into the memory of a slow host.
#[test]
fn a_remote_error_is_reported_by_the_descriptor_that_failed_and_later_ones_are_flushed() {
    for level in [Reliability::ReliableDelivery, Reliability::ReliableReception] {
        let setting = Setting { scatter: SLOW, ..Setting::default() };
        let (sent, received) = run(setting, level, POSTED.to_vec(), 2);
        let outcomes: Vec<_> = sent.iter().map(|(_, outcome)| *outcome).collect();
        let expected =
            [Ok(()), Ok(()), Err(DescriptorError::RemoteDescriptor), Err(DescriptorError::Flushed)];
        assert_eq!(outcomes, expected, "{level:?}");
        assert!(received.iter().all(|(_, outcome)| outcome.is_ok()));
        if level == Reliability::ReliableReception {
            assert!(sent[1].0 >= received[1].0, "{} {}", sent[1].0, received[1].0);
        }
    }
}

/// The writes before the reads are on their way into the memory of a slow host when the data of the reads arrives. So
/// the requests are not acknowledged yet.
#[test]
fn a_read_that_overtakes_the_acknowledgement_of_its_request_completes_once() {
    let posted = vec![
        Posted::Read(100),
        Posted::Write(4_000),
        Posted::Read(3_000),
        Posted::Send(10),
        Posted::Read(1),
        Posted::Send(20),
    ];
    let setting = Setting { scatter: SLOW, ..Setting::default() };
    let (sent, received) = run(setting, Reliability::ReliableReception, posted, 3);
    assert_eq!(sent.len(), 3);
    for ((sent, outcome), (received, _)) in sent.iter().zip(&received) {
        assert_eq!(*outcome, Ok(()));
        assert!(sent >= received, "{sent} {received}");
    }
}

fn posted() -> impl Strategy<Value = Posted> {
    prop_oneof![
        (0..ROOM).prop_map(Posted::Send),
        (0..ROOM).prop_map(Posted::Write),
        (1..ROOM).prop_map(Posted::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Uses a network that loses, duplicates and reorders, both levels, and memory of any speed. Each descriptor
    /// completes once and in order; with reliable reception, not before its bytes are in memory.
    #[test]
    fn each_descriptor_completes_once_and_in_order_when_its_level_says(
        seed in 0_u64..1_000_000, receives: bool, byte_ps in 0_u32..200_000,
        posted in proptest::collection::vec(posted(), 1..30),
    ) {
        let faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, ..Faults::NONE };
        let scatter = DmaCost { setup_ns: 300, byte_ps };
        let setting = Setting { seed, faults, scatter, ..Setting::default() };
        let level =
            if receives { Reliability::ReliableReception } else { Reliability::ReliableDelivery };
        let total = posted.iter().filter(|posted| !matches!(posted, Posted::Read(_))).count();
        let (sent, received) = run(setting, level, posted, total);
        prop_assert_eq!((sent.len(), received.len()), (total, total));
        for ((sent, outcome), (received, _)) in sent.iter().zip(&received) {
            prop_assert_eq!(*outcome, Ok(()));
            prop_assert!(!receives || sent >= received, "{} {}", sent, received);
        }
    }
}
