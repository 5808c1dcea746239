//! Measures incast: many senders to one receiver through a switch with small buffers, without and with coordination.
//!
//! ```text
//! cargo run --release --example incast
//! cargo run --release --example incast -- --fabric sim --mode none --senders 3 --json
//! ```
//!
//! Without `--rank` this process receives, and starts a switch and senders on this host, for every mode, 1 to 3 senders and
//! messages of up to 10 KB. It prints goodput, loss and fairness of each. The figures are those of the DVCM paper's
//! section 4.

mod arguments;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use midplane::simhw::launch::ProcessGroup;
use midplane::simhw::udp::SwitchConfig;
use midplane_benches::incast::fabrics;
use midplane_benches::incast::run::Run;
use midplane_benches::incast::setting::Setting;
use midplane_benches::meeting::{Meeting, lost};
use midplane_benches::nodes::{self, Fabric, Nodes, Place, Program};
use midplane_kit::processes;
use midplane_kit::report::{Failure, progress};

use arguments::Arguments;

fn main() -> ExitCode {
    nodes::main::<Arguments>()
}

impl Program for Arguments {
    type Run = Run;

    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn switch(&self, config: SwitchConfig) -> SwitchConfig {
        let setting = self.settings(None).remove(0);
        config.link(setting.link()).profile(setting.switch()).seed(setting.seed)
    }

    fn compare(&self) -> Result<Vec<Run>, Failure> {
        self.keys()?;
        let settings = self.settings(None);
        let bar = progress(settings.len(), "{bar:30} {pos}/{len} {msg} {eta}");
        let run = |setting: Setting| {
            bar.set_message(format!(
                "{} senders, {} bytes",
                setting.senders, setting.message_bytes
            ));
            let run = match setting.fabric {
                Fabric::Sim => fabrics::simulate(&setting),
                Fabric::Udp | Fabric::Switch => among_children(self, &setting),
            };
            bar.inc(1);
            run
        };
        let runs = settings.into_iter().map(run).collect();
        bar.finish_and_clear();
        runs
    }

    fn take_part(&self, place: &ProcessGroup) -> Result<Vec<Run>, Failure> {
        let settings = self.settings(Some(self.senders_among(place.size())?));
        let nodes = settings.first().map_or(0, Setting::nodes);
        let place = self.nodes.seat(place, nodes)?;
        processes::run(among(self, &place, &settings))
    }

    fn text(&self, runs: &[Run]) -> String {
        table::text(runs)
    }

    fn picture(&self) -> Option<&'static str> {
        self.is_comparison().then_some("incast.svg")
    }

    fn draw(&self, path: &Path, runs: &[Run]) -> Result<Vec<PathBuf>, Failure> {
        table::plot(path, runs).map(|()| vec![path.to_owned()])
    }

    fn check(&self, runs: &[Run]) -> Result<(), Failure> {
        let mut gone: Vec<u16> = runs.iter().flat_map(|run| run.lost_ranks.clone()).collect();
        gone.sort_unstable();
        gone.dedup();
        if gone.is_empty() { Ok(()) } else { Err(lost(&gone)) }
    }
}

/// Takes one node's part in all runs.
async fn among(
    arguments: &Arguments,
    place: &Place,
    settings: &[Setting],
) -> Result<Vec<Run>, Failure> {
    let keys = arguments.keys()?;
    let nodes = settings.first().map_or(0, Setting::nodes);
    let peers = &place.peers[..usize::from(nodes)];
    let mut meeting = Meeting::start(place.rank, peers, arguments.nodes.wait()).await?;
    let mut runs = Vec::new();
    for setting in settings {
        runs.extend(fabrics::take_part(setting, place, keys.clone(), &mut meeting).await?);
    }
    Ok(runs)
}

/// Receives from senders that are child processes.
fn among_children(arguments: &Arguments, setting: &Setting) -> Result<Run, Failure> {
    let words = arguments.for_child(setting);
    let part = async |place: Place| among(arguments, &place, std::slice::from_ref(setting)).await;
    let (runs, drops) = nodes::with_children(&words, setting.fabric, setting.nodes(), part)?;
    let mut run = runs.into_iter().next().ok_or_else(|| Failure::of_run("there is no report"))?;
    for (cause, count) in drops {
        *run.drops.entry(cause).or_default() += count;
    }
    Ok(run)
}
