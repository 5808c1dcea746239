//! Jobs whose ranks publish what they wait for: of two that are deadlocked and one that is not, the daemons find two.

use midplane_gang::live::message::{Reply, Request};
use midplane_gang::live::rank::join;
use midplane_gang::names::{JobId, Rank};
use midplane_gang::wait::WaitState;

use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, wait_until};

/// All three take turns on the slots of two hosts, and messages of the third go around meanwhile.
pub(crate) fn is_listed() {
    let stage = Stage::with_network(2, 2, 20, "copy");
    wait_until("both hosts are there", || listing(&stage).hosts == [true, true]);
    let itself = std::env::current_exe().unwrap();
    let parts = ["--wait-for-each-other", "--wait-for-ever", "--wait-in-a-ring"];
    let fronts = parts.map(|part| {
        let front = stage.front(3, &[itself.to_str().unwrap(), part]).spawn().unwrap();
        wait_until(part, || listing(&stage).jobs.iter().any(|job| job.command.ends_with(part)));
        front
    });
    let mut seen = Vec::new();
    wait_until("two of them are found", || {
        seen = listing(&stage).jobs.into_iter().map(|job| job.stuck).collect();
        seen.iter().flatten().count() == 2
    });
    let cycle = "it is deadlocked: cycle: 0 > 1 > 2 > 0; rank 0 waits for tag 7 from rank 1; rank 1 waits for tag 7 from \
                 rank 2; rank 2 waits for tag 7 from rank 0";
    assert_eq!(seen[0].as_deref(), Some(cycle));
    assert!(seen[1].as_ref().is_some_and(|text| text.starts_with("it has terminated")), "{seen:?}");
    // It was cut twice by then.
    wait_until("the third has run for long", || listing(&stage).jobs[2].seconds > 11.0);
    assert_eq!(listing(&stage).jobs[2].stuck, None);
    for (job, front) in (1..).zip(fronts) {
        let Reply::Done = ask_for(&stage, &Request::Kill { job: JobId(job), signal: None }) else {
            panic!()
        };
        assert_eq!(stage.end(front).0, 137);
    }
}

/// Waits for the next rank, which does the same.
pub(crate) async fn for_each_other() {
    let (_, mut channel) = join().await.unwrap();
    let next = Rank((channel.rank().0 + 1) % channel.ranks());
    loop {
        channel.wait_as(WaitState::Receive { from: Some(next), tag: Some(7) }).await.unwrap();
    }
}

/// Has nothing to do.
pub(crate) async fn for_ever() {
    let (_, mut channel) = join().await.unwrap();
    loop {
        channel.wait_as(WaitState::Idle).await.unwrap();
    }
}

/// Sends on what comes from the rank before, as soon as it comes.
pub(crate) async fn in_a_ring() {
    let (_, mut channel) = join().await.unwrap();
    let (own, ranks) = (channel.rank().0, channel.ranks());
    let (next, before) = (Rank((own + 1) % ranks), Rank((own + ranks - 1) % ranks));
    if own == 0 {
        channel.send(next, b"token").await.unwrap();
    }
    loop {
        while let Some((from, bytes)) = channel.try_receive() {
            assert_eq!(from, before);
            channel.send(next, &bytes).await.unwrap();
        }
        channel.wait_as(WaitState::Receive { from: Some(before), tag: None }).await.unwrap();
    }
}
