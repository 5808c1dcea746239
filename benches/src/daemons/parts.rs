//! Parts that a program plays when it has started itself: a daemon, or a client.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::stage::Daemons;
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::live::channels::ChannelOptions;
use midplane::gang::live::client::{self, ClientError, Output, RunOptions};
use midplane::gang::live::daemon::{
    CHECKPOINT_BYTES, DaemonOptions, Fabric, FabricOptions, Freezer, serve,
};
use midplane::gang::live::exec_shim;
use midplane::gang::live::message::{Cluster, Over, Program};
use midplane::gang::schedule::RoundRobin;
use midplane::gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane::simhw::udp::resolve_peers;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Environment variable with the key that the daemons of a run share.
pub(super) const KEY: &str = "STAGE_KEY";

/// Plays the part that this process was started for, to its end; returns false if there is none. `own` plays the
/// program's own parts, by the command line's words.
pub fn play_part(own: impl FnOnce(&[&str]) -> Option<Result<(), String>>) -> bool {
    exec_shim::play_part();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match words[..] {
        ["--be-daemon", socket, host, of, peers] => daemon(socket, host, of, peers),
        ["--be-client", socket, ranks, ref command @ ..] => run_client(run(socket, ranks, command)),
        ["--be-restored", socket, folder] => run_client(restore(socket, folder)),
        _ => match own(&words) {
            Some(played) => played,
            None => return false,
        },
    };
    if let Err(error) = played {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    true
}

pub fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

/// Has the system kill this process when its parent exits.
fn end_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// Runs a host's daemon; `of` are all daemons' parameters as JSON.
fn daemon(socket: &str, host: &str, of: &str, peers: &str) -> Result<(), String> {
    end_with_parent();
    let host: u16 = number(host)?;
    let of: Daemons<'_> = serde_json::from_str(of).map_err(|error| error.to_string())?;
    let peers: Vec<String> = peers.split_terminator(',').map(str::to_owned).collect();
    let (joined, geometry) = match of.fabric {
        "shm" => (Some(Fabric::Shm), Geometry::BULK),
        "udp" => {
            let addresses = resolve_peers(&peers).map_err(|error| error.to_string())?;
            (Some(Fabric::Udp(addresses)), Geometry::BULK_UDP)
        }
        _ => (None, Geometry::BULK),
    };
    let run = Path::new(socket).parent().unwrap_or_else(|| Path::new("")).display();
    let options = DaemonOptions {
        host,
        cluster: Cluster { hosts: of.hosts, slots: of.slots, arity: of.hosts },
        peers,
        key: std::env::var(KEY).ok().and_then(|key| key.parse().ok()),
        identity: None,
        socket: PathBuf::from(socket),
        socket_group: None,
        patience: Duration::from_secs(10),
        fabric: joined.map(|fabric| FabricOptions {
            fabric,
            name: format!("stage {run}"),
            channels: ChannelOptions { geometry },
        }),
        freezer: Freezer::Auto,
        memory: None,
        checkpoint_bytes: CHECKPOINT_BYTES,
    };
    let slice = Duration::from_secs_f64(of.slice_ms / 1e3);
    let preempt_when_alone =
        of.stretch.map_or(PreemptWhenAlone::Never, PreemptWhenAlone::Alternately);
    let (phases, early_wakeup) = (Phases::Two, Duration::ZERO);
    let scheduler_config = SchedulerConfig { slice, phases, preempt_when_alone, early_wakeup };
    let ready = || println!("ready");
    let served =
        serve(options, Box::new(RoundRobin::new(of.hosts * of.slots)), scheduler_config, ready);
    runtime()?.block_on(served).map_err(|error| error.to_string())
}

async fn run(socket: &str, ranks: &str, command: &[&str]) -> Result<Over, String> {
    let program = Program {
        command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: Vec::new(),
        folder: b"/".to_vec(),
        terminal: None,
        keep_going: false,
        woken: false,
        memory: None,
        adopts: None,
        images: false,
    };
    let (ranks, output) = (number(ranks)?, Output::default());
    let options = RunOptions { ranks, weight: 1, program, output };
    client::run(Path::new(socket), options, |_| {}).await.map_err(|error| error.to_string())
}

async fn restore(socket: &str, folder: &str) -> Result<Over, String> {
    let output = Output::default();
    let restored = client::restore(Path::new(socket), Path::new(folder), 1, output, |_| {});
    restored.await.map_err(|error: ClientError| error.to_string())
}

/// Runs a job's client; prints the number of preemptions on a line of its own at the end.
fn run_client(job: impl Future<Output = Result<Over, String>>) -> Result<(), String> {
    end_with_parent();
    let runtime = runtime()?;
    let over = runtime.block_on(job);
    runtime.shutdown_background();
    let over = over?;
    if let Some(why) = over.why {
        return Err(why);
    }
    println!("{}", over.preemptions);
    std::process::exit(
        over.ranks.iter().filter_map(|(_, end)| end.map(|it| it.code())).max().unwrap_or(1),
    )
}
