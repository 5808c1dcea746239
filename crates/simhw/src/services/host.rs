//! Runs the code of a simulated host, as a task of its world.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use thiserror::Error;

use super::kernel::{Hosts, Kernel};
use super::nic::HostNic;
use super::runtime::HostRuntime;
use crate::host::Host as _;
use crate::port::Completion;
use crate::sim::SimHost;

/// Any error of a host's code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The code of a host.
pub type Main = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// The reason why a host's code has ended before its time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The code has returned an error.
    #[error("{0}")]
    Failed(BoxError),
    /// A task has panicked; the text has the place and the message.
    #[error("{0}")]
    Panicked(String),
    /// The code has used the pool of blocking threads.
    #[error(
        "the host's code uses blocking threads (`spawn_blocking`, `tokio::fs`, `lookup_host`): their order is not \
         that of the seed"
    )]
    Threads,
}

/// Runs a host's code until it ends. `start` makes the code's future, within the host's runtime; `mtu` is the longest datagram
/// that the host's interface sends.
///
/// Spawn it on a world whose firmware is [`DatagramNic`](super::DatagramNic), once for each host.
///
/// # Errors
/// [`HostError`].
///
/// # Cancel safety
/// Dropping the future ends the host's code at once, as a crash does.
pub async fn run(
    host: SimHost,
    hosts: Arc<Hosts>,
    mtu: usize,
    start: impl FnOnce() -> Main + Send + 'static,
) -> Result<(), HostError> {
    let kernel = Kernel::new(host.clone(), hosts, mtu);
    let ended = Arc::new(Mutex::new(None));
    let mut guest = Guest {
        runtime: HostRuntime::new(&kernel),
        nic: HostNic::open(&host, mtu),
        kernel,
        wakes: Vec::new(),
    };
    let out = Arc::clone(&ended);
    guest.runtime.spawn(async move {
        let result = start().await;
        *out.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    });
    loop {
        guest.turn();
        if let Some(panic) = HostRuntime::take_panic() {
            return Err(HostError::Panicked(panic));
        }
        if guest.runtime.has_threads() {
            return Err(HostError::Threads);
        }
        let result = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(result) = result {
            // What it has sent leaves the host.
            guest.send();
            return result.map_err(HostError::Failed);
        }
        guest.wait(&host).await;
    }
}

/// A host's runtime, system and NIC.
struct Guest {
    // Dropped first: its tasks have sockets.
    runtime: HostRuntime,
    kernel: Arc<Kernel>,
    /// `None` while the NIC is down.
    nic: Option<HostNic>,
    wakes: Vec<Waker>,
}

impl Guest {
    /// Runs the host's tasks with what has arrived, and sends what they send.
    fn turn(&mut self) {
        self.kernel.take_timers(self.kernel.host.now(), &mut self.wakes);
        self.runtime.visit(&mut self.wakes);
        // Space before the NIC wakes senders.
        while self.send() {
            self.runtime.visit(&mut self.wakes);
        }
    }

    /// Posts the queued datagrams; returns whether tasks that wait for space can run.
    fn send(&mut self) -> bool {
        let Some(nic) = &mut self.nic else { return false };
        let mut state = self.kernel.state();
        let mut has_posted = false;
        while state.outbox.front().is_some_and(|datagram| nic.post(datagram)) {
            state.on_posted(&mut self.wakes);
            has_posted = true;
        }
        if has_posted {
            nic.ring();
        }
        !self.wakes.is_empty()
    }

    /// Waits for a completion of the NIC, an exact timer, or the next tick of tokio's timers.
    async fn wait(&mut self, host: &SimHost) {
        let tick = self.runtime.next_tick();
        let at = self.kernel.next_timer().map_or(tick, |timer| timer.min(tick));
        let mut sleep = pin!(host.sleep_until(at));
        let nic = &mut self.nic;
        let completed: Option<Option<Completion>> = poll_fn(|context| {
            if let Some(nic) = nic
                && let Poll::Ready(completion) = nic.poll_completion(context)
            {
                return Poll::Ready(Some(completion));
            }
            sleep.as_mut().poll(context).map(|()| None)
        })
        .await;
        match completed {
            Some(Some(completion)) => self.receive(completion),
            Some(None) => self.nic = None,
            None => self.on_time(host, at == tick),
        }
    }

    /// Handles a completion and all that follow it.
    fn receive(&mut self, first: Completion) {
        let Some(nic) = &mut self.nic else { return };
        let mut next = Some(first);
        while let Some(completion) = next {
            if let Some(arrived) = nic.handle(&completion) {
                self.kernel.deliver(arrived, &mut self.wakes);
            }
            next = nic.take();
        }
        nic.ring_for_buffers();
    }

    /// Looks after the NIC at each tick: it may have been reset, and doorbells and interrupts may be lost.
    fn on_time(&mut self, host: &SimHost, is_tick: bool) {
        if !is_tick {
            return;
        }
        if self.nic.as_ref().is_none_or(HostNic::is_closed) {
            self.nic = HostNic::open(host, self.kernel.mtu);
        }
        if let Some(nic) = &mut self.nic {
            nic.remind();
            if let Some(completion) = nic.take() {
                self.receive(completion);
            }
        }
    }
}
