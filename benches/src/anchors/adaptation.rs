//! A planner that follows a stage whose costs change while messages flow, on the pipelines paper's machine (section 5.1).

use std::sync::{Arc, Mutex};

use midplane::pipeline::estimate::{Monitor, Verdict};
use midplane::pipeline::{Limits, Planner, Request, ramp};
use midplane::simhw::profile::{DmaCost, Machine};
use midplane::simhw::time::Instant;

use super::gam::{self, Passage};

/// Bytes of each message.
const MESSAGE: usize = 4096;
/// Time at which the receiver's copies change, in us of virtual time: during a message, after some 40.
pub const CHANGE_US: f64 = 8_000.0;
/// Most fragments of the best cut; first and last step of its search, in bytes.
const MOST: usize = 8;
const STEPS: [usize; 4] = [256, 64, 16, 4];

/// Changes of the last stage, the receiver's copies, with their costs.
pub const CHANGES: [(&str, DmaCost); 2] = {
    let Machine { host, .. } = Machine::GAM_MYRINET;
    let DmaCost { setup_ns, byte_ps } = host.copy;
    [
        ("a signal for each fragment", DmaCost { setup_ns: setup_ns + host.signal_ns, byte_ps }),
        (
            "copies that take four times as long",
            DmaCost { setup_ns: 4 * setup_ns, byte_ps: 4 * byte_ps },
        ),
    ]
};

/// One message: when it began, and its latency, in us of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub at_us: f64,
    pub latency_us: f64,
}

/// Sends messages one after another, while copies at the receiver cost `copy` from [`CHANGE_US`] on. If the sender
/// `follows`, each acknowledgement brings it the time of each fragment in each stage.
pub fn run(copy: DmaCost, messages: usize, follows: bool) -> Vec<Sent> {
    let sent = Arc::<Mutex<Vec<Sent>>>::default();
    let (list, mut sender) = (Arc::clone(&sent), Sender::new());
    let cost = move |now: Instant| {
        if now.as_nanos() as f64 >= CHANGE_US * 1e3 { copy } else { gam::COPY }
    };
    gam::carry(cost, move |passages| {
        let mut sent = list.lock().expect("no task panics");
        if let Some(first) = passages.first() {
            let (at_us, latency_us) = (first[0] as f64 / 1e3, gam::latency_us(passages));
            sent.push(Sent { at_us, latency_us });
            if follows {
                sender.learn(passages);
            }
        }
        (sent.len() < messages).then(|| sender.cut())
    });
    std::mem::take(&mut *sent.lock().expect("no task panics"))
}

/// Returns the latency of the best cut that a search finds while copies at the receiver cost `copy`, in microseconds. From
/// the ramp of each number of fragments, it moves bytes between fragments as long as that helps.
pub fn optimum_us(copy: DmaCost) -> f64 {
    let stages = gam::clear_box(copy);
    let searched = (1..=MOST).map(|count| {
        let plan = ramp(&stages, &Request::new(MESSAGE as f64).fragments(count));
        let sizes = plan.expect("the stages have overheads").whole_bytes();
        let mut sizes: Vec<usize> = sizes.into_iter().map(|bytes| bytes as usize).collect();
        let mut best = gam::message_us(copy, sizes.clone());
        for step in STEPS {
            while let Some((better, us)) = neighbour(copy, &sizes, step, best) {
                (sizes, best) = (better, us);
            }
        }
        best
    });
    searched.fold(f64::INFINITY, f64::min)
}

/// Returns the first faster cut that moves `step` bytes from one fragment to another, with its latency.
fn neighbour(copy: DmaCost, sizes: &[usize], step: usize, us: f64) -> Option<(Vec<usize>, f64)> {
    let pairs = (0..sizes.len()).flat_map(|from| (0..sizes.len()).map(move |to| (from, to)));
    pairs.filter(|&(from, to)| from != to && sizes[from] > step).find_map(|(from, to)| {
        let mut moved = sizes.to_vec();
        moved[from] -= step;
        moved[to] += step;
        let faster = gam::message_us(copy, moved.clone());
        (faster < us).then_some((moved, faster))
    })
}

/// A sender that plans from a cache and monitors the stages.
struct Sender {
    planner: Planner,
    monitor: Monitor,
    sizes: Vec<usize>,
}

impl Sender {
    fn new() -> Self {
        let stages = gam::clear_box(gam::COPY);
        let monitor = Monitor::new(&stages);
        let planner = Planner::new(stages, Limits::new()).expect("the stages have overheads");
        Self { planner, monitor, sizes: Vec::new() }
    }

    /// Cuts a message. Between messages there is time to compute a ramp.
    fn cut(&mut self) -> Vec<usize> {
        self.planner.plan(MESSAGE as u64);
        while let Some(wanted) = self.planner.poll_ramp_request() {
            self.planner.install(wanted.compute().expect("there are no limits"));
        }
        self.sizes = self.planner.plan(MESSAGE as u64).map(|bytes| bytes as usize).collect();
        self.sizes.clone()
    }

    /// Passes each fragment's time in each stage to the monitor, without waiting for the fragment before.
    fn learn(&mut self, passages: &[Passage]) {
        let mut before = Passage::default();
        for (passage, &bytes) in passages.iter().zip(&self.sizes) {
            for stage in 0..4 {
                let nanos = passage[stage + 1] - passage[stage].max(before[stage + 1]);
                let us = nanos as f64 / 1e3;
                if self.monitor.handle_timing(stage, bytes as f64, us) != Verdict::Steady {
                    let replaced = self.planner.replace(self.monitor.pipeline());
                    replaced.expect("the stages have overheads");
                }
            }
            before = *passage;
        }
    }
}
