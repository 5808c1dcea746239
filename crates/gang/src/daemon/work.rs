//! Owns a daemon's work, so that the work outlives the call that began it.
//!
//! While a call runs, it polls the work itself. If the call is dropped, the daemon's task polls the work to its end. If
//! the daemon is dropped, that task notifies the other daemons.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use midplane_simhw::host::Host;

use super::core::{Core, Done};
use super::messenger::Halt;
use super::{DaemonError, Outcome};
use crate::channel::Closed;

pub(super) type Work<H> = Pin<Box<dyn Future<Output = Done<H>> + Send>>;

struct SharedWork<H> {
    /// The daemon, while no work runs.
    core: Option<Box<Core<H>>>,
    work: Option<Work<H>>,
    /// The result of the last work, until a call takes it.
    done: Option<Result<Outcome, DaemonError>>,
    /// True while a call polls the work.
    is_polled_by_call: bool,
    /// True if the daemon was dropped.
    is_dropped: bool,
    /// Set once there is no further work, with the reason.
    end: Option<DaemonError>,
    /// Notifies the other daemons that this one, or another, is gone.
    leaving: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    task: Option<Waker>,
}

impl<H: Host> SharedWork<H> {
    /// Polls the work; ready if there is none, or it has ended.
    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        let (core, result) = ready!(work.as_mut().poll(context));
        self.work = None;
        match &result {
            Err(error) => self.leave(core, error.clone()),
            Ok(_) if core.has_quit() => self.end = Some(Closed.into()),
            Ok(_) => self.core = Some(core),
        }
        self.done = Some(result);
        Poll::Ready(())
    }

    fn leave(&mut self, core: Box<Core<H>>, error: DaemonError) {
        let node = match error {
            DaemonError::Gone { node } => node,
            _ => core.node(),
        };
        self.leaving = Some(Box::pin(core.leave(node)));
        self.end = Some(error);
    }

    /// Polls whatever no call polls. The daemon's own task runs this.
    fn poll_as_task(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_polled_by_call {
            let _ = self.poll_work(context);
        }
        if self.is_dropped
            && let Some(core) = self.core.take()
        {
            let node = core.node();
            self.leave(core, DaemonError::Gone { node });
        }
        if let Some(leaving) = &mut self.leaving
            && leaving.as_mut().poll(context).is_ready()
        {
            self.leaving = None;
        }
        if self.end.is_some() && self.leaving.is_none() {
            return Poll::Ready(());
        }
        self.task = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Owns a daemon's work. If it is dropped, the daemon ends.
pub(super) struct Owner<H: Host> {
    shared: Arc<Mutex<SharedWork<H>>>,
    halt: Arc<Halt>,
}

fn lock<H>(shared: &Mutex<SharedWork<H>>) -> MutexGuard<'_, SharedWork<H>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake_task<H>(shared: &Mutex<SharedWork<H>>) {
    let waker = lock(shared).task.take();
    waker.into_iter().for_each(Waker::wake);
}

/// A call that polls the work, until the guard is dropped.
struct CallGuard<'a, H>(&'a Mutex<SharedWork<H>>);

impl<H> Drop for CallGuard<'_, H> {
    fn drop(&mut self) {
        let mut shared = lock(self.0);
        shared.is_polled_by_call = false;
        let is_left = shared.work.is_some() || shared.end.is_some();
        drop(shared);
        if is_left {
            wake_task(self.0);
        }
    }
}

impl<H: Host> Owner<H> {
    /// Owns a daemon's work, and spawns its task on `host`.
    pub(super) fn new(host: &H, core: Box<Core<H>>) -> Self {
        let halt = core.halt();
        let shared = Arc::new(Mutex::new(SharedWork {
            core: Some(core),
            work: None,
            done: None,
            is_polled_by_call: false,
            is_dropped: false,
            end: None,
            leaving: None,
            task: None,
        }));
        let of_task = Arc::clone(&shared);
        host.spawn(poll_fn(move |context| lock(&of_task).poll_as_task(context)));
        Self { shared, halt }
    }

    /// Begins a work once those of dropped calls have ended, and returns its result.
    pub(super) async fn run(
        &mut self,
        begin: impl FnOnce(Box<Core<H>>) -> Work<H>,
    ) -> Result<Outcome, DaemonError> {
        // The result of a dropped call's work is discarded.
        drop(self.last_result().await);
        {
            let mut shared = lock(&self.shared);
            let Some(core) = shared.core.take() else {
                return Err(shared.end.clone().unwrap_or(DaemonError::Closed(Closed)));
            };
            shared.work = Some(begin(core));
        }
        let done = self.last_result().await;
        done.expect("a work that has ended has a result")
    }

    /// Waits for the last work, and returns its result unless a call has taken it.
    #[expect(clippy::needless_pass_by_ref_mut, reason = "only one call may poll the work")]
    pub(super) async fn last_result(&mut self) -> Option<Result<Outcome, DaemonError>> {
        let _guard = CallGuard(&self.shared);
        poll_fn(|context| {
            let mut shared = lock(&self.shared);
            shared.is_polled_by_call = true;
            shared.poll_work(context)
        })
        .await;
        lock(&self.shared).done.take()
    }
}

impl<H: Host> Drop for Owner<H> {
    fn drop(&mut self) {
        self.halt.raise();
        lock(&self.shared).is_dropped = true;
        wake_task(&self.shared);
    }
}
