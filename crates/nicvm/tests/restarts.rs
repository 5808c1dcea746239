//! Coordinated senders and their receiver that crash and restart, in virtual time: each sender is served again within a
//! second, and no token has two holders.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, RECEIVER};
use midplane_nicvm::coordination::{self, COORDINATION, Coordination};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::rng::Rng;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::time::Instant;

/// Time after a restart within which each living sender must be served.
const SOON: Duration = Duration::from_secs(1);
/// Interval between two counts of the tokens.
const STEP: Duration = Duration::from_millis(1);

/// The use of tokens.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Tokens,
    EarlyRelease,
    Buffers,
}

const MODES: [Mode; 3] = [Mode::Tokens, Mode::EarlyRelease, Mode::Buffers];

/// The sender of each message that the receiver has completed, and the instant.
type Log = Arc<Mutex<Vec<(NodeId, Instant)>>>;

/// Sends a message, and the next one a pause after its completion.
async fn send(host: SimHost, pause: Duration) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(1_000).unwrap();
    loop {
        port.submit(&coordination::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
        let _ = port.completion().await.unwrap();
        host.sleep_until(host.now() + pause).await;
    }
}

/// Receives into one buffer, as the README's program does.
async fn receive(host: SimHost, log: Log) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(1_000).unwrap();
    loop {
        port.submit(&coordination::receive(memory.whole(), 0)).unwrap();
        let done = port.completion().await.unwrap();
        log.lock().unwrap().push((done.node, host.now()));
    }
}

struct Run {
    what: String,
    world: World<Unit>,
    pause: Duration,
    log: Log,
    /// The nodes that are up.
    up: BTreeSet<NodeId>,
}

impl Run {
    fn new(mode: Mode, senders: u16, pause: Duration, seed: u64) -> Self {
        let mut cluster = Cluster::ethernet(senders);
        cluster.seed = seed;
        let config = cluster.config.genesis(false);
        cluster.config = match mode {
            Mode::Tokens => config.lead(coordination::Lead::Off),
            Mode::EarlyRelease => config.lead(coordination::Lead::Adaptive),
            Mode::Buffers => config.buffers(true),
        };
        Self {
            what: format!("{mode:?}, {senders} senders, a pause of {pause:?}, seed {seed}"),
            world: cluster.world(),
            pause,
            log: Log::default(),
            up: BTreeSet::new(),
        }
    }

    /// Starts the node's application.
    fn begin(&mut self, node: NodeId) {
        self.up.insert(node);
        let host = self.world.host(node);
        if node == RECEIVER {
            self.world.spawn(node, receive(host, Arc::clone(&self.log)));
        } else {
            self.world.spawn(node, send(host, self.pause));
        }
    }

    fn crash(&mut self, node: NodeId) {
        self.world.crash(node);
        self.up.remove(&node);
        let _ = write!(self.what, ", {node} crashed at {}", self.world.now());
    }

    fn restart(&mut self, node: NodeId) {
        self.world.restart(node);
        self.begin(node);
        let _ = write!(self.what, ", {node} back at {}", self.world.now());
    }

    #[track_caller]
    fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.world.run_until(end.min(self.world.now() + STEP));
            self.check_tokens();
        }
    }

    #[track_caller]
    fn check_tokens(&self) {
        let mut holders = BTreeSet::new();
        let mut valid = 0;
        for node in &self.up {
            let unit = self.world.firmware(*node);
            let coordination = unit.extension::<Coordination>(COORDINATION).unwrap();
            for token in coordination.tokens() {
                let alone = holders.insert(token.epoch);
                assert!(alone, "{}: two hold {:?} at {}", self.what, token.epoch, self.world.now());
                valid += u32::from(token.valid_until > self.world.host(*node).now());
            }
        }
        assert!(valid <= 1, "{}: {valid} may send at {}", self.what, self.world.now());
    }

    /// Checks that every sender is served within [`SOON`] of now.
    #[track_caller]
    fn all_are_served(&mut self) {
        let since = self.world.now();
        let senders: BTreeSet<NodeId> =
            self.up.iter().copied().filter(|node| *node != RECEIVER).collect();
        self.run_for(SOON);
        let log = self.log.lock().unwrap();
        let served: BTreeSet<NodeId> =
            log.iter().filter(|(_, at)| *at > since).map(|(node, _)| *node).collect();
        let waiting: Vec<_> = senders.difference(&served).collect();
        assert!(waiting.is_empty(), "{}: {waiting:?} wait since {since}", self.what);
    }
}

fn receiver_returns(mode: Mode, senders: u16, pause: Duration, away: Duration) {
    let mut run = Run::new(mode, senders, pause, 1);
    (0..=senders).for_each(|node| run.begin(NodeId(node)));
    run.run_for(Duration::from_secs(3));
    run.all_are_served();
    run.crash(RECEIVER);
    run.run_for(away);
    run.restart(RECEIVER);
    run.all_are_served();
    run.run_for(Duration::from_secs(2));
    run.all_are_served();
}

/// Times for which the receiver is down, in milliseconds.
const AWAY_MS: [u64; 2] = [200, 20_000];

#[test]
fn a_restarted_receiver_gets_messages_within_a_second() {
    for mode in MODES {
        for away in AWAY_MS {
            for senders in [1, 3] {
                for pause in [2, 200] {
                    let (pause, away) = (Duration::from_millis(pause), Duration::from_millis(away));
                    receiver_returns(mode, senders, pause, away);
                }
            }
        }
    }
}

/// Runs the README's program: with a list of three senders, of which one runs.
fn one_of_three_runs(mode: Mode, away: Duration) {
    let mut run = Run::new(mode, 3, Duration::from_millis(200), 1);
    for absent in [2, 3].map(NodeId) {
        run.crash(absent);
    }
    run.begin(RECEIVER);
    run.begin(NodeId(1));
    run.run_for(Duration::from_secs(5));
    run.all_are_served();
    run.crash(RECEIVER);
    run.run_for(away);
    run.restart(RECEIVER);
    run.all_are_served();
}

#[test]
fn a_restarted_receiver_gets_messages_from_the_only_running_sender() {
    for mode in MODES {
        for away in AWAY_MS {
            one_of_three_runs(mode, Duration::from_millis(away));
        }
    }
}

fn random_restarts(seed: u64) {
    let mut rng = Rng::new(seed, "restarts");
    let mode = MODES[rng.below(3) as usize];
    let senders = rng.between(1, 4) as u16;
    let pause = Duration::from_micros([2_000, 20_000, 200_000][rng.below(3) as usize]);
    let mut run = Run::new(mode, senders, pause, seed);
    (0..=senders).for_each(|node| run.begin(NodeId(node)));
    for _ in 0..4 {
        run.run_for(Duration::from_micros(rng.below(3_000_000)));
        let sender = NodeId(rng.between(1, senders.into()) as u16);
        let gone = match rng.below(3) {
            0 => vec![RECEIVER],
            1 => vec![sender],
            _ => vec![RECEIVER, sender],
        };
        gone.iter().for_each(|node| run.crash(*node));
        for node in gone {
            let away = [1, 20_000, 200_000, 700_000, 20_000_000][rng.below(5) as usize];
            run.run_for(Duration::from_micros(away));
            run.restart(node);
        }
        run.all_are_served();
    }
}

#[test]
fn all_are_served_within_a_second_of_any_restart() {
    (0..8).for_each(random_restarts);
    for _ in 0..3 {
        random_restarts(RandomState::new().hash_one(0));
    }
}
