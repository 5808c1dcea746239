//! A star of simulated hosts on links of 100 Mb/s, with a buffer of 32 KiB before the receiver's
//! link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::coordination::{
    self, COORDINATION, Coordination, CoordinationConfig, Lead, LeadTrim,
};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::fault::Faults;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Status;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;
use midplane_warp::firmware::{self, PAID, WARP, Warp, WarpConfig};
use midplane_warp::gate::Gate;
use midplane_warp::model::jain;

const RECEIVER: NodeId = NodeId(0);
const WARM_UP: Duration = Duration::from_millis(200);
const RATE: LineRate = LineRate::mbps(100);

/// The way in which senders send messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Traffic {
    /// At once, without congestion control.
    Plain,
    /// At the rate that the law allows.
    Warp,
    /// If the gate is open; otherwise the message is skipped.
    Conditional,
    /// By tokens of sender coordination that are released much too early, unless Warp corrects
    /// that.
    Tokens {
        /// True if Warp corrects the release.
        is_adjusted: bool,
    },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) goodput_mbps: f64,
    pub(crate) loss: f64,
    pub(crate) jain: f64,
    pub(crate) skipped: u64,
    pub(crate) longest_silence: Duration,
    pub(crate) digest: u64,
}

#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    skipped: u64,
    received: Vec<u64>,
    in_time: Vec<u64>,
    last: Vec<Instant>,
    silence: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Star {
    senders: u16,
    message: usize,
    pub(crate) time: Duration,
    tally: Arc<Mutex<Tally>>,
}

impl Star {
    pub(crate) fn new(senders: u16, message: usize) -> Self {
        let count = usize::from(senders);
        let tally = Tally {
            received: vec![0; count],
            in_time: vec![0; count],
            last: vec![Instant::ZERO; count],
            ..Tally::default()
        };
        let time = Duration::from_millis(600);
        Self { senders, message, time, tally: Arc::new(Mutex::new(tally)) }
    }

    fn config(&self, node: NodeId) -> WarpConfig {
        let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
        WarpConfig::new(to, RATE, 16 << 10, self.senders)
    }

    /// Warp with tokens: it measures the path and limits how early they may be released.
    fn config_of_tokens(&self, node: NodeId, trim: Option<LeadTrim>) -> WarpConfig {
        let to: &[NodeId] = if node == RECEIVER { &[] } else { &[RECEIVER] };
        let mut config = WarpConfig::new(to, RATE, 4 * self.message as u32, 1);
        config =
            config.paces_others(true).span(Duration::from_millis(13)).drain_every(Duration::MAX);
        if let Some(trim) = trim {
            config = config.adapt_lead(RECEIVER, trim);
        }
        config
    }

    fn coordination(&self, trim: LeadTrim) -> Coordination {
        let senders: Vec<NodeId> = (1..=self.senders).map(NodeId).collect();
        let mut config = CoordinationConfig::star(&[RECEIVER], &senders);
        // The lead is ten times the duration of a hand-over.
        config = config.lead(Lead::Fixed(Duration::from_micros(850))).rate(RATE).genesis(true);
        config = config.trim_lead(RECEIVER, trim);
        Coordination::new(config).unwrap()
    }

    pub(crate) fn run(&self, traffic: Traffic) -> Outcome {
        let link = LinkProfile::ethernet(RATE, Duration::from_micros(1));
        let switch = SwitchProfile::new(Buffer::Bytes(32 << 10));
        let topology = Topology::star(self.senders + 1, link, switch);
        let gates: Arc<Mutex<Vec<(NodeId, Gate)>>> = Arc::default();
        let (star, given) = (self.clone(), Arc::clone(&gates));
        let mut world = World::new(&topology, NicProfile::MODERN, 1, move |node, _| {
            let mut unit = Unit::default();
            let config = match traffic {
                Traffic::Tokens { is_adjusted } => {
                    let trim = LeadTrim::default();
                    unit.install(COORDINATION, star.coordination(trim.clone())).unwrap();
                    star.config_of_tokens(node, is_adjusted.then_some(trim))
                }
                _ => star.config(node),
            };
            let (warp, gates) = Warp::new(config);
            given.lock().unwrap().extend(gates.into_values().map(|gate| (node, gate)));
            unit.install(MESSAGES, Messages::new()).unwrap();
            unit.install(WARP, warp).unwrap();
            unit
        });
        world.set_faults(Faults { jitter: Duration::from_micros(100), ..Faults::NONE });
        for node in (1..=self.senders).map(NodeId) {
            let gate = gates.lock().unwrap().iter().find(|(at, _)| *at == node).unwrap().1.clone();
            let (host, star) = (world.host(node), self.clone());
            world.spawn(node, async move { star.send(&host, traffic, &gate).await });
        }
        let (host, star) = (world.host(RECEIVER), self.clone());
        world.spawn(RECEIVER, async move { star.receive(&host, traffic).await });
        world.run_until(Instant::ZERO + self.time + Duration::from_millis(300));
        self.outcome(world.digest())
    }

    async fn send(&self, host: &SimHost, traffic: Traffic, gate: &Gate) {
        let mut port = host.open_port().unwrap();
        let posted = 20_usize;
        let memory = port.register(self.message * posted).unwrap();
        let mut free: Vec<usize> = (0..posted).collect();
        let mut rng = host.rng("sender");
        host.sleep_until(Instant::from_nanos(rng.below(1_000_000))).await;
        while host.now() < Instant::ZERO + self.time {
            let Some(slot) = free.pop() else {
                let done = port.completion().await.unwrap();
                assert_eq!(done.status, Status::Done);
                free.push(done.cookie as usize);
                continue;
            };
            let range = memory.range(slot * self.message, self.message).unwrap();
            let mut command = match traffic {
                Traffic::Plain => messages::send(RECEIVER, PortId(0), range, slot as u64),
                Traffic::Tokens { .. } => {
                    coordination::send(RECEIVER, PortId(0), range, slot as u64)
                }
                _ => firmware::send(RECEIVER, PortId(0), range, slot as u64),
            };
            if traffic == Traffic::Conditional {
                command.flags |= PAID;
                let sent = gate.c_send(self.message as u32 + 86, || port.submit(&command));
                if !sent.is_sent() {
                    self.tally.lock().unwrap().skipped += 1;
                    free.push(slot);
                    // The application computes something else meanwhile.
                    host.sleep_until(host.now().plus_nanos(20_000 + rng.below(20_000))).await;
                    continue;
                }
            } else {
                port.submit(&command).unwrap();
            }
            self.tally.lock().unwrap().sent += 1;
        }
        while free.len() < posted {
            free.push(port.completion().await.unwrap().cookie as usize);
        }
        // The port stays open, since its messages are still in flight.
        host.sleep_until(Instant::FAR_FUTURE).await;
    }

    async fn receive(&self, host: &SimHost, traffic: Traffic) {
        let post = match traffic {
            Traffic::Plain => messages::receive,
            Traffic::Tokens { .. } => coordination::receive,
            _ => firmware::receive,
        };
        let mut port = host.open_port().unwrap();
        let memory = port.register(self.message * 64).unwrap();
        for slot in 0..64 {
            let range = memory.range(slot * self.message, self.message).unwrap();
            port.submit(&post(range, slot as u64)).unwrap();
        }
        loop {
            let done = port.completion().await.unwrap();
            let range = memory.range(done.cookie as usize * self.message, self.message).unwrap();
            self.note(done.node, host.now());
            port.submit(&post(range, done.cookie)).unwrap();
        }
    }

    fn note(&self, from: NodeId, now: Instant) {
        let mut tally = self.tally.lock().unwrap();
        let at = from.index() - 1;
        tally.received[at] += 1;
        if now >= Instant::ZERO + WARM_UP && now < Instant::ZERO + self.time {
            tally.in_time[at] += 1;
            tally.silence = tally.silence.max(now.since(tally.last[at]));
        }
        tally.last[at] = now;
    }

    fn outcome(&self, digest: u64) -> Outcome {
        let tally = self.tally.lock().unwrap();
        let shares: Vec<f64> = tally.in_time.iter().map(|count| *count as f64).collect();
        let bits = shares.iter().sum::<f64>() * self.message as f64 * 8.0;
        let received: u64 = tally.received.iter().sum();
        Outcome {
            goodput_mbps: bits / 1e6 / (self.time - WARM_UP).as_secs_f64(),
            loss: 1.0 - received as f64 / tally.sent as f64,
            jain: jain(&shares),
            skipped: tally.skipped,
            longest_silence: tally.silence,
            digest,
        }
    }
}
