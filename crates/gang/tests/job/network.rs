//! Preempts all channels of one job together: a scheduler's tree in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use midplane_gang::context::{ChannelContext, NetworkContext};
use midplane_gang::controller::{ContextId, ContextOptions, ControlError, Controller};
use midplane_gang::names::{ChannelAddress, Epoch, JobId, Rank};
use midplane_gang::process::SuspendHandle;
use midplane_gang::wait::WaitState;
use midplane_simhw::host::Host;

/// Runs futures concurrently until all have completed, and returns their results in order.
///
/// # Cancel safety
/// If the future is dropped, all of them are dropped.
pub(crate) async fn together<T, F: Future<Output = T>>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<T> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(move |context| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        match results.iter_mut().all(|result| result.is_some()) {
            true => Poll::Ready(results.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    })
    .await
}

/// One rank's channel and process, held to be preempted.
#[derive(Debug)]
pub(crate) struct RankChannel {
    /// The controller of its node and channel.
    pub(crate) controller: Controller,
    /// The context of the rank's channel.
    pub(crate) context: ContextId,
    /// Suspends and resumes the rank's process.
    pub(crate) suspend_handle: SuspendHandle,
}

/// The channels and processes of one job.
#[derive(Debug)]
pub(crate) struct Network {
    job: JobId,
    epoch: Epoch,
    ranks: Vec<RankChannel>,
}

impl Network {
    /// Opens a context for every rank, each with its own controller; all are parked.
    ///
    /// # Errors
    /// [`ControlError`]; no context is open then.
    ///
    /// # Cancel safety
    /// If the future is dropped, no context is open.
    pub(crate) async fn open(
        job: JobId,
        places: &[ChannelAddress],
        controllers: Vec<Controller>,
    ) -> Result<Self, ControlError> {
        let mut ranks = Vec::new();
        for (rank, mut controller) in (0_u16..).map(Rank).zip(controllers) {
            let options = ContextOptions { job, rank, places: places.to_vec() };
            let context = controller.open_context(options).await?;
            ranks.push(RankChannel { controller, context, suspend_handle: SuspendHandle::new() });
        }
        Ok(Self { job, epoch: Epoch(0), ranks })
    }

    /// Returns the channels, by rank.
    #[must_use]
    pub(crate) fn ranks(&self) -> &[RankChannel] {
        &self.ranks
    }

    /// Freezes the job: stops all processes, then waits until all channels are steady.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive these commands' completions.
    pub(crate) async fn freeze(&mut self, host: &impl Host) -> Result<(), ControlError> {
        for held in &self.ranks {
            held.suspend_handle.suspend(host.now());
        }
        let stops = self.ranks.iter_mut().map(|held| held.controller.stop(held.context));
        together(stops).await.into_iter().collect()
    }

    /// Saves the contexts of all channels. If `forget`, the NICs forget them.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive these commands' completions.
    pub(crate) async fn save(&mut self, forget: bool) -> Result<NetworkContext, ControlError> {
        let saves = self.ranks.iter_mut().map(|held| held.controller.save(held.context, forget));
        let ranks: Result<Vec<_>, _> = together(saves).await.into_iter().collect();
        Ok(self.cut(ranks?))
    }

    /// Freezes and saves in one: stops one rank after the other, and saves each as soon as its channel is steady. Ranks
    /// that still run have their messages to stopped ranks refused. The NICs keep the contexts.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive these commands' completions.
    pub(crate) async fn leave(&mut self, host: &impl Host) -> Result<NetworkContext, ControlError> {
        let mut ranks = Vec::with_capacity(self.ranks.len());
        for held in &mut self.ranks {
            held.suspend_handle.suspend(host.now());
            held.controller.stop(held.context).await?;
            ranks.push(held.controller.save(held.context, false).await?);
        }
        Ok(self.cut(ranks))
    }

    fn cut(&self, mut ranks: Vec<ChannelContext>) -> NetworkContext {
        for (held, saved) in self.ranks.iter().zip(&mut ranks) {
            if held.suspend_handle.has_ended() {
                saved.wait = WaitState::Idle;
            }
        }
        NetworkContext { job: self.job, epoch: self.epoch, ranks }
    }

    /// Restores the contexts of all channels.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive these commands' completions.
    pub(crate) async fn restore(&mut self, saved: &NetworkContext) -> Result<(), ControlError> {
        if saved.ranks.len() != self.ranks.len() {
            return Err(ControlError::Saved("it has another number of ranks than the job"));
        }
        let pairs = self.ranks.iter_mut().zip(&saved.ranks);
        let restores = pairs.map(|(held, saved)| held.controller.restore(held.context, saved));
        together(restores).await.into_iter().collect::<Result<(), _>>()?;
        if saved.job == self.job && saved.epoch.is_newer_than(self.epoch) {
            self.epoch = saved.epoch;
        }
        Ok(())
    }

    /// Runs the job: starts all channels in the next epoch, then resumes all processes.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive these commands' completions.
    pub(crate) async fn run(&mut self, host: &impl Host) -> Result<(), ControlError> {
        self.epoch = self.epoch.next();
        let epoch = self.epoch;
        let starts = self.ranks.iter_mut().map(|held| held.controller.start(held.context, epoch));
        together(starts).await.into_iter().collect::<Result<(), _>>()?;
        for held in &self.ranks {
            held.suspend_handle.resume(host.now());
        }
        Ok(())
    }
}
