//! Runs on this host over real sockets: this process is rank 0; the switch and the other ranks are child processes.

use super::arguments::Arguments;
use super::fabrics::take_part;
use super::nodes::{self, Children, Failure, Place};
use super::rank::{Job, Outcome};

/// Carries out a run with child processes.
pub(crate) fn run(arguments: &Arguments, job: &Job) -> Result<Outcome, Failure> {
    let setting = &job.setting;
    let words = arguments.for_child(setting);
    let mut children = Children::start(&words, setting.fabric, (1, setting.nodes()))?;
    let switch = children.switch.as_ref().map(|(_, at)| *at);
    let place = Place { rank: 0, peers: children.peers.clone(), switch };
    let outcome = nodes::runtime()?.block_on(take_part(job.clone(), &place));
    let outcome = outcome.map_err(|failure| children.complaint().unwrap_or(failure))?;
    outcome.ok_or_else(|| Failure::Stopped("rank 0 has no outcome".into()))
}
