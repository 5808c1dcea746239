//! Runs a setting: all nodes in virtual time, or one node over real sockets.

use midplane::nicvm::coordination::{
    COORDINATION, Coordination, CoordinationConfig, Hold, LeadTrim,
};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::fault::Faults;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::seal::Key;
use midplane::simhw::sim::World;
use midplane::simhw::time::nanos;
use midplane::simhw::topology::Topology;
use midplane::simhw::udp::{UdpConfig, UdpNic};
use midplane::warp::firmware::{WARP, Warp};

use super::run::Run;
use super::scenario::{Part, RECEIVER, receive, send};
use super::setting::Setting;
use crate::meeting::Meeting;
use crate::nodes::Place;
use midplane_kit::clock::time_of_day;
use midplane_kit::report::Failure;

/// Commands in flight on a port: at 100 Mb/s, 4,096 messages of 64 bytes last some 50 ms.
const PORT_DEPTH: usize = 4_096;
/// Bytes of a message in an ATM cell.
const CELL_PAYLOAD: u32 = 48;

/// Builds the firmware of a run's NIC.
fn firmware(setting: &Setting, node: NodeId, genesis: bool) -> Result<Unit, Failure> {
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).map_err(Failure::of_run)?;
    // In the mode with both, Warp adjusts how early tokens may be released.
    let trim = LeadTrim::default();
    if let Some(mut config) = setting.warp(node) {
        config = config.adapt_lead(RECEIVER, trim.clone());
        let (warp, _) = Warp::new(config);
        unit.install(WARP, warp).map_err(Failure::of_run)?;
    }
    if let Some(lead) = setting.lead() {
        let senders: Vec<NodeId> = (1..=setting.senders).map(NodeId).collect();
        let mut config = CoordinationConfig::star(&[RECEIVER], &senders);
        config = config.lead(lead).rate(setting.rate()).genesis(genesis).trim_lead(RECEIVER, trim);
        if let Some(atm) = setting.atm {
            let hold = if atm.passes_each { Hold::Message } else { Hold::Auto };
            config = config.hold(hold).ahead(atm.ahead * CELL_PAYLOAD);
        }
        let coordination =
            Coordination::new(config).map_err(|error| format!("--senders: {error}"))?;
        unit.install(COORDINATION, coordination).map_err(Failure::of_run)?;
    }
    Ok(unit)
}

/// Runs all nodes in virtual time.
pub fn simulate(setting: &Setting) -> Result<Run, Failure> {
    // Report a wrong configuration here, once.
    firmware(setting, RECEIVER, true)?;
    let topology = Topology::star(setting.nodes(), setting.link(), setting.switch());
    let profile = if setting.atm.is_some() { NicProfile::SBA_200E } else { NicProfile::MODERN };
    let for_nics = setting.clone();
    let mut world = World::new(&topology, profile, setting.seed, move |node, _| {
        firmware(&for_nics, node, true).expect("it was checked")
    });
    // Real senders are not synchronized to the nanosecond.
    world.set_faults(Faults { jitter: setting.piece_time(), ..Faults::NONE });
    let part = Part { setting: setting.clone(), epoch_ns: Some(0) };
    let mut meetings = Meeting::local(setting.nodes());
    let mut first = meetings.next().expect("the receiver takes part");
    for (node, mut meeting) in (1..).map(NodeId).zip(meetings) {
        let (host, part) = (world.host(node), part.clone());
        // The receiver's report names the senders that did not finish.
        world.spawn(node, async move { drop(send(&host, &part, &mut meeting).await) });
    }
    let host = world.host(RECEIVER);
    let measured = world.block_on(RECEIVER, async move { receive(&host, &part, &mut first).await });
    let measured = measured.ok_or_else(|| Failure::of_run("no event is left"))??;
    let mut run = Run::new(setting, &measured);
    run.add_drops(&world.traffic().drops);
    run.frames = Some(world.traffic().sent);
    run.digest = Some(format!("{:016x}", world.digest()));
    Ok(run)
}

/// Runs one node's part of a live run; the receiver returns the report.
pub async fn take_part(
    setting: &Setting,
    place: &Place,
    keys: Vec<Key>,
    meeting: &mut Meeting,
) -> Result<Option<Run>, Failure> {
    let node = NodeId(place.rank);
    let config = place.nic(setting.nodes(), setting.link(), setting.seed).port_depth(PORT_DEPTH);
    let config = keys.into_iter().fold(config, UdpConfig::key);
    let nic = UdpNic::start(config, firmware(setting, node, false)?)
        .map_err(|error| format!("--peers: {error}"))?;
    let host = nic.host();
    // Nodes on one host share a clock.
    let is_one_host = place.peers.iter().all(|peer| peer.ip() == place.peers[0].ip());
    let epoch_ns = is_one_host.then(|| nanos(time_of_day()) - host.now().as_nanos());
    let part = Part { setting: setting.clone(), epoch_ns };
    let run = if node == RECEIVER {
        receive(&host, &part, meeting).await.map(|measured| Some(Run::new(setting, &measured)))
    } else {
        send(&host, &part, meeting).await.map(|()| None)
    };
    let counters = nic.shutdown().await;
    let mut run = run?;
    if let Some(run) = &mut run {
        run.add_drops(&counters.drops);
    }
    Ok(run)
}
