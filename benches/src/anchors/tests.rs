//! Checks that every published result is reproduced within 10 %, and identically each time.

use super::measure::{self, Anchor};
use super::{adaptation, gam};
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

/// Checks that times of whole messages and streams alone are enough to cut messages (pipelines paper, section 5.3.2).
#[test]
fn the_stages_of_gam_are_seen_from_outside_as_the_paper_saw_them() {
    let [direct, rest, indirect, unseen] = measure::pipelines_table_2();
    // The paper's own two methods differ by 7.6 / 7.5 and 37.8 / 40.0.
    for (inside, outside) in [(direct, indirect), (rest, unseen)] {
        let error = |inside: f64, outside: f64| (outside / inside - 1.0).abs();
        let ours = error(inside.measured, outside.measured);
        assert!(ours < error(inside.published, outside.published), "{outside:?}: {ours}");
        assert!(error(inside.published, inside.measured) < 0.01, "{inside:?}");
    }
    assert_eq!(gam::black_box().count(4096.0), 5);
}

/// Checks the fixed-sized model against the machine as the paper does: 5.9 % mean error, five fragments (section 5.4).
#[test]
fn models_of_gam_predict_its_messages_better_than_the_papers_did() {
    let (clear, black) = (gam::clear_box(gam::COPY), gam::black_box());
    let measured: Vec<f64> =
        (1..=16).map(|count| gam::message_us(gam::COPY, gam::equal(4096, count))).collect();
    let error = |model: &dyn Fn(usize) -> f64| {
        let errors = (1..).zip(&measured).map(|(count, us)| (model(count) / us - 1.0).abs());
        errors.sum::<f64>() / 16.0
    };
    let of_clear = error(&|count| clear.latency(&vec![4096.0 / count as f64; count], None).get());
    let of_black = error(&|count| black.latency(4096.0, count).get());
    assert!(of_clear < 0.005 && of_black < 0.005, "{of_clear} and {of_black}");
    let best = (1..).zip(&measured).min_by(|a, b| a.1.total_cmp(b.1)).map(|(count, _)| count);
    assert_eq!(best, Some(5), "{measured:?}");
}

/// Checks that one message after a change, a planner which follows it is within 4 % of the best cut, and one which does not
/// stays far from it.
#[test]
fn a_planner_follows_a_stage_whose_costs_change_amid_messages() {
    for (what, copy) in adaptation::CHANGES {
        let best = adaptation::optimum_us(copy);
        let runs = [true, false].map(|follows| {
            let sent = adaptation::run(copy, 100, follows);
            let after = sent.into_iter().filter(|sent| sent.at_us > adaptation::CHANGE_US);
            after.map(|sent| sent.latency_us / best).collect::<Vec<f64>>()
        });
        println!("{what}: {best:.1} us, {:.3?} and {:.3?}", &runs[0][..8], &runs[1][..8]);
        assert!(runs[0][1..].iter().all(|ratio| *ratio < 1.04), "{what}: {:?}", runs[0]);
        assert!(runs[1].iter().all(|ratio| *ratio > 1.2), "{what}: {:?}", runs[1]);
    }
}
