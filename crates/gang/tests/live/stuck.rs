//! Jobs whose ranks publish what they wait for: the daemons find those that are deadlocked or have terminated.

use midplane_gang::carrier::ChannelCarrier;
use midplane_gang::live::message::{Reply, Request};
use midplane_gang::live::rank::join;
use midplane_gang::names::{JobId, Rank};
use midplane_gang::wait::WaitState;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::Tag;
use midplane_via::message::group;

use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, wait_until};

/// The part that each job's ranks play, and the finding that is listed for the job.
const JOBS: [(&str, Option<&str>); 5] = [
    (
        "--wait-for-each-other",
        Some(
            "it is deadlocked: cycle: 0 > 1 > 2 > 0; rank 0 waits for tag 7 from rank 1; rank 1 waits for tag 7 from rank 2; \
             rank 2 waits for tag 7 from rank 0",
        ),
    ),
    (
        "--wait-for-ever",
        Some("it has terminated: all of its ranks are idle, and no message is under way"),
    ),
    ("--wait-in-a-ring", None),
    (
        "--receive-from-the-next",
        Some(
            "it is deadlocked: cycle: 0 > 1 > 2 > 0; rank 0 waits for rank 1; rank 1 waits for rank 2; rank 2 waits for rank 0",
        ),
    ),
    ("--sum-for-ever", None),
];

/// All jobs take turns on the slots of two hosts; messages of two of them go around meanwhile.
pub(crate) fn is_listed() {
    let stage = Stage::with_network(2, 2, 20, "shm");
    wait_until("both hosts are there", || listing(&stage).hosts == [true, true]);
    let itself = std::env::current_exe().unwrap();
    let clients = JOBS.map(|(part, _)| {
        let client = stage.client(3, &[itself.to_str().unwrap(), part]).spawn().unwrap();
        wait_until(part, || listing(&stage).jobs.iter().any(|job| job.command.ends_with(part)));
        client
    });
    // By then each was cut twice.
    wait_until("the last has run for long", || listing(&stage).jobs[4].seconds > 12.0);
    for (job, (part, found)) in listing(&stage).jobs.iter().zip(JOBS) {
        assert_eq!(job.stuck.as_deref(), found, "{part}");
    }
    for (job, client) in (1..).zip(clients) {
        let Reply::Done = ask_for(&stage, &Request::Kill { job: JobId(job), signal: None }) else {
            panic!()
        };
        assert_eq!(stage.end(client).0, 137);
    }
}

/// Waits for a message of the next rank, which does the same.
pub(crate) async fn for_each_other() {
    let (_, mut channel) = join().await.unwrap();
    let next = Rank((channel.rank().0 + 1) % channel.ranks());
    loop {
        channel.wait_as(WaitState::Receive { from: Some(next), tag: Some(7) }).await.unwrap();
    }
}

/// Publishes that it is idle.
pub(crate) async fn for_ever() {
    let (_, mut channel) = join().await.unwrap();
    loop {
        channel.wait_as(WaitState::Idle).await.unwrap();
    }
}

/// Passes the messages of the previous rank on as soon as they arrive.
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

/// Joins the job, and returns a communicator whose waits are published.
async fn world() -> Communicator {
    let (_, channel) = join().await.unwrap();
    let ranks = channel.ranks().into();
    let carrier = ChannelCarrier::new(channel).publish_waits();
    Communicator::world(Engine::new(carrier, Config::default()), ranks).unwrap()
}

/// Receives from the next rank, which does the same.
pub(crate) async fn receives() {
    let world = world().await;
    world.barrier().await.unwrap();
    let next = (world.rank().0 + 1) % world.size();
    world.receive(group::Rank(next), Tag(3)).await.unwrap();
}

/// Sums numbers over all ranks, again and again.
pub(crate) async fn sums() {
    let world = world().await;
    loop {
        let sum = world.all_reduce(&[world.rank().0], Operation::Sum).await.unwrap();
        assert_eq!(sum, [3]);
    }
}
