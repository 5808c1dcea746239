//! The same with real processes: a daemon with a NIC, two or more ranks, preempted in real time.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midplane::gang::agenda::{AgendaConfig, Phases};
use midplane::gang::channel::geometry::Geometry;
use midplane::gang::live::channels::ChannelOptions;
use midplane::gang::live::daemon::{DaemonOptions, Fabric, FabricOptions, Freezer, serve};
use midplane::gang::live::front::{Output, RunOptions, ask, run as run_job};
use midplane::gang::live::message::{Cluster, Program, Reply, Request, Slice};
use midplane::gang::live::stub;
use midplane::gang::schedule::RoundRobin;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::arguments::{Arguments, ModeName};
use super::nas_rank::{self, Said};
use super::slowdown::{Case, Run, interval};

/// What fits a datagram of Ethernet.
const UDP_MESSAGE: u32 = 1_400;
/// Milliseconds of a slice that nothing outlives.
const FOR_EVER: f64 = 1e8;

/// Plays the part that this process was started for, if it was: the daemon, a front end, a rank.
pub(crate) fn play_part() -> bool {
    stub::play_part();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match words[..] {
        ["--be-daemon", socket, slots, slice_ms, fabric, mode] => {
            daemon(socket, slots, slice_ms, (fabric, mode))
        }
        ["--be-front", socket, ranks, ref command @ ..] => front(socket, ranks, command),
        ["--be-rank", kernel, class] => rank(kernel, class),
        ["--be-idle", how, seconds] => idle(how, seconds),
        _ => return false,
    };
    if let Err(error) = played {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    true
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

/// However this run ends, this ends with it.
fn end_with_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn daemon(
    socket: &str,
    slots: &str,
    slice_ms: &str,
    (fabric, mode): (&str, &str),
) -> Result<(), String> {
    end_with_parent();
    let slots = number(slots)?;
    let mode = if mode == "copy" { ModeName::Copy } else { ModeName::Resident }.mode();
    let (fabric, message) = match fabric {
        "shm" => (Some(Fabric::Shm), Geometry::BULK.message),
        "udp" => (Some(Fabric::Udp(vec![([127, 0, 0, 1], 0).into()])), UDP_MESSAGE),
        _ => (None, Geometry::BULK.message),
    };
    let geometry = Geometry { message, ..Geometry::BULK };
    let options = DaemonOptions {
        host: 0,
        cluster: Cluster { hosts: 1, slots, arity: 1 },
        peers: Vec::new(),
        key: None,
        socket: PathBuf::from(socket),
        patience: Duration::from_secs(10),
        fabric: fabric.map(|fabric| FabricOptions {
            fabric,
            name: format!("preempt {}", std::process::id()),
            channels: ChannelOptions { mode, geometry },
        }),
        freezer: Freezer::Auto,
    };
    let slice = Duration::from_secs_f64(number::<f64>(slice_ms)? / 1e3);
    let agenda = AgendaConfig { slice, phases: Phases::Four, with_itself: true };
    let ready = || println!("ready");
    let served = serve(options, Box::new(RoundRobin::new(slots)), agenda, ready);
    runtime()?.block_on(served).map_err(|error| error.to_string())
}

/// Runs a job, and says on a line of its own what its daemon knows of it.
fn front(socket: &str, ranks: &str, command: &[&str]) -> Result<(), String> {
    end_with_parent();
    let program = Program {
        command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: Vec::new(),
        folder: b"/".to_vec(),
        terminal: None,
        keep_going: false,
    };
    let (ranks, output) = (number(ranks)?, Output::default());
    let options = RunOptions { ranks, weight: 1, program, output };
    let runtime = runtime()?;
    let over = runtime.block_on(run_job(Path::new(socket), options, |_| {}));
    runtime.shutdown_background();
    let over = over.map_err(|error| error.to_string())?;
    if let Some(why) = over.why {
        return Err(why);
    }
    println!("{}", over.preemptions);
    std::process::exit(
        over.ranks.iter().filter_map(|(_, end)| end.map(|it| it.code())).max().unwrap_or(1),
    )
}

fn rank(kernel: &str, class: &str) -> Result<(), String> {
    let said = runtime()?.block_on(nas_rank::run(kernel.parse()?, class.parse()?))?;
    if let Some(said) = said {
        println!("{}", serde_json::to_string(&said).expect("plain data"));
    }
    Ok(())
}

/// A process that waits, or one that never does.
fn idle(how: &str, seconds: &str) -> Result<(), String> {
    let time = Duration::from_secs_f64(number(seconds)?);
    if how == "blocked" {
        std::thread::park_timeout(time);
        return Ok(());
    }
    let began = midplane::gang::live::clock::now();
    while midplane::gang::live::clock::now() < began + time {
        std::hint::spin_loop();
    }
    Ok(())
}

/// A daemon of this run's.
struct Stage {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Stage {
    fn start(slots: u16, slice_ms: f64, fabric: &str, mode: &str) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("starting a daemon: {error}");
        let folder = tempfile::tempdir().map_err(failed)?;
        let mut daemon = Command::new(std::env::current_exe().map_err(failed)?)
            .arg("--be-daemon")
            .arg(folder.path().join("socket"))
            .args([slots.to_string().as_str(), &slice_ms.to_string(), fabric, mode])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let output = daemon.stdout.take().expect("it is a pipe");
        let stage = Self { folder, daemon };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
        if line == "ready\n" { Ok(stage) } else { Err("the daemon did not begin".into()) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Runs a job; the lines that its front end has written.
    fn run(&self, ranks: u16, command: &[&str]) -> Result<Vec<String>, String> {
        let failed = |error: std::io::Error| format!("running a job: {error}");
        let itself = std::env::current_exe().map_err(failed)?;
        let mut front = Command::new(&itself);
        front.arg("--be-front").arg(self.socket()).arg(ranks.to_string()).arg(&itself);
        let mut front = front
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut text = String::new();
        front.stdout.take().expect("it is a pipe").read_to_string(&mut text).map_err(failed)?;
        match front.wait().map_err(failed)?.success() {
            true => Ok(text.lines().map(str::to_owned).collect()),
            false => Err("a job failed".into()),
        }
    }

    fn slices(&self) -> Result<Vec<Slice>, String> {
        let reply = runtime()?.block_on(ask(&self.socket(), &Request::Slices));
        match reply {
            Ok(Reply::Slices(slices)) => {
                Ok(slices.into_iter().filter(|slice| !slice.stopped.is_empty()).collect())
            }
            _ => Err("the daemon is gone".into()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// One run of a kernel: what it said, and how often it was stopped.
fn once(stage: &Stage, case: &Case) -> Result<(Said, usize), String> {
    let class = case.class.to_string();
    let lines = stage.run(case.ranks, &["--be-rank", case.kernel.name(), &class])?;
    let wrong = || "a job did not say what it found".to_owned();
    let [said, about] = &lines[..] else { return Err(wrong()) };
    let said = serde_json::from_str(said).map_err(|_| wrong())?;
    Ok((said, number(about)?))
}

fn mean(slices: &[Slice], of: impl Fn(&Slice) -> f64) -> f64 {
    slices.iter().map(of).sum::<f64>() / slices.len().max(1) as f64
}

/// Measures a kernel with and without preemption, in turns.
///
/// # Errors
/// One line.
pub(crate) fn measure(arguments: &Arguments, case: &Case) -> Result<Run, String> {
    let fabric = arguments.fabric.name();
    let alone = Stage::start(case.ranks, FOR_EVER, fabric, case.mode.name())?;
    let preempted = Stage::start(case.ranks, case.slice_ms, fabric, case.mode.name())?;
    let (first, _) = once(&alone, case)?;
    let (mut slowdowns, mut less_still, mut times) = (Vec::new(), Vec::new(), 0);
    let (mut same_bits, mut verified, mut alone_s) = (true, first.verified, Vec::new());
    let mut runs = 0;
    while runs < arguments.repeat || times < arguments.preemptions {
        let said = once(&alone, case)?.0;
        let (gang, count) = once(&preempted, case)?;
        let slices = preempted.slices()?;
        let last = &slices[slices.len().saturating_sub(count)..];
        let still = last.iter().map(|slice| slice.switch_us).sum::<f64>() / 1e6;
        slowdowns.push(gang.seconds / said.seconds - 1.0);
        less_still.push((gang.seconds - still) / said.seconds - 1.0);
        alone_s.push(said.seconds);
        same_bits &= said.checksum == first.checksum && gang.checksum == first.checksum;
        verified &= said.verified && gang.verified;
        times += count;
        runs += 1;
    }
    let slices = preempted.slices()?;
    let (slowdown, slowdown_ci) = interval(&slowdowns);
    let rest = |slice: &Slice| slice.switch_us - slice.freeze_us - slice.save_us - slice.restore_us;
    Ok(Run {
        kernel: case.kernel.name(),
        class: case.class,
        ranks: case.ranks,
        slice_ms: case.slice_ms,
        mode: case.mode.name(),
        slowdown,
        slowdown_ci,
        slowdown_less_still: Some(interval(&less_still).0),
        preemptions: times,
        freeze_us: mean(&slices, |slice| slice.freeze_us),
        save_us: mean(&slices, |slice| slice.save_us),
        restore_us: mean(&slices, |slice| slice.restore_us),
        run_us: mean(&slices, rest),
        alone_s: interval(&alone_s).0,
        verified,
        same_bits,
        checksum: first.checksum,
        fabric,
        machine: "this one",
    })
}

/// How long 64 real processes take to stand still.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Frozen {
    pub(crate) processes: u16,
    /// They wait for something, or compute.
    pub(crate) blocked: bool,
    pub(crate) freezes: usize,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

/// Freezes so many processes again and again, without a network.
///
/// # Errors
/// One line.
pub(crate) fn freeze(processes: u16, blocked: bool, seconds: f64) -> Result<Frozen, String> {
    let stage = Stage::start(processes, 10.0, "none", "resident")?;
    let how = if blocked { "blocked" } else { "spinning" };
    stage.run(processes, &["--be-idle", how, &seconds.to_string()])?;
    let mut all: Vec<f64> = stage.slices()?.iter().map(|slice| slice.freeze_us).collect();
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get((all.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
    Ok(Frozen { processes, blocked, freezes: all.len(), median_us: at(0.5), p99_us: at(0.99) })
}
