//! Tests the extension on simulated NICs: many senders to one receiver.

mod hostile;
mod restarts;
mod star;
mod stops;

use std::time::Duration;

use star::{Star, Traffic};

#[test]
fn senders_under_the_law_lose_next_to_nothing_and_fill_the_link() {
    for message in [1_500, 10_240] {
        let alone = Star::new(1, message).run(Traffic::Plain).goodput_mbps;
        // With eight senders the frames are small, so their headers take more of the link.
        for (senders, share) in [(1, 0.97), (3, 0.97), (8, 0.95)] {
            let outcome = Star::new(senders, message).run(Traffic::Warp);
            println!("{senders} senders, {message} bytes: {outcome:.3?}");
            let what = format!("{senders} senders, {message} bytes: {outcome:?}");
            assert!(outcome.loss < 1e-3 && outcome.jain > 0.98, "{what}");
            assert!(outcome.goodput_mbps > share * alone, "of {alone}: {what}");
        }
    }
}

#[test]
fn without_the_law_the_same_senders_collapse() {
    let outcome = Star::new(3, 10_240).run(Traffic::Plain);
    assert!(outcome.loss > 0.4, "{outcome:?}");
}

#[test]
fn a_sender_that_asks_the_gate_never_waits_and_is_never_silent_for_long() {
    let mut star = Star::new(4, 1_400);
    star.time = Duration::from_millis(600);
    let outcome = star.run(Traffic::Conditional);
    println!("conditional: {outcome:.3?}");
    assert!(outcome.loss < 1e-3 && outcome.skipped > 0, "{outcome:?}");
    assert!(outcome.longest_silence < Duration::from_millis(50), "{outcome:?}");
    let alone = Star::new(1, 1_400).run(Traffic::Plain).goodput_mbps;
    assert!(outcome.goodput_mbps > 0.9 * alone, "{outcome:?}");
}

#[test]
fn a_token_released_much_too_early_loses_messages_unless_warp_adjusts_the_lead() {
    let wild = Star::new(3, 10_240).run(Traffic::Tokens { is_adjusted: false });
    let steered = Star::new(3, 10_240).run(Traffic::Tokens { is_adjusted: true });
    println!("a lead of 850 us: {wild:.3?}, steered {steered:.3?}");
    assert!(wild.loss > 0.2, "{wild:?}");
    // All losses are at the start, before Warp has measured the queue.
    assert!(steered.loss < wild.loss / 5.0 && steered.goodput_mbps > 90.0, "{steered:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = || Star::new(3, 1_500).run(Traffic::Warp).digest;
    assert_eq!(digest(), digest());
}
