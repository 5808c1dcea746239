//! `midplane gang adopt`: processes that another program has started take turns with the jobs.

use std::path::Path;

use midplane::gang::live::client::{self, Output, RunOptions};
use midplane::gang::live::exec_shim::NO_GROUP;
use midplane::gang::live::message::{Adopted, Over, Program, Reply, Request};
use midplane::gang::live::process::End;
use midplane_kit::report::{self, FAILED, Failure};
use rustix::process::Signal;

use super::arguments::{Adopt, AdoptedGroup};
use super::{ask, failure, run};

/// Lets a control group take turns with the jobs, until it is empty or this process is interrupted.
pub(crate) async fn main(socket: &Path, options: &Adopt, json: bool) -> Result<u8, Failure> {
    let adopted = adopted(&options.group);
    let shown = shown(&adopted);
    let Reply::Listing(listing) = ask(socket, &Request::List).await? else {
        return Err(failure(client::ClientError::Gone));
    };
    let slots =
        u16::try_from(listing.hosts.len()).unwrap_or(u16::MAX).saturating_mul(listing.slots);
    let program = Program {
        command: vec![b"adopt".to_vec(), shown.clone().into_bytes()],
        folder: b"/".to_vec(),
        keep_going: true,
        adopts: Some(adopted),
        images: false,
        ..Program::default()
    };
    let output = Output { label: false, to_error: json };
    let request = RunOptions { ranks: slots, weight: options.priority, program, output };
    let on_accepted = |job| {
        if !json {
            report::note(&format!(
                "job {job}: adopts {shown} until its processes have ended; Ctrl-C ends the adoption"
            ));
        }
    };
    let over = client::run(socket, request, on_accepted).await.map_err(failure)?;
    finish(&over, &shown, json)
}

fn adopted(group: &AdoptedGroup) -> Adopted {
    match group {
        AdoptedGroup { cgroup: Some(folder), .. } => Adopted::Folder(folder.clone()),
        AdoptedGroup { slurm_step: Some((job, step)), .. } => {
            Adopted::SlurmStep { job: *job, step: step.clone() }
        }
        AdoptedGroup { pod, .. } => Adopted::Pod(pod.clone().unwrap_or_default()),
    }
}

/// Returns the adopted group's name, for messages.
fn shown(adopted: &Adopted) -> String {
    match adopted {
        Adopted::Folder(folder) => folder.clone(),
        Adopted::SlurmStep { job, step: Some(step) } => format!("slurm step {job}.{step}"),
        Adopted::SlurmStep { job, step: None } => format!("slurm job {job}"),
        Adopted::Pod(uid) => format!("pod {uid}"),
    }
}

/// Prints how the job ended, and returns the exit code.
fn finish(over: &Over, shown: &str, json: bool) -> Result<u8, Failure> {
    let ends = || over.ranks.iter().filter_map(|(_, end)| *end);
    if ends().count() > 0 && ends().all(|end| end == End::Exited(NO_GROUP)) {
        return Err(format!("no host has a control group of {shown}").into());
    }
    if json {
        report::print_json(&run::document(over));
    } else if let Some(why) = &over.why {
        report::fail(&format!("job {}: {why}", over.job), 0);
    }
    let has_left = |end: End| {
        [Signal::INT, Signal::TERM].map(|signal| End::Killed(signal.as_raw())).contains(&end)
    };
    let is_well = |end: End| matches!(end, End::Exited(0 | NO_GROUP)) || has_left(end);
    match &over.why {
        // No rank has started: the daemon has refused the group.
        Some(_) if ends().count() == 0 => Ok(report::BAD_INPUT),
        None if ends().all(is_well) => Ok(0),
        _ => Ok(FAILED),
    }
}
