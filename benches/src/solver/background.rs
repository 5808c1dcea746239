//! Sends background traffic.

use std::time::Duration;

use midplane::nicvm::messages;
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::time::Instant;

use super::setting::{Load, RATE};
use midplane_kit::report::Failure;

/// Bytes of a message, and of its headers.
const BYTES: usize = 1_000;
const HEADERS: u64 = 114;
/// A port without a receiver.
const NOWHERE: PortId = PortId(7);
/// Messages in flight to the NIC at most; more would leave late.
const UNDER_WAY: usize = 64;

/// Sends messages without a receiver at random instants: `load` of the rate of the link to each of `targets`. Never
/// returns unless it fails.
pub async fn disturb<H: Host>(host: H, targets: Vec<NodeId>, load: Load) -> Result<(), Failure> {
    let mut port = host.open_port().map_err(Failure::of_run)?;
    let memory = port.register(BYTES).map_err(Failure::of_run)?;
    let mut rng = host.rng("background");
    let ways = targets.len() as f64;
    let gap = RATE.nanos_for(BYTES as u64 + HEADERS) as f64 / load.share / ways;
    let begin = host.now();
    let mut due = begin;
    let mut turn = 0;
    loop {
        // Exponential gaps: independent arrivals.
        let wait = -(1.0 - rng.unit()).ln() * gap;
        due = due.plus_nanos(wait as u64);
        host.sleep_until(due).await;
        while port.poll().is_some() {}
        turn += 1;
        if is_on(load, begin, due) && port.outstanding() < UNDER_WAY {
            let to = targets[turn % targets.len()];
            let command = messages::send(to, NOWHERE, memory.whole(), 0);
            port.submit(&command).map_err(Failure::of_run)?;
        }
    }
}

/// Returns whether the traffic is on at time `now`; with a period it starts in the off state.
fn is_on(load: Load, begin: Instant, now: Instant) -> bool {
    load.period.is_none_or(|period| {
        let period = Duration::from_secs_f64(period);
        now.since(begin).as_nanos() / period.as_nanos() % 2 == 1
    })
}
