//! Messages between registered memory of two processes, in virtual time.

use std::time::Duration;

use futures_util::future::join;
use midplane_simhw::fault::Faults;
use midplane_via::memory::Memory;
use midplane_via::message::communicator::{Communicator, Probed};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::memory::{MemoryConfig, network};
use midplane_via::message::process::MessageError;
use midplane_via::message::request::{Failure, Load, Mode};
use midplane_via::rdma::{RdmaConfig, Registration};
use proptest::prelude::*;

use crate::pair::job::run;
use crate::pair::{Setting, pattern, pause};

const TAG: Tag = Tag(1);

fn two() -> Setting {
    Setting { nodes: 2, ..Setting::default() }
}

fn bytes_of(memory: &Memory, length: usize) -> Vec<u8> {
    memory.segment(0, length).unwrap().to_vec()
}

/// The sides of an exchange that use registered memory.
#[derive(Clone, Copy, Debug)]
struct Sides {
    sender: bool,
    receiver: bool,
}

/// Has rank 0 send messages of these lengths to rank 1, one after the other. It overwrites each as soon as it may.
fn exchange(setting: Setting, config: RdmaConfig, messages: Vec<(usize, Sides)>) {
    run(setting, config, move |all, _| {
        let messages = messages.clone();
        async move {
            let peer = Rank(1 - all.rank().0);
            let most = messages.iter().map(|(length, _)| *length).max().unwrap().max(1);
            let memory = all.register(peer, most).unwrap();
            for (number, (length, sides)) in messages.into_iter().enumerate() {
                let expected = pattern(number as u32, length);
                if all.rank() == Rank(0) && sides.sender {
                    memory.write(0, &expected).unwrap();
                    let message = memory.segment(0, length).unwrap();
                    all.send_memory(peer, TAG, message).await.unwrap();
                    memory.write(0, &vec![0xEE; length]).unwrap();
                } else if all.rank() == Rank(0) {
                    all.send(peer, TAG, expected).await.unwrap();
                } else if sides.receiver {
                    let received = all.receive_memory(peer, TAG, memory.whole()).await.unwrap();
                    assert_eq!(received, Probed { source: peer, tag: TAG, length });
                    assert!(bytes_of(&memory, length) == expected, "message {number}");
                } else {
                    let received = all.receive(peer, TAG).await.unwrap();
                    assert!(received.bytes == expected, "message {number}");
                }
            }
        }
    });
}

#[test]
fn messages_of_all_sizes_arrive_in_registered_memory_as_they_were() {
    let both = Sides { sender: true, receiver: true };
    let lengths = [0, 1, 4096, 8192, 8193, 65_536, 1 << 20, 4 << 20, (4 << 20) + 1, 70_000];
    for how in [Registration::Copied, Registration::Cached, Registration::Registered] {
        let messages = lengths.iter().map(|length| (*length, both)).collect();
        exchange(two(), RdmaConfig::default().registration(how), messages);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Uses registered memory at either side, over networks with and without loss.
    #[test]
    fn registered_memory_and_bytes_meet_in_every_way(
        seed in 0_u64..1_000_000,
        lossy: bool,
        messages in proptest::collection::vec(
            (0_usize..60_000, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let faults = Faults { loss: 0.03, duplicate: 0.03, reorder: 0.05, ..Faults::NONE };
        let faults = if lossy { faults } else { Faults::NONE };
        let config = RdmaConfig::default().area(16_384).descriptors(12);
        let messages = messages.into_iter().map(|(length, sender, receiver)| {
            (length, Sides { sender, receiver })
        });
        exchange(Setting { seed, faults, ..two() }, config, messages.collect());
    }
}

/// Sends more at once, in both directions, than memory may be named for.
#[test]
fn many_messages_between_registered_memory_are_under_way_at_once() {
    const EACH: usize = 50_000;
    run(two(), RdmaConfig::default(), |all, _| async move {
        let peer = Rank(1 - all.rank().0);
        let memories: Vec<_> = (0..24).map(|_| all.register(peer, 2 * EACH).unwrap()).collect();
        let start = |number: usize| {
            let memory = &memories[number];
            memory.write(0, &pattern(number as u32, EACH)).unwrap();
            let (message, tag) = (memory.segment(0, EACH).unwrap(), Tag(number as u32));
            let room = memory.segment(EACH, EACH).unwrap();
            join(all.send_memory(peer, tag, message), all.receive_memory(peer, tag, room))
        };
        let done = futures_util::future::join_all((0..24).map(start)).await;
        for (number, (sent, received)) in done.into_iter().enumerate() {
            sent.unwrap();
            assert_eq!(received.unwrap().length, EACH);
            let room = memories[number].segment(EACH, EACH).unwrap();
            assert!(room.to_vec() == pattern(number as u32, EACH), "message {number}");
        }
    });
}

/// Memory registered for one process receives messages of another one by a copy.
#[test]
fn memory_for_one_process_takes_messages_of_every_process() {
    let setting = Setting { nodes: 3, ..Setting::default() };
    run(setting, RdmaConfig::default(), |all, _| async move {
        if all.rank() == Rank(0) {
            let room = all.register(Rank(1), 30_000).unwrap();
            for _ in 0..2 {
                let received = all.receive_memory(None, TAG, room.whole()).await.unwrap();
                let expected = pattern(received.source.0, received.length);
                assert!(bytes_of(&room, received.length) == expected, "{received:?}");
            }
        } else {
            // The memory of rank 2 is registered for rank 1, too.
            let memory = all.register(Rank(1 - all.rank().0 % 2), 30_000).unwrap();
            memory.write(0, &pattern(all.rank().0, 30_000)).unwrap();
            all.send_memory(Rank(0), TAG, memory.whole()).await.unwrap();
        }
    });
}

#[test]
fn a_message_longer_than_its_registered_room_is_cut_off_there() {
    for (length, room) in [(100_000, 50_000), (20_000, 100), (3_000, 1_000)] {
        run(two(), RdmaConfig::default(), move |all, _| async move {
            let peer = Rank(1 - all.rank().0);
            let memory = all.register(peer, length).unwrap();
            if all.rank() == Rank(0) {
                memory.write(0, &pattern(1, length)).unwrap();
                all.send_memory(peer, TAG, memory.whole()).await.unwrap();
            } else {
                let part = memory.segment(0, room).unwrap();
                let failed = all.receive_memory(peer, TAG, part).await.unwrap_err();
                assert_eq!(failed, MessageError::Failed(Failure::Truncated { length, room }));
                let mut expected = pattern(1, length);
                expected[room..].fill(0);
                assert!(bytes_of(&memory, length) == expected);
            }
        });
    }
}

/// Drops a receive at any moment, and receives its message again.
#[test]
fn a_message_of_a_dropped_receive_is_received_again() {
    for wait_us in [0, 5, 20, 50, 100, 200, 400, 1_000, 10_000] {
        run(two(), RdmaConfig::default(), move |all, host| async move {
            let peer = Rank(1 - all.rank().0);
            let memory = all.register(peer, 300_000).unwrap();
            if all.rank() == Rank(0) {
                memory.write(0, &pattern(5, 300_000)).unwrap();
                all.send_memory(peer, TAG, memory.whole()).await.unwrap();
                all.receive(peer, TAG).await.unwrap();
            } else {
                let room = Load::Memory(memory.whole());
                let dropped = all.ireceive_into(peer, TAG, room).unwrap();
                pause(&host, Duration::from_micros(wait_us)).await;
                drop(dropped);
                let received = all.receive(peer, TAG).await.unwrap();
                assert!(received.bytes == pattern(5, 300_000), "dropped after {wait_us} us");
                all.send(peer, TAG, vec![]).await.unwrap();
            }
        });
    }
}

/// A buffered send is done at once, so its bytes are copied.
#[test]
fn a_buffered_send_from_registered_memory_copies_the_bytes_at_its_start() {
    run(two(), RdmaConfig::default(), |all, _| async move {
        let peer = Rank(1 - all.rank().0);
        let memory = all.register(peer, 90_000).unwrap();
        if all.rank() == Rank(0) {
            memory.write(0, &pattern(3, 90_000)).unwrap();
            all.attach(100_000);
            let load = Load::Memory(memory.whole());
            all.with(|process| {
                let request = process.isend(all.handle(), Mode::Buffered, peer, TAG, load);
                process.free(request.unwrap());
            });
            memory.write(0, &[0; 90_000]).unwrap();
            all.detach().await;
        } else {
            all.receive_memory(peer, TAG, memory.whole()).await.unwrap();
            assert!(bytes_of(&memory, 90_000) == pattern(3, 90_000));
        }
    });
}

#[test]
fn a_wire_without_registered_memory_reports_that() {
    let carrier = network(2, MemoryConfig::default()).remove(0);
    let all = Communicator::world(Engine::new(carrier, Config::default()), 2).unwrap();
    let failed = all.register(Rank(1), 100).unwrap_err();
    assert_eq!(failed, MessageError::NotRegistered { peer: Rank(1), bytes: 100 });
    assert!(failed.to_string().contains("send bytes instead"), "{failed}");
}
