//! Runs on this host over real sockets: the switch and all nodes are child processes.

use std::collections::BTreeMap;

use crate::arguments::Arguments;
use crate::incast::run::Run;
use crate::incast::setting::Setting;
use crate::nodes::{Children, Failure};

/// Document that the receiver prints.
#[derive(Debug, serde::Deserialize)]
struct Document {
    runs: Vec<Run>,
}

/// Carries out `setting` with child processes.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Run, Failure> {
    let words = arguments.for_child(setting);
    let mut children = Children::start(&words, setting.fabric, (0, setting.nodes()))?;
    let (_, receiver) = children.nodes.remove(0);
    let output =
        receiver.output().map_err(|what| children.complaint().unwrap_or(Failure::Stopped(what)))?;
    let mut run = serde_json::from_str::<Document>(&output)
        .ok()
        .and_then(|mut document| document.runs.pop())
        .ok_or_else(|| Failure::Stopped("the receiver printed no report".into()))?;
    if let Some((mut switch, _)) = children.switch {
        switch.close();
        let output = switch.output().map_err(Failure::Stopped)?;
        let drops: BTreeMap<String, u64> = serde_json::from_str(&output)
            .map_err(|_| Failure::Stopped("the switch printed no counters".into()))?;
        for (cause, count) in drops {
            *run.drops.entry(cause).or_default() += count;
        }
    }
    Ok(run)
}
