//! Other libraries on this host, measured by programs that their packages install.
//!
//! UCX and libfabric come with measuring tools. For an MPI, a program like ours is compiled with its own compiler.
//! Libraries that are not installed are skipped, by name.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::pingpong::arguments::Kernel;
use crate::pingpong::measure::{Figures, batch_of, batches};
use crate::processes;

/// Time limit of one measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a tool's first process starts listening.
const COMES_UP: Duration = Duration::from_millis(300);

/// The program of `benches/iceoryx2`.
const ICEORYX2: &str = "midplane-iceoryx2-pingpong";

const MPI: &str = include_str!("mpi.c");

/// Returns the programs that a library's measurement needs, and the command that installs them.
const fn needs(library: Kernel) -> (&'static [&'static str], &'static str) {
    match library {
        Kernel::Ucx => (&["ucx_perftest"], "apt-get install ucx-utils"),
        Kernel::Libfabric => (&["fi_pingpong"], "apt-get install libfabric-bin"),
        Kernel::Openmpi => (&["mpicc", "mpirun"], "apt-get install libopenmpi-dev openmpi-bin"),
        Kernel::Iceoryx2 => (&[ICEORYX2], "cargo install --path benches/iceoryx2"),
        Kernel::Tcp | Kernel::Unix | Kernel::Udp => (&[], ""),
    }
}

/// Returns why a peer can't be measured here, or `None` if it can.
pub(crate) fn missing(library: Kernel) -> Option<String> {
    let (programs, installs) = needs(library);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here =
        |program: &&&str| std::env::split_paths(&path).any(|at| at.join(program).is_file());
    if let Some(program) = programs.iter().find(|program| !is_here(program)) {
        return Some(format!("{library}: {program} is not installed ({installs})"));
    }
    // Other MPIs install programs of the same names, which take other options.
    let is_another = library == Kernel::Openmpi && !is_open_mpi();
    is_another.then(|| format!("{library}: mpirun is another MPI's ({installs})"))
}

fn is_open_mpi() -> bool {
    let asked = Command::new("mpirun").arg("--version").stdin(Stdio::null()).output();
    asked.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
}

/// Returns a library's numbers at each size.
///
/// # Errors
/// One line: what failed.
pub(crate) async fn ask(
    library: Kernel,
    sizes: &[usize],
    milliseconds: u32,
) -> Result<Vec<Figures>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("{library}: {error}"))?;
    if library == Kernel::Openmpi {
        compile(folder.path()).await?;
    }
    let mut all = Vec::new();
    for bytes in sizes.iter().copied() {
        let count = batches(milliseconds, bytes);
        all.push(match library {
            Kernel::Ucx => ucx(bytes, count * batch_of(bytes)).await?,
            Kernel::Libfabric => libfabric(bytes, count * batch_of(bytes)).await?,
            Kernel::Iceoryx2 => plays(ICEORYX2, Command::new(ICEORYX2), bytes, count).await?,
            _ => openmpi(folder.path(), bytes, count).await?,
        });
    }
    Ok(all)
}

/// Starts a program, which is killed when it is dropped.
fn start(name: &str, command: Command) -> Result<Child, String> {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().map_err(|error| format!("{name}: {error}"))
}

/// Returns a program's output, once it has exited.
async fn output(name: &str, command: Command) -> Result<String, String> {
    let ended = timeout(PATIENCE, start(name, command)?.wait_with_output()).await;
    let ended = ended.map_err(|_| format!("{name}: not done after {PATIENCE:?}"))?;
    let output = ended.map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{name}: {}", output.status)),
    }
}

/// Builds a command of words that spaces separate.
fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Returns the numbers of the last line of a report that begins with `start`.
fn numbers(name: &str, text: &str, start: &str) -> Result<Vec<f64>, String> {
    let line = text.lines().rfind(|line| line.trim_start().starts_with(start));
    let words = line.map(|line| line.trim_start()[start.len()..].split_whitespace());
    let numbers = words.map(|words| words.filter_map(|word| word.parse().ok()).collect());
    numbers.ok_or_else(|| format!("{name}: its report is not understood"))
}

fn number(name: &str, numbers: &[f64], at: usize) -> Result<f64, String> {
    numbers.get(at).copied().ok_or_else(|| format!("{name}: its report is not understood"))
}

/// Starts a tool's two processes, the second with the first's address; returns the second's output.
async fn both(name: &str, first: Command, second: Command) -> Result<String, String> {
    let _first = start(name, first)?;
    sleep(COMES_UP).await;
    output(name, second).await
}

/// Measures UCX: shared memory, tag matching, both processes busy-polling.
async fn ucx(bytes: usize, count: usize) -> Result<Figures, String> {
    const NAME: &str = "ucx_perftest";
    let run = async |test: &str| {
        let port = processes::free_addresses(1)?[0].port();
        let more = format!("127.0.0.1 -t {test} -s {bytes} -n {count} -w 100");
        let [first, second] = ["", &more].map(|more| {
            let mut command = command(&format!("{NAME} -p {port} {more}"));
            command.env("UCX_TLS", "shm,self");
            command
        });
        numbers(NAME, &both(NAME, first, second).await?, "Final:")
    };
    // Iterations; latency: a percentile, average, overall; MiB/s: average, overall; messages/s.
    let (latency, stream) = (run("tag_lat").await?, run("tag_bw").await?);
    Ok(Figures {
        median_us: number(NAME, &latency, 1)?,
        p99_us: f64::NAN,
        gb_per_s: number(NAME, &stream, 5)? * f64::from(1 << 20) / 1e9,
    })
}

/// Measures libfabric's provider for shared memory.
async fn libfabric(bytes: usize, count: usize) -> Result<Figures, String> {
    const NAME: &str = "fi_pingpong";
    let port = processes::free_addresses(1)?[0].port();
    let shared = format!("{NAME} -p shm -e rdm -S {bytes} -I {count}");
    let first = command(&format!("{shared} -B {port}"));
    let text = both(NAME, first, command(&format!("{shared} -P {port} 127.0.0.1"))).await?;
    // MB/sec, usec/xfer, Mxfers/sec, behind sizes and counts with letters.
    let line = text.lines().last().unwrap_or_default();
    let last: Vec<f64> =
        line.split_whitespace().rev().map_while(|word| word.parse().ok()).collect();
    let median_us = number(NAME, &last, 1)?;
    Ok(Figures { median_us, p99_us: f64::NAN, gb_per_s: f64::NAN })
}

async fn compile(folder: &Path) -> Result<(), String> {
    const NAME: &str = "mpicc";
    let source = folder.join("pingpong.c");
    std::fs::write(&source, MPI).map_err(|error| format!("{NAME}: {error}"))?;
    let mut command = Command::new(NAME);
    command.arg("-O2").arg("-o").arg(folder.join("pingpong")).arg(&source);
    output(NAME, command).await.map(drop)
}

/// Measures Open MPI over shared memory.
async fn openmpi(folder: &Path, bytes: usize, count: usize) -> Result<Figures, String> {
    let mut command = command("mpirun --oversubscribe --mca btl vader,self --mca pml ob1 -n 2");
    // Open MPI refuses to run without these as root, or with fewer cores than processes.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.arg(folder.join("pingpong"));
    plays("mpirun", command, bytes, count).await
}

/// Runs a program that measures as ours does and prints the three numbers.
async fn plays(
    name: &str,
    mut command: Command,
    bytes: usize,
    count: usize,
) -> Result<Figures, String> {
    command.args([bytes, count, batch_of(bytes)].map(|number| number.to_string()));
    let numbers = numbers(name, &output(name, command).await?, "")?;
    Ok(Figures {
        median_us: number(name, &numbers, 0)?,
        p99_us: number(name, &numbers, 1)?,
        gb_per_s: number(name, &numbers, 2)?,
    })
}
