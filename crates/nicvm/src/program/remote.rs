//! Runs of programs for other nodes: requests, results, and the time within which a result arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Status};
use midplane_simhw::time::Instant;

use super::{Context, Programs, finish};
use crate::backlog::Backlog;
use crate::capability::Capability;
use crate::extension::TimeoutId;
use crate::timeout::Service;

/// The timeouts of the results that wait for room in a queue, and of the runs that wait for their result.
pub(super) const RETRY: TimeoutId = TimeoutId(1);
pub(super) const SWEEP: TimeoutId = TimeoutId(2);
/// Time in which the owner of a program has to answer: an owner without this extension never does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_millis(500);

pub(super) const RUN_REQUEST: u8 = 1;
pub(super) const RUN_RESULT: u8 = 2;

/// A run that this node has requested.
#[derive(Debug)]
struct Pending {
    owner: NodeId,
    command: Command,
    since: Instant,
}

/// The runs that this node has requested, and the results that it has not sent yet.
#[derive(Debug)]
pub(super) struct RemoteRuns {
    next: u32,
    pending: BTreeMap<u32, Pending>,
    pub(super) results: Backlog,
}

impl RemoteRuns {
    pub(super) const fn new() -> Self {
        Self { next: 0, pending: BTreeMap::new(), results: Backlog::new(RETRY) }
    }

    /// Requests a run from the owner of the program.
    pub(super) fn request(
        &mut self,
        nic: &mut Context<'_>,
        capability: &Capability,
        command: &Command,
    ) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let mut message = vec![RUN_REQUEST];
        message.extend(number.to_le_bytes());
        message.extend(capability.to_words().iter().flat_map(|word| word.to_le_bytes()));
        if nic.send_control(capability.node, &message).is_err() {
            nic.refuse(command, Status::Refused);
            return;
        }
        if self.pending.is_empty() {
            nic.set_timeout(SWEEP, Service::Coarse, SWEEP_EVERY);
        }
        let pending = Pending { owner: capability.node, command: *command, since: nic.now() };
        self.pending.insert(number, pending);
    }

    /// Completes a run with its owner's result.
    fn on_result(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        number: u32,
        result: &[u8],
    ) -> Option<()> {
        let (head, steps) = result.split_first_chunk::<9>()?;
        let [status, counted @ ..] = *head;
        let status = Status::from_number(status)?;
        let steps = u32::from_le_bytes(steps.try_into().ok()?);
        self.pending.get(&number).filter(|pending| pending.owner == from)?;
        let Pending { command, .. } = self.pending.remove(&number)?;
        let ran = (status == Status::Done).then_some((u64::from_le_bytes(counted), steps));
        finish(nic, &command, ran.ok_or(status));
        Some(())
    }

    /// Ends the runs whose owner has not answered in time.
    pub(super) fn sweep(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        self.end(nic, |pending| now >= pending.since + ANSWER_TIMEOUT);
        if !self.pending.is_empty() {
            nic.set_timeout(SWEEP, Service::Coarse, SWEEP_EVERY);
        }
    }

    /// Handles a node that is down or has restarted.
    pub(super) fn on_lost(&mut self, nic: &mut Context<'_>, node: NodeId) {
        self.results.forget(node);
        self.end(nic, |pending| pending.owner == node);
    }

    fn end(&mut self, nic: &mut Context<'_>, ends: impl Fn(&Pending) -> bool) {
        self.pending.retain(|_, pending| {
            let ends = ends(pending);
            if ends {
                nic.refuse(&pending.command, Status::PeerLost);
            }
            !ends
        });
    }

    pub(super) fn forget_port(&mut self, port: PortId) {
        self.pending.retain(|_, pending| pending.command.region.port != port);
    }

    /// Takes out the commands that wait for a result.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Command> + use<> {
        std::mem::take(&mut self.pending).into_values().map(|pending| pending.command)
    }
}

impl Programs {
    /// Handles another node's message about a run.
    pub(super) fn on_run(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        (kind, number): (u8, u32),
        rest: &[u8],
    ) -> Option<()> {
        match kind {
            RUN_REQUEST => {
                let mut words = [0; 3];
                for (word, bytes) in words.iter_mut().zip(rest.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                let ran = self.execute(nic, &Capability::from_words(words));
                let (status, (counted, steps)) = match ran {
                    Ok(ended) => (Status::Done, ended),
                    Err(status) => (status, (0, 0)),
                };
                let mut result = vec![RUN_RESULT];
                result.extend(number.to_le_bytes());
                result.push(status as u8);
                result.extend(counted.to_le_bytes());
                result.extend(steps.to_le_bytes());
                // If even the backlog is full, the run ends by its timeout.
                self.remote.results.send(nic, from, &result);
                Some(())
            }
            RUN_RESULT => self.remote.on_result(nic, from, number, rest),
            _ => None,
        }
    }
}
