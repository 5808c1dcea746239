//! Other libraries on this host, measured by programs that their packages install.
//!
//! UCX and libfabric come with measuring tools. For an MPI, a program like ours is compiled with its own compiler.
//! Libraries that are not installed are skipped, by name.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use midplane_benches::folder::Folder;
use midplane_kit::claims::median;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::pingpong::arguments::{Kernel, is_program};
use crate::pingpong::fabric::run;
use crate::pingpong::measure::{Figures, Measurement, batch_of, batches};
use crate::processes;
use crate::report::text;

/// Time limit of one measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a tool's first process starts listening.
const COMES_UP: Duration = Duration::from_millis(300);

/// Runs of a tool that prints a mean.
const RUNS: usize = 5;

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
    if let Some(program) = programs.iter().find(|program| !is_program(program)) {
        return Some(format!("{library}: {program} is not installed ({installs})"));
    }
    (library == Kernel::Openmpi)
        .then(missing_of_open_mpi)
        .flatten()
        .map(|is| format!("{library}: {is} ({installs})"))
}

/// Returns what Open MPI lacks here, or `None` if it can be measured.
fn missing_of_open_mpi() -> Option<&'static str> {
    let printed = |words| run(output(Kernel::Openmpi, [command(words)])).unwrap_or_default();
    // Other MPIs install programs of the same names, which take other options.
    if !printed("mpirun --version").contains("Open MPI") {
        return Some("mpirun is another MPI's");
    }
    // Debian installs the compiler without its headers.
    let headers = printed("mpicc --showme:incdirs");
    let found = headers.split_whitespace().any(|folder| Path::new(folder).join("mpi.h").is_file());
    (!found).then_some("mpicc has no mpi.h")
}

/// Returns a library's numbers at each size.
///
/// # Errors
/// One line: what failed.
pub(crate) fn ask(library: Kernel, measurement: Measurement<'_>) -> Result<Vec<Figures>, String> {
    let folder = Folder::create().map_err(text)?;
    let program = folder.path().join("pingpong").display().to_string();
    if library == Kernel::Openmpi {
        let source = format!("{program}.c");
        std::fs::write(&source, MPI).map_err(text)?;
        run(output(library, [command(&format!("mpicc -O2 -o {program} {source}"))]))?;
    }
    let figures = |bytes: &usize| {
        let (bytes, count) = (*bytes, batches(measurement.milliseconds, *bytes));
        let trips = count * batch_of(bytes);
        // A program that measures as ours does prints the three numbers.
        let words = format!("{bytes} {count} {}", batch_of(bytes));
        run(async {
            match library {
                Kernel::Ucx => ucx(bytes, trips).await,
                Kernel::Libfabric => libfabric(bytes, trips).await,
                Kernel::Iceoryx2 => {
                    measured_by(library, command(&format!("{ICEORYX2} {words}"))).await
                }
                _ => measured_by(library, openmpi(&format!("{program} {words}"))).await,
            }
        })
    };
    measurement.sizes.iter().map(figures).collect()
}

/// Builds a command of words that spaces separate; its process is killed when it is dropped.
fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.kill_on_drop(true);
    command
}

/// Starts commands one after the other, and returns what the last one prints; kills the others once it has ended.
async fn output<const N: usize>(library: Kernel, commands: [Command; N]) -> Result<String, String> {
    let failed = |error| format!("{library}: {error}");
    let mut started = Vec::new();
    for mut command in commands {
        if !started.is_empty() {
            sleep(COMES_UP).await;
        }
        started.push(command.spawn().map_err(failed)?);
    }
    let last = started.pop().expect("there is a command");
    let ended = timeout(PATIENCE, last.wait_with_output()).await;
    let output = ended.map_err(|_| format!("{library}: not done after {PATIENCE:?}"))?;
    let output = output.map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{library}: {}", output.status)),
    }
}

/// Returns `N` of the numbers of the last line that begins with `start`, at these places.
fn numbers<const N: usize>(
    library: Kernel,
    text: &str,
    start: &str,
    at: [usize; N],
) -> Result<[f64; N], String> {
    let line = text.lines().rfind(|line| line.trim_start().starts_with(start));
    let words = line.unwrap_or_default().split_whitespace();
    let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    let known = at.map(|at| numbers.get(at).copied());
    match known.iter().all(Option::is_some) {
        true => Ok(known.map(Option::unwrap_or_default)),
        false => Err(format!("{library}: its report is not understood")),
    }
}

/// Measures UCX: shared memory, tag matching, both processes busy-polling.
async fn ucx(bytes: usize, count: usize) -> Result<Figures, String> {
    let run = async |test: &str| {
        let port = processes::free_addresses(1)?[0].port();
        let more = format!("127.0.0.1 -t {test} -s {bytes} -n {count} -w 100");
        let both = ["", &more].map(|more| {
            let mut command = command(&format!("ucx_perftest -p {port} {more}"));
            command.env("UCX_TLS", "shm,self");
            command
        });
        output(Kernel::Ucx, both).await
    };
    // Iterations; latency: a percentile, average, overall; MiB/s: average, overall; messages/s.
    let [median_us] = numbers(Kernel::Ucx, &run("tag_lat").await?, "Final:", [1])?;
    let [mib_per_s] = numbers(Kernel::Ucx, &run("tag_bw").await?, "Final:", [5])?;
    let gb_per_s = mib_per_s * f64::from(1 << 20) / 1e9;
    Ok(Figures { median_us, p99_us: f64::NAN, gb_per_s })
}

/// Measures libfabric's provider for shared memory. Its program prints a mean: the number is the median of several runs'.
async fn libfabric(bytes: usize, count: usize) -> Result<Figures, String> {
    let shared = format!("fi_pingpong -p shm -e rdm -S {bytes} -I {}", (count / RUNS).max(1));
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let port = processes::free_addresses(1)?[0].port();
        let both = [format!("{shared} -B {port}"), format!("{shared} -P {port} 127.0.0.1")];
        let printed = output(Kernel::Libfabric, both.map(|words| command(&words))).await?;
        times.push(us_per_transfer(&printed)?);
    }
    Ok(Figures { median_us: median(times), p99_us: f64::NAN, gb_per_s: f64::NAN })
}

/// Returns the mean time of a transfer that libfabric's program has printed, in microseconds.
fn us_per_transfer(printed: &str) -> Result<f64, String> {
    // MB/sec, usec/xfer, Mxfers/sec, behind sizes and counts of which some have letters.
    let line = printed.lines().last().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().rev().collect();
    let [us] = numbers(Kernel::Libfabric, &words.join(" "), "", [1])?;
    Ok(us)
}

/// Builds the command that runs a program under Open MPI over shared memory.
fn openmpi(program: &str) -> Command {
    let words = "mpirun --oversubscribe --mca btl vader,self --mca pml ob1 -n 2";
    let mut command = command(&format!("{words} {program}"));
    // Open MPI refuses to run without these as root, or with fewer cores than processes.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// Runs a program that prints the median and the 99th percentile of one way in microseconds, and GB/s.
async fn measured_by(library: Kernel, command: Command) -> Result<Figures, String> {
    let text = output(library, [command]).await?;
    let [median_us, p99_us, gb_per_s] = numbers(library, &text, "", [0, 1, 2])?;
    Ok(Figures { median_us, p99_us, gb_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transfer_is_read_from_the_last_line() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       64      1k      =1k      125k        0.00s     85.33       0.75       1.33\n";
        assert_eq!(us_per_transfer(printed), Ok(0.75));
        for wrong in ["", "bytes   #sent   #ack     total       time     MB/sec\n", "1.33\n"] {
            assert!(us_per_transfer(wrong).is_err(), "{wrong}");
        }
    }
}
