//! Runs the code of a simulated host, as a task of its world.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use thiserror::Error;

use super::kernel::{Hosts, Kernel, State};
use super::nic::HostNic;
use super::runtime::HostRuntime;
use crate::host::Host as _;
use crate::lock::lock;
use crate::port::Completion;
use crate::sim::SimHost;
use crate::time::Instant;

/// Any error of a host's code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The code of a host.
pub type Main = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// The reason why a host's code has ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The code has returned an error.
    #[error("{0}")]
    Failed(BoxError),
    /// A task has panicked; the text has the place and the message.
    #[error("{0}{cure}", cure = cure_of(.0))]
    Panicked(String),
    /// A task wakes itself again and again, so that no virtual time passes.
    #[error("no time passes: a task wakes itself for ever, or polls without waiting for anything")]
    Livelock,
    /// The code has used the pool of blocking threads.
    #[error(
        "the host's code uses blocking threads (`spawn_blocking`, `tokio::fs`, `lookup_host`): their order is not \
         that of the seed"
    )]
    Threads,
}

/// Returns what to do about a panic; nothing unless it is known.
fn cure_of(panic: &str) -> &'static str {
    if panic.contains("IO is disabled") {
        "; tokio's sockets are not simulated: use `midplane::net` in place of `tokio::net`"
    } else {
        ""
    }
}

/// Runs a host's code, and calls `on_end` when it ends. From then on the host answers each datagram with the report
/// that no socket has its port. `start` creates the code's future within the host's runtime. `mtu` is the most bytes of
/// a datagram that the host's interface sends as one packet.
///
/// Spawn it on a world whose firmware is [`DatagramNic`](super::DatagramNic), once for each host.
///
/// # Panics
/// If `mtu` is below 257: a datagram of 65,535 bytes has at most 255 fragments.
///
/// # Cancel safety
/// Dropping the future ends the host's code at once, as a crash does.
pub async fn run(
    host: SimHost,
    hosts: Arc<Hosts>,
    mtu: usize,
    start: impl FnOnce() -> Main + Send + 'static,
    on_end: impl FnOnce(Result<(), HostError>) + Send,
) {
    assert!(mtu >= 257, "an interface sends datagrams of at least 257 bytes, not {mtu}");
    let kernel = Kernel::new(host.clone(), hosts, mtu);
    let ended = Arc::new(Mutex::new(None));
    let mut runtime = HostRuntime::new(&kernel);
    let nic = HostNic::open(&host, mtu);
    let mut system = System { kernel, nic, wakes: Vec::new() };
    let out = Arc::clone(&ended);
    runtime.spawn(async move {
        let result = start().await;
        *lock(&out) = Some(result);
    });
    let end = loop {
        let is_livelock = !system.run_tasks(&mut runtime);
        if let Some(panic) = HostRuntime::take_panic() {
            break Err(HostError::Panicked(panic));
        }
        if is_livelock {
            break Err(HostError::Livelock);
        }
        if runtime.has_threads() {
            break Err(HostError::Threads);
        }
        let result = lock(&ended).take();
        if let Some(result) = result {
            break result.map_err(HostError::Failed);
        }
        system.wait(&host, Some(runtime.next_tick())).await;
    };
    on_end(end);
    drop(runtime);
    loop {
        // The sockets are closed: no task waits for space or arrivals. Connections still send the written bytes.
        system.kernel.take_timers(system.kernel.host.now(), &mut system.wakes);
        system.send();
        system.wakes.clear();
        // A NIC that was reset is opened again at a tick.
        let tick = system.nic.is_none().then(|| host.now().plus_nanos(super::runtime::TICK_NANOS));
        system.wait(&host, tick).await;
    }
}

/// The kernel and the NIC of a host.
struct System {
    kernel: Arc<Kernel>,
    /// `None` while the NIC is down.
    nic: Option<HostNic>,
    wakes: Vec<Waker>,
}

impl System {
    /// Runs the host's tasks and posts the packets that they send, until all tasks wait. Returns `false` if a task
    /// wakes itself again and again.
    fn run_tasks(&mut self, runtime: &mut HostRuntime) -> bool {
        self.kernel.take_timers(self.kernel.host.now(), &mut self.wakes);
        loop {
            if !runtime.visit(&mut self.wakes) {
                return false;
            }
            // Posting frees space in the outbox, which wakes senders.
            if !self.send() {
                return true;
            }
        }
    }

    /// Posts the packets of connections and sockets; returns whether tasks that wait for space can run.
    fn send(&mut self) -> bool {
        let now = self.kernel.host.now();
        let mut state = self.kernel.state();
        let State { tcp, outbox, .. } = &mut *state;
        loop {
            tcp.flush(now, outbox, &mut self.wakes);
            let Some(nic) = &mut self.nic else { break };
            let mut has_posted = false;
            while outbox.front().is_some_and(|packet| nic.post(packet)) {
                outbox.on_posted(&mut self.wakes);
                has_posted = true;
            }
            if !has_posted {
                break;
            }
            nic.ring();
        }
        !self.wakes.is_empty()
    }

    /// Waits for a completion of the NIC, an exact timer, or `tick`, the next tick of tokio's timers. `tick` is `None`
    /// once the host's code has ended.
    async fn wait(&mut self, host: &SimHost, tick: Option<Instant>) {
        let at = [tick, self.kernel.next_timer()].into_iter().flatten().min();
        let mut sleep = pin!(host.sleep_until(at.unwrap_or(Instant::FAR_FUTURE)));
        let is_due = poll_fn(|context| {
            while let Some(nic) = &mut self.nic {
                match nic.poll_completion(context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(completion)) if !self.receive(completion) => {}
                    Poll::Ready(Some(_)) => return Poll::Ready(false),
                    Poll::Ready(None) => {
                        self.nic = None;
                        return Poll::Ready(false);
                    }
                }
            }
            match at {
                Some(_) => sleep.as_mut().poll(context).map(|()| true),
                None => Poll::Pending,
            }
        })
        .await;
        if is_due && at == tick {
            self.on_tick(host);
        }
    }

    /// Handles a completion and all completions after it. Returns whether the host must run: a packet has arrived, or
    /// the outbox has one to send.
    fn receive(&mut self, first: Completion) -> bool {
        let Some(nic) = &mut self.nic else { return false };
        let (mut next, mut has_arrived) = (Some(first), false);
        while let Some(completion) = next {
            if let Some(arrived) = nic.handle(&completion) {
                self.kernel.deliver(arrived, &mut self.wakes);
                has_arrived = true;
            }
            next = nic.take();
        }
        nic.ring_for_buffers();
        has_arrived || self.kernel.state().outbox.front().is_some()
    }

    /// Checks the NIC, because it may have been reset, and doorbells and interrupts may be lost.
    fn on_tick(&mut self, host: &SimHost) {
        let is_lost = |nic: &mut HostNic| nic.is_closed() || !nic.remind();
        if self.nic.as_mut().is_none_or(is_lost) {
            self.nic = None;
            self.nic = HostNic::open(host, self.kernel.mtu);
        }
        if let Some(completion) = self.nic.as_mut().and_then(HostNic::take) {
            self.receive(completion);
        }
    }
}
