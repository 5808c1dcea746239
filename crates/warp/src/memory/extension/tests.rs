use super::*;
use crate::dissector;
use crate::memory::coherent::{Coherence, Entry};
use crate::memory::log::PART;

/// Tests that the longest part of a log fits into one update, and that longer values are
/// refused.
#[test]
fn a_part_of_a_log_can_be_encoded() {
    let view = |length: usize| {
        let value = vec![1; length];
        let entry = Entry { writer: NodeId(1), ticket: 1, location: 1, value };
        let log = (0..PART as u64).map(|place| (place, entry.clone())).collect();
        Update::Coherent(Coherence::View { view: 1, committed: 1, log, more: true })
    };
    assert!(wire::encode(&view(MAX_VALUE)).is_ok() && has_short_values(&view(MAX_VALUE)));
    assert!(!has_short_values(&view(MAX_VALUE + 1)));
}

#[test]
fn the_dissector_knows_all_updates() {
    assert_eq!(dissector::table("updates"), dissector::variants::<Update<Vec<u8>>>());
    assert_eq!(dissector::table("coherence"), dissector::variants::<Coherence<Vec<u8>>>());
    assert_eq!(dissector::table("parts"), dissector::names([(MORE, "more"), (LAST, "last")]));
}
