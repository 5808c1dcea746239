//! Bytes sent before the token arrives: the paper's other way to hide the hand-over.

use std::time::Duration;

use crate::cluster::{Cluster, Load};
use midplane_nicvm::coordination::{Hold, Lead};

#[test]
fn bytes_ahead_of_the_token_fit_the_buffer_and_are_not_lost() {
    for (senders, ahead) in [(2, 480_u32), (4, 960), (8, 960), (16, 1440)] {
        // The frame of those bytes, with its header, from all but the one that holds the token.
        let cells = u32::from(senders - 1) * (ahead + 48 + 8).div_ceil(48);
        let mut cluster = Cluster::atm(senders, cells + 8);
        cluster.config = cluster.config.ahead(ahead);
        let outcome = cluster.run(Load { time: Duration::from_secs(1), ..Load::default() });
        println!("{senders} senders, {ahead} bytes: peak {} of {cells} cells", outcome.peak);
        assert_eq!(outcome.lost(), 0, "{senders} senders, {ahead} bytes ahead: {outcome:?}");
        assert!(outcome.jain() > 0.99, "{outcome:?}");
    }
}

#[test]
fn bytes_ahead_of_the_token_fill_the_gap_that_it_leaves() {
    let goodput = |ahead| {
        let mut cluster = Cluster::atm(2, 256);
        cluster.config = cluster.config.lead(Lead::Off).hold(Hold::Message).ahead(ahead);
        cluster.run(Load::default()).goodput_mbps()
    };
    // Ten cells, about as long as the hand-over.
    let (without, with) = (goodput(0), goodput(480));
    println!("{without:.2} Mb/s, and {with:.2} with ten cells ahead");
    assert!(with > without * 1.01, "{without} and {with} Mb/s");
}
