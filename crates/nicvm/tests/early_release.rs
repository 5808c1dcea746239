//! Early token release (DVCM paper, Figure 4): how much of the hand-over it hides, and what too early a release costs.

use std::time::Duration;

use crate::cluster::{Cluster, Load, Outcome};
use midplane_nicvm::coordination::{Hold, Lead};
use midplane_simhw::fault::Faults;

/// An ATM cell at 149.76 Mb/s.
const CELL_NS: u64 = 2831;

/// Two senders that pass the token after each message, as in the paper. Without a reserve, so that all gaps come from
/// hand-overs.
fn two_senders(lead: Lead, message_bytes: usize, cells: u32) -> Outcome {
    let mut cluster = Cluster::atm(2, cells);
    cluster.config = cluster.config.lead(lead).hold(Hold::Message).reserve(0);
    cluster.run(Load { message_bytes, time: Duration::from_secs(1), ..Load::default() })
}

/// Returns the microseconds for which one message occupies the link.
fn period_us(outcome: &Outcome) -> f64 {
    outcome.bytes as f64 * 8.0 / outcome.goodput_mbps()
}

fn alone_us(message_bytes: usize) -> f64 {
    let load = Load { message_bytes, coordinated: false, ..Load::default() };
    period_us(&Cluster::atm(1, 256).run(load))
}

fn fixed(cells: u64) -> Lead {
    Lead::Fixed(Duration::from_nanos(cells * CELL_NS))
}

#[test]
fn without_early_release_every_message_waits_for_one_handover() {
    let handover = period_us(&two_senders(Lead::Off, 10_240, 256)) - alone_us(10_240);
    for message_bytes in [2_048, 5_120, 20_480] {
        let time = alone_us(message_bytes);
        let model = time / (time + handover);
        let seen = time / period_us(&two_senders(Lead::Off, message_bytes, 256));
        println!("{message_bytes} bytes, hand-over {handover:.1} us: {seen:.4}, model {model:.4}");
        assert!((seen - model).abs() < 0.01, "{message_bytes} bytes: {seen}, model {model}");
    }
}

#[test]
fn the_adaptive_lead_hides_nine_tenths_of_the_handover() {
    let alone = alone_us(10_240);
    let handover = period_us(&two_senders(Lead::Off, 10_240, 256)) - alone;
    let steered = two_senders(Lead::Adaptive, 10_240, 256);
    let hidden = 1.0 - (period_us(&steered) - alone) / handover;
    println!("hand-over {handover:.1} us, hidden {hidden:.3}");
    assert!(hidden > 0.9, "{hidden} of {handover} us: {steered:?}");
    assert_eq!(steered.lost(), 0, "{steered:?}");
}

#[test]
fn a_lead_that_is_too_long_loses_frames_and_the_adaptive_one_does_not() {
    let steered = two_senders(Lead::Adaptive, 10_240, 32);
    println!("steered: {:6.2} Mb/s, loss {:.4}", steered.goodput_mbps(), steered.loss());
    assert_eq!(steered.lost(), 0, "{steered:?}");
    for cells in (0..=60).step_by(10) {
        let outcome = two_senders(fixed(cells), 10_240, 32);
        println!(
            "{cells:2} cells: {:6.2} Mb/s, loss {:.4}",
            outcome.goodput_mbps(),
            outcome.loss()
        );
        if cells >= 20 {
            assert!(outcome.loss() > 0.1, "{cells} cells: {outcome:?}");
        }
        if cells == 0 {
            assert!(outcome.goodput_mbps() < steered.goodput_mbps(), "{cells} cells");
        }
    }
}

#[test]
fn links_with_jitter_lose_nothing_with_the_adaptive_lead() {
    for (seed, percent) in [(1, 10), (2, 30), (3, 100)] {
        // A third of the hand-over.
        let delay = Duration::from_micros(10);
        let mut cluster = Cluster::atm(3, 256);
        cluster.seed = seed;
        cluster.faults = Faults { reorder: f64::from(percent) / 100.0, delay, ..Faults::NONE };
        let outcome = cluster.run(Load::default());
        let alone = Cluster::atm(1, 256).run(Load { coordinated: false, ..Load::default() });
        let share = outcome.goodput_mbps() / alone.goodput_mbps();
        println!("{percent} % of the frames late: {share:.4}, peak {}", outcome.peak);
        assert_eq!(outcome.lost(), 0, "seed {seed}: {outcome:?}");
        assert!(share > 0.95, "seed {seed}: {share}");
    }
}
