//! Scenarios that the tests and the sweep share: a link of 1 Gb/s with a round trip of 1 ms, drawn
//! at random from a seed.

use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use midplane_warp::control::{ControlConfig, Controller};
use midplane_warp::estimate::Grouping;
use midplane_warp::model::{Fluid, FluidSender, PacketSender, Packets, PacketsConfig};

/// The round trip without the queue.
pub(crate) const LOOP: Duration = Duration::from_millis(1);
/// Service rate of the link in bytes a second: 1 Gb/s.
pub(crate) const SERVICE: f64 = 125e6;
/// The bandwidth-delay product in bytes.
pub(crate) const PRODUCT: f64 = 125e3;

/// When a run begins.
pub(crate) const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    /// Number of senders.
    pub(crate) senders: usize,
    /// The target queue in bytes.
    pub(crate) target: f64,
    /// Each sender's first rate, in bytes a second; 0 starts as an idle sender does.
    pub(crate) starts: Vec<f64>,
}

impl Draw {
    /// Draws a run of `senders` from `seed`: a target of a quarter to one bandwidth-delay product,
    /// and first rates between an idle and a full link.
    pub(crate) fn random(senders: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, "draw");
        let target = (0.25 + 0.75 * rng.unit()) * PRODUCT;
        let most = 2.0 * SERVICE / senders as f64;
        let starts = (0..senders).map(|_| most * 10_f64.powf(-3.0 * rng.unit())).collect();
        Self { senders, target, starts }
    }

    /// Makes a run of `senders` that all start at the rate `start`.
    pub(crate) fn even(senders: usize, target: f64, start: f64) -> Self {
        Self { senders, target, starts: vec![start; senders] }
    }

    /// Returns the feedback delay with the target queue: the round trip and the queue.
    pub(crate) fn feedback_delay(&self) -> Duration {
        LOOP + Duration::from_secs_f64(self.target / SERVICE)
    }

    /// Makes the controller of one sender.
    pub(crate) fn controller(&self, start: f64) -> Controller {
        self.controller_from(start, SERVICE / 1e3 / self.senders as f64)
    }

    fn controller_from(&self, start: f64, floor: f64) -> Controller {
        let share = self.target / self.senders as f64;
        let mut config = ControlConfig::new(share, floor, SERVICE * 4.0);
        config = config.first_delay(LOOP);
        let mut controller = Controller::new(config, BEGIN);
        if start > 0.0 {
            controller.start_at(start);
        }
        controller
    }

    /// Makes the fluid model of the run.
    pub(crate) fn fluid(&self) -> Fluid {
        let sender = |start: &f64| FluidSender::new(self.controller(*start), LOOP);
        Fluid::new(SERVICE, LOOP / 16, self.starts.iter().map(sender).collect())
    }

    /// Makes the packet model of the run, with at least four packets per sender and round trip, and
    /// with noise of a tenth of a group's span.
    pub(crate) fn packets(&self, seed: u64) -> Packets {
        let packet = (PRODUCT / (4.0 * self.senders as f64).max(128.0)) as u64;
        let config = PacketsConfig {
            service: SERVICE,
            buffer: f64::MAX,
            packet,
            burst: 1,
            grouping: Grouping::new(125_000, 4),
        };
        // At least one packet in four round trips: with fewer there is too little feedback.
        let floor = packet as f64 / (4.0 * LOOP.as_secs_f64());
        let sender = |start: &f64| {
            PacketSender::new(&config, Some(self.controller_from(*start, floor)), LOOP)
        };
        let senders = self.starts.iter().map(sender).collect();
        let mut packets = Packets::new(config, senders, seed);
        packets.faults.noise_ns = 12_500.0;
        packets
    }
}

/// Measurements of a run after it has settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    /// Mean of |load - 1|, sampled over feedback delays.
    pub(crate) rate_error: f64,
    /// The mean queue over its target.
    pub(crate) queue: f64,
    /// The 99th percentile of the queue over its target.
    pub(crate) queue_p99: f64,
    /// Jain's index of the rates at the end.
    pub(crate) jain: f64,
}

fn p99(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() * 99 / 100]
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Runs `draw` as a fluid for 200 feedback delays, with a drain in their middle if `drains`, and measures 100 more.
pub(crate) fn settle_fluid(draw: &Draw, drains: bool) -> Settled {
    let mut fluid = draw.fluid();
    let delay = draw.feedback_delay();
    fluid.run(delay * 100, |_| ());
    if drains {
        fluid.request_drain();
    }
    fluid.run(delay * 100, |_| ());
    let (mut loads, mut queues) = (Vec::new(), Vec::new());
    fluid.run(delay * 100, |fluid| {
        loads.push((fluid.load() - 1.0).abs());
        queues.push(fluid.queue() / draw.target);
    });
    Settled {
        rate_error: mean(&loads),
        queue: mean(&queues),
        queue_p99: p99(&mut queues),
        jain: midplane_warp::model::jain(&fluid.rates()),
    }
}

/// Runs `draw` in packets for 250 feedback delays, with four drains, and measures 100 more. The
/// load counts the bytes that were sent in each feedback delay.
pub(crate) fn settle_packets(draw: &Draw, mut packets: Packets) -> Settled {
    let delay = draw.feedback_delay();
    // A sender that starts into a standing queue measures the empty path only in a drain.
    for _ in 0..4 {
        packets.run(delay * 50, delay, |_| ());
        packets.request_drain(LOOP);
    }
    packets.run(delay * 50, delay, |_| ());
    let before: Vec<f64> = packets.senders.iter().map(|sender| sender.delivered).collect();
    let (mut loads, mut queues, mut last) = (Vec::new(), Vec::new(), packets.offered);
    packets.run(delay * 100, delay, |packets| {
        let sent = packets.offered - last;
        last = packets.offered;
        loads.push((sent / (packets.config.service * delay.as_secs_f64()) - 1.0).abs());
        queues.push(packets.queue() / draw.target);
    });
    let sent = packets.senders.iter().zip(before).map(|(sender, before)| sender.delivered - before);
    Settled {
        rate_error: mean(&loads),
        queue: mean(&queues),
        queue_p99: p99(&mut queues),
        jain: midplane_warp::model::jain(&sent.collect::<Vec<_>>()),
    }
}
