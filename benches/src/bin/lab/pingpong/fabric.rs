//! The two processes of a run, and the fabric between them.

use std::net::SocketAddr;
use std::time::Duration;

use midplane::Node;
use midplane::nicvm::messages::{MESSAGES, Messages as Service};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::link::LinkProfile;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::LineRate;
use midplane::simhw::udp::{Coprocessor, UdpConfig, UdpNic};
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::lanes::LaneCarrier;
use midplane::via::message::engine::{DEFAULT_EAGER, SOCKET_EAGER};
use tokio::runtime::{Builder, Runtime};

use crate::lam_table::{self, Column};
use crate::pingpong::arguments::{Arguments, Contest, Fabric, Layer, Registration, Wait};
use crate::pingpong::baseline::{self, Game};
use crate::pingpong::layers::{Interface, Messages, Raw, interfaces};
use crate::pingpong::libraries;
use crate::pingpong::measure::{self, Figures, Side};
use crate::pingpong::slots::Slots;
use crate::pingpong::writes::Writes;
use crate::processes::{self, Peer};

/// Longest packet over shared memory alone, and the longest message that leaves whole there.
const LANE_MTU: usize = 16 << 10;

fn runtime(wait: Wait) -> Result<Runtime, String> {
    let built = match wait {
        // A process that blocks its thread needs another thread for the NIC.
        Wait::Block => Builder::new_multi_thread().worker_threads(1).enable_all().build(),
        Wait::Poll | Wait::Await => Builder::new_current_thread().enable_all().build(),
    };
    built.map_err(|error| format!("no runtime: {error}"))
}

/// The measuring side.
struct Asks<'a>(&'a Arguments);

impl Game for Asks<'_> {
    type Result = Vec<Figures>;
    async fn play(self, side: &mut impl Side) -> Result<Vec<Figures>, String> {
        measure::ask(side, &self.0.sizes, self.0.milliseconds).await
    }
}

/// The answering side.
struct Answers<'a>(&'a Arguments);

impl Game for Answers<'_> {
    type Result = ();
    async fn play(self, side: &mut impl Side) -> Result<(), String> {
        measure::answer(side, &self.0.sizes, self.0.milliseconds).await
    }
}

/// Runs the first process: starts the second one, and measures.
pub(crate) fn ask(arguments: &Arguments, contest: &Contest) -> Result<Vec<Figures>, String> {
    let launcher = arguments.launcher();
    let start = |place: &str| Peer::launch(&launcher, &arguments.for_child(contest, place), &[]);
    match contest {
        Contest::Simulated(column) => {
            arguments.sizes.iter().map(|bytes| simulated(*column, *bytes)).collect()
        }
        Contest::Kernel(library) if library.is_library() => {
            let (sizes, milliseconds) = (&arguments.sizes, arguments.milliseconds);
            runtime(Wait::Await)?.block_on(libraries::ask(*library, sizes, milliseconds))
        }
        Contest::Kernel(kernel) => runtime(Wait::Await)?.block_on(async {
            let tell = |place: String| start(&format!("kernel={place}"));
            baseline::wait(*kernel, arguments.own_address(), tell, Asks(arguments)).await
        }),
        Contest::Ours(fabric, layer, wait, how) => {
            let place = match fabric {
                Fabric::Shm => format!("midplane-pingpong-{}", std::process::id()),
                Fabric::Udp => addresses(arguments)?,
                Fabric::Sim => unreachable!("its columns are contests of their own"),
            };
            let mut child = start(&place)?;
            let (game, most) = (Asks(arguments), most(arguments));
            let part = ours((*fabric, *layer, *wait, *how), &place, 0, most, game);
            runtime(*wait)?.block_on(child.beside(part))
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

fn simulated(column: Column, bytes: usize) -> Result<Figures, String> {
    let median_us = lam_table::one_way_us(column, bytes)?;
    Ok(Figures { median_us, p99_us: median_us, gb_per_s: bytes as f64 / median_us / 1e3 })
}

/// Runs the second process, which answers.
pub(crate) fn answer(arguments: &Arguments, place: &str) -> Result<(), String> {
    if let Some(place) = place.strip_prefix("kernel=") {
        let kernel = arguments.peer[0];
        return runtime(Wait::Await)?.block_on(baseline::go(kernel, place, Answers(arguments)));
    }
    let (fabric, layer, wait) = (arguments.fabric[0], arguments.layer[0], arguments.wait[0]);
    let (how, game) = (arguments.registration[0], Answers(arguments));
    runtime(wait)?.block_on(ours((fabric, layer, wait, how), place, 1, most(arguments), game))
}

fn most(arguments: &Arguments) -> usize {
    arguments.sizes.iter().copied().max().unwrap_or(0)
}

fn unit(layer: Layer) -> Result<Unit, String> {
    let via = ViaConfig::default();
    let via = if layer == Layer::Firmware { via.shut_gate() } else { via };
    let mut unit = Unit::default();
    unit.install(MESSAGES, Service::new()).map_err(|error| error.to_string())?;
    unit.install(VIA, Via::new(via)).map_err(|error| error.to_string())?;
    Ok(unit)
}

async fn ours<G: Game>(
    (fabric, layer, wait, how): (Fabric, Layer, Wait, Registration),
    place: &str,
    node: u16,
    most: usize,
    game: G,
) -> Result<G::Result, String> {
    match fabric {
        Fabric::Shm | Fabric::Udp if layer == Layer::World => {
            world(fabric, place, node, most, game).await
        }
        Fabric::Shm if layer == Layer::Lanes => {
            let config = ShmConfig::new(place, NodeId(node), 2).mtu(LANE_MTU);
            let carrier = LaneCarrier::open(&config).map_err(|error| error.to_string())?;
            game.play(&mut Messages::new(carrier, most, wait, LANE_MTU)?).await
        }
        Fabric::Shm if layer == Layer::Slots => {
            game.play(&mut Slots::new(place, NodeId(node), most)?).await
        }
        Fabric::Shm => {
            let config = ShmConfig::new(place, NodeId(node), 2);
            let nic = ShmNic::start(config, unit(layer)?).map_err(|error| error.to_string())?;
            let met = tokio::time::timeout(Duration::from_secs(10), nic.meet()).await;
            met.map_err(|_| "the other process did not come up in 10 s")?;
            let (host, peer) = (nic.host(), NodeId(1 - node));
            let result = match layer {
                Layer::Write => game.play(&mut Writes::new(&host, peer, most, wait).await?).await,
                _ => play(&host, peer, (fabric, layer, wait, how), most, game).await,
            };
            nic.shutdown().await;
            result
        }
        Fabric::Udp => {
            let addresses: Result<Vec<SocketAddr>, _> = place.split(',').map(str::parse).collect();
            let addresses = addresses.map_err(|error| format!("--child {place}: {error}"))?;
            // A line rate above any loopback's: frames are not paced.
            let line = LinkProfile::plain(LineRate::mbps(400_000), Duration::ZERO);
            // As over shared memory, the task that rings or polls runs the NIC.
            let config = UdpConfig::new(NodeId(node), addresses).line(line);
            let config = config.coprocessor(Coprocessor::Task);
            let nic = UdpNic::start(config, unit(layer)?).map_err(|error| error.to_string())?;
            play(&nic.host(), NodeId(1 - node), (fabric, layer, wait, how), most, game).await
        }
        Fabric::Sim => unreachable!("its columns are contests of their own"),
    }
}

/// Plays between ranks on nodes, as a service's program has them.
async fn world<G: Game>(
    fabric: Fabric,
    place: &str,
    rank: u16,
    most: usize,
    game: G,
) -> Result<G::Result, String> {
    let text = |error: midplane::Error| error.to_string();
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
    let played = game.play(&mut Messages::of(all, most)).await;
    node.shutdown().await;
    played
}

async fn play<G: Game>(
    host: &impl Host,
    peer: NodeId,
    (fabric, layer, wait, how): (Fabric, Layer, Wait, Registration),
    most: usize,
    game: G,
) -> Result<G::Result, String> {
    match layer {
        Layer::Raw => {
            let port = PortId(1);
            let mut side = Raw::new(host, port, (peer, port), most, wait)?;
            // Both sides must have posted buffers before the first send; the other process is still starting.
            host.sleep_until(host.now() + Duration::from_millis(300)).await;
            game.play(&mut side).await
        }
        Layer::Vi | Layer::Firmware => {
            game.play(&mut Interface::new(host, peer, most, wait).await?).await
        }
        Layer::Message => {
            let eager = if fabric == Fabric::Udp { SOCKET_EAGER } else { DEFAULT_EAGER };
            let carrier = interfaces(host, how, eager).await?;
            game.play(&mut Messages::new(carrier, most, wait, eager)?).await
        }
        Layer::Slots | Layer::Lanes | Layer::Write | Layer::World => {
            unreachable!("over shared memory alone, or on nodes, which is checked")
        }
    }
}
