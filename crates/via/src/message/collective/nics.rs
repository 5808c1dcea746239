//! A communicator's access to its NICs: a port that holds their group, memory that they read and write, and a
//! queue, since all members must issue the same operations in the same order.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::iter::once;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use midplane_nicvm::collective::{self, MAX_BROADCAST, SMALL};
use midplane_simhw::host::Host;
use midplane_simhw::lock::lock;
use midplane_simhw::port::{Command, Completion, Port, PortOptions, Status};
use midplane_simhw::region::{Region, RegionRef};

use super::{Communicator, MessageError, Rank};
use crate::message::bell::{Bell, Deferred};
use crate::message::request::Failure;
use crate::message::transport::BuildError;

/// One process's access to the NICs; one operation runs at a time.
pub(in crate::message) struct Nics {
    state: Mutex<State>,
    /// Wakes the task whose operation is in progress.
    bell: Arc<Bell>,
}

struct State {
    /// `None` once the process was finalised.
    access: Option<NicAccess>,
    /// Operations that have entered the queue.
    queued: u32,
    /// Operations that have left the queue.
    left: u32,
    waiting: BTreeMap<u32, Waker>,
}

/// The port and memory of the NICs' operations. Both live until the communicator's last handle is dropped: a
/// dropped operation may still write to the memory.
struct NicAccess {
    port: Port,
    memory: Region,
}

impl fmt::Debug for Nics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nics").finish_non_exhaustive()
    }
}

impl Nics {
    /// Opens a port, and registers memory for all operations of `size` members.
    fn open(host: &impl Host, size: u32) -> Result<Self, Status> {
        let options = PortOptions::default().depth(2);
        let mut port = host.open_port_with(options).map_err(|_| Status::Refused)?;
        let bytes = MAX_BROADCAST.max(SMALL * size as usize);
        let memory = port.register(bytes).map_err(|_| Status::Region)?;
        let (access, waiting) = (Some(NicAccess { port, memory }), BTreeMap::new());
        let state = Mutex::new(State { access, queued: 0, left: 0, waiting });
        Ok(Self { state, bell: Arc::default() })
    }

    fn with<T>(&self, work: impl FnOnce(&mut NicAccess) -> T) -> Result<T, MessageError> {
        lock(&self.state).access.as_mut().map(work).ok_or_else(|| BuildError::NotRunning.into())
    }

    /// Enters the queue; returns the place in it.
    pub(super) fn queue(&self) -> u32 {
        let mut state = lock(&self.state);
        let place = state.queued;
        state.queued = place.wrapping_add(1);
        place
    }

    /// Ready when all operations before this place have left the queue.
    pub(super) fn poll_turn(&self, place: u32, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.left == place {
            return Poll::Ready(());
        }
        let former = state.waiting.insert(place, context.waker().clone());
        // Dropping a waker may run any code.
        drop(state);
        drop(former);
        Poll::Pending
    }

    /// Takes the first operation out of the queue, and wakes the next.
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.left = state.left.wrapping_add(1);
        let next = state.left;
        let waker = state.waiting.remove(&next);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes all waiting operations: one failed or was dropped, so that no later one gets its turn.
    pub(super) fn abandon(&self) {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Releases the NICs' group; the other processes then count this one as lost.
    pub(in crate::message) fn close(&self) {
        let access = lock(&self.state).access.take();
        drop(access);
        self.abandon();
    }

    /// Returns the first `bytes` bytes of the memory, as a reference for the NIC.
    pub(super) fn room(&self, bytes: usize) -> Result<RegionRef, MessageError> {
        self.with(|access| access.memory.range(0, bytes).expect("operations fit the memory"))
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), MessageError> {
        self.with(|access| access.memory.write(offset, bytes).expect("operations fit the memory"))
    }

    pub(super) fn read(&self, bytes: usize) -> Result<Vec<u8>, MessageError> {
        let mut out = vec![0; bytes];
        self.with(|access| access.memory.read(0, &mut out).expect("operations fit the memory"))?;
        Ok(out)
    }

    /// Polls for the completion of the posted command; `None` if the NIC has stopped.
    fn poll_end(&self, context: &Context<'_>) -> Poll<Result<Option<Completion>, MessageError>> {
        let (mut deferred, armed) = (Deferred::default(), Waker::from(Arc::clone(&self.bell)));
        self.bell.pass_to(once(context.waker()), &mut deferred);
        deferred.run();
        let mut state = lock(&self.state);
        let Some(access) = &mut state.access else {
            return Poll::Ready(Err(BuildError::NotRunning.into()));
        };
        let mut context = Context::from_waker(&armed);
        let ended = ready!(pin!(access.port.completion()).poll(&mut context));
        Poll::Ready(Ok(ended.ok()))
    }
}

impl Communicator {
    /// Duplicates this communicator, and has each process's NIC carry out the operations that NICs support: barriers,
    /// broadcasts of up to [`MAX_BROADCAST`] bytes, all-gathers of up to 84 bytes a process (of up to 256 processes),
    /// and [reductions](Self::all_reduce) of up to eleven words by the NICs' operations. The hosts carry out everything
    /// else, and all operations of communicators made from this one or of a single process.
    ///
    /// The NICs' group ([`Collectives`](midplane_nicvm::collective::Collectives)) lists the processes' nodes in
    /// the order of their ranks. One communicator at a time holds it, until its last handle is dropped or its
    /// process is [finalised](Self::finalize). The other processes count a process that releases the group as lost:
    /// their operations that need it end with [`Failure::PeerLost`]. An operation may end at one process before other
    /// NICs have received all that they need from its NIC: stop a NIC only after a barrier of the hosts.
    ///
    /// # Errors
    /// [`MessageError::Nics`], at all processes, if the NIC of any of them does not take part; those of
    /// [`duplicate`](Self::duplicate).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, the other processes may wait for ever, and this communicator may
    /// be [abandoned](MessageError::Abandoned).
    pub fn on_nics(&self, host: &impl Host) -> impl Future<Output = Result<Self, MessageError>> {
        let new = self.duplicate();
        async move { new.await?.take_nics(host).await }
    }

    async fn take_nics(self, host: &impl Host) -> Result<Self, MessageError> {
        let new = self;
        if new.size() == 1 {
            return Ok(new);
        }
        let held = new.hold(host).await;
        let own = held.as_ref().err().copied().unwrap_or(Status::Done);
        for (rank, said) in (0..).map(Rank).zip(new.all_gather(vec![own as u8]).await?) {
            let status = said.first().and_then(|number| Status::from_number(*number));
            let status = status.unwrap_or(Status::Invalid);
            if status != Status::Done {
                return Err(MessageError::Nics { rank, status });
            }
        }
        let nics = held.map_err(|status| MessageError::Nics { rank: new.rank(), status })?;
        new.carry_out(&nics, collective::start(0)).await?;
        Ok(new.with_nics(nics))
    }

    /// Has this process's NIC reserve the group for this communicator, if it has the same members.
    async fn hold(&self, host: &impl Host) -> Result<Nics, Status> {
        let invalid = |_| Status::Invalid;
        let rank = u16::try_from(self.rank().0).map_err(invalid)?;
        let size = u16::try_from(self.size()).map_err(invalid)?;
        let nics = Nics::open(host, size.into())?;
        let held = self.carry_out(&nics, collective::hold(rank, size, 0)).await;
        match held {
            Ok(_) => Ok(nics),
            Err(MessageError::Nics { status, .. }) => Err(status),
            Err(_) => Err(Status::PeerLost),
        }
    }

    /// Posts a command to the NIC and waits for its completion; messages progress meanwhile. Fails if the communicator is
    /// revoked; the NIC may still carry out the command then, as that of a dropped operation.
    pub(super) async fn carry_out(
        &self,
        nics: &Nics,
        command: Command,
    ) -> Result<Completion, MessageError> {
        let own = self.handle().collective();
        if self.with(|process| process.engine().is_revoked(own)) {
            return Err(self.noted(Failure::Revoked).into());
        }
        let posted = nics.with(|access| access.port.submit(&command))?;
        let ended = match posted {
            Ok(()) => self.meanwhile(true, |context| nics.poll_end(context)).await?,
            Err(_) => None,
        };
        let stopped = Completion::of(&command, Status::ExtensionDown);
        let ended = ended.unwrap_or(stopped);
        match ended.status {
            Status::Done | Status::Truncated => Ok(ended),
            Status::PeerLost => {
                let lost = Rank(u32::try_from(ended.args[0]).unwrap_or(u32::MAX));
                Err(Failure::PeerLost(self.handle().group().peer(lost)?).into())
            }
            status => Err(MessageError::Nics { rank: self.rank(), status }),
        }
    }
}
