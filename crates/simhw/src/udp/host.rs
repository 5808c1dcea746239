//! Applications on a NIC over UDP: tokio's tasks, the machine's time.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;

use super::alarm::Alarm;
use super::clock::Clock;
use super::desk::Desk;
use crate::host::{Host, OpenError};
use crate::id::NodeId;
use crate::port::{Port, PortOptions};
use crate::rng::Rng;
use crate::time::{Instant, nanos};

/// tokio's timers are a millisecond coarse: the rest of a sleep is the alarm's.
const FINE: Duration = Duration::from_millis(2);
/// Alarms that are kept for the next sleeps; each is a file descriptor.
const ALARMS: usize = 32;

/// The application's side of a [`UdpNic`](super::UdpNic).
///
/// Its sleeps are as fine as the system's timers: some 50 us on Linux, a millisecond elsewhere;
/// never early.
#[derive(Clone, Debug)]
pub struct UdpHost(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    node: NodeId,
    seed: u64,
    runtime: Handle,
    desk: Arc<Desk>,
    alarms: Mutex<Vec<Alarm>>,
}

impl UdpHost {
    pub(super) fn new(node: NodeId, seed: u64, runtime: Handle, desk: Arc<Desk>) -> Self {
        Self(Arc::new(Shared { node, seed, runtime, desk, alarms: Mutex::default() }))
    }

    fn alarm(&self) -> Option<Alarm> {
        let spare = self.0.alarms.lock().expect("nothing panics while it holds this lock").pop();
        spare.or_else(|| {
            let _inside = self.0.runtime.enter();
            Alarm::new().ok()
        })
    }

    fn put_back(&self, alarm: Alarm) {
        let mut alarms = self.0.alarms.lock().expect("nothing panics while it holds this lock");
        if alarms.len() < ALARMS {
            alarms.push(alarm);
        }
    }
}

impl Host for UdpHost {
    fn node(&self) -> NodeId {
        self.0.node
    }

    /// Nanoseconds since the first fabric of this process started.
    fn now(&self) -> Instant {
        Clock::now()
    }

    async fn sleep_until(&self, at: Instant) {
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
            // Out of file descriptors: late rather than never.
            None => tokio::time::sleep(at.since(Clock::now())).await,
        }
    }

    /// Starts a task of the runtime in which the NIC was started.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(task);
    }

    fn rng(&self, stream: &str) -> Rng {
        Rng::new(self.0.seed, &format!("node {} {stream}", self.0.node))
    }

    fn open_port_with(&self, options: PortOptions) -> Result<Port, OpenError> {
        self.0.desk.open(options)
    }
}
