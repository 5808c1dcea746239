//! Tests of restored ranks: what they receive, and in which order.

use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use midplane_via::message::carrier::{Carrier as _, Event};
use midplane_via::message::envelope::Peer;

use super::*;
use crate::carrier::ChannelCarrier;
use crate::channel::Channel;
use crate::channel::geometry::{FifoSize, Record};
use crate::firmware::Gang;
use crate::node_core::message::Program;
use crate::node_core::user::User;
use crate::{GANG, GangConfig};

const JOB: JobId = JobId(1);
const GEOMETRY: Geometry = Geometry {
    send: FifoSize { messages: 8, bytes: 512 },
    receive: FifoSize { messages: 8, bytes: 512 },
    message: 64,
};
const CLUSTER: Cluster = Cluster { hosts: 2, slots: 2, arity: 2 };

fn world() -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(1000), Duration::from_nanos(500));
    let star = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(64 << 10)));
    World::new(&star, NicProfile::MODERN, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(GANG, Gang::new(GangConfig::default().channels(4))).unwrap();
        unit
    })
}

/// Opens and starts one job with three ranks, of which the first two are on host 0.
async fn start(hosts: &[SimHost; 2], past: Vec<LocalMessage>) -> Vec<Contexts<SimHost>> {
    let (program, user) = (Program::default(), User::default());
    let launch = Launch { job: JOB, first: 0, nodes: 3, ranks: 3, program, user };
    let restored = ChannelContext { local: past, ..ChannelContext::fresh(Rank(0), GEOMETRY) };
    let mut all = Vec::new();
    for host in hosts {
        let config = ContextsConfig {
            cluster: CLUSTER,
            mode: Mode::Resident,
            geometry: GEOMETRY,
            channels: 2,
            costs: Costs::default(),
            local_rings: true,
            is_mapped: false,
        };
        let mut contexts = Contexts::open(host.clone(), config).unwrap();
        let is_first = host.node() == NodeId(0);
        let saved = is_first.then(|| (0, restored.clone())).into_iter().collect();
        contexts.carry_out(&Step::Open(launch.clone(), saved)).await.unwrap();
        all.push(contexts);
    }
    let run = Step::Channels(Action::run(vec![(JOB, Epoch(1))]));
    for contexts in &mut all {
        contexts.carry_out(&run).await.unwrap();
    }
    all
}

/// Regression: the error was reported for all jobs of the host.
#[test]
fn a_job_whose_channels_can_t_be_opened_fails_alone() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let mut contexts = start(&hosts, Vec::new()).await;
        let job = JobId(2);
        let (program, user) = (Program::default(), User::default());
        let launch = Launch { job, first: 0, nodes: 3, ranks: 9, program, user };
        let open = Step::Open(launch, RestoredContexts::new());
        let failed = contexts[0].carry_out(&open).await.unwrap().outcome.failed;
        assert!(matches!(failed[..], [(JobId(2), 0, _)]), "{failed:?}");
        contexts[0].carry_out(&Step::Close(vec![job])).await.unwrap();
        assert_eq!([JOB, job].map(|job| contexts[0].of_job(job).count()), [2, 0]);
    };
    world.block_on(NodeId(0), task).expect("it ends");
}

/// Regression: the error was reported for all jobs of the host.
#[test]
fn a_job_whose_channels_are_not_quiescent_is_not_started() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let mut contexts = start(&hosts, Vec::new()).await;
        let run = Step::Channels(Action::run(vec![(JOB, Epoch(2))]));
        let failed = contexts[0].carry_out(&run).await.unwrap().outcome.failed;
        assert!(matches!(failed[..], [(JOB, 0, _)]), "{failed:?}");
    };
    world.block_on(NodeId(0), task).expect("it ends");
}

/// Regression: the daemon allocated up to four gigabytes for a message.
#[test]
fn a_process_that_damages_the_length_of_a_sent_message_fails_its_job() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let mut contexts = start(&hosts, Vec::new()).await;
        let freeze = Step::Channels(Action::Freeze(vec![JOB]));
        // The receiver does not take the message.
        contexts[1].carry_out(&freeze).await.unwrap();
        attach(&contexts[0], 0).await.try_send(Rank(2), &[1]).unwrap();
        hosts[0].sleep_until(hosts[0].now() + Duration::from_millis(1)).await;
        contexts[0].carry_out(&freeze).await.unwrap();
        let cut = Step::Channels(Action::Cut(JOB));
        let intact = contexts[0].carry_out(&cut).await.unwrap();
        assert!(intact.outcome.failed.is_empty() && !intact.contexts[0].send[0].taken);
        let (_, controller, context) = contexts[0].of_job(JOB).next().unwrap();
        let memory = controller.descriptor(context).memory;
        let record = Record { peer: Rank(2), length: GEOMETRY.message + 1, position: 0 };
        memory.write(GEOMETRY.send_record(0), &record.emit()).unwrap();
        let failed = contexts[0].carry_out(&cut).await.unwrap().outcome.failed;
        assert!(matches!(failed[..], [(JOB, 0, _)]), "{failed:?}");
    };
    world.block_on(NodeId(0), task).expect("it ends");
}

async fn attach(contexts: &Contexts<SimHost>, rank: u16) -> Channel {
    let (_, controller, context) = contexts.of_job(JOB).find(|it| it.0 == rank).unwrap();
    Channel::attach(&contexts.host, controller.descriptor(context)).await.unwrap()
}

#[test]
fn the_end_of_a_past_neither_repeats_nor_drops_a_message() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let past: Vec<LocalMessage> = (0..17)
        .map(|number| LocalMessage { from: Rank(1), bytes: Bytes::copy_from_slice(&[number]) })
        .collect();
    let task = async move {
        let contexts = start(&hosts, past).await;
        let pause = || hosts[0].sleep_until(hosts[0].now() + Duration::from_millis(1));
        // The NIC has this message before the restored rank begins to receive.
        attach(&contexts[1], 2).await.try_send(Rank(0), &[200]).unwrap();
        pause().await;
        attach(&contexts[0], 1).await.try_send(Rank(0), &[17]).unwrap();
        let mut receiver = attach(&contexts[0], 0).await;
        let mut received = Vec::new();
        for _ in 0..10 {
            while let Some((from, bytes)) = receiver.try_receive() {
                received.push((from.0, bytes[0]));
            }
            pause().await;
        }
        let of = |rank| received.iter().filter(|it| it.0 == rank).map(|it| it.1).collect();
        let all: [Vec<u8>; 2] = [1, 2].map(of);
        assert_eq!(all, [(0..=17).collect(), vec![200]], "{received:?}");
    };
    world.block_on(NodeId(0), task).expect("it ends");
}

/// After the loss of a root, a host may resume a job in the next epoch while another has not suspended it yet.
#[test]
fn a_job_is_suspended_although_another_host_has_resumed_it_already() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let mut contexts = start(&hosts, Vec::new()).await;
        let pause = |time| hosts[0].sleep_until(hosts[0].now() + time);
        let freeze = Step::Channels(Action::Freeze(vec![JOB]));
        let run = |epoch| Step::Channels(Action::run(vec![(JOB, Epoch(epoch))]));
        contexts[1].carry_out(&freeze).await.unwrap();
        contexts[1].carry_out(&run(2)).await.unwrap();
        let mut sender = attach(&contexts[0], 0).await;
        sender.try_send(Rank(2), &[1]).unwrap();
        pause(Duration::from_millis(1)).await;
        tokio::select! {
            done = contexts[0].carry_out(&freeze) => drop(done.unwrap()),
            () = pause(Duration::from_secs(1)) => panic!("host 0 does not become quiescent"),
        }
        contexts[1].carry_out(&freeze).await.unwrap();
        for contexts in &mut contexts {
            contexts.carry_out(&run(3)).await.unwrap();
        }
        sender.try_send(Rank(2), &[2]).unwrap();
        pause(Duration::from_millis(10)).await;
        let mut receiver = attach(&contexts[1], 2).await;
        let received = std::iter::from_fn(|| receiver.try_receive());
        let received: Vec<_> = received.map(|(from, bytes)| (from.0, bytes[0])).collect();
        assert_eq!(received, [(0, 1), (0, 2)]);
    };
    world.block_on(NodeId(0), task).expect("it ends");
}

/// Regression: the message layer polled the ring without an end.
#[test]
fn a_damaged_ring_loses_the_peers_and_the_message_layer_then_waits() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let task = async move {
        let contexts = start(&hosts, Vec::new()).await;
        let mut carrier = ChannelCarrier::new(attach(&contexts[0], 0).await);
        carrier.connect(&[Peer(1), Peer(2)]).unwrap();
        let (_, controller, context) = contexts[0].of_job(JOB).next().unwrap();
        let rings = controller.descriptor(context).rings.unwrap();
        // The ring begins with its sender's position.
        let position = rings.layout.pair(Rank(1), Rank(0)).head;
        rings.memory.write(position, &u64::MAX.to_le_bytes()).unwrap();
        let (mut lost, mut is_armed) = (Vec::new(), false);
        for _ in 0..10 {
            let peer = match carrier.poll() {
                Some(Event::Lost(peer)) => Some(peer),
                _ => None,
            };
            lost.extend(peer);
            is_armed = peer.is_none() && carrier.arm_wakeup(Waker::noop());
        }
        assert!(is_armed && lost == [Peer(1), Peer(2)], "{lost:?}");
    };
    world.block_on(NodeId(0), task).expect("it ends");
}
