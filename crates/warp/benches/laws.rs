//! Measures how well rates and queues meet their targets, over every number of senders and many
//! seeds.
//!
//! Run with `cargo bench -p midplane-warp --bench laws -- [--sweep] [--hours N]`. Draws 64 random
//! seeds, or 1,000 with `--sweep`, with 1 to 128 senders in turn. Covers the pure laws, the
//! recommended law as a fluid and in packets with noise, and clock skew for N hours of virtual time
//! (1 unless set).

#[path = "../tests/controller/loads.rs"]
mod loads;
#[path = "../tests/controller/scenario.rs"]
mod scenario;

use std::time::Duration;

use loads::{gradient, late_swing, paper};
use midplane_simhw::rng::Rng;
use midplane_warp::model::{Fluid, FluidSender};
use scenario::{Draw, LOOP, PRODUCT, SERVICE, Settled, settle_fluid, settle_packets};

/// The worst value of each measurement, and the mean of the rate's error.
#[derive(Debug)]
struct Worst {
    runs: u32,
    mean_rate_error: f64,
    rate_error: f64,
    queue: f64,
    queue_p99: f64,
    jain: f64,
}

impl Worst {
    const fn new() -> Self {
        Self {
            runs: 0,
            mean_rate_error: 0.0,
            rate_error: 0.0,
            queue: 0.0,
            queue_p99: 0.0,
            jain: 1.0,
        }
    }

    fn add(&mut self, settled: Settled) {
        self.runs += 1;
        self.mean_rate_error += settled.rate_error;
        self.rate_error = self.rate_error.max(settled.rate_error);
        self.queue = self.queue.max((settled.queue - 1.0).abs());
        self.queue_p99 = self.queue_p99.max(settled.queue_p99);
        self.jain = self.jain.min(settled.jain);
    }

    fn print(&self, what: &str, asked: &str) {
        println!(
            "{what}: {} runs; |load - 1| mean {:.3} %, worst run {:.3} % ({asked}); queue off its \
             target by at most {:.1} % (10 %), p99 at most {:.2} of it (2); Jain at least {:.4}",
            self.runs,
            self.mean_rate_error / f64::from(self.runs) * 100.0,
            self.rate_error * 100.0,
            self.queue * 100.0,
            self.queue_p99,
            self.jain
        );
    }
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let at = |flag: &str| given.iter().position(|word| word == flag);
    let seeds = if at("--sweep").is_some() { 1_000 } else { 64 };
    let hours = at("--hours").and_then(|at| given.get(at + 1)).and_then(|word| word.parse().ok());
    let hours = hours.unwrap_or(1);
    pure(seeds);
    let mut fluid = Worst::new();
    (0..seeds).for_each(|seed| fluid.add(settle_fluid(&Draw::random(senders(seed), seed), false)));
    fluid.print("fluid, 1 to 128 senders", "1 %");
    let mut packets = Worst::new();
    for seed in 0..seeds {
        let draw = Draw::random(senders(seed), seed);
        packets.add(settle_packets(&draw, draw.packets(seed)));
    }
    packets.print("packets with noise, 1 to 128 senders", "2 %");
    for ppm in [-100.0, 100.0] {
        let most = skewed(ppm, Duration::from_secs(hours * 3_600));
        println!("skew of {ppm} ppm for {hours} h: queue at most {most:.3} of its target (1.2)");
    }
}

/// Returns the number of senders for a seed: all numbers from 1 to 128 in turn.
const fn senders(seed: u64) -> usize {
    (1 + seed * 37 % 128) as usize
}

/// Measures W1: below their bounds the pure laws settle, and above them they oscillate.
fn pure(seeds: u64) {
    let (mut calm, mut wild) = (0.0_f64, f64::INFINITY);
    for seed in 0..seeds {
        let mut rng = Rng::new(seed, "pure");
        let (below, above) = (0.2 + 1.2 * rng.unit(), 1.8 + 0.4 * rng.unit());
        let (start, senders) = (1.05 + 0.45 * rng.unit(), senders(seed));
        let each = |gain: f64| gain / senders as f64;
        calm = calm.max(late_swing(&gradient(senders, below, start)));
        calm = calm.max(late_swing(&paper(senders, each(below), start)));
        wild = wild.min(late_swing(&gradient(senders, above, start)));
        wild = wild.min(late_swing(&paper(senders, each(above), start)));
    }
    println!(
        "pure laws, {seeds} seeds: with a gain of up to 1.4 a feedback delay they end within {:.2} % of \
         the rate (2 %), from 1.8 on they swing by {:.0} % at least (20 %)",
        calm * 100.0,
        wild * 100.0
    );
}

/// Returns the longest queue of two senders with skewed clocks, over its target.
fn skewed(ppm: f64, time: Duration) -> f64 {
    let draw = Draw::even(2, 0.5 * PRODUCT, 0.0);
    let sender = || {
        let mut sender = FluidSender::new(draw.controller(0.0), LOOP);
        sender.skew_ppm = ppm;
        sender
    };
    let mut fluid = Fluid::new(SERVICE, LOOP / 4, vec![sender(), sender()]);
    fluid.run(Duration::from_secs(1), |_| ());
    let mut most = 0.0_f64;
    fluid.run(time, |fluid| most = most.max(fluid.queue()));
    most / draw.target
}
