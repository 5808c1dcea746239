//! Tests Mermera's memory over live fabrics. Each node records its writes and reads; the checkers
//! decide from the writes that the reads name whether each level was kept.

mod fabrics;
mod notes;

use std::sync::Arc;
use std::time::Duration;

use fabrics::{End, Sending, Setting};
use midplane_simhw::host::Host;
use midplane_simhw::rng::Rng;
use midplane_warp::memory::{Level, Location, MemoryHandle, check};
use notes::{Note, Notebook};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Limit on the machine's clock, which only a hanging test exceeds.
const LIMIT: Duration = Duration::from_secs(90);
/// Locations that all nodes write.
const LOCATIONS: u32 = 5;
/// The least number of accesses by each node.
const ACCESSES: u32 = 300;
/// The least number of reads of other nodes' writes that makes a history meaningful. On a busy
/// machine, nodes continue until there are as many.
const ENOUGH: usize = 100;

/// The accesses of a node.
#[derive(Clone, Copy, Debug)]
struct Part {
    level: Level,
    seed: u64,
    accesses: u32,
}

/// Makes a value unique to one write, from its writer and number.
const fn value(node: u16, number: u64) -> u64 {
    (node as u64) << 32 | number
}

impl Part {
    /// Reads and writes at random, and records each access.
    async fn play<H: Host>(self, host: &H, notebook: &Notebook) {
        let node = host.node();
        let mut rng = Rng::new(self.seed, &format!("live {node}"));
        let mut memory = MemoryHandle::<u64>::open(host).unwrap();
        let mut written = 0;
        let mut accesses = 0;
        while accesses < self.accesses || notebook.foreign_reads() <= ENOUGH {
            accesses += 1;
            let location = rng.below(LOCATIONS.into()) as Location;
            if rng.chance(0.4) {
                written += 1;
                let value = value(node.0, written);
                notebook.begin(node, location, value);
                match self.level {
                    Level::Slow => memory.slow_write(location, &value).await.unwrap(),
                    Level::Pram => memory.pram_write(location, &value).await.unwrap(),
                    Level::Coherent => memory.co_write(location, &value).await.unwrap(),
                }
                notebook.end(node);
            } else {
                let seen = memory.read_origin(location).await.unwrap();
                notebook.note(node, Note::Read { location, seen });
            }
            host.sleep_until(host.now().plus_nanos(rng.below(500_000))).await;
        }
        if self.level == Level::Slow {
            memory.flush().await.unwrap();
        }
    }
}

/// Returns the values of a node's copy, location by location.
async fn copy<H: Host>(host: &H) -> Vec<Option<u64>> {
    let mut memory = MemoryHandle::<u64>::open(host).unwrap();
    let mut values = Vec::new();
    for location in 0..LOCATIONS {
        values.push(memory.read(location).await.unwrap());
    }
    values
}

/// Runs all nodes, and waits until each has finished.
async fn play_all<H: Host>(hosts: &[H], part: Part) -> Arc<Notebook> {
    let notebook = Arc::new(Notebook::new(part.level));
    let end = Arc::new(Barrier::new(hosts.len()));
    let mut tasks = JoinSet::new();
    for host in hosts {
        let (host, notebook, end) = (host.clone(), Arc::clone(&notebook), Arc::clone(&end));
        tasks.spawn(async move {
            part.play(&host, &notebook).await;
            end.wait().await;
        });
    }
    finish(tasks).await;
    notebook
}

async fn finish(mut tasks: JoinSet<()>) {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(panicked) = ended {
                std::panic::resume_unwind(panicked.into_panic());
            }
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("every node finishes");
}

/// Waits until all copies are equal.
async fn settle<H: Host>(hosts: &[H]) {
    let all = async {
        loop {
            let mut copies = Vec::new();
            for host in hosts {
                copies.push(copy(host).await);
            }
            if copies.windows(2).all(|pair| pair[0] == pair[1]) {
                return;
            }
            hosts[0].sleep_until(hosts[0].now().plus_nanos(1_000_000)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("all copies become equal");
}

fn judge(notebook: &Notebook, what: &str) {
    let history = notebook.history();
    assert_eq!(check::slow(&history), Ok(()), "{what}");
    assert_eq!(check::pram(&history), Ok(()), "{what}");
    assert_eq!(check::coherent(&history), Ok(()), "{what}");
    let foreign = notebook.foreign_reads();
    println!("{what}: {foreign} reads of others' writes");
    assert!(foreign > ENOUGH, "{what}: too few reads of other nodes' writes");
}

const LEVELS: [Level; 3] = [Level::Slow, Level::Pram, Level::Coherent];
/// Four nodes, none of which dies.
const FOUR: Setting = Setting {
    nodes: 4,
    sending: Sending::Gated,
    port_bytes: 32 << 10,
    dead_after: Duration::from_secs(60),
};

async fn keeps_its_level<H: Host>(hosts: Vec<H>, level: Level, what: &str) {
    let part = Part { level, seed: 1, accesses: ACCESSES };
    let notebook = play_all(&hosts, part).await;
    judge(&notebook, what);
    // Each node has flushed, so all nodes have the last slow write of every location. Coherent
    // writes arrive everywhere sooner or later. PRAM writes of several writers may end up in any
    // order.
    match level {
        Level::Slow => {
            let first = copy(&hosts[0]).await;
            for host in &hosts {
                assert_eq!(copy(host).await, first, "{what}: the last writes, after flushes");
            }
        }
        Level::Pram => {}
        Level::Coherent => settle(&hosts).await,
    }
}

#[test]
#[cfg(target_os = "linux")]
fn every_level_is_kept_over_shared_memory() {
    for level in LEVELS {
        let what = format!("{level:?} over shm");
        fabrics::shm(FOUR, async |hosts, end| {
            keeps_its_level(hosts, level, &what).await;
            end().await;
        });
    }
}

#[test]
fn every_level_is_kept_over_sockets_behind_a_slow_switch() {
    for level in LEVELS {
        let what = format!("{level:?} over udp");
        fabrics::udp(FOUR, async |hosts, end| {
            keeps_its_level(hosts, level, &what).await;
            end().await;
        });
    }
}

/// Sends without a gate: the switch ports overflow, and lost values are sent again until they
/// arrive.
#[test]
fn lost_slow_writes_are_sent_again_until_they_arrive() {
    let setting = Setting { sending: Sending::Unpaced, port_bytes: 1 << 10, ..FOUR };
    let lost = fabrics::udp(setting, async |hosts, end| {
        keeps_its_level(hosts, Level::Slow, "unpaced slow writes over udp").await;
        end().await;
    });
    println!("{lost} frames were lost at the ports");
    assert!(lost > 0, "no frame was lost, so the test proves nothing");
}

/// Tests that coherent writes continue after node 0, the sequencer, has lost its NIC.
async fn outlives_its_sequencer<H: Host>(hosts: Vec<H>, end: Box<dyn FnOnce() -> End>, what: &str) {
    let part = Part { level: Level::Coherent, seed: 7, accesses: 150 };
    let notebook = Arc::new(Notebook::new(Level::Coherent));
    let mut tasks = JoinSet::new();
    for host in &hosts[1..] {
        let (host, notebook) = (host.clone(), Arc::clone(&notebook));
        tasks.spawn(async move { part.play(&host, &notebook).await });
    }
    let (first, noted) = (hosts[0].clone(), Arc::clone(&notebook));
    let mut doomed = JoinSet::new();
    doomed.spawn(async move { part.play(&first, &noted).await });
    while notebook.writes() < 60 {
        hosts[1].sleep_until(hosts[1].now().plus_nanos(200_000)).await;
    }
    doomed.shutdown().await;
    let before = notebook.writes();
    end().await;
    finish(tasks).await;
    let after = notebook.writes();
    println!("{what}: {before} coherent writes before, {} after", after - before);
    assert!(after > before + 60, "{what}: the sequencer died after the last writes");
    settle(&hosts[1..]).await;
    judge(&notebook, what);
}

const FIVE: Setting = Setting { nodes: 5, dead_after: Duration::from_secs(3), ..FOUR };

#[test]
#[cfg(target_os = "linux")]
fn coherent_writes_outlive_their_sequencer_over_shared_memory() {
    fabrics::shm(FIVE, async |hosts, end| {
        outlives_its_sequencer(hosts, end, "sequencer over shm").await;
    });
}

#[test]
fn coherent_writes_outlive_their_sequencer_over_sockets() {
    fabrics::udp(FIVE, async |hosts, end| {
        outlives_its_sequencer(hosts, end, "sequencer over udp").await;
    });
}
