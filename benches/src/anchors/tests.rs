//! Checks that every published result is reproduced within 10 %, and identically each time.

use super::measure::{self, Anchor};
use midplane::simhw::profile::Machine;

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
fn the_order_of_the_papers_machines_holds() {
    let measured = |what: &str| {
        let anchors = all();
        anchors.iter().find(|anchor| anchor.what.contains(what)).unwrap().measured
    };
    assert!(measured("coprocessor to coprocessor") * 3.0 < measured("application to application"));
    assert!(measured("M-VIA") < measured("TCP"));
}

#[test]
fn todays_machines_carry_what_their_links_do_and_answer_within_microseconds() {
    for (machine, gigabits) in [(Machine::ETHERNET_25G, 25.0), (Machine::ETHERNET_100G, 100.0)] {
        let carried = measure::stream_mb_per_s(&machine, 60_000) * 8.0 / 1e3;
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
