//! `midplane gang run`, `midplane gang attach`, `midplane gang restore` and `midplane gang checkpoint`.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use midplane::gang::live::client::{self, Output, RunOptions, terminal_size};
use midplane::gang::live::clock::now;
use midplane::gang::live::message::{Over, Program};
use midplane::gang::live::process::End;
use midplane::gang::names::JobId;
use midplane_kit::report::{self, BAD_INPUT, FAILED, Failure};
use serde::Serialize;

use super::arguments::{Checkpoint, Restore, Run};
use super::failure;

/// Rows and columns of rank 0's terminal, where this process has none.
const NO_TERMINAL: (u16, u16) = (24, 80);

#[derive(Serialize)]
struct Rank {
    host: u16,
    exit_code: Option<i32>,
    signal: Option<i32>,
    lost: bool,
}

#[derive(Serialize)]
pub(super) struct Document {
    job: u32,
    ranks: Vec<Rank>,
    ended_because: Option<String>,
    seconds: f64,
    run_seconds: f64,
    preemptions: u32,
}

/// Returns the program of `midplane gang run`, with this process's environment.
pub(crate) fn program(options: &Run) -> Result<Program, Failure> {
    let folder = match &options.folder {
        Some(folder) => std::path::absolute(folder),
        None => std::env::current_dir(),
    };
    let folder = folder.map_err(|error| format!("--folder: {error}"))?;
    let environment = std::env::vars_os().map(|(name, value)| {
        let mut line = name.into_vec();
        line.push(b'=');
        line.extend_from_slice(value.as_bytes());
        line
    });
    Ok(Program {
        command: options.command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        environment: environment.collect(),
        folder: folder.into_os_string().into_vec(),
        terminal: options.terminal.then(|| terminal_size().unwrap_or(NO_TERMINAL)),
        keep_going: options.keep_going,
        woken: options.woken,
        memory: options.memory,
        adopts: None,
        images: false,
    })
}

pub(crate) async fn run(socket: &Path, options: &Run, json: bool) -> Result<u8, Failure> {
    let request = RunOptions {
        ranks: options.ranks,
        weight: options.priority,
        program: program(options)?,
        output: Output { label: options.label, to_error: json },
    };
    let over = client::run(socket, request, |_| {}).await.map_err(failure)?;
    Ok(finish(&over, json))
}

pub(crate) async fn restore(socket: &Path, options: &Restore, json: bool) -> Result<u8, Failure> {
    let output = Output { label: options.label, to_error: json };
    let (folder, priority) = (&options.checkpoint, options.priority);
    let over = client::restore(socket, folder, priority, output, |_| {}).await.map_err(failure)?;
    Ok(finish(&over, json))
}

pub(crate) async fn attach(
    socket: &Path,
    job: JobId,
    label: bool,
    json: bool,
) -> Result<u8, Failure> {
    let over =
        client::attach(socket, job, Output { label, to_error: json }).await.map_err(failure)?;
    Ok(finish(&over, json))
}

#[derive(Serialize)]
struct Saved<'a> {
    job: u32,
    ranks: u16,
    #[serde(serialize_with = "report::lossy")]
    checkpoint: &'a Path,
    state_bytes: u64,
    messages: u64,
    seconds: f64,
    ended: bool,
}

pub(crate) async fn checkpoint(
    socket: &Path,
    &Checkpoint { job, ref folder, end }: &Checkpoint,
    json: bool,
) -> Result<u8, Failure> {
    let began = now();
    let saved = client::checkpoint(socket, JobId(job), folder, end).await.map_err(failure)?;
    let seconds = now().nanos_since(began) as f64 / 1e9;
    let (ranks, state_bytes, messages) = (saved.ranks, saved.state_bytes, saved.messages);
    let checkpoint = folder.as_path();
    let saved = Saved { job, ranks, checkpoint, state_bytes, messages, seconds, ended: end };
    report::print_document(json, &saved, |_| {
        let folder = folder.display();
        format!(
            "job {job}: {ranks} ranks with {state_bytes} bytes, {messages} messages in flight, saved in {folder} after \
             {seconds:.2} s\n"
        )
    });
    Ok(0)
}

/// Prints how a job ended, and returns the exit code.
fn finish(over: &Over, json: bool) -> u8 {
    if json {
        report::print_json(&document(over));
    } else if let Some(line) = complaint(over) {
        report::fail(&line, 0);
    }
    code(over)
}

/// Returns the highest exit code of a rank. If only killed ranks have failed, returns the highest of 128 plus their
/// signals; if no rank has started, bad input.
fn code(over: &Over) -> u8 {
    let ends = || over.ranks.iter().filter_map(|(_, end)| *end);
    // When a rank fails, the others are killed: the failed one's exit code is the answer.
    let failed = ends().filter(|end| matches!(end, End::Exited(code) if *code != 0));
    let highest = failed.map(End::code).max().or_else(|| ends().map(End::code).max()).unwrap_or(0);
    let began_nothing = over.ranks.iter().all(|(_, end)| end.is_none());
    match (highest, &over.why) {
        _ if began_nothing => BAD_INPUT,
        // The job was ended, and all its ranks exited with 0.
        (0, Some(_)) => FAILED,
        (highest, _) => u8::try_from(highest).unwrap_or(FAILED),
    }
}

/// Returns a line about a job that did not end by itself, as a shell prints for a killed process.
fn complaint(over: &Over) -> Option<String> {
    if let Some(why) = &over.why {
        return Some(format!("job {}: {why}", over.job));
    }
    let (rank, (host, end)) =
        over.ranks.iter().enumerate().find(|(_, (_, end))| !matches!(end, Some(End::Exited(_))))?;
    match end {
        Some(End::Killed(signal)) => Some(format!(
            "job {}: rank {rank} on host {host} was killed by signal {signal}",
            over.job
        )),
        _ => Some(format!("job {}: rank {rank} on host {host} is lost", over.job)),
    }
}

pub(super) fn document(over: &Over) -> Document {
    let rank = |&(host, end): &(u16, Option<End>)| {
        let (exit_code, signal) = match end {
            Some(End::Exited(code)) => (Some(code), None),
            Some(End::Killed(signal)) => (None, Some(signal)),
            Some(End::Lost) | None => (None, None),
        };
        Rank { host, exit_code, signal, lost: exit_code.or(signal).is_none() }
    };
    Document {
        job: over.job.0,
        ranks: over.ranks.iter().map(rank).collect(),
        ended_because: over.why.clone(),
        seconds: over.seconds,
        run_seconds: over.run_seconds,
        preemptions: over.preemptions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_s_path_that_is_not_utf_8_is_printed() {
        let checkpoint = Path::new(std::ffi::OsStr::from_bytes(b"saved-\xff"));
        let (job, ranks, state_bytes, messages, seconds, ended) = (1, 2, 3, 4, 5.0, true);
        let saved = Saved { job, ranks, checkpoint, state_bytes, messages, seconds, ended };
        let printed = serde_json::to_string(&saved).unwrap();
        assert!(printed.contains("\"checkpoint\":\"saved-\u{fffd}\""), "{printed}");
    }
}
