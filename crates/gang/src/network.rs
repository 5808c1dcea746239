//! All channels of one job, preempted together: what a scheduler's tree does, in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::context::{ChannelContext, NetworkContext};
use crate::controller::{ContextId, ContextOptions, ControlError, Controller};
use crate::names::{Epoch, JobId, Place, Rank};
use crate::process::Reins;
use crate::wait::WaitState;
use midplane_simhw::host::Host;

/// Runs futures together until all have ended; what they return, in order.
///
/// # Cancel safety
/// Dropped, all of them are dropped.
pub async fn together<T, F: Future<Output = T>>(futures: impl IntoIterator<Item = F>) -> Vec<T> {
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

/// One rank's channel, in the hands of whoever preempts it.
#[derive(Debug)]
pub struct Held {
    /// Its controller: of its node and channel.
    pub controller: Controller,
    /// Its context.
    pub context: ContextId,
    /// Its process.
    pub reins: Reins,
}

/// All channels of one job.
#[derive(Debug)]
pub struct Network {
    job: JobId,
    epoch: Epoch,
    ranks: Vec<Held>,
}

impl Network {
    /// Opens a context for every rank with a controller of its own; all are parked.
    ///
    /// # Errors
    /// [`ControlError`]; nothing is open then.
    ///
    /// # Cancel safety
    /// Dropped, nothing is open.
    pub async fn open(
        job: JobId,
        places: &[Place],
        controllers: Vec<Controller>,
    ) -> Result<Self, ControlError> {
        let mut ranks = Vec::new();
        for (rank, mut controller) in (0_u16..).map(Rank).zip(controllers) {
            let options = ContextOptions { job, rank, places: places.to_vec() };
            let context = controller.open_context(options).await?;
            ranks.push(Held { controller, context, reins: Reins::new() });
        }
        Ok(Self { job, epoch: Epoch(0), ranks })
    }

    /// The channels, by rank.
    #[must_use]
    pub fn ranks(&self) -> &[Held] {
        &self.ranks
    }

    /// The epoch that runs, or ran last.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Freeze: stops all processes, then waits until all channels are steady.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub async fn freeze(&mut self, host: &impl Host) -> Result<(), ControlError> {
        for held in &self.ranks {
            held.reins.stop(host.now());
        }
        let stops = self.ranks.iter_mut().map(|held| held.controller.stop(held.context));
        together(stops).await.into_iter().collect()
    }

    /// Save: what all channels hold. With `forget`, the NICs forget them.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub async fn save(&mut self, forget: bool) -> Result<NetworkContext, ControlError> {
        let saves = self.ranks.iter_mut().map(|held| held.controller.save(held.context, forget));
        let ranks: Result<Vec<_>, _> = together(saves).await.into_iter().collect();
        Ok(self.cut(ranks?))
    }

    /// Freeze and save in one: stops one rank after the other, and saves each as soon as its channel is steady, while
    /// those after it still run and are refused what they send it. The NICs keep what is saved.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub async fn leave(&mut self, host: &impl Host) -> Result<NetworkContext, ControlError> {
        let mut ranks = Vec::with_capacity(self.ranks.len());
        for held in &mut self.ranks {
            held.reins.stop(host.now());
            held.controller.stop(held.context).await?;
            ranks.push(held.controller.save(held.context, false).await?);
        }
        Ok(self.cut(ranks))
    }

    fn cut(&self, mut ranks: Vec<ChannelContext>) -> NetworkContext {
        for (held, saved) in self.ranks.iter().zip(&mut ranks) {
            if held.reins.has_ended() {
                saved.wait = WaitState::Idle;
            }
        }
        NetworkContext { job: self.job, epoch: self.epoch, ranks }
    }

    /// Restore: puts all channels back in place.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub async fn restore(&mut self, saved: &NetworkContext) -> Result<(), ControlError> {
        if saved.ranks.len() != self.ranks.len() {
            return Err(ControlError::Saved("it has another number of ranks"));
        }
        let pairs = self.ranks.iter_mut().zip(&saved.ranks);
        let restores = pairs.map(|(held, saved)| held.controller.restore(held.context, saved));
        together(restores).await.into_iter().collect::<Result<(), _>>()?;
        if saved.job == self.job && saved.epoch.is_newer_than(self.epoch) {
            self.epoch = saved.epoch;
        }
        Ok(())
    }

    /// Run: starts all channels in the next epoch, then lets all processes go on.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub async fn run(&mut self, host: &impl Host) -> Result<(), ControlError> {
        self.epoch = self.epoch.next();
        let epoch = self.epoch;
        let starts = self.ranks.iter_mut().map(|held| held.controller.start(held.context, epoch));
        together(starts).await.into_iter().collect::<Result<(), _>>()?;
        for held in &self.ranks {
            held.reins.resume(host.now());
        }
        Ok(())
    }
}
