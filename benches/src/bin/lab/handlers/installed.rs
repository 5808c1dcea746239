//! The time of an installation by this machine's clock: a module of 8 KiB on 64 simulated nodes.

use std::time::{Duration, Instant};

use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION};
use midplane::nicvm::install::{self, INSTALLER, Installer, Policy};
#[cfg(feature = "wasm")]
use midplane::nicvm::sandbox::{Engine, Limits, loader};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::Status;
use midplane::simhw::profile::Machine;
use midplane::simhw::sim::World;
use serde::Serialize;

use crate::handlers::{Native, eight};

const NODES: u16 = 64;
const BYTES: usize = 8 << 10;
/// Installations of each kind.
const ROUNDS: u32 = 7;

#[derive(Debug, Serialize)]
pub(crate) struct Install {
    kind: &'static str,
    nodes: u16,
    bytes: usize,
    /// Of new content: one of the nodes translates it, and all others reuse the translation.
    median_cold_ms: f64,
    /// Of content that is translated already.
    median_warm_ms: f64,
    /// Time of a cold installation by the simulated cluster's clock.
    virtual_cold_ms: f64,
}

impl Install {
    pub(crate) fn line(&self) -> String {
        let Self { kind, nodes, bytes, median_cold_ms, median_warm_ms, virtual_cold_ms } = self;
        format!(
            "{kind:<12} {bytes} bytes on {nodes} simulated nodes: {median_cold_ms:.1} ms cold, {median_warm_ms:.1} ms warm; {virtual_cold_ms:.2} ms of their own time\n"
        )
    }
}

/// Measures all kinds of loaders that this program is built with.
pub(crate) fn all() -> Vec<Install> {
    let native = || {
        Box::new(|_: &[u8]| Ok(Box::new(Native { completes: true }) as Box<dyn Extension>))
            as Loader
    };
    #[cfg_attr(not(feature = "wasm"), expect(unused_mut, reason = "there is no more to measure"))]
    let mut kinds: Vec<Kind> = vec![("native", native)];
    #[cfg(feature = "wasm")]
    {
        kinds.push(("wasm", || of(Engine::Compiled)));
        kinds.push(("interpreter", || of(Engine::Interpreted)));
    }
    kinds.into_iter().map(|(kind, make)| measure(kind, make)).collect()
}

/// Name of a loader, and the function that makes one for each node.
type Kind = (&'static str, fn() -> Loader);
type Loader = Box<dyn Fn(&[u8]) -> Result<Box<dyn Extension>, String> + Send>;

#[cfg(feature = "wasm")]
fn of(engine: Engine) -> Loader {
    use midplane::nicvm::install::Loader as _;
    let loader = loader(engine, Limits::default());
    Box::new(move |module| loader.load(module))
}

fn measure(kind: &'static str, make: fn() -> Loader) -> Install {
    let machine = Machine::DVCM_ATM;
    let mut world = World::new(&machine.topology(NODES), machine.nic, 1, move |_, _| {
        let members = (0..NODES).map(NodeId).collect();
        let mut unit = Unit::default();
        unit.install(INSTALLER, Installer::new(members, make())).expect("the number is free");
        unit
    });
    // By then all nodes know each other.
    world.run_until(world.now() + Duration::from_secs(1));
    let (mut cold, mut warm, mut virtual_cold_ms) = (Vec::new(), Vec::new(), 0.0);
    for round in 0..ROUNDS {
        let module = eight::module(BYTES, round);
        let before = world.now();
        cold.push(install(&mut world, module.clone()));
        virtual_cold_ms = world.now().nanos_since(before) as f64 / 1e6;
        world.run_until(world.now() + Duration::from_millis(50));
        warm.push(install(&mut world, module));
        world.run_until(world.now() + Duration::from_millis(50));
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Install {
        kind,
        nodes: NODES,
        bytes: BYTES,
        median_cold_ms: median(cold),
        median_warm_ms: median(warm),
        virtual_cold_ms,
    }
}

/// Installs a module; returns the milliseconds, by this machine's clock, until it runs on all nodes.
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn install(world: &mut World<Unit>, module: Vec<u8>) -> f64 {
    let host = world.host(NodeId(0));
    let begun = Instant::now();
    let done = world.block_on(NodeId(0), async move {
        let mut port = host.open_port().expect("the NIC is up");
        let region = port.register(module.len()).expect("a small region");
        region.write(0, &module).expect("it was made for it");
        let number = FIRST_USER_EXTENSION;
        let order = install::install(number, Policy::Deactivate, region.whole(), 1);
        port.submit(&order).expect("the ring is empty");
        port.completion().await.expect("the NIC is up")
    });
    let took = begun.elapsed().as_secs_f64() * 1e3;
    let done = done.expect("it ends");
    assert_eq!((done.status, done.args[1]), (Status::Done, NODES.into()), "it runs on all nodes");
    took
}
