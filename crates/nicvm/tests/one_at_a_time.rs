//! Exclusive use of the link: no message starts without the token. After a release, no more follows than the previous
//! holder's lead, and the frames that two control messages sent in between delay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, Load};
use midplane_nicvm::coordination::{Hold, Lead};
use midplane_simhw::fault::Faults;
use midplane_simhw::frame::{HEADER_BYTES, Kind};
use midplane_simhw::id::NodeId;
use midplane_simhw::trace::{Engine, Record};
use proptest::prelude::*;

/// Begin and end of each data frame on its sender's wire, and the sender.
type Transmissions = Vec<(u64, u64, NodeId)>;

/// Returns the nanoseconds for which a frame occupies a wire of 100 Mb/s, in packets of 1,472 bytes.
fn on_the_wire(payload: u64) -> u64 {
    let bytes = payload + HEADER_BYTES as u64;
    (bytes + 66 * bytes.div_ceil(1_472)) * 80
}

/// Returns the times of all data frames of a run, in the order in which they began.
fn transmissions(cluster: &Cluster, load: Load) -> Transmissions {
    let mut world = cluster.world();
    let seen: Arc<Mutex<Transmissions>> = Arc::default();
    let into = Arc::clone(&seen);
    // Frames that were given to their line and have not left it.
    let mut sent = BTreeMap::new();
    world.observe(move |record| match record {
        Record::Sent { node, frame, .. } if frame.header.kind == Kind::Data => {
            sent.insert(frame.number, (*node, on_the_wire(frame.payload.len() as u64)));
        }
        // The first link is its sender's; for a frame in several packets, the last one is reported.
        Record::Busy { engine: Engine::Link(_), ends, frame: Some(frame), .. } => {
            if let Some((node, nanos)) = sent.remove(frame) {
                let ends = ends.as_nanos();
                into.lock().unwrap().push((ends - nanos, ends, node));
            }
        }
        _ => {}
    });
    cluster.run_in(world, load);
    let mut transmissions = std::mem::take(&mut *seen.lock().unwrap());
    transmissions.sort_unstable();
    transmissions
}

/// Returns the longest time in ns for which frames of two senders were on their wires at once, and how often one sender
/// followed another.
fn overlap(transmissions: &Transmissions) -> (u64, usize) {
    let (mut worst, mut turns) = (0, 0);
    let mut last_of: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut before = None;
    for (begins, ends, node) in transmissions {
        let others = last_of.iter().filter(|(other, _)| *other != node).map(|(_, ends)| *ends);
        worst = worst.max(others.max().unwrap_or(0).saturating_sub(*begins));
        turns += usize::from(before.replace(*node).is_some_and(|before| before != *node));
        last_of.insert(*node, *ends);
    }
    (worst, turns)
}

/// Bytes of a message between units that requests a token, or grants one.
const GRANT_BYTES: u64 = 78;

/// Returns the most nanoseconds for which frames of two senders may be on the line at once, with a lead of `lead_ns`. A
/// holder expects that two control messages among its last data leave a gap, which frames of other senders fill.
fn most_at_once(lead_ns: u64) -> u64 {
    lead_ns + 2 * on_the_wire(GRANT_BYTES)
}

fn cluster(senders: u16, seed: u64, lead: Lead, hold: Hold, loss: f64) -> Cluster {
    let mut cluster = Cluster::ethernet(senders);
    cluster.seed = seed;
    cluster.config = cluster.config.lead(lead).hold(hold).reserve(0);
    cluster.faults = Faults { loss, ..Faults::NONE };
    cluster
}

const LOAD: Load = Load {
    message_bytes: 0,
    coordinated: true,
    time: Duration::from_millis(40),
    burst: 8,
    active: u16::MAX,
    drain: Duration::from_millis(40),
    buffers: 64,
    keeps: Duration::ZERO,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn after_a_release_frames_overlap_by_no_more_than_the_lead(
        senders in 2..6_u16, message_bytes in 1_000..20_000_usize, lead_us in 0..150_u64,
        by_message: bool, seed: u64, loss in 0..3_u32,
    ) {
        let (lead, most) = match lead_us {
            0..20 => (Lead::Off, 0),
            _ => (Lead::Fixed(Duration::from_micros(lead_us)), lead_us * 1_000),
        };
        let hold = if by_message { Hold::Message } else { Hold::Bytes(30_000) };
        let cluster = cluster(senders, seed, lead, hold, f64::from(loss) / 100.0);
        let transmissions = transmissions(&cluster, Load { message_bytes, ..LOAD });
        let (worst, turns) = overlap(&transmissions);
        prop_assert!(turns > 1, "{turns} turns in {} frames", transmissions.len());
        prop_assert!(worst <= most_at_once(most), "{worst} ns at once, with a lead of {most} ns");
    }
}

/// A control message leaves before the holder's last data: frames overlap for 15 us more than the lead.
#[test]
fn a_control_message_among_the_last_data_overlaps_only_by_its_gap() {
    let lead = Lead::Fixed(Duration::from_micros(68));
    let cluster = cluster(4, 19_066_777_813_466_820, lead, Hold::Bytes(30_000), 0.0);
    let (worst, _) = overlap(&transmissions(&cluster, Load { message_bytes: 2_537, ..LOAD }));
    assert!((68_000..=most_at_once(68_000)).contains(&worst), "{worst} ns");
}

#[test]
fn without_coordination_frames_overlap() {
    let cluster = cluster(3, 1, Lead::Off, Hold::Message, 0.0);
    let transmissions =
        transmissions(&cluster, Load { message_bytes: 10_000, coordinated: false, ..LOAD });
    assert!(overlap(&transmissions).0 > 100_000, "the test would see it");
}

#[test]
fn a_lead_is_used_and_not_exceeded() {
    let lead = Lead::Fixed(Duration::from_micros(150));
    let cluster = cluster(2, 1, lead, Hold::Message, 0.0);
    let (worst, turns) = overlap(&transmissions(&cluster, Load { message_bytes: 10_000, ..LOAD }));
    assert!((1..=150_000).contains(&worst), "{worst} ns in {turns} turns");
}
