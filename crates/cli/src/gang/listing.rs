//! `midplane gang list`: lists the jobs of a gang daemon.

use std::path::Path;

use midplane::gang::live::client::ClientError;
use midplane::gang::live::message::{Line, Listing, Reply, Request, Size};
use midplane_kit::report::{self, Failure};
use serde::Serialize;

use super::{ask, failure};

/// A job of a gang daemon.
#[derive(Default, Serialize)]
pub(crate) struct Job {
    pub(crate) job: u32,
    pub(crate) user: String,
    pub(crate) ranks: u16,
    pub(crate) first_slot: u16,
    pub(crate) priority: u8,
    pub(crate) runs: bool,
    pub(crate) ended_ranks: u16,
    pub(crate) preemptions: u32,
    pub(crate) seconds: f64,
    pub(crate) run_seconds: f64,
    /// Bytes that each rank claims.
    pub(crate) memory: Option<u64>,
    pub(crate) command: String,
    pub(crate) stuck: Option<String>,
}

impl From<&Line> for Job {
    fn from(line: &Line) -> Self {
        Self {
            job: line.job.0,
            user: line.user.clone(),
            ranks: line.slots.1.saturating_sub(line.slots.0),
            first_slot: line.slots.0,
            priority: line.weight,
            runs: line.runs,
            ended_ranks: line.ended,
            preemptions: line.preemptions,
            seconds: line.seconds,
            run_seconds: line.run_seconds,
            memory: line.memory,
            command: line.command.clone(),
            stuck: line.stuck.clone(),
        }
    }
}

#[derive(Serialize)]
struct Document {
    root: u16,
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
    Document {
        root: listing.root,
        hosts: listing.hosts.len() as u16,
        hosts_here: listing.hosts.iter().filter(|here| **here).count() as u16,
        slots: listing.slots,
        slice_ms: listing.slice_ms,
        switches: listing.switches,
        median_freeze_us: listing.freeze_us[0],
        p99_freeze_us: listing.freeze_us[1],
        median_switch_us: listing.switch_us[0],
        p99_switch_us: listing.switch_us[1],
        jobs: listing.jobs.iter().map(Job::from).collect(),
    }
}

/// Formats a list of jobs as text.
fn text(of: &Document) -> String {
    let titles = "job, user, ranks, slots, priority, state, seconds, ran, stops, memory, command";
    let rows = of.jobs.iter().map(|job| {
        vec![
            job.job.to_string(),
            job.user.clone(),
            job.ranks.to_string(),
            format!("{}-{}", job.first_slot, (job.first_slot + job.ranks).saturating_sub(1)),
            job.priority.to_string(),
            if job.runs { "runs" } else { "waits" }.to_owned(),
            format!("{:.1}", job.seconds),
            format!("{:.1}", job.run_seconds),
            job.preemptions.to_string(),
            job.memory.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string()),
            job.command.clone(),
        ]
    });
    let stuck = of.jobs.iter().filter_map(|job| {
        Some(format!("job {} never ends by itself: {}\n", job.job, job.stuck.as_ref()?))
    });
    let froze = match of.median_freeze_us {
        0.0 => String::new(),
        median => format!(
            ", of which the last suspended their jobs within {median:.0} us (median; {:.0} at the 99th percentile)",
            of.p99_freeze_us
        ),
    };
    format!(
        "host {} is the root; {} of {} hosts are here, with {} slots each; slices of {} ms; {} switches{froze}\n{}{}",
        of.root,
        of.hosts_here,
        of.hosts,
        of.slots,
        of.slice_ms,
        of.switches,
        report::table(titles, rows),
        stuck.collect::<String>()
    )
}

pub(crate) async fn print(socket: &Path, json: bool) -> Result<u8, Failure> {
    match ask(socket, &Request::List).await? {
        Reply::Listing(listing) => report::print_document(json, &document(&listing), text),
        _ => return Err(failure(ClientError::Gone)),
    }
    Ok(0)
}
