//! Sends, writes and reads over a connection: received bytes are the posted ones, even if the network loses, duplicates
//! and reorders frames.

use std::time::Duration;

use crate::pair;
use crate::pair::{End, Setting, connected, pattern, pause};
use midplane_nicvm::unit::Unit;
use midplane_pipeline::stage::{Pipeline, Stage};
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host as _;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::{DmaCost, NicProfile};
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use midplane_via::VIA;
use midplane_via::attributes::{Reliability, ViAttributes};
use midplane_via::descriptor::Descriptor;
use midplane_via::firmware::{Via, ViaConfig};
use midplane_via::nic::WorkQueue;
use midplane_via::outcome::Operation;
use proptest::prelude::*;

fn reliable() -> ViAttributes {
    ViAttributes {
        reliability: Reliability::ReliableDelivery,
        rdma_write: true,
        rdma_read: true,
        ..ViAttributes::default()
    }
}

fn lossy(seed: u64) -> Setting {
    let faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, ..Faults::NONE };
    Setting { seed, faults, ..Setting::default() }
}

async fn post_receives(end: &mut End, count: usize, room: usize) {
    for at in 0..count {
        let segment = end.memory.segment(at * room, room).unwrap();
        end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
    }
}

/// Sends messages of these lengths; returns the contents of those that arrived.
fn messages(setting: Setting, attributes: ViAttributes, lengths: Vec<usize>) -> Vec<Vec<u8>> {
    const ROOM: usize = 9_000;
    let total = lengths.len();
    let (_, received) = connected(
        setting,
        attributes,
        total.max(1) * ROOM,
        move |mut end| async move {
            // The server's receives are posted by then.
            pause(&end.host, Duration::from_millis(1)).await;
            for (number, length) in lengths.iter().enumerate() {
                end.memory.write(number * ROOM, &pattern(number as u32, *length)).unwrap();
                let segment = end.memory.segment(number * ROOM, *length).unwrap();
                let descriptor = Descriptor::of(segment).immediate(number as u32);
                end.nic.post_send(end.vi, descriptor).unwrap();
            }
            for length in &lengths {
                let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                assert_eq!((done.outcome, done.length), (Ok(()), *length));
            }
            // Unreliable messages are still under way.
            pause(&end.host, Duration::from_millis(5)).await;
        },
        move |mut end| async move {
            post_receives(&mut end, total, ROOM).await;
            let mut received = Vec::new();
            for number in 0..total {
                let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
                assert_eq!(done.outcome, Ok(()));
                assert_eq!(done.operation, Operation::Receive);
                assert_eq!(done.immediate, Some(number as u32));
                let offset = done.descriptor.segments[0].offset();
                received.push(end.bytes(offset, done.length));
            }
            received
        },
    );
    received
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    let lengths = vec![0, 1, 64, 1499, 1500, 1501, 4096, 9000];
    let received = messages(Setting::default(), reliable(), lengths.clone());
    let expected: Vec<_> =
        lengths.iter().enumerate().map(|(n, length)| pattern(n as u32, *length)).collect();
    assert_eq!(received, expected);
}

#[test]
fn an_unreliable_interface_on_a_good_network_delivers_all() {
    let lengths = vec![0, 1, 64, 1500, 1501, 9000];
    let received = messages(Setting::default(), ViAttributes::default(), lengths.clone());
    assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_reliable_interface_loses_doubles_and_reorders_nothing(
        seed in 0_u64..1_000_000, lengths in proptest::collection::vec(0_usize..9000, 1..40),
    ) {
        let received = messages(lossy(seed), reliable(), lengths.clone());
        prop_assert_eq!(received.len(), lengths.len());
        for (number, (bytes, length)) in received.iter().zip(&lengths).enumerate() {
            prop_assert!(*bytes == pattern(number as u32, *length), "message {}", number);
        }
    }
}

#[test]
fn memory_is_written_and_read_over_a_network_that_loses() {
    const HALF: usize = 40_000;
    let (client, server) = connected(
        lossy(7),
        reliable(),
        2 * HALF,
        |mut end| async move {
            // The server sends the name of its memory.
            let mut words = [0; 16];
            end.nic
                .post_receive(end.vi, Descriptor::of(end.memory.segment(0, 16).unwrap()))
                .unwrap();
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            end.memory.read(0, &mut words).unwrap();
            let remote = midplane_simhw::wire::decode(&words).unwrap();
            end.memory.write(0, &pattern(1, HALF)).unwrap();
            let write = Descriptor::of(end.memory.segment(0, HALF).unwrap()).write(remote);
            end.nic.post_send(end.vi, write.immediate(77)).unwrap();
            let read = Descriptor::of(end.memory.segment(HALF, HALF).unwrap());
            end.nic.post_send(end.vi, read.read(remote)).unwrap();
            for expected in [Operation::RdmaWrite, Operation::RdmaRead] {
                let done = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
                assert_eq!((done.operation, done.outcome), (expected, Ok(())));
            }
            end.bytes(HALF, HALF)
        },
        |mut end| async move {
            end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
            let words = midplane_simhw::wire::encode(&end.memory.remote()).unwrap();
            end.memory.write(HALF, &words).unwrap();
            pause(&end.host, Duration::from_millis(2)).await;
            let segment = end.memory.segment(HALF, words.len()).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            assert_eq!(done.operation, Operation::RemoteRdmaWrite);
            assert_eq!((done.immediate, done.length), (Some(77), HALF));
            pause(&end.host, Duration::from_millis(100)).await;
            end.bytes(0, HALF)
        },
    );
    assert_eq!(server, pattern(1, HALF));
    assert_eq!(client, pattern(1, HALF));
}

#[test]
fn more_reads_than_the_other_end_stores_wait_their_turn() {
    const READS: usize = 150;
    const EACH: usize = 9_000;
    let (read, _) = connected(
        Setting::default(),
        reliable(),
        READS * EACH,
        |mut end| async move {
            let words = end.memory.segment(0, 16).unwrap();
            end.nic.post_receive(end.vi, Descriptor::of(words)).unwrap();
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            let remote = midplane_simhw::wire::decode(&end.bytes(0, 16)).unwrap();
            for number in 0..READS {
                let segment = end.memory.segment(number * EACH, EACH).unwrap();
                end.nic.post_send(end.vi, Descriptor::of(segment).read(remote)).unwrap();
            }
            for _ in 0..READS {
                assert_eq!(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome, Ok(()));
            }
            end.bytes(0, READS * EACH)
        },
        |mut end| async move {
            let words = midplane_simhw::wire::encode(&end.memory.remote()).unwrap();
            end.memory.write(EACH, &words).unwrap();
            end.memory.write(0, &pattern(1, EACH)).unwrap();
            pause(&end.host, Duration::from_millis(2)).await;
            let segment = end.memory.segment(EACH, words.len()).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            pause(&end.host, Duration::from_millis(100)).await;
        },
    );
    assert!(read == pattern(1, EACH).repeat(READS));
}

#[test]
fn segments_are_gathered_and_scattered_in_order() {
    let (_, received) = connected(
        Setting::default(),
        reliable(),
        8192,
        |mut end| async move {
            pause(&end.host, Duration::from_millis(1)).await;
            end.memory.write(0, &pattern(3, 8192)).unwrap();
            let parts = [(5, 100), (0, 5), (3000, 3000), (7, 0), (105, 1)];
            let segments = parts.map(|(at, length)| end.memory.segment(at, length).unwrap());
            let descriptor = Descriptor::from(Vec::from(segments));
            end.nic.post_send(end.vi, descriptor).unwrap();
            assert_eq!(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome, Ok(()));
        },
        |mut end| async move {
            let parts = [(4000, 1000), (0, 2000), (2500, 200)];
            let segments = parts.map(|(at, length)| end.memory.segment(at, length).unwrap());
            let descriptor = Descriptor::from(Vec::from(segments));
            end.nic.post_receive(end.vi, descriptor).unwrap();
            let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            assert_eq!((done.outcome, done.length), (Ok(()), 3106));
            let mut bytes = end.bytes(4000, 1000);
            bytes.extend(end.bytes(0, 2000));
            bytes.extend(end.bytes(2500, 106));
            assert_eq!(end.bytes(2606, 94), [0; 94]);
            bytes
        },
    );
    let sent = pattern(3, 8192);
    let expected: Vec<u8> =
        [&sent[5..105], &sent[..5], &sent[3000..6000], &sent[105..106]].concat();
    assert_eq!(received, expected);
}

#[test]
fn a_fenced_send_waits_for_the_reads_before_it() {
    let (order, _) = connected(
        Setting::default(),
        reliable(),
        65_536,
        |mut end| async move {
            end.nic
                .post_receive(end.vi, Descriptor::of(end.memory.segment(0, 16).unwrap()))
                .unwrap();
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            let remote = midplane_simhw::wire::decode(&end.bytes(0, 16)).unwrap();
            let read = Descriptor::of(end.memory.segment(0, 30_000).unwrap()).read(remote);
            end.nic.post_send(end.vi, read).unwrap();
            let fenced = Descriptor::default().fenced();
            end.nic.post_send(end.vi, fenced).unwrap();
            let first = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            let second = end.nic.wait(end.vi, WorkQueue::Send).await.unwrap();
            assert_eq!(second.outcome, Ok(()));
            (first.operation, end.bytes(0, 30_000))
        },
        |mut end| async move {
            end.memory.write(0, &pattern(9, 65_536)).unwrap();
            let words = midplane_simhw::wire::encode(&end.memory.remote()).unwrap();
            let at = end.memory.len() - 16;
            end.memory.write(at, &words).unwrap();
            end.nic.post_receive(end.vi, Descriptor::default()).unwrap();
            pause(&end.host, Duration::from_millis(1)).await;
            let segment = end.memory.segment(at, 16).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            // The fenced message arrives once the memory has been read: it may change now.
            end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            end.memory.write(0, &vec![0; 60_000]).unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
        },
    );
    assert_eq!(order, (Operation::RdmaRead, pattern(9, 30_000)));
}

/// The way in which messages are cut into frames.
#[derive(Clone, Debug)]
enum Cut {
    Full,
    By(Pipeline),
    /// The extension's default.
    Default,
}

fn unit(cut: &Cut) -> Unit {
    let via = Via::new(ViaConfig::default());
    let mut unit = Unit::default();
    let via = match cut {
        Cut::Full => via.full_frames(),
        Cut::By(chain) => via.fragments(chain.clone()),
        Cut::Default => via,
    };
    unit.install(VIA, via).unwrap();
    unit
}

/// Returns the nanoseconds that `count` messages at a time take to the other end's memory.
fn nanos_for_messages(
    (profile, link): (NicProfile, LinkProfile),
    cut: Cut,
    length: usize,
    count: usize,
) -> u64 {
    let switch = SwitchProfile::new(Buffer::Bytes(1 << 20));
    let mut world =
        World::new(&Topology::star(2, link, switch), profile, 1, move |_, _| unit(&cut));
    let (client, server) = (world.host(pair::CLIENT), world.host(pair::SERVER));
    let (arrived, arrival) = std::sync::mpsc::channel();
    world.spawn(pair::SERVER, async move {
        let mut end = End::new(server, reliable(), 65_536).await;
        for _ in 0..ROUNDS * count {
            // No message is read, so all use the same memory.
            let segment = end.memory.segment(0, length).unwrap();
            end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
        }
        end.serve().await;
        for _ in 0..ROUNDS * count {
            let done = end.nic.wait(end.vi, WorkQueue::Receive).await.unwrap();
            assert_eq!(done.outcome, Ok(()));
            arrived.send(end.host.now()).unwrap();
        }
        std::future::pending::<()>().await;
    });
    let begun = world.block_on(pair::CLIENT, async move {
        let mut end = End::new(client, reliable(), 65_536).await;
        end.connect().await;
        let mut begun = end.host.now();
        for _ in 0..ROUNDS {
            pause(&end.host, Duration::from_millis(1)).await;
            begun = end.host.now();
            for _ in 0..count {
                let segment = end.memory.segment(0, length).unwrap();
                end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            }
            for _ in 0..count {
                assert_eq!(end.nic.wait(end.vi, WorkQueue::Send).await.unwrap().outcome, Ok(()));
            }
        }
        pause(&end.host, Duration::from_millis(1)).await;
        begun
    });
    arrival.try_iter().last().unwrap().nanos_since(begun.unwrap())
}

/// Rounds of messages of one size; the plan for that size is computed before the last of them.
const ROUNDS: usize = 10;

/// A slow line between slow copies, as the papers' were.
fn slow() -> (NicProfile, LinkProfile) {
    let copy = DmaCost { setup_ns: 4_000, byte_ps: 20_000 };
    let profile = NicProfile { gather: copy, scatter: copy, mtu: 8_192, ..NicProfile::MODERN };
    (profile, LinkProfile::plain(LineRate::mbps(100), Duration::from_nanos(500)))
}

#[test]
fn messages_that_are_cut_by_a_plan_arrive_sooner() {
    let stages = [(4.0, 0.02), (6.0, 0.08), (6.0, 0.08), (4.0, 0.02)]
        .map(|(overhead, byte)| Stage::new(overhead, byte).unwrap());
    let chain = Pipeline::new(stages.into()).unwrap();
    for length in [1_000, 2_000, 4_000, 6_000] {
        let whole = nanos_for_messages(slow(), Cut::Full, length, 1);
        let planned = nanos_for_messages(slow(), Cut::By(chain.clone()), length, 1);
        println!("{length} bytes: whole {whole} ns, planned {planned} ns");
        assert!(planned < whole, "{length} bytes: {planned} ns by a plan, {whole} ns whole");
    }
}

/// Measured round trips are those of short frames, and take a fraction of this frame's time.
#[test]
fn a_long_frame_on_a_slow_line_is_sent_once() {
    const BYTES: usize = 60_000;
    let rate = LineRate::mbps(10);
    let nic = NicProfile { mtu: 65_000, ..NicProfile::MODERN };
    let machine = (nic, LinkProfile::plain(rate, Duration::from_nanos(500)));
    let (taken, two_lines) =
        (nanos_for_messages(machine, Cut::Full, BYTES, 1), 2 * rate.nanos_for(BYTES as u64));
    assert!(taken < two_lines * 11 / 10, "{taken} ns, of which lines take {two_lines}");
}

/// Checks all kinds of lines. A single message arrives no later, and much sooner on lines that store and forward
/// frames. Of several at once, the first and the last are planned, and all take at most a ninth longer.
#[test]
fn a_simulated_nic_plans_by_default() {
    let (mut best, mut is_sooner) = (1.0_f64, 0);
    type Line = fn(LineRate, Duration) -> LinkProfile;
    let lines: [(&str, Line); 3] = [
        ("plain", LinkProfile::plain),
        ("Ethernet", LinkProfile::ethernet),
        ("ATM", LinkProfile::atm),
    ];
    let nics =
        [("slow", slow().0), ("modern", NicProfile::MODERN), ("SBA-200E", NicProfile::SBA_200E)];
    for ((line, link), (name, nic)) in lines.iter().flat_map(|line| nics.map(|nic| (line, nic))) {
        for rate in [100, 10_000] {
            for length in [1_000, 6_000, 30_000] {
                let machine = (nic, link(LineRate::mbps(rate), Duration::from_nanos(500)));
                let times =
                    |cut: Cut, count| nanos_for_messages(machine, cut, length, count) as f64;
                let gain = |count| times(Cut::Default, count) / times(Cut::Full, count);
                let (one, eight) = (gain(1), gain(8));
                let what = format!("{length} bytes, {line} {rate} Mb/s, {name}: {one} {eight}");
                assert!(one < 1.01 && eight < 1.11, "{what}");
                best = best.min(one);
                is_sooner += usize::from(one < 0.95);
            }
        }
    }
    assert!(best < 0.5 && is_sooner > 24, "{best}, {is_sooner} of 54");
}
