//! Scenarios that the tests and the sweep share: a link of 1 Gb/s with a loop of 1 ms, drawn at
//! random from a seed.

use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use midplane_warp::control::{ControlConfig, Controller};
use midplane_warp::estimate::Grouping;
use midplane_warp::model::{Fluid, FluidSender, PacketSender, Packets, PacketsConfig};

/// The loop without the queue.
pub(crate) const LOOP: Duration = Duration::from_millis(1);
/// Bytes a second: 1 Gb/s.
pub(crate) const SERVICE: f64 = 125e6;
/// Bytes of a bandwidth-delay product.
pub(crate) const PRODUCT: f64 = 125e3;

/// When all begins.
pub(crate) const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

/// What a run is drawn as.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    /// Senders.
    pub(crate) senders: usize,
    /// The queue that they are to keep, in bytes.
    pub(crate) target: f64,
    /// Each sender's first rate, in bytes a second; 0 as an idle one starts.
    pub(crate) starts: Vec<f64>,
}

impl Draw {
    /// A run of `senders` with what `seed` draws: a target of a quarter to one product, and first
    /// rates anywhere between an idle and a full link.
    pub(crate) fn random(senders: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, "draw");
        let target = (0.25 + 0.75 * rng.unit()) * PRODUCT;
        let most = 2.0 * SERVICE / senders as f64;
        let starts = (0..senders).map(|_| most * 10_f64.powf(-3.0 * rng.unit())).collect();
        Self { senders, target, starts }
    }

    /// A run of `senders` that all start at `start`.
    pub(crate) fn even(senders: usize, target: f64, start: f64) -> Self {
        Self { senders, target, starts: vec![start; senders] }
    }

    /// What the feedback delay is once the queue stands: the loop and the queue.
    pub(crate) fn feedback_delay(&self) -> Duration {
        LOOP + Duration::from_secs_f64(self.target / SERVICE)
    }

    /// The controller of one of the senders.
    pub(crate) fn controller(&self, start: f64) -> Controller {
        self.controller_from(start, SERVICE / 1e3 / self.senders as f64)
    }

    fn controller_from(&self, start: f64, floor: f64) -> Controller {
        let share = self.target / self.senders as f64;
        let mut config = ControlConfig::new(share, floor, SERVICE * 4.0);
        config.first_delay(LOOP);
        let mut controller = Controller::new(config, BEGIN);
        if start > 0.0 {
            controller.start_at(start);
        }
        controller
    }

    /// The run as a fluid.
    pub(crate) fn fluid(&self) -> Fluid {
        let sender = |start: &f64| FluidSender::new(self.controller(*start), LOOP);
        Fluid::new(SERVICE, LOOP / 16, self.starts.iter().map(sender).collect())
    }

    /// The run in packets, so many that each sender has four in a loop at least, and of noise a
    /// tenth of a group's span.
    pub(crate) fn packets(&self, seed: u64) -> Packets {
        let packet = (PRODUCT / (4.0 * self.senders as f64).max(128.0)) as u64;
        let config = PacketsConfig {
            service: SERVICE,
            buffer: f64::MAX,
            packet,
            burst: 1,
            grouping: Grouping::new(125_000, 4),
        };
        // A packet each four loops: rarer, there is nothing to control by.
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

/// What a run has come to, once it has settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    /// Mean of |load - 1|: how far from its rate the link is offered, feedback delay by feedback
    /// delay.
    pub(crate) rate_error: f64,
    /// The mean queue over its target.
    pub(crate) queue: f64,
    /// The queue that is passed one time in a hundred, over its target.
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

/// Lets `draw` settle as a fluid for 200 feedback delays, and looks at 100 more.
pub(crate) fn settle_fluid(draw: &Draw) -> Settled {
    let mut fluid = draw.fluid();
    let delay = draw.feedback_delay();
    fluid.run(delay * 200, |_| ());
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

/// The same in packets, with a drain now and then before it is looked at; rates are of what was sent in each feedback delay.
pub(crate) fn settle_packets(draw: &Draw, mut packets: Packets) -> Settled {
    let delay = draw.feedback_delay();
    // Who starts into a standing queue learns of the empty path when it is drained.
    for _ in 0..4 {
        packets.run(delay * 50, delay, |_| ());
        packets.ask_for_a_drain(LOOP);
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
