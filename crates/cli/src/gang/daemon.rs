//! `midplane gang daemon`: runs the ranks of parallel jobs on this host, and stops and starts them together with those on
//! all other hosts.

mod keys;
mod place;
mod spread;

use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::live::channels::ChannelOptions;
use midplane::gang::live::daemon::{
    CHECKPOINT_BYTES, DaemonOptions, Fabric, FabricOptions, Freezer, SYSTEM_SOCKET, StartError,
    default_socket, serve,
};
use midplane::gang::live::message::Cluster;
use midplane::gang::schedule::QueueTree;
use midplane::gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane::gang::tree::DEFAULT_ARITY;
use midplane::simhw::launch;
use midplane::simhw::seal::Identity;
use midplane_kit::hash::{EMPTY, fnv1a};
use midplane_kit::ranks;
use midplane_kit::report::{self, Failure};
use place::Place;
use rustix::process::geteuid;
use serde_json::json;
use spread::Spread;

use crate::nic::Medium;

const EXAMPLES: &str = "\
Examples:
  # This host alone; then `midplane gang run` in another terminal
  midplane gang daemon

  # Slices of 10 ms, four ranks at once
  midplane gang daemon --slice-ms 10 --slots 4

  # The second of three hosts; all of them have the same two files
  (umask 077; echo \"1:$(openssl rand -hex 32)\" > key)
  printf 'one:24800\\ntwo:24800\\nthree:24800\\n' > hosts
  midplane gang daemon --host 1 --peers hosts --key key

  # The same with a key for each host: only listed hosts join, each as itself
  midplane gang daemon --make-key secret    # on each host; prints a public key
  printf 'one:24800 KEY\\ntwo:24800 KEY\\nthree:24800 KEY\\n' > hosts
  midplane gang daemon --host 1 --peers hosts --secret-key secret

  # All three at once, over ssh: this program, the two files and this folder
  # have the same paths on all hosts
  midplane gang daemon --peers hosts --key key --spread

  # One on each node of a Slurm allocation, two ranks at once on each
  srun -N 4 --ntasks-per-node 1 midplane gang daemon --key key --slots 2

  # As root: members of the group hpc run jobs, each as itself; other users
  # can't connect
  midplane gang daemon --socket-group hpc

A daemon of root runs each job as the user who submitted it, with this user's groups on each host and no_new_privs. Without
--socket-group only root can connect. Users have the same name and number on all hosts; a host without the user refuses the
job. Resource limits are those of the daemon, without its priorities. Any other daemon runs jobs of its own user alone.

Ctrl-C or SIGTERM ends the daemon and all ranks on this host; so does the daemon's death. A job ends with its client (the
process of `midplane gang run`), and with any of its hosts. On SIGUSR1 the daemon prints on standard error what it waits for.

Of three hosts or more, a majority of all daemons elects the root. If the root is lost, another host takes over: within a
second if its daemon has died, and --patience-ms later if it is silent. Jobs without ranks on its host continue. A job whose
client was on that host continues too, and its output is dropped after 5 s (midplane gang attach). Daemons that reach no
majority let their jobs run, but start, switch and end none until they reach one. Each keeps a file next to its socket, with
the ending .record and readable by this user alone, with the jobs and their environments: keep it while other daemons run. To
begin anew, stop all daemons and remove it.

Exit code: 0 it ended by Ctrl-C or SIGTERM; 1 it could not serve; 2 bad input.";

/// Run the ranks of jobs on this host, in turns that all hosts take together.
///
/// One daemon, the root, decides; of one or two hosts, that of host 0. Of three or more, `midplane gang run` finds it from any
/// host. Jobs that need the same slots take turns, all ranks of a job at once; jobs that need different slots run at the
/// same time.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("keys").args(["key", "secret_key"]).multiple(true)))]
pub(crate) struct Arguments {
    /// Number of this host, from 0
    ///
    /// Unless given, it is the rank that `srun`, `mpirun`, PMI or an indexed Kubernetes job gave to this daemon; without
    /// one of these, 0.
    #[arg(long, value_name = "NUMBER")]
    host: Option<u16>,
    /// List of the daemons: one host:port a line, in the order of hosts
    ///
    /// Either each line has the host's public key behind it, or none has. Without a list but with a key, srun or a
    /// similar launcher names the other hosts. Without both, this host is alone.
    #[arg(long, value_name = "FILE", requires = "keys")]
    peers: Option<PathBuf>,
    /// List of the hosts instead of --peers: one "HOST", "HOST slots=N" or "HOST:N" a line
    #[arg(long, value_name = "FILE", requires = "keys", conflicts_with = "peers")]
    hostfile: Option<PathBuf>,
    /// Port of each host's daemon, with a hostfile or a launcher; 24700 unless given
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// File with the key that all daemons share: NUMBER:SECRET with 64 hexadecimal digits
    ///
    /// A holder of this key can speak as any of the hosts; --secret-key distinguishes the hosts.
    #[arg(long, visible_alias = "key-file", value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with this host's own secret key: 64 hexadecimal digits
    ///
    /// --peers has the public key of each host. "{host}" in the file's name is this host's number, for a folder that hosts
    /// share.
    #[arg(long, value_name = "FILE", requires = "peers")]
    secret_key: Option<PathBuf>,
    /// Make a secret key in a new file that only this user may read, print its public key, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    make_key: Option<PathBuf>,
    /// Start the daemons of the other hosts too, from host 0, by `ssh HOST ...`
    ///
    /// They run with these options in the same folder, and end with this one, even if another is the root.
    #[arg(long, requires = "keys")]
    spread: bool,
    /// Command of --spread that runs a command on another host, with its first arguments
    #[arg(long, default_value = "ssh -o BatchMode=yes", value_name = "COMMAND")]
    rsh: String,
    /// End when standard input does
    #[arg(long, hide = true)]
    end_with_input: bool,
    /// Ranks that run at once on each host; its number of processors unless given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    slots: Option<u16>,
    /// Length of a slice, in ms, from 10 to 3600000
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    slice_ms: u64,
    /// Preempt a job that is alone too, at the end of each slice
    ///
    /// With a number, preempt it at the ends of that many slices, then not at the ends of as many, and so on.
    #[arg(long, value_name = "SLICES", num_args = 0..=1, default_missing_value = "0")]
    with_itself: Option<u32>,
    /// Time that a job woken by input or a message runs in the middle of another job's slice, in ms, from 0 to 1000
    ///
    /// For jobs of `midplane gang run --woken`. With 0 they wait for their turn. No slice is interrupted before it has
    /// lasted this long. A job's own next slices are shorter by the time that it has run early, and it runs at most one
    /// slice ahead of its turn.
    #[arg(long, default_value_t = 10, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=1_000))]
    visit_ms: u64,
    /// Time that a daemon may be silent before its host counts as lost, in ms, for each step of the tree
    #[arg(long, default_value_t = 2_000, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=600_000))]
    patience_ms: u64,
    /// Give ranks channels to each other, on a NIC in the daemon
    ///
    /// Over shared memory between daemons of this host, or over UDP at the addresses of --peers, sealed with the keys.
    #[arg(long, value_enum)]
    fabric: Option<Medium>,
    /// Group whose members may use the socket, and run jobs as themselves; only for a daemon of root
    ///
    /// The socket has the mode 0660, else 0600.
    #[arg(long, value_name = "NAME")]
    socket_group: Option<String>,
    /// Choose how the processes of a job are stopped
    #[arg(long, value_enum, default_value_t = FreezerName::Auto)]
    freezer: FreezerName,
    /// Memory that jobs may claim on this host by `gang run --memory`, such as 48G
    ///
    /// Nine tenths of what the host has unless given, or of the lowest limit of the daemon's control groups. More than the host
    /// has needs swap: suspended jobs are swapped out.
    #[arg(long, value_name = "BYTES", value_parser = super::arguments::parse_bytes)]
    memory: Option<u64>,
    /// Most memory of the root for checkpoints that are written or read, in units of 2^20 bytes
    ///
    /// The checkpoint of a job that needs more is refused, and the job continues.
    #[arg(long, default_value_t = CHECKPOINT_BYTES >> 20, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    checkpoint_mib: u64,
}

impl Arguments {
    /// Returns the socket, unless one is named.
    pub(crate) fn default_socket(&self) -> PathBuf {
        match self.socket_group {
            Some(_) => SYSTEM_SOCKET.into(),
            None => default_socket(),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FreezerName {
    /// By control groups where this process may make them, else by signals
    Auto,
    /// By a control group for each job, with all processes that the ranks have started
    Cgroup,
    /// By signals to the process group of each rank
    Signals,
}

/// Returns the fabric of `--fabric`, if it is given.
fn fabric(
    arguments: &Arguments,
    socket: &Path,
    peers: &[String],
) -> Result<Option<FabricOptions>, Failure> {
    let Some(name) = arguments.fabric else { return Ok(None) };
    let (fabric, geometry) = match name {
        Medium::Shm => (Fabric::Shm, Geometry::BULK),
        Medium::Udp => {
            let addresses = match peers.is_empty() {
                true => vec![([127, 0, 0, 1], 0).into()],
                false => ranks::resolve_all(peers)?,
            };
            (Fabric::Udp(addresses), Geometry::BULK_UDP)
        }
    };
    // Daemons of one cluster on this host share the name. Other daemons of this user have another.
    let name = match peers.first() {
        Some(root) => format!("gangd {root}"),
        // The path may be too long for a name.
        None => format!("gangd {}", fnv1a(EMPTY, socket.as_os_str().as_encoded_bytes())),
    };
    Ok(Some(FabricOptions { fabric, name, channels: ChannelOptions { geometry } }))
}

/// Reads this host's secret key, if there is one, for the list's public keys.
fn identity(
    arguments: &Arguments,
    place: launch::ProcessGroup,
) -> Result<Option<Identity>, String> {
    match &arguments.secret_key {
        Some(path) => {
            let path = path.to_string_lossy().replace("{host}", &place.rank.to_string());
            place.identity(path.as_ref()).map(Some).map_err(|error| error.to_string())
        }
        None if place.keys.is_empty() => Ok(None),
        None => {
            Err("--peers: the list has a key for each host; name this host's with --secret-key"
                .into())
        }
    }
}

fn options(arguments: &Arguments, socket: &Path) -> Result<DaemonOptions, String> {
    let key = arguments.key.as_deref().map(keys::read_key).transpose()?;
    let Place { host, peers, keys, slots } = place::find(arguments)?;
    let identity =
        identity(arguments, launch::ProcessGroup { rank: host, peers: peers.clone(), keys })?;
    let hosts = u16::try_from(peers.len().max(1)).map_err(|_| "--peers: too many")?;
    let there = std::thread::available_parallelism().map_or(1, |count| count.get() as u16);
    let slots = arguments.slots.or(slots).unwrap_or(there);
    if u32::from(slots) * u32::from(hosts) > u16::MAX.into() {
        return Err(format!("--slots {slots}: more than 65535 on {hosts} hosts"));
    }
    let lists = [&arguments.peers, &arguments.hostfile];
    if arguments.spread && lists.into_iter().flatten().any(|list| list == Path::new("-")) {
        return Err("--spread: name a file that all hosts have, not -".into());
    }
    if arguments.spread && (host != 0 || hosts == 1) {
        return Err("--spread: host 0 starts the others, by --peers or --hostfile".into());
    }
    Ok(DaemonOptions {
        fabric: None,
        host,
        cluster: Cluster { hosts, slots, arity: DEFAULT_ARITY },
        peers,
        key,
        identity,
        socket: socket.to_owned(),
        socket_group: arguments.socket_group.clone(),
        patience: Duration::from_millis(arguments.patience_ms),
        freezer: match arguments.freezer {
            FreezerName::Auto => Freezer::Auto,
            FreezerName::Cgroup => Freezer::Cgroup,
            FreezerName::Signals => Freezer::Signals,
        },
        memory: arguments.memory,
        checkpoint_bytes: arguments.checkpoint_mib << 20,
    })
}

fn scheduler_config(arguments: &Arguments) -> SchedulerConfig {
    SchedulerConfig {
        slice: Duration::from_millis(arguments.slice_ms),
        phases: Phases::Two,
        preempt_when_alone: match arguments.with_itself.map(NonZeroU32::new) {
            None => PreemptWhenAlone::Never,
            Some(None) => PreemptWhenAlone::Always,
            Some(Some(each)) => PreemptWhenAlone::Alternately(each),
        },
        early_wakeup: Duration::from_millis(arguments.visit_ms),
    }
}

/// Serves jobs until this process is asked to end.
pub(crate) async fn main(arguments: &Arguments, socket: &Path, json: bool) -> Result<u8, Failure> {
    if let Some(path) = &arguments.make_key {
        let key = keys::make_key(path)?.to_string();
        report::print_document(json, &json!({ "public_key": key }), |_| format!("{key}\n"));
        return Ok(0);
    }
    let options = options(arguments, socket)?;
    let fabric = fabric(arguments, socket, &options.peers)?;
    let options = DaemonOptions { fabric, ..options };
    let slots = options.cluster.hosts * options.cluster.slots;
    let policy = Box::new(QueueTree::new(slots));
    // The other hosts' daemons end when this is dropped.
    let _others = match arguments.spread {
        true => Some(Spread::start(&arguments.rsh, &options.peers, options.cluster.slots)?),
        false => None,
    };
    if arguments.end_with_input {
        spread::end_with_input();
    }
    let is_root_s_alone = options.socket_group.is_none() && geteuid().is_root();
    let shares_a_key = options.identity.is_none() && options.peers.len() > 1;
    let ready = || {
        let socket = socket.display().to_string();
        report::print_document(json, &json!({ "socket": socket }), |_| {
            format!("midplane gang daemon: serving at {socket}\n")
        });
        if is_root_s_alone {
            report::note(
                "midplane gang daemon: serves root alone; --socket-group NAME lets the members of a group run jobs, each as \
                 itself",
            );
        }
        if shares_a_key {
            report::note(
                "midplane gang daemon: all hosts share one key, and each can speak as any other; --secret-key tells \
                 them apart",
            );
        }
    };
    match serve(options, policy, scheduler_config(arguments), ready).await {
        Ok(()) => Ok(0),
        Err(error) => Err(failure(&error)),
    }
}

/// Returns the error of a daemon that does not start. What may pass by itself, such as a full disk or an address that
/// the host does not have yet, is no bad input.
fn failure(error: &StartError) -> Failure {
    use ErrorKind::{AddrInUse, InvalidData, InvalidInput, PermissionDenied};
    let may_pass = match error {
        StartError::Nic(_) | StartError::System(_) => true,
        StartError::Address(_, error)
        | StartError::Record(_, error)
        | StartError::Socket(_, error) => {
            !matches!(error.kind(), AddrInUse | InvalidData | InvalidInput | PermissionDenied)
        }
        _ => false,
    };
    if may_pass { Failure::of_run(error) } else { error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: systemd did not start a daemon again that was started before the network, or on a full disk.
    #[test]
    fn an_error_that_may_pass_by_itself_is_no_bad_input() {
        let codes = |kind: ErrorKind| {
            let errors = [
                StartError::Address("a:1".into(), kind.into()),
                StartError::Record("a".into(), kind.into()),
                StartError::Socket("a".into(), kind.into()),
            ];
            errors.map(|error| format!("{:?}", failure(&error)))
        };
        for kind in [ErrorKind::AddrNotAvailable, ErrorKind::StorageFull, ErrorKind::Other] {
            assert!(codes(kind).iter().all(|failure| failure.ends_with(", 1)")), "{kind}");
        }
        for kind in [ErrorKind::AddrInUse, ErrorKind::InvalidInput, ErrorKind::PermissionDenied] {
            assert!(codes(kind).iter().all(|failure| failure.ends_with(", 2)")), "{kind}");
        }
    }
}
