//! Runs on this host over real sockets: the switch and all nodes are child processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::arguments::Arguments;
use crate::incast::run::Run;
use crate::incast::scenario::Failure;
use crate::incast::setting::{Fabric, Setting};
use crate::processes::{Peer, free_addresses};

/// Document that the receiver prints.
#[derive(Debug, serde::Deserialize)]
struct Document {
    runs: Vec<Run>,
}

/// Carries out `setting` with child processes.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Run, Failure> {
    let mut addresses =
        free_addresses(usize::from(setting.nodes()) + 1).map_err(Failure::Stopped)?;
    let switch = (setting.fabric == Fabric::Switch)
        .then(|| start_switch(arguments, setting, &addresses))
        .transpose()?;
    let at_switch = addresses.remove(0);
    let start = |rank: u16| {
        let mut words = arguments.for_child(setting);
        words.extend(["--rank".into(), rank.to_string()]);
        if switch.is_some() {
            words.extend(["--switch".into(), at_switch.to_string()]);
        }
        Peer::start(&words, &addresses).map_err(Failure::Stopped)
    };
    let receiver = start(0)?;
    let mut senders = (1..setting.nodes()).map(start).collect::<Result<Vec<_>, _>>()?;
    // The error of the sender that failed explains more than the time-out of the receiver.
    let output = receiver.output().map_err(|what| {
        let complaint = senders.iter_mut().find_map(Peer::complaint);
        Failure::Stopped(complaint.unwrap_or(what))
    })?;
    let mut run = serde_json::from_str::<Document>(&output)
        .ok()
        .and_then(|mut document| document.runs.pop())
        .ok_or_else(|| Failure::Stopped("the receiver printed no report".into()))?;
    if let Some(switch) = switch {
        add_drops(&mut run, switch)?;
    }
    Ok(run)
}

fn start_switch(
    arguments: &Arguments,
    setting: &Setting,
    addresses: &[SocketAddr],
) -> Result<Peer, Failure> {
    let mut words = arguments.for_child(setting);
    words.push("--serve-switch".into());
    Peer::start(&words, addresses).map_err(Failure::Stopped)
}

/// Ends the switch, and adds its dropped frames to the run's.
fn add_drops(run: &mut Run, mut switch: Peer) -> Result<(), Failure> {
    switch.close();
    let output = switch.output().map_err(Failure::Stopped)?;
    let drops: BTreeMap<String, u64> = serde_json::from_str(&output)
        .map_err(|_| Failure::Stopped("the switch printed no counters".into()))?;
    for (cause, count) in drops {
        *run.drops.entry(cause).or_default() += count;
    }
    Ok(())
}
