//! The parts that this program plays when it has started itself.

use std::path::PathBuf;
use std::time::Duration;

use crate::{adopted, arrivals, memory, mpi, random, rights, stuck, tcp, vis};
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::live::channels::ChannelOptions;
use midplane_gang::live::client::{self, ClientError, Output, RunOptions, run};
use midplane_gang::live::clock::now;
use midplane_gang::live::daemon::{
    CHECKPOINT_BYTES, DaemonOptions, Fabric, FabricOptions, Freezer, serve,
};
use midplane_gang::live::message::{Cluster, Over, Program};
use midplane_gang::live::rank::join;
use midplane_gang::live::snapshot::Snapshots;
use midplane_gang::names::Rank;
use midplane_gang::schedule::QueueTree;
use midplane_gang::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};
use midplane_simhw::id::NodeId;
use midplane_simhw::seal::Identity;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Plays the part that this process was started for, if it was.
pub(crate) fn play() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--daemon", socket, host, slots, slice_ms, peers, key, network, freezer] => {
            daemon(socket, (host, slots), slice_ms, (peers, key), (network, freezer));
        }
        ["--talk", count] => runtime().block_on(talk(count.parse().unwrap())),
        ["--vis", count] => runtime().block_on(vis::talk(count.parse().unwrap())),
        ["--vis-left"] => runtime().block_on(vis::count_left()),
        ["--vis-writing", stops] => {
            runtime().block_on(vis::write_without_end(stops.parse().unwrap()));
        }
        ["--vis-serve"] => runtime().block_on(arrivals::serve()),
        ["--vis-saved"] => runtime().block_on(vis::hand_over()),
        ["--leave"] => leave(),
        ["--restore", socket, folder] => restore(socket, folder),
        ["--client", socket, ranks, terminal, ref command @ ..] => {
            client(socket, ranks, terminal, command);
        }
        ["--adopt", socket, folder] => adopted::client(socket, folder),
        ["--ask", socket, request] => rights::ask(socket, request),
        ["--feed", socket, job, text] => runtime().block_on(rights::feed(socket, job, text)),
        ["--checkpoint", socket, job, folder] => rights::checkpoint(socket, job, folder),
        ["--fill", mebibytes, seconds] => memory::fill(mebibytes, seconds),
        ["--tick", folder, seconds] => tick(folder, seconds),
        ["--tick-in-session", folder, seconds] => {
            let _ = rustix::process::setsid().unwrap();
            tick(folder, seconds);
        }
        ["--tick-with", child, folder, seconds] => tick_with(child, folder, seconds),
        ["--spin", seconds] => spin(seconds),
        ["--tcp-with-child", folder] => tcp::first(folder.as_ref(), "--tcp-second"),
        ["--tcp-with-session", folder] => tcp::first(folder.as_ref(), "--tcp-in-session"),
        ["--tcp-second", port] => tcp::second(port),
        ["--tcp-in-session", port] => {
            let _ = rustix::process::setsid().unwrap();
            tcp::second(port);
        }
        ["--wait-for-each-other"] => runtime().block_on(stuck::for_each_other()),
        ["--wait-for-ever"] => runtime().block_on(stuck::for_ever()),
        ["--wait-in-a-ring"] => runtime().block_on(stuck::in_a_ring()),
        ["--receive-from-the-next"] => runtime().block_on(stuck::receives()),
        ["--random", folder, seed] => {
            runtime().block_on(random::run(folder, seed.parse().unwrap()));
        }
        ["--sum-for-ever"] => runtime().block_on(stuck::sums()),
        ["--pmi", rounds] => mpi::talk(rounds.parse().unwrap()),
        [part @ ("--pmi-leaves" | "--pmi-aborts" | "--pmi-babbles")] => mpi::fail(part),
        _ => return false,
    }
    true
}

/// Ticks, and starts a child that ticks by the option `child`.
fn tick_with(child: &str, folder: &str, seconds: &str) {
    let rank = format!("{}-child", std::env::var("GANG_RANK").unwrap());
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let mut process =
        process.args([child, folder, seconds]).env("GANG_RANK", rank).spawn().unwrap();
    tick(folder, seconds);
    process.wait().unwrap();
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Has the kernel kill this process when the test ends.
pub(crate) fn end_with_test() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

fn daemon(
    socket: &str,
    (host, slots): (&str, &str),
    slice_ms: &str,
    (peers, key): (&str, &str),
    (network, freezer): (&str, &str),
) {
    end_with_test();
    if let Some(group) = freezer.strip_prefix("auto in ") {
        memory::enter(group);
    }
    let peers: Vec<String> = peers.split_terminator(',').map(str::to_owned).collect();
    let hosts = peers.len().max(1) as u16;
    let slots = slots.parse().unwrap();
    let options = DaemonOptions {
        host: host.parse().unwrap(),
        cluster: Cluster { hosts, slots, arity: 2 },
        peers,
        key: key.split(';').next().and_then(|key| key.parse().ok()),
        identity: identity(key, host),
        socket: PathBuf::from(socket),
        patience: Duration::from_secs(3),
        fabric: fabric(network, socket),
        socket_group: freezer.strip_prefix("auto for ").map(str::to_owned),
        freezer: if freezer == "signals" { Freezer::Signals } else { Freezer::Auto },
        memory: freezer.strip_prefix("auto with ").map(|bytes| bytes.parse().unwrap()),
        checkpoint_bytes: CHECKPOINT_BYTES,
    };
    let policy = Box::new(QueueTree::new(hosts * slots));
    let slice = Duration::from_millis(slice_ms.parse().unwrap());
    let scheduler_config = SchedulerConfig {
        slice,
        phases: Phases::Two,
        preempt_when_alone: PreemptWhenAlone::Never,
        early_wakeup: Duration::from_millis(10),
    };
    runtime().block_on(serve(options, policy, scheduler_config, || println!("ready"))).unwrap();
}

/// Parses the text after the fabric's key: this host's secret key, and the public keys of all hosts.
fn identity(keys: &str, host: &str) -> Option<Identity> {
    let [_, secret, list] = keys.split(';').collect::<Vec<_>>()[..] else { return None };
    let list = list.split(',').map(|key| key.parse().unwrap()).collect();
    let own = NodeId(host.parse().unwrap());
    Some(Identity::new(own, secret.parse().unwrap(), list).unwrap())
}

/// Returns the fabric's options, with small FIFOs that are full most of the time.
fn fabric(network: &str, socket: &str) -> Option<FabricOptions> {
    let (kind, addresses) = network.split_once(' ').unwrap_or((network, ""));
    if kind == "none" {
        return None;
    }
    let addresses: Vec<_> = addresses.split_terminator(',').map(|it| it.parse().unwrap()).collect();
    let fabric = if addresses.is_empty() { Fabric::Shm } else { Fabric::Udp(addresses) };
    let geometry = Geometry {
        send: FifoSize { messages: 7, bytes: 2048 },
        receive: FifoSize { messages: 5, bytes: 2048 },
        message: 600,
    };
    let folder = PathBuf::from(socket).parent().unwrap().file_name().unwrap().to_owned();
    let name = folder.into_string().unwrap();
    Some(FabricOptions { fabric, name, channels: ChannelOptions { geometry } })
}

/// Time without a message after which a rank reports that it hangs: longer than the gaps that preemptions make.
const STUCK: Duration = Duration::from_secs(20);

/// Returns a message that differs from all others.
fn message(from: u16, to: u16, number: u32) -> Vec<u8> {
    let seed = u64::from(number) << 32 | u64::from(from) << 16 | u64::from(to);
    let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let length = (mixed >> 33) % 590 + 8;
    (0..length).map(|at| (mixed >> (at % 8 * 8)) as u8).collect()
}

/// Returns the counts from which a talking rank continues: messages sent to each rank, and taken from each.
fn counts(saved: Option<Vec<u8>>, own: u16, ranks: u16, count: u32) -> [Vec<u32>; 2] {
    let words: Vec<u32> = match saved {
        Some(saved) => {
            saved.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
        }
        None => {
            let fresh = |rank| if rank == own { count } else { 0 };
            (0..ranks).chain(0..ranks).map(fresh).collect()
        }
    };
    let (sent, taken) = words.split_at(ranks.into());
    [sent.to_vec(), taken.to_vec()]
}

/// Sends `count` messages to every other rank, and takes theirs: all of them, once, in order. The job can be saved
/// between any two messages, with each rank at its own progress.
async fn talk(count: u32) {
    /// Messages between two pauses.
    const PAUSE_EACH: u32 = 8;

    let (_, mut channel) = join().await.unwrap();
    let mut snapshots = Snapshots::join().unwrap();
    let (own, ranks) = (channel.rank().0, channel.ranks());
    let [mut sent, mut taken] = counts(snapshots.take_restored(), own, ranks, count);
    // A rank that hangs reports its state, once.
    let (mut moved_at, mut is_said, mut paused) = (now(), false, 0);
    loop {
        let mut moved = false;
        for to in (0..ranks).filter(|to| *to != own) {
            let number = sent[usize::from(to)];
            if number < count && channel.try_send(Rank(to), &message(own, to, number)).is_ok() {
                sent[usize::from(to)] += 1;
                moved = true;
            }
        }
        if moved && sent.iter().sum::<u32>() / PAUSE_EACH != paused {
            // Pauses make the job last longer, with messages under way.
            paused = sent.iter().sum::<u32>() / PAUSE_EACH;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if snapshots.is_asked() {
            let state = sent.iter().chain(&taken).flat_map(|it| it.to_le_bytes());
            snapshots.save(&state.collect::<Vec<_>>()).unwrap();
        }
        while let Some((from, bytes)) = channel.try_receive() {
            let number = &mut taken[from.index()];
            assert_eq!(bytes, message(from.0, own, *number), "message {number} of rank {from}");
            *number += 1;
            moved = true;
        }
        if sent.iter().chain(&taken).all(|it| *it == count) && channel.is_flushed() {
            println!("{own} has all");
            return;
        }
        if moved {
            moved_at = now();
        } else if !is_said && now() >= moved_at + STUCK {
            eprintln!("rank {own} hangs: sent {sent:?}, taken {taken:?}, {channel:?}");
            is_said = true;
        }
        if !moved {
            let news = channel.room();
            // Waits for 1 ms at most, because a request for the rank's state may arrive meanwhile.
            let _ = tokio::time::timeout(Duration::from_millis(1), news).await;
        }
    }
}

/// Rank 1 ends when it is asked for its state; the others hand theirs over.
fn leave() {
    let mut snapshots = Snapshots::join().unwrap();
    let own = std::env::var("GANG_RANK").unwrap();
    while !snapshots.is_asked() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    if own == "1" {
        std::process::exit(0);
    }
    snapshots.save(own.as_bytes()).unwrap();
    println!("{own} goes on");
}

fn client(socket: &str, ranks: &str, terminal: &str, command: &[&str]) -> ! {
    end_with_test();
    let variables = std::env::vars().map(|(name, value)| format!("{name}={value}").into_bytes());
    let program = Program {
        command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: variables.collect(),
        folder: b"/".to_vec(),
        terminal: (terminal == "terminal").then_some((24, 80)),
        keep_going: false,
        woken: terminal == "woken",
        memory: terminal.strip_prefix("memory ").map(|mib| mib.parse::<u64>().unwrap() << 20),
        adopts: None,
        images: false,
    };
    let output = Output { label: terminal == "labelled", ..Output::default() };
    let ranks = ranks.parse().unwrap();
    let options = RunOptions { ranks, weight: 1, program, output };
    let runtime = runtime();
    let over = runtime.block_on(run(socket.as_ref(), options, |_| {}));
    runtime.shutdown_background();
    std::process::exit(code(over))
}

/// Runs a client that restores a saved job.
fn restore(socket: &str, folder: &str) -> ! {
    end_with_test();
    let runtime = runtime();
    let restored = client::restore(socket.as_ref(), folder.as_ref(), 1, Output::default(), |_| {});
    let over = runtime.block_on(restored);
    runtime.shutdown_background();
    std::process::exit(code(over))
}

pub(crate) fn code(over: Result<Over, ClientError>) -> i32 {
    match over {
        Ok(over) => {
            if let Some(why) = over.why {
                eprintln!("why: {why}");
            }
            over.ranks.iter().filter_map(|(_, end)| end.map(|end| end.code())).max().unwrap_or(2)
        }
        Err(error) => {
            eprintln!("error: {error}");
            2
        }
    }
}

/// Takes processor time from all other processes.
fn spin(seconds: &str) {
    end_with_test();
    let end = now() + Duration::from_secs_f64(seconds.parse().unwrap());
    while now() < end {
        std::hint::spin_loop();
    }
}

/// Writes the spans of time in which this process ran without a pause of a millisecond.
fn tick(folder: &str, seconds: &str) {
    let end = now() + Duration::from_secs_f64(seconds.parse().unwrap());
    let mut spans = vec![(now(), now())];
    loop {
        let (at, last) = (now(), spans.last_mut().unwrap());
        // A process whose time is over ends within a millisecond, which the others don't notice.
        if at >= end {
            break;
        }
        if at.nanos_since(last.1) > 1_000_000 {
            spans.push((at, at));
        } else {
            last.1 = at;
        }
    }
    let lines = spans.iter().map(|(a, b)| format!("{} {}\n", a.as_nanos(), b.as_nanos()));
    let name =
        format!("{}-{}", std::env::var("GANG_JOB").unwrap(), std::env::var("GANG_RANK").unwrap());
    std::fs::write(PathBuf::from(folder).join(name), lines.collect::<String>()).unwrap();
}
