//! Other libraries on this host, measured by programs that their packages install.
//!
//! UCX and libfabric come with measuring tools. For an MPI, a program like ours is compiled with its own compiler.
//! Libraries that are not installed are skipped, by name.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use crate::pingpong::arguments::Kernel;
use crate::pingpong::measure::{Figures, batch_of, batches};
use crate::processes;

/// Time limit of one measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the exit of a program is polled.
const LOOK: Duration = Duration::from_millis(5);
/// Time in which a tool's first process starts listening.
const COMES_UP: Duration = Duration::from_millis(300);

/// The program of `benches/iceoryx2`.
const ICEORYX2: &str = "midplane-iceoryx2-pingpong";

const MPI: &str = include_str!("mpi.c");

#[expect(clippy::disallowed_methods, reason = "programs take real time")]
fn now() -> Instant {
    Instant::now()
}

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
    let program = programs.iter().find(|program| !is_here(program))?;
    Some(format!("{library}: {program} is not installed ({installs})"))
}

/// Returns a library's numbers at each size.
///
/// # Errors
/// One line: what failed.
pub(crate) fn ask(
    library: Kernel,
    sizes: &[usize],
    milliseconds: u32,
) -> Result<Vec<Figures>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("{library}: {error}"))?;
    if library == Kernel::Openmpi {
        compile(folder.path())?;
    }
    let one = |bytes: &usize| {
        let count = batches(milliseconds, *bytes);
        match library {
            Kernel::Ucx => ucx(*bytes, count * batch_of(*bytes)),
            Kernel::Libfabric => libfabric(*bytes, count * batch_of(*bytes)),
            Kernel::Iceoryx2 => iceoryx2(*bytes, count),
            _ => openmpi(folder.path(), *bytes, count),
        }
    };
    sizes.iter().map(one).collect()
}

/// A program that is killed when this is dropped.
struct Program {
    name: &'static str,
    child: Child,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(name: &'static str, command: &mut Command) -> Result<Self, String> {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = piped.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, child })
    }

    /// Returns its output, once it has exited.
    fn output(&mut self) -> Result<String, String> {
        let until = now() + PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => break,
                Ok(Some(status)) => return Err(format!("{}: {status}", self.name)),
                Ok(None) if now() < until => park_timeout(LOOK),
                Ok(None) => return Err(format!("{}: not done after {PATIENCE:?}", self.name)),
                Err(error) => return Err(format!("{}: {error}", self.name)),
            }
        }
        let mut text = String::new();
        let pipe = self.child.stdout.take();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut text));
        read.map_err(|error| format!("{}: {error}", self.name))?;
        Ok(text)
    }
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
fn both(
    name: &'static str,
    command: impl Fn() -> Command,
    first: &[String],
    second: &[String],
) -> Result<String, String> {
    let _first = Program::start(name, command().args(first))?;
    park_timeout(COMES_UP);
    Program::start(name, command().args(second))?.output()
}

/// Measures UCX: shared memory, tag matching, both processes busy-polling.
fn ucx(bytes: usize, count: usize) -> Result<Figures, String> {
    const NAME: &str = "ucx_perftest";
    let command = || {
        let mut command = Command::new(NAME);
        command.env("UCX_TLS", "shm,self");
        command
    };
    let run = |test: &str, count: usize| {
        let port = processes::free_addresses(1)?[0].port();
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let first = words(format!("-p {port}"));
        let second = words(format!("127.0.0.1 -p {port} -t {test} -s {bytes} -n {count} -w 100"));
        numbers(NAME, &both(NAME, command, &first, &second)?, "Final:")
    };
    // Iterations; latency: a percentile, average, overall; MiB/s: average, overall; messages/s.
    let latency = run("tag_lat", count)?;
    let stream = run("tag_bw", count)?;
    Ok(Figures {
        median_us: number(NAME, &latency, 1)?,
        p99_us: f64::NAN,
        gb_per_s: number(NAME, &stream, 5)? * f64::from(1 << 20) / 1e9,
    })
}

/// Measures libfabric's provider for shared memory.
fn libfabric(bytes: usize, count: usize) -> Result<Figures, String> {
    const NAME: &str = "fi_pingpong";
    let port = processes::free_addresses(1)?[0].port();
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let shared = format!("-p shm -e rdm -S {bytes} -I {count}");
    let first = words(format!("{shared} -B {port}"));
    let second = words(format!("{shared} -P {port} 127.0.0.1"));
    let text = both(NAME, || Command::new(NAME), &first, &second)?;
    // MB/sec, usec/xfer, Mxfers/sec, behind sizes and counts with letters.
    let line = text.lines().last().unwrap_or_default();
    let last: Vec<f64> =
        line.split_whitespace().rev().map_while(|word| word.parse().ok()).collect();
    let median_us = number(NAME, &last, 1)?;
    Ok(Figures { median_us, p99_us: f64::NAN, gb_per_s: f64::NAN })
}

fn compile(folder: &Path) -> Result<(), String> {
    const NAME: &str = "mpicc";
    let source = folder.join("pingpong.c");
    std::fs::write(&source, MPI).map_err(|error| format!("{NAME}: {error}"))?;
    let mut command = Command::new(NAME);
    command.arg("-O2").arg("-o").arg(folder.join("pingpong")).arg(&source);
    Program::start(NAME, &mut command)?.output().map(drop)
}

fn openmpi(folder: &Path, bytes: usize, count: usize) -> Result<Figures, String> {
    const NAME: &str = "mpirun";
    let mut command = Command::new(NAME);
    // Open MPI refuses to run without these as root, or with fewer cores than processes.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args([
        "--oversubscribe",
        "--mca",
        "btl",
        "vader,self",
        "--mca",
        "pml",
        "ob1",
        "-n",
        "2",
    ]);
    command.arg(folder.join("pingpong"));
    plays(NAME, &mut command, bytes, count)
}

fn iceoryx2(bytes: usize, count: usize) -> Result<Figures, String> {
    plays(ICEORYX2, &mut Command::new(ICEORYX2), bytes, count)
}

/// Runs a program that measures as ours does and prints the three numbers.
fn plays(
    name: &'static str,
    command: &mut Command,
    bytes: usize,
    count: usize,
) -> Result<Figures, String> {
    command.args([bytes, count, batch_of(bytes)].map(|number| number.to_string()));
    let text = Program::start(name, command)?.output()?;
    let numbers = numbers(name, &text, "")?;
    Ok(Figures {
        median_us: number(name, &numbers, 0)?,
        p99_us: number(name, &numbers, 1)?,
        gb_per_s: number(name, &numbers, 2)?,
    })
}
