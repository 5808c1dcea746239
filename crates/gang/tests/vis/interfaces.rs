//! Preempts all Virtual Interfaces of one job together.
//!
//! First the processes are suspended, and with them all that their NICs do for them. From then on, no NIC accepts a
//! frame of the job, and the counts of both ends of each connection form a consistent cut. Restored connections get new
//! numbers, so frames sent before the cut are dropped.

use std::collections::BTreeMap;

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_via::checkpointer::{
    Checkpointer, CheckpointerError, Joined, MappedMemory, NicEnd, SavedPort,
};
use midplane_via::context::{PortContext, RemoteEnd, Violation};
use thiserror::Error;

use crate::job::network::together;
use midplane_gang::controller::ControlError;
use midplane_gang::names::{JobId, Rank};
use midplane_gang::port_suspender::PortSuspender;
use midplane_gang::process::SuspendHandle;

use super::interfaces_context::InterfacesContext;

/// A daemon's access to the ports of one node.
#[derive(Debug)]
pub(crate) struct PortControl {
    /// Suspends and resumes the ports.
    pub(crate) port_suspender: PortSuspender,
    /// Saves and restores the ports' interfaces.
    pub(crate) checkpointer: Checkpointer,
}

/// One rank's process and its port, held to be preempted.
#[derive(Clone, Debug)]
pub(crate) struct RankPort {
    /// Index of its node's [`PortControl`].
    pub(crate) hold: usize,
    /// The number of the rank's port.
    pub(crate) port: PortId,
    /// Suspends and resumes the rank's process.
    pub(crate) suspend_handle: SuspendHandle,
}

/// The interfaces and processes of one job.
#[derive(Debug)]
pub(crate) struct Interfaces {
    job: JobId,
    holds: Vec<PortControl>,
    ranks: Vec<RankPort>,
}

/// Evaluates an expression for every rank: concurrently across nodes, in sequence on each node. Returns the results by
/// rank.
macro_rules! each {
    ($job:expr, |$hold:ident, $rank:ident, $port:ident| $work:expr) => {{
        let ranks = &$job.ranks;
        let nodes = $job.holds.iter_mut().enumerate().map(|(at, $hold)| async move {
            let mut done = Vec::new();
            for ($rank, held) in ranks.iter().enumerate().filter(|(_, held)| held.hold == at) {
                let $port = held.port;
                done.push(($rank, $work));
            }
            done
        });
        let mut done: Vec<_> = together(nodes).await.into_iter().flatten().collect();
        done.sort_by_key(|(rank, _)| *rank);
        done.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
    }};
}

/// Errors of [`Interfaces::save`]. Except after [`SaveError::Forget`], the NICs still hold all interfaces.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum SaveError {
    /// A NIC can't save its interfaces.
    #[error("rank {rank}: {error}")]
    Keep {
        /// The rank whose interfaces they are.
        rank: Rank,
        /// The error of the NIC.
        error: CheckpointerError,
    },
    /// A connection leads to an interface outside the job.
    #[error("rank {rank}, interface {vi}: it is connected with interface {} of node {}, which is not one of the job's", .to.vi, .to.node)]
    Stranger {
        /// The rank whose connection it is.
        rank: Rank,
        /// The process's number for the interface.
        vi: u16,
        /// The other end of the connection.
        to: NicEnd,
    },
    /// The other end has closed the connection, and the notification is in transit.
    #[error(
        "rank {rank}, interface {vi}: its other end is closing the connection: run the job, then save again"
    )]
    Ending {
        /// The rank whose connection it is.
        rank: Rank,
        /// The process's number for the interface.
        vi: u16,
    },
    /// The saved state is not a consistent cut.
    #[error("the NICs' state is not a consistent cut: {0}")]
    Inconsistent(#[from] Violation),
    /// A NIC could not forget its interfaces, though others have. The error holds the saved state.
    #[error("rank {rank}: the NIC did not forget the saved interfaces: {error}")]
    Forget {
        /// The rank whose interfaces they are.
        rank: Rank,
        /// The error of the NIC.
        error: CheckpointerError,
        /// The saved state of all interfaces.
        saved: Box<InterfacesContext>,
    },
}

/// Errors of [`Interfaces::restore`]. No NIC holds any of the interfaces then.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum RestoreError {
    /// The context has another number of ranks than the job.
    #[error("the saved interfaces are of {saved} ranks, the job has {ranks}")]
    Ranks {
        /// Number of ranks of the context.
        saved: usize,
        /// Number of ranks of the job.
        ranks: usize,
    },
    /// The context is not a consistent cut.
    #[error(transparent)]
    Inconsistent(#[from] Violation),
    /// A NIC can't restore its part.
    #[error("rank {rank}: {error}")]
    Keep {
        /// The rank whose interfaces they are.
        rank: Rank,
        /// The error of the NIC.
        error: CheckpointerError,
    },
}

fn named<T, E>(results: Vec<Result<T, E>>) -> Result<Vec<T>, (Rank, E)> {
    let ranks = (0..).map(Rank).zip(results);
    ranks.map(|(rank, result)| result.map_err(|error| (rank, error))).collect()
}

impl Interfaces {
    /// Creates the interfaces of a job from the ports of its ranks and the [`PortControl`]s of their nodes.
    ///
    /// # Panics
    /// If a rank's `hold` is not an index into `holds`.
    #[must_use]
    pub(crate) fn new(job: JobId, holds: Vec<PortControl>, ranks: Vec<RankPort>) -> Self {
        assert!(ranks.iter().all(|held| held.hold < holds.len()), "a rank's hold is out of range");
        Self { job, holds, ranks }
    }

    /// Returns the daemons' access to the ports of all nodes.
    #[must_use]
    pub(crate) fn into_port_controls(self) -> Vec<PortControl> {
        self.holds
    }

    /// Returns the processes, by rank.
    #[must_use]
    pub(crate) fn ranks(&self) -> &[RankPort] {
        &self.ranks
    }

    /// Freezes the job: suspends all processes, and all that their NICs do for them.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the port suspenders' next commands would receive these commands' completions.
    pub(crate) async fn freeze(&mut self, host: &impl Host) -> Result<(), ControlError> {
        for held in &self.ranks {
            held.suspend_handle.suspend(host.now());
        }
        each!(self, |hold, _rank, port| hold.port_suspender.suspend(port).await)
            .into_iter()
            .collect()
    }

    /// Saves and checks all interfaces; connections name their other ends by rank. If `forget`, the NICs forget the
    /// interfaces: their descriptors complete only after [`Interfaces::restore`].
    ///
    /// # Errors
    /// [`SaveError`], which names the rank that can't be saved now.
    ///
    /// # Cancel safety
    /// None: the checkpointers' next commands would receive these commands' completions.
    pub(crate) async fn save(&mut self, forget: bool) -> Result<InterfacesContext, SaveError> {
        let saves = each!(self, |hold, _rank, port| hold.checkpointer.save(port).await);
        let saved = named(saves).map_err(|(rank, error)| SaveError::Keep { rank, error })?;
        let context = InterfacesContext { job: self.job, ranks: by_rank(&saved)? };
        context.validate()?;
        if forget {
            let saved = &saved;
            let forgets =
                each!(self, |hold, rank, port| hold.checkpointer.forget(port, &saved[rank]).await);
            named(forgets).map_err(|(rank, error)| {
                let saved = Box::new(context.clone());
                SaveError::Forget { rank, error, saved }
            })?;
        }
        Ok(context)
    }

    /// Restores all interfaces, for suspended processes that have none. `memory` is each rank's memory now
    /// ([`Nic::memory_map`](midplane_via::nic::Nic::memory_map)); `None` if it is where it was when saved.
    ///
    /// # Errors
    /// [`RestoreError`], which names the rank that can't be restored.
    ///
    /// # Cancel safety
    /// None: the checkpointers' next commands would receive these commands' completions.
    pub(crate) async fn restore(
        &mut self,
        saved: &InterfacesContext,
        memory: Option<&[Vec<MappedMemory>]>,
    ) -> Result<(), RestoreError> {
        let (own, count) = (self.ranks.len(), saved.ranks.len());
        if own != count || memory.is_some_and(|memory| memory.len() != own) {
            return Err(RestoreError::Ranks { saved: count, ranks: own });
        }
        saved.validate()?;
        let restored = &each!(self, |hold, rank, port| {
            let memory = memory.map(|memory| &memory[rank][..]);
            hold.checkpointer.restore(port, &saved.ranks[rank], memory).await
        });
        if !restored.iter().all(Result::is_ok) {
            // A NIC that does not answer any more holds nothing either.
            let _ = each!(self, |hold, rank, port| match &restored[rank] {
                Ok(_) => hold.checkpointer.discard_restored(port).await,
                Err(error) => Err(*error),
            });
        }
        let keep = |(rank, error)| RestoreError::Keep { rank, error };
        let ends = named(restored.clone()).map_err(keep)?;
        let joins = &ends_by_rank(saved, &ends);
        let joined =
            each!(self, |hold, rank, port| hold.checkpointer.join(port, &joins[rank]).await);
        named(joined).map(|_| ()).map_err(keep)
    }

    /// Runs the job: resumes all NICs' work for the processes, then the processes.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the port suspenders' next commands would receive these commands' completions.
    pub(crate) async fn run(&mut self, host: &impl Host) -> Result<(), ControlError> {
        let resumes = each!(self, |hold, _rank, port| hold.port_suspender.resume(port).await);
        resumes.into_iter().collect::<Result<(), _>>()?;
        for held in &self.ranks {
            held.suspend_handle.resume(host.now());
        }
        Ok(())
    }
}

/// Converts the NICs' state: names the ends of connections by rank.
fn by_rank(saved: &[SavedPort]) -> Result<Vec<PortContext>, SaveError> {
    let ranks = || (0_u16..).zip(saved);
    let ends = |(rank, saved): (u16, &SavedPort)| -> Vec<(NicEnd, RemoteEnd)> {
        let names = saved.context.vis.iter().map(|vi| RemoteEnd { rank, vi: vi.name });
        saved.ends.iter().copied().zip(names).collect()
    };
    let all: Vec<(NicEnd, RemoteEnd)> = ranks().flat_map(ends).collect();
    let key = |end: &NicEnd| (end.node, end.vi);
    let by_number: BTreeMap<_, _> = all.iter().map(|(end, far)| (key(end), (*end, *far))).collect();
    ranks()
        .map(|(rank, saved)| {
            saved.context.clone().with_peers(|vi, to| match by_number.get(&key(&to)) {
                Some((end, far)) if *end == to => Ok(*far),
                Some(_) => Err(SaveError::Ending { rank: Rank(rank), vi }),
                None => Err(SaveError::Stranger { rank: Rank(rank), vi, to }),
            })
        })
        .collect()
}

/// Returns the other end of each connection, by rank, as the NICs name it now.
fn ends_by_rank(saved: &InterfacesContext, ends: &[Vec<NicEnd>]) -> Vec<Vec<Joined>> {
    let joined = |name: u16, far: RemoteEnd| {
        let rank = usize::from(far.rank);
        let vis = &saved.ranks[rank].vis;
        let at = vis.binary_search_by_key(&far.vi, |vi| vi.name).ok()?;
        let taken = vis[at].link.as_ref()?.expected;
        Some(Joined { name, end: ends[rank][at], taken })
    };
    let of_rank = |context: &PortContext| {
        let linked = context.vis.iter().filter_map(|vi| Some((vi.name, vi.link.as_ref()?.peer)));
        linked.filter_map(|(name, peer)| joined(name, peer)).collect()
    };
    saved.ranks.iter().map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use midplane_simhw::id::{Incarnation, NodeId};
    use midplane_via::attributes::{ViAttributes, ViState};
    use midplane_via::context::{LinkContext, ViContext};

    fn end(node: u16, connection: u16) -> NicEnd {
        NicEnd { node: NodeId(node), incarnation: Incarnation(3), vi: 8, connection }
    }

    fn saved(node: u16, far: Option<NicEnd>) -> SavedPort {
        let link = far.map(|peer| LinkContext {
            peer,
            remote: ViAttributes::default(),
            base: 0,
            flights: Vec::new(),
            expected: 0,
            arriving: None,
            responses: Vec::new(),
        });
        let vi = ViContext {
            name: 5,
            attributes: ViAttributes::default(),
            state: if link.is_some() { ViState::Connected } else { ViState::Idle },
            link,
            sends: Vec::new(),
            cut: 0,
            acknowledged: 0,
            withdrawn: 0,
            gate: midplane_via::context::GateContext::default(),
            receives: Vec::new(),
        };
        let context = PortContext { vis: vec![vi], errors: Vec::new() };
        SavedPort { context, ends: vec![end(node, 1 + u16::from(far.is_none()))] }
    }

    #[test]
    fn a_connection_that_only_one_end_still_has_is_ending() {
        let whole = by_rank(&[saved(0, Some(end(1, 1))), saved(1, Some(end(0, 1)))]).unwrap();
        let peer = whole[0].vis[0].link.as_ref().map(|link| link.peer);
        assert_eq!(peer, Some(RemoteEnd { rank: 1, vi: 5 }));
        // The other end has closed it, and its interface's next connection gets another number.
        let ending = by_rank(&[saved(0, Some(end(1, 1))), saved(1, None)]);
        assert_eq!(ending, Err(SaveError::Ending { rank: Rank(0), vi: 5 }));
        let stranger = by_rank(&[saved(0, Some(end(2, 1))), saved(1, None)]);
        assert_eq!(stranger, Err(SaveError::Stranger { rank: Rank(0), vi: 5, to: end(2, 1) }));
    }
}
