//! Tests that neither a skipped nor a sent message allocates.

use midplane_simhw::time::Instant;
use midplane_warp::gate::{CSend, GateKeeper, Reason};

#[test]
fn neither_a_skipped_nor_a_sent_message_allocates() {
    let (mut keeper, gate) = GateKeeper::new(1_000);
    let measured = allocation_counter::measure(|| {
        for round in 0..1_000_u64 {
            keeper.add_credit(Instant::from_nanos(round * 1_000), 1e8);
            while gate.c_send(100, || ()).is_sent() {}
            assert_eq!(gate.c_send(100, || ()), CSend::Skipped(Reason::Congested));
            assert!(gate.try_reserve(100).is_err());
        }
    });
    assert_eq!(measured.count_total, 0);
}
