//! The task that carries a node's steps out.

use std::future::Future;

use crate::node_core::{Step, StepOutcome};
use crate::queue::{Queue, until};

/// Steps to be carried out, each with its number.
pub(crate) type StepQueue = Queue<(u64, Step)>;

/// Carries steps out.
pub(crate) trait Executor: Send {
    /// Carries a step out.
    ///
    /// # Errors
    /// The reason why the jobs of this node can't continue.
    fn carry_out(&mut self, step: Step)
    -> impl Future<Output = Result<StepOutcome, String>> + Send;

    /// Does work that no other node waits for, after a step is reported.
    fn carry_on(&mut self) -> impl Future<Output = ()> + Send;
}

/// Carries steps out until the queue is closed, and calls `done` with the result of each.
///
/// The next step cancels one that waits until channels are steady: a channel to a node that is lost never is.
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
