//! Runs on this host over real sockets: this process is rank 0; the switch and the other ranks are child processes.

use std::net::SocketAddr;

use super::arguments::Arguments;
use super::fabrics::{Place, take_part};
use super::failure::Failure;
use super::processes::{Peer, free_addresses};
use super::rank::{Job, Outcome};
use super::setting::Fabric;

/// Carries out a run with child processes.
pub(crate) fn run(arguments: &Arguments, job: &Job) -> Result<Outcome, Failure> {
    let setting = &job.setting;
    let mut addresses =
        free_addresses(usize::from(setting.nodes()) + 1).map_err(Failure::Stopped)?;
    let words = arguments.for_child(setting);
    let start = |more: &[String], peers: &[SocketAddr]| {
        let words: Vec<String> = words.iter().chain(more).cloned().collect();
        Peer::start(&words, peers).map_err(Failure::Stopped)
    };
    let has_switch = setting.fabric == Fabric::Switch;
    let _switch = has_switch.then(|| start(&["--serve-switch".into()], &addresses)).transpose()?;
    let at_switch = addresses.remove(0);
    let mut ranks = Vec::new();
    for rank in 1..setting.nodes() {
        let mut more = vec!["--rank".to_owned(), rank.to_string()];
        if has_switch {
            more.extend(["--switch".into(), at_switch.to_string()]);
        }
        ranks.push(start(&more, &addresses)?);
    }
    let place = Place { rank: 0, peers: addresses, switch: has_switch.then_some(at_switch) };
    let outcome = crate::runtime()?.block_on(take_part(job.clone(), &place));
    // The error of the process that failed explains more than the time-out of those that wait for it.
    let complaints = (1_u16..).zip(&mut ranks).filter_map(|(rank, process)| {
        process.complaint().map(|what| Failure::Stopped(format!("rank {rank}: {what}")))
    });
    let outcome = outcome.map_err(|failure| complaints.into_iter().next().unwrap_or(failure))?;
    outcome.ok_or_else(|| Failure::Stopped("rank 0 has no outcome".into()))
}
