//! Chooses the peer that a stream to a service goes to, and the link to it.

use super::Members;
use super::peer::{Peer, distance};

/// The load of a link, and whether its peer answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Streams that are open.
    pub(crate) streams: usize,
    /// True if the peer was silent for a second although an answer is outstanding.
    pub(crate) is_suspected: bool,
}

/// A link to a peer that offers a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Choice {
    pub(crate) peer: u64,
    pub(crate) link: u64,
    /// Lower is better: whether the peer is suspected, then its distance.
    pub(crate) rank: (bool, u8),
    pub(crate) streams: usize,
}

/// Returns the index in `choices` of the less loaded of two random ones among those of the best rank.
pub(crate) fn choose(choices: &[Choice], random: u64) -> Option<usize> {
    let best = choices.iter().map(|choice| choice.rank).min()?;
    let of_best: Vec<_> = (0..choices.len()).filter(|at| choices[*at].rank == best).collect();
    let pick = |random: u64| of_best[random as usize % of_best.len()];
    let (one, other) = (pick(random & 0xffff_ffff), pick(random >> 32));
    Some(if choices[other].streams < choices[one].streams { other } else { one })
}

impl Members {
    /// Returns one link to each peer that offers a service; `load` returns the load of a link.
    pub(crate) fn choices(&self, service: &str, load: impl Fn(u64) -> Load) -> Vec<Choice> {
        let offers = |peer: &&Peer| {
            let is_used = !peer.is_leaving && peer.rival.is_none() && peer.held_by.is_none();
            is_used && peer.services.contains(service)
        };
        let peers = self.peers.iter().filter(|(_, peer)| offers(peer));
        peers.filter_map(|(id, peer)| self.choice(*id, peer, &load)).collect()
    }

    /// Returns the link that a new stream to a peer uses; `load` returns the load of a link.
    pub(crate) fn link_to(&self, id: u64, load: impl Fn(u64) -> Load) -> Option<u64> {
        self.choice(id, self.peers.get(&id)?, &load).map(|choice| choice.link)
    }

    fn choice(&self, id: u64, peer: &Peer, load: &impl Fn(u64) -> Load) -> Option<Choice> {
        let links = peer.links.iter().filter_map(|number| {
            let link = self.links.get(number).filter(|link| !link.is_refused())?;
            let Load { streams, is_suspected } = load(*number);
            let is_doubted = is_suspected || link.is_slow || peer.trial.is_some();
            let rank = (is_doubted, distance(link.transport));
            Some(Choice { peer: id, link: *number, rank, streams })
        });
        // Of links with equal rank, takes the first, which is preferred.
        links.min_by_key(|choice| choice.rank)
    }
}
