//! How well rates and queues meet their targets, over every number of senders and many seeds.
//!
//! `cargo bench -p midplane-warp --bench laws -- [seeds] [packet-seeds] [hours]`: the fluid for 1 to
//! 128 senders with so many seeds each (4 unless given; 1,000 take an hour on a core), the packets
//! for 16 of those numbers (2 seeds), and skew for so many hours of virtual time (1).

#[path = "../tests/controller/scenario.rs"]
mod scenario;

use std::time::Duration;

use midplane_warp::model::{Fluid, FluidSender};
use scenario::{Draw, LOOP, PRODUCT, SERVICE, Settled, settle_fluid, settle_packets};

/// The worst of each figure, and the mean of the rate's error.
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
    let mut given = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let mut number =
        |default: u64| given.next().and_then(|word| word.parse().ok()).unwrap_or(default);
    let (seeds, packet_seeds, hours) = (number(4), number(2), number(1));
    let mut fluid = Worst::new();
    for senders in 1..=128 {
        (0..seeds).for_each(|seed| fluid.add(settle_fluid(&Draw::random(senders, seed))));
    }
    fluid.print("fluid, 1 to 128 senders", "1 %");
    let mut packets = Worst::new();
    for senders in [1, 2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 90, 110, 128] {
        for seed in 0..packet_seeds {
            let draw = Draw::random(senders, seed);
            packets.add(settle_packets(&draw, draw.packets(seed)));
        }
    }
    packets.print("packets with noise, 16 numbers of senders from 1 to 128", "2 %");
    for ppm in [-100.0, 100.0] {
        let most = skewed(ppm, Duration::from_secs(hours * 3_600));
        println!("skew of {ppm} ppm for {hours} h: queue at most {most:.3} of its target (1.2)");
    }
}

/// The longest queue of two senders under skew, over its target.
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
