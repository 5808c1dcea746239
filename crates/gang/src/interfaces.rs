//! All Virtual Interfaces of one job, preempted together.
//!
//! The processes stand still first, and with them what their NICs do for them; then nothing in the
//! network is taken by anybody, and what both ends of each connection count is one cut. What is put back
//! gets new numbers, so that frames of before the cut are nobody's.
//!
//! [`Interfaces`] does it for a job whose nodes are all at hand, as in virtual time. Daemons of real processes
//! do the same by orders, each with what its own host has ([`HostInterfaces`], [`check_whole`], [`Moved`]).

mod context;
mod ends;

use std::collections::BTreeMap;

use midplane_simhw::host::Host;
use midplane_simhw::id::PortId;
use midplane_via::context::{FarEnd, PortContext, Violation};
use midplane_via::keeper::{Joined, KeepError, Keeper, MappedMemory, NicEnd, SavedPort};
use thiserror::Error;

use crate::controller::ControlError;
use crate::names::{JobId, Rank};
use crate::network::together;
use crate::process::Reins;
use crate::warden::Warden;

pub use context::InterfacesContext;
pub use ends::{HeldEnd, HostInterfaces, Moved, NotWhole, check_whole};

/// A daemon's hold on the ports of one node.
#[derive(Debug)]
pub struct Hold {
    /// Stops and resumes them.
    pub warden: Warden,
    /// Saves and restores their interfaces.
    pub keeper: Keeper,
}

/// One rank's process and its port, in the hands of whoever preempts it.
#[derive(Clone, Debug)]
pub struct HeldPort {
    /// Which of the holds is its node's.
    pub hold: usize,
    /// Its port.
    pub port: PortId,
    /// Its process.
    pub reins: Reins,
}

/// All interfaces of one job.
#[derive(Debug)]
pub struct Interfaces {
    job: JobId,
    holds: Vec<Hold>,
    ranks: Vec<HeldPort>,
}

/// Does something for every rank, node by node together, one after the other on a node; what comes of it,
/// by rank.
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

/// Why a job's interfaces were not saved. The NICs keep them, unless it says otherwise.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SaveError {
    /// A NIC does not save them.
    #[error("rank {rank}: {error}")]
    Keep {
        /// Whose.
        rank: Rank,
        /// Why not.
        error: KeepError,
    },
    /// A connection leads out of the job.
    #[error("rank {rank}, interface {vi}: it is connected with interface {} of node {}, which is none of the job's", .to.vi, .to.node)]
    Stranger {
        /// Whose.
        rank: Rank,
        /// What the process calls the interface.
        vi: u16,
        /// Where the connection leads.
        to: NicEnd,
    },
    /// A connection has ended at its other end, and the news of it is under way.
    #[error(
        "rank {rank}, interface {vi}: its other end has ended the connection just now: let the job go on first"
    )]
    Ending {
        /// Whose.
        rank: Rank,
        /// What the process calls the interface.
        vi: u16,
    },
    /// It is no consistent cut.
    #[error("what the NICs hold is no consistent cut: {0}")]
    Inconsistent(#[from] Violation),
    /// A NIC does not forget them, though others have: what was saved is here.
    #[error("rank {rank}: what was saved is not forgotten: {error}")]
    Forget {
        /// Whose.
        rank: Rank,
        /// Why not.
        error: KeepError,
        /// What was saved.
        saved: Box<InterfacesContext>,
    },
}

/// Why a job's interfaces were not restored; no NIC has any of them.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RestoreError {
    /// It is another job's.
    #[error("it has {saved} ranks, and the job has {ranks}")]
    Ranks {
        /// Those of the context.
        saved: usize,
        /// The job's.
        ranks: usize,
    },
    /// It is no consistent cut.
    #[error(transparent)]
    Inconsistent(#[from] Violation),
    /// A NIC does not take its part.
    #[error("rank {rank}: {error}")]
    Keep {
        /// Whose.
        rank: Rank,
        /// Why not.
        error: KeepError,
    },
}

fn named<T, E>(results: Vec<Result<T, E>>) -> Result<Vec<T>, (Rank, E)> {
    let ranks = (0..).map(Rank).zip(results);
    ranks.map(|(rank, result)| result.map_err(|error| (rank, error))).collect()
}

impl Interfaces {
    /// The interfaces of a job with these ranks, on nodes that these are the holds of.
    ///
    /// # Panics
    /// If a rank's hold is not among them.
    #[must_use]
    pub fn new(job: JobId, holds: Vec<Hold>, ranks: Vec<HeldPort>) -> Self {
        assert!(ranks.iter().all(|held| held.hold < holds.len()), "a rank's hold is not there");
        Self { job, holds, ranks }
    }

    /// The daemons' holds.
    #[must_use]
    pub fn into_holds(self) -> Vec<Hold> {
        self.holds
    }

    /// The processes, by rank.
    #[must_use]
    pub fn ranks(&self) -> &[HeldPort] {
        &self.ranks
    }

    /// Freeze: stops all processes, and what their NICs do for them.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the wardens expect their answers.
    pub async fn freeze(&mut self, host: &impl Host) -> Result<(), ControlError> {
        for held in &self.ranks {
            held.reins.stop(host.now());
        }
        each!(self, |hold, _rank, port| hold.warden.stop(port).await).into_iter().collect()
    }

    /// Save: what all interfaces hold, with the ends of connections by rank, checked. With `forget`, the
    /// NICs forget them: only [`Interfaces::restore`] makes their descriptors complete then.
    ///
    /// # Errors
    /// [`SaveError`] says of whom what can't be saved now.
    ///
    /// # Cancel safety
    /// None: the keepers expect their answers.
    pub async fn save(&mut self, forget: bool) -> Result<InterfacesContext, SaveError> {
        let saves = each!(self, |hold, _rank, port| hold.keeper.save(port).await);
        let saved = named(saves).map_err(|(rank, error)| SaveError::Keep { rank, error })?;
        let context = InterfacesContext { job: self.job, ranks: by_rank(&saved)? };
        context.validate()?;
        if forget {
            let saved = &saved;
            let forgets =
                each!(self, |hold, rank, port| hold.keeper.forget(port, &saved[rank]).await);
            named(forgets).map_err(|(rank, error)| {
                let saved = Box::new(context.clone());
                SaveError::Forget { rank, error, saved }
            })?;
        }
        Ok(context)
    }

    /// Restore: puts all interfaces back, for processes that stand still and have none. `memory` says of
    /// each rank where its memory is now ([`Nic::memory_map`](midplane_via::nic::Nic::memory_map)); `None`
    /// if it is where it was.
    ///
    /// # Errors
    /// [`RestoreError`] says of whom what does not fit.
    ///
    /// # Cancel safety
    /// None: the keepers expect their answers.
    pub async fn restore(
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
            hold.keeper.restore(port, &saved.ranks[rank], memory).await
        });
        if !restored.iter().all(Result::is_ok) {
            // One that does not answer any more has nothing either.
            let _ = each!(self, |hold, rank, port| match &restored[rank] {
                Ok(_) => hold.keeper.take_back(port).await,
                Err(error) => Err(*error),
            });
        }
        let keep = |(rank, error)| RestoreError::Keep { rank, error };
        let ends = named(restored.clone()).map_err(keep)?;
        let joins = &ends_by_rank(saved, &ends);
        let joined = each!(self, |hold, rank, port| hold.keeper.join(port, &joins[rank]).await);
        named(joined).map(|_| ()).map_err(keep)
    }

    /// Run: lets all NICs go on for the processes, and then these.
    ///
    /// # Errors
    /// [`ControlError`].
    ///
    /// # Cancel safety
    /// None: the wardens expect their answers.
    pub async fn run(&mut self, host: &impl Host) -> Result<(), ControlError> {
        let resumes = each!(self, |hold, _rank, port| hold.warden.resume(port).await);
        resumes.into_iter().collect::<Result<(), _>>()?;
        for held in &self.ranks {
            held.reins.resume(host.now());
        }
        Ok(())
    }
}

/// What NICs have said, with the ends of connections by rank.
fn by_rank(saved: &[SavedPort]) -> Result<Vec<PortContext>, SaveError> {
    let ranks = || (0_u16..).zip(saved);
    let ends = |(rank, saved): (u16, &SavedPort)| -> Vec<(NicEnd, FarEnd)> {
        let names = saved.context.vis.iter().map(|vi| FarEnd { rank, vi: vi.name });
        saved.ends.iter().copied().zip(names).collect()
    };
    let all: Vec<(NicEnd, FarEnd)> = ranks().flat_map(ends).collect();
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

/// The other end of each connection, of each rank, as NICs know it now.
fn ends_by_rank(saved: &InterfacesContext, ends: &[Vec<NicEnd>]) -> Vec<Vec<Joined>> {
    let joined = |name: u16, far: FarEnd| {
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
        NicEnd { node: NodeId(node), life: Incarnation(3), vi: 8, connection }
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
            receives: Vec::new(),
        };
        let context = PortContext { vis: vec![vi], errors: Vec::new() };
        SavedPort { context, ends: vec![end(node, 1 + u16::from(far.is_none()))] }
    }

    #[test]
    fn a_connection_that_only_one_end_still_has_is_ending() {
        let whole = by_rank(&[saved(0, Some(end(1, 1))), saved(1, Some(end(0, 1)))]).unwrap();
        let peer = whole[0].vis[0].link.as_ref().map(|link| link.peer);
        assert_eq!(peer, Some(FarEnd { rank: 1, vi: 5 }));
        // The other one has ended it, and its interface's next connection has another number.
        let ending = by_rank(&[saved(0, Some(end(1, 1))), saved(1, None)]);
        assert_eq!(ending, Err(SaveError::Ending { rank: Rank(0), vi: 5 }));
        let stranger = by_rank(&[saved(0, Some(end(2, 1))), saved(1, None)]);
        assert_eq!(stranger, Err(SaveError::Stranger { rank: Rank(0), vi: 5, to: end(2, 1) }));
    }
}
