//! Carries out a node's steps, one after another, in a task.

use std::future::Future;

use crate::node_core::{Step, StepOutcome};
use crate::queue::{Queue, until};

/// Steps to carry out, each with its number.
pub(crate) type StepQueue = Queue<(u64, Step)>;

/// Carries out steps.
pub(crate) trait Executor: Send {
    /// Carries out a step.
    ///
    /// # Errors
    /// The reason why the jobs of this node can't continue.
    fn carry_out(&mut self, step: Step)
    -> impl Future<Output = Result<StepOutcome, String>> + Send;

    /// Does the work after a reported step for which no other node waits.
    fn carry_on(&mut self) -> impl Future<Output = ()> + Send;
}

/// Carries out steps until the queue is closed, and calls `done` with the result of each.
///
/// The next step cancels a step that waits until channels are quiescent, because a channel to a lost node never
/// becomes so.
pub(crate) async fn run(
    steps: StepQueue,
    mut executor: impl Executor,
    done: impl Fn(u64, Result<StepOutcome, String>),
) {
    loop {
        steps.ready().await;
        let Some((number, step)) = steps.pop() else { return };
        let is_stop = step.is_stop();
        let cancelled = async {
            match is_stop {
                true => steps.ready().await,
                false => steps.closed().await,
            }
        };
        if let Some(result) = until(executor.carry_out(step), cancelled).await {
            done(number, result);
            executor.carry_on().await;
        }
    }
}
