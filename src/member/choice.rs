//! Chooses the peer that a stream to a service goes to.

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
