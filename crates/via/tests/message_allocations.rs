//! Allocations of eager messages: none in steady state.

use crate::engines::{Process, cluster};
use midplane_via::message::engine::Config;
use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::request::{Load, Mode, Operation};
use midplane_via::message::transport::Wait;

/// Passes one message from rank 0 to rank 1; it arrives before its receive is posted if `early`.
fn pass(pair: &mut [Process], bytes: &[u8], storage: Vec<u8>, mode: Mode, early: bool) -> Vec<u8> {
    let context = Context(0);
    let send = Operation::Send { mode, to: Peer(1), context, tag: Tag(3) };
    let receive = Operation::Receive(Pattern { context, source: Some(Peer(0)), tag: None });
    let receive = pair[1].build(receive).unwrap();
    let room = Load::Room { room: bytes.len(), storage };
    let mut room = Some(room);
    if !early {
        pair[1].start(receive, room.take().unwrap()).unwrap();
    }
    let sent = pair[0].build(send).unwrap();
    pair[0].start(sent, Load::Copy(bytes)).unwrap();
    pair[1].advance(Wait::Not);
    if let Some(room) = room {
        pair[1].start(receive, room).unwrap();
    }
    while pair[1].requests().peek(receive).is_none() {
        pair[0].advance(Wait::Not);
        pair[1].advance(Wait::Not);
    }
    pair[0].advance(Wait::Not);
    pair[0].requests().take(sent).unwrap().result.unwrap();
    let outcome = pair[1].requests().take(receive).unwrap();
    pair[0].destroy(sent, false);
    pair[1].destroy(receive, false);
    outcome.bytes
}

#[test]
fn eager_messages_allocate_nothing() {
    let mut pair = cluster(2, MemoryConfig::default(), Config::default());
    for mode in [Mode::Standard, Mode::Synchronous] {
        for early in [false, true] {
            for length in [0, 8, 64, 4096] {
                let bytes = vec![7; length];
                let mut storage = Vec::with_capacity(4096);
                // So many that credit was sent several times, and every packet buffer of the carrier was used.
                for _ in 0..10_000 {
                    storage = pass(&mut pair, &bytes, storage, mode, early);
                }
                let counts = allocation_counter::measure(|| {
                    for _ in 0..2_000 {
                        let used = std::mem::take(&mut storage);
                        storage = pass(&mut pair, &bytes, used, mode, early);
                    }
                });
                assert_eq!(
                    counts.count_total, 0,
                    "{length} bytes, {mode:?}, early {early} {counts:?}"
                );
            }
        }
    }
}
