//! The report of a run.

use std::collections::BTreeMap;

use midplane::simhw::drops::Drops;
use serde::Serialize;

use super::scenario::Measured;
use super::setting::Setting;
use crate::counts::jain;

/// The result of a run, with its parameters.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The parameters.
    #[serde(flatten)]
    pub setting: Setting,
    /// Goodput of all senders' messages at the receiver, in 10^6 bit/s.
    pub goodput_mbps: f64,
    /// Fraction of sent messages that never arrived.
    pub loss: f64,
    /// Jain's index of the senders' goodput: 1 if all have the same.
    pub jain: f64,
    /// Median time from post to arrival; a sender has a hundred messages posted. `None` if nodes have different
    /// clocks.
    pub median_us: Option<f64>,
    /// The 99th percentile of that time.
    pub p99_us: Option<f64>,
    /// Control messages between senders during the measured part.
    pub control_messages: u64,
    /// Lost frames by cause, warm-up included.
    pub drops: BTreeMap<String, u64>,
    /// Frames that all NICs of the simulation have sent, warm-up included.
    pub frames: Option<u64>,
    /// Digest of all events of the simulation.
    pub digest: Option<String>,
    /// Nodes that were lost during the run.
    pub lost_ranks: Vec<u16>,
}

impl Run {
    /// Creates the report from the receiver's measurements.
    pub fn new(setting: &Setting, measured: &Measured) -> Self {
        let mbps = |bytes: u64| bytes as f64 * 8.0 / 1e6 / setting.seconds;
        let quantile = |at: f64| {
            let latency = &measured.latency;
            (!latency.is_empty()).then(|| round(latency.value_at_quantile(at) as f64 / 1e3, 1))
        };
        let shares: Vec<f64> = measured.bytes.iter().map(|bytes| *bytes as f64).collect();
        Self {
            setting: setting.clone(),
            goodput_mbps: round(mbps(measured.bytes.iter().sum()), 3),
            loss: round(loss(measured), 6),
            jain: round(jain(&shares), 5),
            median_us: quantile(0.5),
            p99_us: quantile(0.99),
            control_messages: measured.control_messages,
            drops: BTreeMap::new(),
            frames: None,
            digest: None,
            lost_ranks: measured.lost.iter().map(|node| node.0).collect(),
        }
    }

    /// Adds the drops of a part of the fabric.
    pub fn add_drops(&mut self, drops: &Drops) {
        for (cause, count) in drops.iter() {
            *self.drops.entry(cause.name().into()).or_default() += count;
        }
    }
}

fn loss(measured: &Measured) -> f64 {
    match measured.sent {
        0 => 0.0,
        sent => 1.0 - measured.received as f64 / sent as f64,
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
