//! Checks the consistency of a job's Virtual Interfaces across hosts when the job is preempted.
//!
//! First the processes are suspended, and with them all that their NICs do for them. From then on, no NIC accepts a
//! frame of the job, and the counts of both ends of each connection form a consistent cut. Restored connections get
//! new numbers, so frames that were sent before the cut are dropped.
//!
//! No host knows the whole job. Each host reports its ends and their peers. The scheduler receives all reports and
//! decides whether the interfaces can be saved. So a job's interfaces are removed from the NICs of all hosts, or of
//! none.

use std::collections::BTreeMap;

use midplane_via::checkpointer::{NicEnd, SavedPort};
use serde::{Deserialize, Serialize};

use crate::names::JobId;

/// An interface, identified as its NIC does, and its peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldEnd {
    /// The interface's own end.
    pub(crate) own: NicEnd,
    /// The peer's end, if the interface is connected.
    pub(crate) far: Option<NicEnd>,
}

/// One host's part of a job's interfaces, while the job's processes are suspended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostInterfaces {
    /// The job's number.
    pub(crate) job: JobId,
    /// The host's number.
    pub(crate) host: u16,
    /// The job's interfaces on the host; possibly incomplete if `refused` is set.
    pub(crate) ends: Vec<HeldEnd>,
    /// Why some interfaces can't be saved, if so.
    pub(crate) refused: Option<String>,
}

/// A connected interface that was restored.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct RestoredInterface {
    /// The end that it had before.
    pub(crate) from: NicEnd,
    /// The end that it has now.
    pub(crate) to: NicEnd,
    /// Sequence number of the next frame that the interface accepts.
    pub(crate) taken: u32,
}

impl HostInterfaces {
    /// Adds the interfaces of a saved port.
    pub(crate) fn add(&mut self, saved: &SavedPort) {
        let far = saved.context.vis.iter().map(|vi| vi.link.as_ref().map(|link| link.peer));
        self.ends.extend(saved.ends.iter().zip(far).map(|(own, far)| HeldEnd { own: *own, far }));
    }
}

/// Checks by the hosts' reports that the NICs may forget a job's interfaces: all can be saved, and both ends of each
/// connection are reported.
///
/// # Errors
/// The first reason why they can't be saved and stay on their NICs.
pub(crate) fn check_cut(hosts: &[&HostInterfaces]) -> Result<(), String> {
    for HostInterfaces { host, refused, .. } in hosts {
        if let Some(why) = refused {
            return Err(format!("host {host}: {why}"));
        }
    }
    let key = |end: &NicEnd| (end.node, end.vi);
    let all = || hosts.iter().flat_map(|of| of.ends.iter().map(|end| (of.host, *end)));
    let own: BTreeMap<_, _> = all().map(|(_, end)| (key(&end.own), end)).collect();
    for (host, HeldEnd { own: this, far }) in all() {
        let Some(to) = far else { continue };
        match own.get(&key(&to)) {
            None => {
                return Err(format!(
                    "host {host}: a connection leads to interface {} of node {}, which is not one of the job's",
                    to.vi, to.node
                ));
            }
            // The peer has closed the connection, and the notification is in transit.
            Some(other) if other.own != to || other.far != Some(this) => {
                return Err(format!(
                    "host {host}: the other end of a connection, on node {}, is closing it",
                    to.node
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use midplane_simhw::id::{Incarnation, NodeId};

    fn end(node: u16, vi: u16) -> NicEnd {
        NicEnd { node: NodeId(node), incarnation: Incarnation(7), vi, connection: 1 }
    }

    fn pair() -> [HostInterfaces; 2] {
        [0, 1].map(|host| HostInterfaces {
            job: JobId(3),
            host,
            ends: vec![
                HeldEnd { own: end(host, 0), far: Some(end(1 - host, 0)) },
                HeldEnd { own: end(host, 1), far: None },
            ],
            refused: None,
        })
    }

    fn check(hosts: &[HostInterfaces]) -> Result<(), String> {
        check_cut(&hosts.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_job_whose_ends_are_all_there_is_whole() {
        assert_eq!(check(&pair()), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn the_reason_that_a_job_is_not_whole_is_returned() {
        let mut refused = pair();
        refused[1].refused = Some("no".into());
        assert_eq!(check(&refused), Err("host 1: no".into()));
        let stranger = check(&pair()[..1]).unwrap_err();
        assert!(stranger.contains("host 0: a connection leads to interface 0 of node 1"));
        let ending = "host 0: the other end of a connection, on node 1, is closing it";
        // The peer now has another connection, none, or one with another interface.
        for far in [None, Some(end(0, 1))] {
            let mut ended = pair();
            ended[1].ends[0].far = far;
            assert_eq!(check(&ended), Err(ending.into()));
        }
        let mut anew = pair();
        anew[1].ends[0].own.connection = 2;
        assert_eq!(check(&anew), Err(ending.into()));
    }
}
