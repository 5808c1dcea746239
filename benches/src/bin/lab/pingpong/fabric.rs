//! The two processes of a run, and the fabric between them.

use std::net::SocketAddr;
use std::time::Duration;

use midplane::Node;
use midplane::nicvm::messages::{MESSAGES, Messages as Service};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::shm::ShmConfig;
use midplane::simhw::udp::Coprocessor;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::lanes::LaneCarrier;
use midplane::via::message::engine::{DEFAULT_EAGER, SOCKET_EAGER};
use midplane_benches::live_nic::{LiveNic, unpaced};

use crate::pingpong::arguments::{Arguments, Contest, Fabric, Layer, Wait};
use crate::pingpong::baseline::{self, Listener};
use crate::pingpong::interface::Interface;
use crate::pingpong::layers::{Messages, interfaces};
use crate::pingpong::libraries;
use crate::pingpong::measure::{Figures, Measurement};
use crate::pingpong::raw::Raw;
use crate::pingpong::slots::Slots;
use crate::processes::{self, Peer};
use crate::report::{Failure, text};

/// Longest packet over shared memory alone, and the longest message that leaves whole there.
const LANE_MTU: usize = 16 << 10;

/// Runs a task of this program on this thread.
pub(crate) fn run<T>(task: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    processes::run(async { task.await.map_err(Failure::of_run) }).map_err(text)
}

impl Arguments {
    const fn measurement(&self, asks: bool) -> Measurement<'_> {
        Measurement { sizes: self.sizes.as_slice(), milliseconds: self.milliseconds, asks }
    }
}

/// Runs the first process: starts the second one, and measures.
pub(crate) fn ask(arguments: &Arguments, contest: &Contest) -> Result<Vec<Figures>, String> {
    let launcher = arguments.launcher();
    let start = |place: &str| Peer::launch(&launcher, &arguments.for_child(contest, place), &[]);
    let measurement = arguments.measurement(true);
    match contest {
        Contest::Kernel(library) if library.is_library() => libraries::ask(*library, measurement),
        Contest::Kernel(kernel) => run(async {
            let (listener, place) = Listener::bind(*kernel, arguments.own_address()).await?;
            start(&format!("kernel={place}"))?.while_running(listener.run(measurement)).await
        }),
        Contest::Ours(fabric, layer, wait) => {
            let place = match fabric {
                Fabric::Shm => format!("midplane-pingpong-{}", std::process::id()),
                Fabric::Udp => addresses(arguments)?,
            };
            let mut child = start(&place)?;
            run(child.while_running(ours((*fabric, *layer, *wait), &place, 0, measurement)))
        }
    }
}

/// Returns the addresses of both NICs, on one host or on two.
fn addresses(arguments: &Arguments) -> Result<String, String> {
    let own = processes::free_at(arguments.own_address(), 2)?;
    Ok(match arguments.between.get(1) {
        None => format!("{},{}", own[0], own[1]),
        // This process cannot know the free ports of the other host.
        Some(other) => format!("{},{}", own[0], SocketAddr::new(*other, own[0].port())),
    })
}

/// Runs the second process, which answers.
pub(crate) fn answer(arguments: &Arguments, place: &str) -> Result<(), String> {
    let measurement = arguments.measurement(false);
    let answered = match place.strip_prefix("kernel=") {
        Some(place) => run(baseline::connect(arguments.peer[0], place, measurement)),
        None => {
            let how = (arguments.fabric[0], arguments.layer[0], arguments.wait[0]);
            run(ours(how, place, 1, measurement))
        }
    };
    answered.map(drop)
}

fn unit(layer: Layer) -> Result<Unit, String> {
    let via = ViaConfig::default();
    let via = if layer == Layer::Firmware { via.shut_gate() } else { via };
    let mut unit = Unit::default();
    unit.install(MESSAGES, Service::new()).map_err(text)?;
    unit.install(VIA, Via::new(via)).map_err(text)?;
    Ok(unit)
}

async fn ours(
    (fabric, layer, wait): (Fabric, Layer, Wait),
    place: &str,
    node: u16,
    measurement: Measurement<'_>,
) -> Result<Vec<Figures>, String> {
    let most = measurement.sizes.iter().copied().max().unwrap_or(0);
    let shm = ShmConfig::new(place, NodeId(node), 2);
    match (layer, fabric) {
        (Layer::World, _) => return world(fabric, place, node, most, measurement).await,
        (Layer::Lanes, _) => {
            let carrier = LaneCarrier::open(&shm.mtu(LANE_MTU)).map_err(text)?;
            return measurement.run(&mut Messages::new(carrier, most, wait, LANE_MTU)?).await;
        }
        (Layer::Slots, _) => {
            return measurement.run(&mut Slots::new(place, NodeId(node), most)?).await;
        }
        _ => {}
    }
    let (nic, eager) = match fabric {
        Fabric::Shm => (LiveNic::over_shm(shm, unit(layer)?).await?, DEFAULT_EAGER),
        Fabric::Udp => {
            let addresses: Result<Vec<SocketAddr>, _> = place.split(',').map(str::parse).collect();
            let addresses = addresses.map_err(|error| format!("--child {place}: {error}"))?;
            // As over shared memory, the task that rings or polls runs the NIC.
            let config = unpaced(NodeId(node), addresses).coprocessor(Coprocessor::Task);
            (LiveNic::over_udp(config, unit(layer)?)?, SOCKET_EAGER)
        }
    };
    let (host, peer) = (nic.host(), NodeId(1 - node));
    let measured = match layer {
        Layer::Raw => {
            let port = PortId(1);
            let mut side = Raw::new(&host, port, (peer, port), most, wait)?;
            // Both sides must have posted buffers before the first send; the other process is still starting.
            host.sleep_until(host.now() + Duration::from_millis(300)).await;
            measurement.run(&mut side).await
        }
        Layer::Message => {
            let carrier = interfaces(&host, eager).await?;
            measurement.run(&mut Messages::new(carrier, most, wait, eager)?).await
        }
        _ => {
            let writes = layer == Layer::Write;
            measurement.run(&mut Interface::new(&host, peer, most, wait, writes).await?).await
        }
    };
    nic.shutdown().await;
    measured
}

/// Measures between ranks on nodes, as a service's program uses them.
async fn world(
    fabric: Fabric,
    place: &str,
    rank: u16,
    most: usize,
    measurement: Measurement<'_>,
) -> Result<Vec<Figures>, String> {
    let builder = Node::builder().name(format!("rank-{rank}"));
    let builder = if fabric == Fabric::Shm {
        builder.cluster(place)
    } else {
        let own = place.split(',').nth(rank.into()).ok_or("--child: an address is missing")?;
        let own: SocketAddr = own.parse().map_err(|error| format!("--child {place}: {error}"))?;
        builder.transports("udp").bind(own).discover(place).trusted_network()
    };
    let node = builder.start().await.map_err(text)?;
    let all = node.world("pingpong", rank.into(), 2).await.map_err(text)?;
    let measured = measurement.run(&mut Messages::of(all, most)).await;
    node.shutdown().await;
    measured
}
