//! Requests of clients.

use midplane_simhw::time::Instant;

use super::job_manager::no_job;
use super::message::{Down, Reply, Request};
use super::user::Caller;
use super::{Effect, JobManager, NodeCore};
use crate::names::JobId;
use crate::schedule;

/// Most requests that wait while a root takes over, one of each connection: 512 MiB, if all have the longest
/// environment. Clients that search the root of their job ask again.
pub(super) const MOST_WAITING: usize = 64;

impl NodeCore {
    /// Handles a request of a client.
    pub(super) fn request(&mut self, now: Instant, caller: Caller, request: Request) {
        if self.manager.as_ref().is_some_and(JobManager::is_taking_over) {
            return self.keep_waiting(caller, request);
        }
        let client = caller.client;
        if let Some(reply) = self.answer(now, caller, request) {
            self.effects.push_back(Effect::Reply(client, reply));
        }
    }

    /// Stores a request until the root has taken over. Refuses it if another request of its connection waits, or
    /// [`MOST_WAITING`] requests do.
    fn keep_waiting(&mut self, caller: Caller, request: Request) {
        let client = caller.client;
        let why = if self.waiting.iter().any(|(other, _)| other.client == client) {
            "a root is taking over, and another request of this connection waits: busy, try again"
        } else if self.waiting.len() >= MOST_WAITING {
            "a root is taking over, and too many requests wait: busy, try again"
        } else {
            return self.waiting.push_back((caller, request));
        };
        // Signals and sizes have no replies.
        if !matches!(request, Request::Signal(_) | Request::Resize(_)) {
            self.effects.push_back(Effect::Reply(client, Reply::NoRoot(why.into())));
        }
    }

    /// Returns the reply, unless it follows later.
    fn answer(&mut self, now: Instant, caller: Caller, request: Request) -> Option<Reply> {
        let Some(manager) = &mut self.manager else {
            let host = self.config.host;
            let why = match self.election {
                Some(_) => format!("host {host} is not the root any longer: ask again"),
                None => format!("this daemon is host {host}: ask that of host 0"),
            };
            return Some(Reply::Refused(why));
        };
        if let Some(why) = refusal(manager, &caller, &request) {
            return Some(Reply::Refused(why));
        }
        let client = caller.client;
        match request {
            Request::Run { ranks, weight, program } => {
                let request = schedule::Request { nodes: ranks, weight };
                manager.admit(now, caller, (request, ranks), (program, false));
            }
            Request::Attach(job) => return manager.attach(client, job),
            Request::Signal(signal) => {
                if let Some(job) = manager.job_of(client) {
                    manager.arrived(job);
                    self.everywhere(now, Down::Signal { job, signal });
                }
            }
            Request::Resize(size) => {
                if let Some(job) = manager.job_of(client) {
                    self.everywhere(now, Down::Resize { job, size });
                }
            }
            Request::List => return Some(Reply::Listing(manager.listing(now))),
            Request::Checkpoint { job, folder, end } => {
                return manager.save(job, caller, (folder, end)).err().map(Reply::Refused);
            }
            Request::Restore { folder, weight } => {
                manager.begin_restore(client);
                let most = manager.most_saved;
                self.effects.push_back(Effect::Read { caller, folder, weight, most });
            }
            Request::Slices => return Some(Reply::Slices(manager.slices())),
            Request::Kill { job, .. } if !manager.has(job) => {
                return Some(Reply::Refused(no_job(job)));
            }
            Request::Kill { job, signal } => {
                match signal {
                    Some(signal) => self.everywhere(now, Down::Signal { job, signal }),
                    None => {
                        manager.end(now, job, Some(format!("it was ended by {}", caller.user)));
                        // If only the job's streams are open, they are what is to end.
                        manager.close_streams(now, job);
                    }
                }
                return Some(Reply::Done);
            }
            Request::Feed(_) | Request::Leave => {}
        }
        None
    }
}

/// Returns why a client may not request this, if it may not.
fn refusal(manager: &JobManager, caller: &Caller, request: &Request) -> Option<String> {
    if let Some(job) = named_job(request)
        && let Some(why) = manager.refusal_of(&caller.user, job)
    {
        return Some(why);
    }
    if let Request::Kill { job, signal: Some(signal) } = request {
        if !(1..=31).contains(signal) {
            return Some(format!("signal {signal}: daemons send those from 1 to 31"));
        }
        if manager.adopts(*job) {
            return Some(format!(
                "job {job}: another program has started its processes: signal them there"
            ));
        }
    }
    let begins =
        matches!(request, Request::Run { .. } | Request::Restore { .. } | Request::Attach(_));
    (begins && manager.is_busy(caller.client))
        .then(|| "this connection has a job already: open one for each job".into())
}

/// Returns the job that a request names, if any.
const fn named_job(request: &Request) -> Option<JobId> {
    match request {
        Request::Attach(job) | Request::Kill { job, .. } | Request::Checkpoint { job, .. } => {
            Some(*job)
        }
        _ => None,
    }
}
