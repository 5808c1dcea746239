//! Parts that all live fabrics share: the machine's clock, its alarms, and tokio's tasks.

pub(crate) mod adaptive_spin;
pub(crate) mod alarm;
pub(crate) mod clock;

use std::future::{Future, poll_fn};
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::id::NodeId;
use crate::rng::Rng;
use crate::time::{Instant, nanos};

use alarm::Alarm;
use clock::Clock;

/// A sleep ends with an [`Alarm`] for the last 2 ms: tokio's timers have a resolution of 1 ms.
const FINE: Duration = Duration::from_millis(2);
/// Most alarms that are kept for later sleeps; each is a file descriptor.
const ALARMS: usize = 32;

/// The environment of one live node's applications.
#[derive(Debug)]
pub(crate) struct Tasks {
    node: NodeId,
    seed: u64,
    runtime: Handle,
    alarms: Mutex<Vec<Alarm>>,
}

impl Tasks {
    pub(crate) fn new(node: NodeId, seed: u64, runtime: Handle) -> Self {
        Self { node, seed, runtime, alarms: Mutex::default() }
    }

    pub(crate) const fn node(&self) -> NodeId {
        self.node
    }

    #[expect(clippy::unused_self, reason = "the clock that all nodes of the process share")]
    pub(crate) fn now(&self) -> Instant {
        Clock::now()
    }

    pub(crate) async fn sleep_until(&self, at: Instant) {
        let left = at.nanos_since(Clock::now());
        if left > nanos(FINE) {
            tokio::time::sleep(Duration::from_nanos(left) - FINE).await;
        }
        if at <= Clock::now() {
            return;
        }
        match self.alarm() {
            Some(mut alarm) => {
                poll_fn(|context| alarm.poll(context, at)).await;
                self.put_back(alarm);
            }
            // Without a free file descriptor, the task sleeps on tokio's coarse timer.
            None => tokio::time::sleep(at.since(Clock::now())).await,
        }
    }

    /// Enters the node's runtime.
    #[cfg(target_os = "linux")]
    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.runtime.enter()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    pub(crate) fn rng(&self, stream: &str) -> Rng {
        Rng::new(self.seed, &format!("node {} {stream}", self.node))
    }

    fn alarm(&self) -> Option<Alarm> {
        let spare = self.alarms.lock().expect("nothing panics while it holds this lock").pop();
        spare.or_else(|| {
            let _inside = self.runtime.enter();
            Alarm::new().ok()
        })
    }

    fn put_back(&self, alarm: Alarm) {
        let mut alarms = self.alarms.lock().expect("nothing panics while it holds this lock");
        if alarms.len() < ALARMS {
            alarms.push(alarm);
        }
    }
}
