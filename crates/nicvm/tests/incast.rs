//! Many senders to one receiver, in virtual time: the collapse and the cure (DVCM paper, section 4.3).

mod cluster;

use std::time::Duration;

use cluster::{Cluster, Load};
use midplane_nicvm::coordination::Lead;

#[test]
fn uncoordinated_senders_lose_most_of_what_they_send() {
    let load = Load { coordinated: false, ..Load::default() };
    let outcome = Cluster::ethernet(3).run(load);
    assert!(outcome.loss() > 0.5, "{outcome:?}");
}

#[test]
fn coordinated_senders_lose_nothing_and_fill_the_link() {
    for senders in [1, 2, 3, 8, 16] {
        for (message_bytes, share) in [(600, 0.94), (1500, 0.95), (10_240, 0.97)] {
            let load = Load { message_bytes, ..Load::default() };
            let alone = Load { coordinated: false, ..load };
            let alone = Cluster::ethernet(1).run(alone).goodput_mbps();
            let outcome = Cluster::ethernet(senders).run(load);
            let what = format!("{senders} senders, {message_bytes} bytes: {outcome:?}");
            assert_eq!(outcome.lost(), 0, "{what}");
            assert!(outcome.goodput_mbps() > share * alone, "of {alone} Mb/s: {what}");
            assert!(outcome.jain() > 0.97, "{what}");
        }
    }
}

#[test]
fn early_release_hides_the_handover() {
    let goodput = |lead| {
        let mut cluster = Cluster::ethernet(2);
        cluster.config.lead(lead);
        cluster.run(Load { time: Duration::from_secs(1), ..Load::default() }).goodput_mbps()
    };
    assert!(goodput(Lead::Steered) > goodput(Lead::Off));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = |seed| {
        let mut cluster = Cluster::ethernet(3);
        cluster.seed = seed;
        cluster.run(Load { time: Duration::from_millis(50), ..Load::default() }).digest
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}
