//! `midplane gang list` and `midplane gang top`.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use midplane::gang::live::front::{FrontError, ask};
use midplane::gang::live::message::{Listing, Reply, Request};
use serde::Serialize;

use midplane_kit::report;

use crate::gang::Failure;

/// Interval between two lists of `midplane gang top`.
const RENEWED: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Job {
    job: u32,
    ranks: u16,
    first_slot: u16,
    priority: u8,
    runs: bool,
    ended_ranks: u16,
    preemptions: u32,
    interfaces_stayed: u32,
    why_stayed: Option<String>,
    seconds: f64,
    run_seconds: f64,
    command: String,
}

#[derive(Serialize)]
struct Document {
    hosts: u16,
    hosts_here: u16,
    slots: u16,
    slice_ms: f64,
    switches: u64,
    median_freeze_us: f64,
    p99_freeze_us: f64,
    median_switch_us: f64,
    p99_switch_us: f64,
    jobs: Vec<Job>,
}

fn document(listing: &Listing) -> Document {
    let job = |line: &midplane::gang::live::message::Line| Job {
        job: line.job.0,
        ranks: line.slots.1 - line.slots.0,
        first_slot: line.slots.0,
        priority: line.weight,
        runs: line.runs,
        ended_ranks: line.ended,
        preemptions: line.preemptions,
        interfaces_stayed: line.stayed,
        why_stayed: line.why_stayed.clone(),
        seconds: line.seconds,
        run_seconds: line.run_seconds,
        command: line.command.clone(),
    };
    Document {
        hosts: listing.hosts.len() as u16,
        hosts_here: listing.hosts.iter().filter(|here| **here).count() as u16,
        slots: listing.slots,
        slice_ms: listing.slice_ms,
        switches: listing.switches,
        median_freeze_us: listing.freeze_us[0],
        p99_freeze_us: listing.freeze_us[1],
        median_switch_us: listing.switch_us[0],
        p99_switch_us: listing.switch_us[1],
        jobs: listing.jobs.iter().map(job).collect(),
    }
}

/// Formats a list of jobs as text.
fn text(listing: &Listing) -> String {
    let here = listing.hosts.iter().filter(|here| **here).count();
    let mut text = format!(
        "{here} of {} hosts with {} slots each, slices of {} ms; {} switches, of which the last froze in \
         {:.0} us (99 %: {:.0})\n",
        listing.hosts.len(),
        listing.slots,
        listing.slice_ms,
        listing.switches,
        listing.freeze_us[0],
        listing.freeze_us[1],
    );
    text += &format!(
        "{:>5} {:>5} {:>9} {:>8} {:<7} {:>8} {:>8} {:>6}  command\n",
        "job", "ranks", "slots", "priority", "state", "seconds", "ran", "stops"
    );
    for line in &listing.jobs {
        let (from, to) = line.slots;
        let state = if line.runs { "runs" } else { "waits" };
        text += &format!(
            "{:>5} {:>5} {:>9} {:>8} {:<7} {:>8.1} {:>8.1} {:>6}  {}\n",
            line.job.0,
            to - from,
            format!("{from}-{}", to - 1),
            line.weight,
            state,
            line.seconds,
            line.run_seconds,
            line.preemptions,
            line.command
        );
        if let Some(why) = &line.why_stayed {
            text += &format!(
                "      its interfaces stayed on the NICs at {} preemptions: {why}\n",
                line.stayed
            );
        }
    }
    text
}

async fn listing(socket: &Path) -> Result<Listing, Failure> {
    match ask(socket, &Request::List).await? {
        Reply::Listing(listing) => Ok(listing),
        _ => Err(FrontError::Gone.into()),
    }
}

pub(crate) async fn once(socket: &Path, json: bool) -> Result<u8, Failure> {
    let listing = listing(socket).await?;
    if json {
        report::print_json(&document(&listing));
    } else {
        report::print(&text(&listing));
    }
    Ok(0)
}

/// Prints the list every [`RENEWED`]: in place on a terminal, otherwise one list or JSON document after another.
pub(crate) async fn top(socket: &Path, times: Option<u32>, json: bool) -> Result<u8, Failure> {
    let mut shown = 0;
    loop {
        let listing = listing(socket).await?;
        if json {
            report::print_json(&document(&listing));
        } else if std::io::stdout().is_terminal() {
            // Moves the cursor home, overwrites each line to its end, and clears the lines below.
            report::print(&format!("\x1b[H{}\x1b[J", text(&listing).replace('\n', "\x1b[K\n")));
        } else {
            report::print(&text(&listing));
        }
        shown += 1;
        if times.is_some_and(|times| shown >= times) {
            return Ok(0);
        }
        tokio::select! {
            () = tokio::time::sleep(RENEWED) => {}
            _ = tokio::signal::ctrl_c() => return Ok(0),
        }
    }
}
