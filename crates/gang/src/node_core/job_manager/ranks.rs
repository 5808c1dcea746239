//! Handles changes and ends of ranks, and the loss of the hosts that they run on.

use std::collections::BTreeSet;

use midplane_simhw::time::Instant;

use super::JobManager;
use crate::names::JobId;
use crate::node_core::message::{Down, End, Member, RankEvent};

impl JobManager {
    /// Handles a change of a rank.
    pub(crate) fn handle_rank(&mut self, now: Instant, (job, rank): Member, event: RankEvent) {
        match event {
            RankEvent::Ended(end) => self.rank_ended(now, job, rank, end),
            RankEvent::Able => self.able(job, rank),
            RankEvent::Left => self.left(job, rank),
            RankEvent::Chunk(chunk) => self.add_chunk(now, job, rank, &chunk),
            RankEvent::BarrierIn(pairs) => self.barrier_in(now, job, rank, pairs),
            RankEvent::Aborted { code, message } => self.abort(now, job, rank, (code, &message)),
            RankEvent::Failed { why } => self.rank_failed(now, job, rank, &why),
        }
    }

    fn rank_ended(&mut self, now: Instant, job: JobId, rank: u16, end: End) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let Some(slot) = it.entry.ends.get_mut(usize::from(rank)) else { return };
        // A refused job's ranks are killed before their first slice, so they have not started.
        if !it.is_refused {
            slot.get_or_insert(end);
        }
        if self.takeover.is_some() {
            return;
        }
        self.judge(now, job, (rank, end));
        self.check_barrier(now, job);
        self.left(job, rank);
        self.finish(now, job);
    }

    /// Ends a job after one of its ranks has ended, if that was the last one or has failed.
    pub(super) fn judge(&mut self, now: Instant, job: JobId, (rank, end): (u16, End)) {
        let Some(it) = self.jobs.get(&job) else { return };
        let all = it.entry.ends.iter().all(Option::is_some);
        let failed =
            end != End::Exited(0) && !it.entry.launch.program.keep_going && it.entry.ends.len() > 1;
        if all || failed {
            let host = it.hosts[usize::from(rank)];
            let what = match end {
                End::Exited(code) => format!("ended with code {code}"),
                End::Killed(signal) => format!("was killed by signal {signal}"),
                End::Lost => "is lost".into(),
            };
            let why = (failed && !all)
                .then(|| format!("rank {rank} on host {host} ({}) {what}", self.name(host)));
            self.end(now, job, why);
        }
    }

    /// Ends a job because it can't continue on a host.
    fn rank_failed(&mut self, now: Instant, job: JobId, rank: u16, why: &str) {
        if self.takeover.is_none()
            && let Some(host) = self.host_of(job, rank)
        {
            self.end(now, job, Some(format!("host {host} ({}): {why}", self.name(host))));
        }
    }

    /// Records that the output of a job's ranks on a host was received completely.
    pub(crate) fn handle_streams_done(&mut self, now: Instant, job: JobId, host: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.open.remove(&host);
        }
        self.finish(now, job);
    }

    /// Records that hosts are connected. A host that already was has lost its connection meanwhile, and with it all
    /// jobs there.
    pub(crate) fn hosts_here(&mut self, now: Instant, hosts: &[u16]) {
        let again: Vec<u16> =
            hosts.iter().copied().filter(|host| self.hosts.contains(host)).collect();
        self.hosts_gone(now, &again);
        self.hosts.extend(hosts.iter().filter(|host| **host < self.cluster.hosts));
    }

    /// Records that hosts are lost, and ends the jobs that have ranks there.
    pub(crate) fn hosts_gone(&mut self, now: Instant, hosts: &[u16]) {
        self.has_lost_a_host |= !hosts.is_empty();
        for host in hosts {
            self.hosts.remove(host);
            self.inventories.forget(*host);
            if let Some(takeover) = &mut self.takeover {
                takeover.reported.remove(host);
                continue;
            }
            let why = format!("host {host} ({}) is gone", self.name(*host));
            for job in self.jobs.keys().copied().collect::<Vec<_>>() {
                let it = self.jobs.get_mut(&job).expect("its key was just read");
                if !it.hosts.contains(host) {
                    continue;
                }
                it.open.remove(host);
                for (at, end) in it.hosts.iter().zip(&mut it.entry.ends) {
                    if at == host {
                        end.get_or_insert(End::Lost);
                    }
                }
                self.everywhere(Down::Abandon(job));
                self.end(now, job, Some(why.clone()));
                self.finish(now, job);
            }
        }
    }

    /// Returns the ranks of a job that are on a host.
    pub(crate) fn ranks_on(&self, job: JobId, host: u16) -> BTreeSet<u16> {
        let hosts = self.jobs.get(&job).map_or(&[][..], |it| &it.hosts);
        (0..).zip(hosts).filter(|(_, its)| **its == host).map(|(rank, _)| rank).collect()
    }

    /// Returns the host of a job's rank.
    pub(crate) fn host_of(&self, job: JobId, rank: u16) -> Option<u16> {
        self.jobs.get(&job)?.hosts.get(usize::from(rank)).copied()
    }
}
