//! Checks that every published result is reproduced within 10 %. The pages in `docs/figures` have the numbers.

use midplane::simhw::host::Host as _;
use midplane::simhw::profile::Machine;

use super::measure::{self, A, Anchor, B, command};
use crate::raw::{self, RECEIVE, SEND};

/// Largest deviation of a result from the published one, as a fraction.
const TOLERANCE: f64 = 0.1;

/// Measures all published results of these machines.
fn all() -> Vec<Anchor> {
    [measure::dvcm(), measure::score_d(), measure::pipelines(), measure::lam_via()].concat()
}

#[test]
fn published_results_come_out_within_a_tenth() {
    let anchors = all();
    assert_eq!(anchors.len(), 4 + 2 + 8 + 2);
    let wrong: Vec<&Anchor> =
        anchors.iter().filter(|it| (it.measured / it.published - 1.0).abs() > TOLERANCE).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn todays_machines_reach_the_rate_of_their_links_and_latencies_of_microseconds() {
    for (machine, gigabits) in [(Machine::ETHERNET_25G, 25.0), (Machine::ETHERNET_100G, 100.0)] {
        let carried = stream_mb_per_s(&machine, 60_000) * 8.0 / 1e3;
        assert!((0.85..1.0).contains(&(carried / gigabits)), "{}: {carried} Gb/s", machine.name);
        let one_way = measure::applications_us(&machine, 64);
        assert!((1.0..5.0).contains(&one_way), "{}: {one_way} us", machine.name);
    }
}

#[test]
fn every_machine_passes_messages_from_application_to_application() {
    for machine in Machine::ALL {
        let (small, large) =
            (measure::applications_us(&machine, 64), measure::applications_us(&machine, 4_096));
        assert!(0.0 < small && small < large, "{}: {small} and {large} us", machine.name);
    }
}

/// Returns the goodput of frames of `bytes`, sent back to back, in 10^6 byte/s.
fn stream_mb_per_s(machine: &Machine, bytes: usize) -> f64 {
    const FRAMES: u64 = 400;
    let mut world = raw::world(machine);
    let host = world.host(B);
    world.spawn(B, async move {
        let mut port = host.open_port().expect("the NIC is up");
        let region = port.register(bytes).expect("a region");
        for _ in 0..FRAMES {
            if port.outstanding() == port.depth() {
                port.completion().await.expect("the NIC is up");
            }
            port.submit(&command(SEND, B, region.whole())).expect("there is room");
        }
        while port.outstanding() > 0 {
            port.completion().await.expect("the NIC is up");
        }
    });
    let host = world.host(A);
    let nanos = world.block_on(A, async move {
        let mut port = host.open_port().expect("the NIC is up");
        let region = port.register(bytes).expect("a region");
        for _ in 0..64 {
            port.submit(&command(RECEIVE, A, region.whole())).expect("there is room");
        }
        port.completion().await.expect("the NIC is up");
        let began = host.now();
        for _ in 1..FRAMES {
            port.submit(&command(RECEIVE, A, region.whole())).expect("there is room");
            port.completion().await.expect("the NIC is up");
        }
        host.now().nanos_since(began)
    });
    (FRAMES - 1) as f64 * bytes as f64 / nanos.expect("all arrive") as f64 * 1e3
}
