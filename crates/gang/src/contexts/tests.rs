//! Tests of restored ranks: what they receive, and in which order.

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

use super::*;
use crate::channel::Channel;
use crate::channel::geometry::FifoSize;
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

/// Opens and starts one job with three ranks, of which the first two are on host 0. Returns the ranks' channels.
async fn start(hosts: [SimHost; 2], past: Vec<LocalMessage>) -> Vec<Channel> {
    let (program, user) = (Program::default(), User::default());
    let launch = Launch { job: JOB, first: 0, nodes: 3, ranks: 3, program, user };
    let restored = ChannelContext { local: past, ..ChannelContext::fresh(Rank(0), GEOMETRY) };
    let mut channels = Vec::new();
    let mut all = Vec::new();
    for host in &hosts {
        let config = ContextsConfig {
            cluster: CLUSTER,
            mode: Mode::Resident,
            geometry: GEOMETRY,
            channels: 2,
            costs: Costs::default(),
            local_rings: true,
        };
        let mut contexts = Contexts::open(host.clone(), config, Controller::open).unwrap();
        let is_first = host.node() == NodeId(0);
        let saved = is_first.then(|| (0, restored.clone())).into_iter().collect();
        contexts.carry_out(&Step::Open(launch.clone(), saved)).await.unwrap();
        all.push(contexts);
    }
    for (host, contexts) in hosts.iter().zip(&mut all) {
        let run = Step::Channels(Action::Run(vec![(JOB, Epoch(1))]));
        contexts.carry_out(&run).await.unwrap();
        for (_, controller, context) in contexts.of_job(JOB) {
            let descriptor = controller.descriptor(context);
            channels.push(Channel::attach(host, descriptor).await.unwrap());
        }
    }
    channels
}

#[test]
fn the_end_of_a_past_neither_repeats_nor_drops_a_message() {
    let mut world = world();
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    let past: Vec<LocalMessage> = (0..17)
        .map(|number| LocalMessage { from: Rank(1), bytes: Bytes::copy_from_slice(&[number]) })
        .collect();
    let task = async move {
        let host = hosts[0].clone();
        let mut channels = start(hosts, past).await;
        channels[2].try_send(Rank(0), &[200]).unwrap();
        channels[1].try_send(Rank(0), &[17]).unwrap();
        host.sleep_until(host.now() + Duration::from_millis(1)).await;
        let mut received = Vec::new();
        while let Some((from, bytes)) = channels[0].try_receive() {
            received.push((from.0, bytes[0]));
        }
        let of = |rank| received.iter().filter(|it| it.0 == rank).map(|it| it.1).collect();
        let all: [Vec<u8>; 2] = [1, 2].map(of);
        assert_eq!(all, [(0..=17).collect(), vec![200]], "{received:?}");
    };
    world.block_on(NodeId(0), task).expect("it ends");
}
