//! Allocations of descriptors: none while they are posted and reaped in steady state.

use std::time::Duration;

use crate::pair::{End, Setting, connected, pause, reliable};
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::WorkQueue;

const BATCH: usize = 32;
const BYTES: usize = 64;
const ROUNDS: u32 = 20;

/// Posts a batch to one queue every millisecond and reaps it half a millisecond later. Returns the number of
/// allocations in the second half of the rounds.
async fn rounds(mut end: End, queue: WorkQueue) -> u64 {
    let segment = |at: usize| end.memory.segment(at * BYTES, BYTES).unwrap();
    let mut spare: Vec<_> = (0..BATCH).map(|at| Descriptor::of(segment(at))).collect();
    let mut allocated = 0;
    for round in 0..ROUNDS {
        let posted = allocation_counter::measure(|| {
            for descriptor in spare.drain(..) {
                match queue {
                    WorkQueue::Send => end.nic.post_send(end.vi, descriptor).unwrap(),
                    WorkQueue::Receive => end.nic.post_receive(end.vi, descriptor).unwrap(),
                }
            }
        });
        pause(&end.host, Duration::from_micros(500)).await;
        let reaped = allocation_counter::measure(|| {
            while let Some(done) = end.nic.done(end.vi, queue).unwrap() {
                done.outcome.unwrap();
                spare.push(done.descriptor);
            }
        });
        assert_eq!(spare.len(), BATCH, "round {round}");
        if round >= ROUNDS / 2 {
            allocated += posted.count_total + reaped.count_total;
        }
        pause(&end.host, Duration::from_micros(500)).await;
    }
    allocated
}

#[test]
fn descriptors_allocate_nothing() {
    let (sending, receiving) = connected(
        Setting::default(),
        reliable(),
        BATCH * BYTES,
        |end| async move {
            // The other end's receives are posted by then.
            pause(&end.host, Duration::from_micros(100)).await;
            rounds(end, WorkQueue::Send).await
        },
        |end| async move { rounds(end, WorkQueue::Receive).await },
    );
    assert_eq!((sending, receiving), (0, 0));
}
