//! The cost of coordination in control messages, and that every sender has its turn.

use std::time::Duration;

use crate::cluster::{Cluster, Load};
use midplane_nicvm::coordination::Hold;

#[test]
fn at_saturation_a_message_costs_at_most_two_control_messages() {
    for senders in [2, 3, 8, 16] {
        let mut cluster = Cluster::ethernet(senders);
        cluster.config = cluster.config.hold(Hold::Message);
        let time = Duration::from_secs(1);
        let outcome = cluster.run(Load { time, burst: 16, ..Load::default() });
        println!(
            "{senders} senders: {:.3} control messages a message, {:.3} with leases",
            outcome.control_share(),
            outcome.counters[0] as f64 / outcome.sent.iter().sum::<u64>() as f64
        );
        assert!(outcome.control_share() <= 2.0, "{senders} senders: {outcome:?}");
        assert_eq!(outcome.counters[3], 0, "no token was taken for lost: {outcome:?}");
        assert_eq!(outcome.lost(), 0, "{outcome:?}");
    }
}

#[test]
fn a_lone_sender_sends_no_requests() {
    let mut cluster = Cluster::ethernet(3);
    cluster.config = cluster.config.hold(Hold::Message);
    let outcome = cluster.run(Load { active: 1, ..Load::default() });
    // The first sender has the token from the start, and reports once that it keeps the token.
    assert!(outcome.counters[0] - outcome.counters[1] <= 2, "{outcome:?}");
    assert!(outcome.sent[0] > 100 && outcome.lost() == 0, "{outcome:?}");
}

#[test]
fn more_senders_than_a_grant_names_all_get_a_turn() {
    for senders in [64, 127] {
        let load = Load { burst: 4, time: Duration::from_secs(3), ..Load::default() };
        let outcome = Cluster::ethernet(senders).run(load);
        assert_eq!(outcome.lost(), 0, "{outcome:?}");
        let least = outcome.in_time.iter().min();
        println!("{senders} senders: Jain {:.4}, least {least:?}", outcome.jain());
        assert!(least > Some(&0), "{senders} senders: {outcome:?}");
        assert!(outcome.jain() > 0.9, "{senders} senders: {outcome:?}");
    }
}
