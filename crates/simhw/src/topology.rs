//! The connections of hosts, switches, trunks and shared media, and the routes between hosts.

use std::collections::{BTreeMap, VecDeque};

use crate::id::NodeId;
use crate::link::LinkProfile;
use crate::medium::MediumProfile;
use crate::switch::{Buffer, SwitchProfile};

/// The number of a switch in its topology, from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SwitchId(pub u16);

/// The number of a shared medium in its topology, from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MediumId(pub u16);

/// The number of a link, one direction of a wire, in its topology, from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u32);

/// An end of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub enum End {
    /// A host's NIC.
    Nic(NodeId),
    /// A switch.
    Switch(SwitchId),
    /// A shared medium.
    Medium(MediumId),
}

/// One direction of a wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Link {
    /// The end that sends.
    pub from: End,
    /// The end that receives.
    pub to: End,
    /// Its rate, length and framing.
    pub profile: LinkProfile,
}

/// Hosts on switches, with trunks between switches, or hosts on a shared medium, which connects to nothing
/// else. Every host has one link in each direction.
///
/// All links of one topology cut frames in the same way: that of the first link.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(crate) switches: Vec<SwitchProfile>,
    pub(crate) media: Vec<MediumProfile>,
    pub(crate) links: Vec<Link>,
    /// For each host, its links to and from the switch or medium.
    pub(crate) hosts: Vec<(LinkId, LinkId)>,
    /// The names of hosts that have one.
    names: BTreeMap<NodeId, String>,
}

impl Topology {
    /// Creates an empty topology.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a topology of `hosts` hosts on one switch.
    #[must_use]
    pub fn star(hosts: u16, link: LinkProfile, switch: SwitchProfile) -> Self {
        let mut topology = Self::new();
        let center = topology.add_switch(switch);
        for _ in 0..hosts {
            topology.add_host(center, link);
        }
        topology
    }

    /// Creates a topology of `hosts` hosts on one shared medium.
    #[must_use]
    pub fn shared(hosts: u16, profile: MediumProfile) -> Self {
        let mut topology = Self::new();
        let medium = topology.add_medium(profile);
        for _ in 0..hosts {
            topology.add_host_on(medium);
        }
        topology
    }

    /// Adds a shared medium.
    ///
    /// # Panics
    /// If there are more than 65,535 of them.
    pub fn add_medium(&mut self, profile: MediumProfile) -> MediumId {
        self.media.push(profile);
        MediumId(u16::try_from(self.media.len() - 1).expect("at most 65,535 media"))
    }

    /// Adds a host on a shared medium; hosts are numbered from 0 as they are added.
    ///
    /// # Panics
    /// If there is no such medium, or there are more than 65,535 hosts.
    pub fn add_host_on(&mut self, medium: MediumId) -> NodeId {
        let media = self.media.len();
        assert!(
            usize::from(medium.0) < media,
            "no medium {}: the topology has {media}, and `add_medium` adds one",
            medium.0
        );
        let MediumProfile { rate, propagation, framing, .. } = self.media[usize::from(medium.0)];
        let link = LinkProfile { rate, propagation, framing };
        self.join(End::Medium(medium), link, link)
    }

    /// Adds a switch.
    ///
    /// # Panics
    /// If there are more than 65,535 of them.
    pub fn add_switch(&mut self, profile: SwitchProfile) -> SwitchId {
        self.switches.push(profile);
        SwitchId(u16::try_from(self.switches.len() - 1).expect("at most 65,535 switches"))
    }

    /// Adds a host on `switch`; hosts are numbered from 0 as they are added.
    ///
    /// # Panics
    /// If there is no such switch, or there are more than 65,535 hosts.
    pub fn add_host(&mut self, switch: SwitchId, link: LinkProfile) -> NodeId {
        self.assert_switch(switch);
        self.join(End::Switch(switch), link, link)
    }

    /// Adds a host on `switch` with different links up and down; both must have the same framing.
    ///
    /// # Panics
    /// If there is no such switch, there are more than 65,535 hosts, or the framings differ.
    pub fn add_asymmetric_host(
        &mut self,
        switch: SwitchId,
        up: LinkProfile,
        down: LinkProfile,
    ) -> NodeId {
        self.assert_switch(switch);
        assert!(
            up.framing == down.framing,
            "the framings of both links must be equal: a switch forwards pieces as they come"
        );
        self.join(End::Switch(switch), up, down)
    }

    fn assert_switch(&self, switch: SwitchId) {
        let switches = self.switches.len();
        assert!(
            usize::from(switch.0) < switches,
            "no switch {}: the topology has {switches}, and `add_switch` adds one",
            switch.0
        );
    }

    fn join(&mut self, to: End, up: LinkProfile, down: LinkProfile) -> NodeId {
        let node = NodeId(u16::try_from(self.hosts.len()).expect("at most 65,535 hosts"));
        let up = self.add_link(End::Nic(node), to, up);
        let down = self.add_link(to, End::Nic(node), down);
        self.hosts.push((up, down));
        node
    }

    /// Connects two switches with one link in each direction; returns the one from `a` to `b`.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn add_trunk(&mut self, a: SwitchId, b: SwitchId, link: LinkProfile) -> LinkId {
        self.assert_switch(a);
        self.assert_switch(b);
        let there = self.add_link(End::Switch(a), End::Switch(b), link);
        self.add_link(End::Switch(b), End::Switch(a), link);
        there
    }

    fn add_link(&mut self, from: End, to: End, profile: LinkProfile) -> LinkId {
        self.links.push(Link { from, to, profile });
        LinkId(u32::try_from(self.links.len() - 1).expect("fewer links than 2^32"))
    }

    /// Names a host, for traces.
    pub fn name_host(&mut self, node: NodeId, name: impl Into<String>) {
        self.names.insert(node, name.into());
    }

    /// Returns the name of a host in traces: `node` and its number, unless it was [named](Self::name_host).
    pub(crate) fn host_name(&self, node: NodeId) -> String {
        self.names.get(&node).cloned().unwrap_or_else(|| format!("node {node}"))
    }

    /// Iterates over all links.
    #[doc(hidden)]
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len() as u32).map(LinkId)
    }

    /// Iterates over the links that begin at a switch output, each with the output's buffer.
    #[doc(hidden)]
    pub fn outputs(&self) -> impl Iterator<Item = (LinkId, Buffer)> + '_ {
        self.links().filter_map(|link| match self.links[link.0 as usize].from {
            End::Switch(switch) => Some((link, self.switches[usize::from(switch.0)].buffer)),
            End::Nic(_) | End::Medium(_) => None,
        })
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u16 {
        u16::try_from(self.hosts.len()).expect("checked when they were added")
    }

    /// Returns the link to `node`, which all its senders share.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn downlink(&self, node: NodeId) -> LinkId {
        self.links_of(node).1
    }

    /// Returns the link from `node`.
    ///
    /// # Panics
    /// If there is no such host.
    #[must_use]
    pub fn uplink(&self, node: NodeId) -> LinkId {
        self.links_of(node).0
    }

    fn links_of(&self, node: NodeId) -> (LinkId, LinkId) {
        let hosts = self.hosts.len();
        let links = self.hosts.get(node.index()).copied();
        links.unwrap_or_else(|| panic!("no host {node}: the topology has {hosts}, numbered from 0"))
    }

    /// Returns the name of a link in traces and scripts, made of the names of its ends.
    ///
    /// # Panics
    /// If there is no such link.
    #[must_use]
    #[doc(hidden)]
    pub fn link_name(&self, link: LinkId) -> String {
        let name = |end| match end {
            End::Nic(node) => self.host_name(node),
            End::Switch(switch) => format!("switch {}", switch.0),
            End::Medium(medium) => format!("medium {}", medium.0),
        };
        let links = self.links.len();
        let Some(Link { from, to, .. }) = self.links.get(link.0 as usize).copied() else {
            panic!("no link {}: the topology has {links}, numbered from 0", link.0)
        };
        format!("{} > {}", name(from), name(to))
    }

    /// Returns the links from `from` to `to`, in order; `None` if there is no path.
    #[must_use]
    #[doc(hidden)]
    pub fn path(&self, from: NodeId, to: NodeId) -> Option<Vec<LinkId>> {
        let routes = self.routes();
        let &(up, _) = self.hosts.get(from.index())?;
        let mut path = vec![up];
        loop {
            match self.links[path.last()?.0 as usize].to {
                End::Nic(node) => return (node == to).then_some(path),
                medium @ End::Medium(_) => {
                    let &(_, down) = self.hosts.get(to.index())?;
                    if self.links[down.0 as usize].from != medium {
                        return None;
                    }
                    path.push(down);
                }
                End::Switch(switch) => {
                    path.push(routes[usize::from(switch.0)].get(to.index()).copied().flatten()?);
                }
            }
        }
    }

    /// Returns the first link of a shortest path from each switch to each host. Of equal paths, takes the first.
    pub(crate) fn routes(&self) -> Vec<Vec<Option<LinkId>>> {
        let mut routes = vec![vec![None; self.hosts.len()]; self.switches.len()];
        for (node, (_, down)) in self.hosts.iter().enumerate() {
            let End::Switch(last) = self.links[down.0 as usize].from else { continue };
            routes[usize::from(last.0)][node] = Some(*down);
            let mut queue = VecDeque::from([last]);
            while let Some(switch) = queue.pop_front() {
                for (id, from) in self.trunks_into(switch) {
                    let route = &mut routes[usize::from(from.0)][node];
                    if route.is_none() {
                        *route = Some(id);
                        queue.push_back(from);
                    }
                }
            }
        }
        routes
    }

    fn trunks_into(&self, switch: SwitchId) -> impl Iterator<Item = (LinkId, SwitchId)> + '_ {
        (0_u32..).zip(&self.links).filter_map(move |(id, link)| match (link.from, link.to) {
            (End::Switch(from), End::Switch(to)) if to == switch => Some((LinkId(id), from)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::Buffer;
    use crate::time::LineRate;
    use std::time::Duration;

    #[test]
    fn a_path_crosses_the_trunks_between_its_ends() {
        let link = LinkProfile::plain(LineRate::mbps(100), Duration::ZERO);
        let profile = SwitchProfile::new(Buffer::Bytes(1 << 16));
        let mut topology = Topology::new();
        let switches: Vec<_> = (0..3).map(|_| topology.add_switch(profile)).collect();
        let a = topology.add_host(switches[0], link);
        let b = topology.add_host(switches[2], link);
        assert_eq!(topology.path(a, b), None);
        let first = topology.add_trunk(switches[0], switches[1], link);
        let second = topology.add_trunk(switches[1], switches[2], link);
        let (up, down) = (topology.hosts[0].0, topology.downlink(b));
        assert_eq!(topology.path(a, b), Some(vec![up, first, second, down]));
        assert_eq!(topology.path(a, a).map(|path| path.len()), Some(2));
    }
}
