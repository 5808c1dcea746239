//! The daemon's work on its own host: its contexts, and the processes that use them.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::host::Host;

use super::{Action, DaemonConfig, DaemonError, Launch, Mode, Outcome, Start};
use crate::context::ChannelContext;
use crate::controller::{ContextId, ContextOptions, Controller};
use crate::names::{ChannelId, Epoch, JobId, Rank};
use crate::process::SuspendHandle;

/// A rank's process on this node.
#[derive(Debug)]
pub(super) struct LocalRank {
    pub(super) job: JobId,
    /// Index of its channel's controller in [`NodeAgent::users`].
    pub(super) user: usize,
    pub(super) context: ContextId,
    suspend_handle: SuspendHandle,
    pub(super) saved: Option<ChannelContext>,
    /// Set while an early save is being copied: the rest of the time that it takes. The NIC still holds the context
    /// too.
    pub(super) copying: Option<Duration>,
}

/// The contexts and processes of one host.
pub(super) struct NodeAgent<H> {
    pub(super) host: H,
    pub(super) config: DaemonConfig,
    /// Controllers of users' channels, from channel 1 on.
    pub(super) users: Vec<Controller>,
    pub(super) ranks: Vec<LocalRank>,
    /// Jobs that are stopped here, to be saved while other nodes still stop.
    pub(super) leaving: Vec<JobId>,
    start: Start<H>,
}

impl<H: Host> NodeAgent<H> {
    pub(super) fn open(
        host: H,
        config: DaemonConfig,
        start: Start<H>,
    ) -> Result<Self, DaemonError> {
        let users = (1..=config.channels).map(|channel| {
            let shared = config.mode == Mode::Copy;
            Controller::open(&host, ChannelId(channel), config.geometry, shared)
        });
        let users = users.collect::<Result<_, _>>()?;
        Ok(Self { host, config, users, ranks: Vec::new(), leaving: Vec::new(), start })
    }

    /// Ends all processes of this host.
    pub(super) fn kill_all(&self) {
        self.ranks.iter().for_each(|local| local.suspend_handle.kill());
    }

    async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            self.host.sleep_until(self.host.now() + time).await;
        }
    }

    pub(super) async fn execute(&mut self, action: &Action) -> Result<Outcome, DaemonError> {
        match action {
            Action::Launch(launch) => self.launch(launch).await?,
            Action::Freeze(jobs) => self.freeze(jobs).await?,
            Action::Leave(jobs) => {
                self.freeze(jobs).await?;
                self.leaving.clone_from(jobs);
            }
            Action::Save(jobs) => self.save(jobs).await?,
            Action::Restore(jobs) => self.restore(jobs).await?,
            Action::Run(jobs) => self.run(jobs).await?,
            Action::Switch { stop, run } => {
                self.save(stop).await?;
                let jobs: Vec<JobId> = run.iter().map(|(job, _)| *job).collect();
                self.restore(&jobs).await?;
                self.run(run).await?;
            }
            Action::End(job) => self.end(*job).await?,
            Action::Exchange { .. } | Action::Join { .. } => {}
            Action::Cut(_) | Action::Report | Action::Quit => {}
        }
        let mut ended = BTreeMap::new();
        for local in self.ranks.iter().filter(|local| local.suspend_handle.has_ended()) {
            *ended.entry(local.job).or_default() += 1;
        }
        Ok(Outcome { ended: ended.into_iter().collect(), ..Outcome::default() })
    }

    pub(super) fn of_jobs(&self, jobs: &[JobId]) -> Vec<usize> {
        let is_one = |at: &usize| jobs.contains(&self.ranks[*at].job);
        (0..self.ranks.len()).filter(is_one).collect()
    }

    async fn launch(&mut self, launch: &Launch) -> Result<(), DaemonError> {
        let node = self.host.node();
        let places = launch.places();
        let own = (0_u16..).zip(&places).filter(|(_, place)| place.node == node);
        for (rank, place) in own {
            let user = usize::from(place.channel.0 - 1);
            let (job, rank) = (launch.job, Rank(rank));
            let options = ContextOptions { job, rank, places: places.clone() };
            let controller = &mut self.users[user];
            let context = controller.open_context(options).await?;
            let suspend_handle = SuspendHandle::new();
            suspend_handle.suspend(self.host.now());
            let descriptor = controller.descriptor(context);
            let program =
                (self.start)(self.host.clone(), *launch, descriptor, suspend_handle.clone());
            self.host.spawn(suspend_handle.hold(program));
            let fresh = ChannelContext::fresh(rank, self.config.geometry);
            let saved = (self.config.mode == Mode::Copy).then_some(fresh);
            self.ranks.push(LocalRank { job, user, context, suspend_handle, saved, copying: None });
        }
        Ok(())
    }

    async fn freeze(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        let all = self.of_jobs(jobs);
        for &at in &all {
            self.ranks[at].suspend_handle.suspend(self.host.now());
        }
        self.pause(self.config.costs.stop * all.len() as u32).await;
        for at in all {
            let LocalRank { user, context, .. } = self.ranks[at];
            self.users[user].stop(context).await?;
        }
        Ok(())
    }

    async fn save(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        self.leaving.clear();
        if self.config.mode == Mode::Resident {
            return Ok(());
        }
        for at in self.of_jobs(jobs) {
            let LocalRank { user, context, copying, .. } = self.ranks[at];
            if let Some(left) = copying {
                self.pause(left).await;
                self.users[user].forget(context).await?;
                self.ranks[at].copying = None;
                continue;
            }
            let saved = self.users[user].save(context, true).await?;
            self.pause(self.config.costs.of_save(saved.bytes())).await;
            self.ranks[at].saved = Some(saved);
        }
        Ok(())
    }

    async fn restore(&mut self, jobs: &[JobId]) -> Result<(), DaemonError> {
        for at in self.of_jobs(jobs) {
            let LocalRank { user, context, .. } = self.ranks[at];
            if let Some(saved) = self.ranks[at].saved.take() {
                self.pause(self.config.costs.of_restore(saved.bytes())).await;
                self.users[user].restore(context, &saved).await?;
            }
        }
        Ok(())
    }

    async fn run(&mut self, jobs: &[(JobId, Epoch)]) -> Result<(), DaemonError> {
        for (job, epoch) in jobs {
            for at in self.of_jobs(&[*job]) {
                let LocalRank { user, context, .. } = self.ranks[at];
                self.users[user].start(context, *epoch).await?;
                self.pause(self.config.costs.resume).await;
                self.ranks[at].suspend_handle.resume(self.host.now());
            }
        }
        Ok(())
    }

    async fn end(&mut self, job: JobId) -> Result<(), DaemonError> {
        for at in self.of_jobs(&[job]).into_iter().rev() {
            let LocalRank { user, context, suspend_handle, .. } = self.ranks.remove(at);
            suspend_handle.kill();
            self.users[user].close_context(context).await?;
        }
        Ok(())
    }
}
