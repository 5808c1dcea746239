//! Where a message is cut into frames: by a plan for the chain of stages that they pass, or at each
//! frame's most.

use midplane_pipeline::limits::Limits;
use midplane_pipeline::planner::Planner;
use midplane_pipeline::stage::Pipeline;

/// Least bytes of a planned frame: below, its header is a third of it.
const LEAST: f64 = 128.0;

/// Cuts the messages of all interfaces of a NIC.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// `None`: every frame carries as much as it can.
    chain: Option<Pipeline>,
    planner: Option<Planner>,
    mtu: u32,
    /// A message was cut without a plan of its size.
    is_behind: bool,
}

/// The rest of the message that an interface is sending: the bytes of its frames, the next one last.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    sizes: Vec<u32>,
}

impl Fragments {
    /// Bytes that the frame after `moved` of a message's `length` has at most.
    pub(super) fn next(&mut self, cutter: &mut Cutter, moved: u32, length: u32, mtu: u32) -> u32 {
        if moved == 0 {
            self.sizes.clear();
            cutter.plan(length, mtu, &mut self.sizes);
        }
        self.sizes.last().copied().unwrap_or(mtu)
    }

    /// So many bytes of that frame were in one piece, and have left as one.
    pub(super) fn on_cut(&mut self, bytes: u32) {
        if let Some(last) = self.sizes.last_mut() {
            *last -= bytes.min(*last);
            if *last == 0 {
                self.sizes.pop();
            }
        }
    }
}

impl Cutter {
    pub(super) const fn new(chain: Option<Pipeline>) -> Self {
        Self { chain, planner: None, mtu: 0, is_behind: false }
    }

    /// Puts the frames of a message into `sizes`, the first one last; none where there is no plan.
    fn plan(&mut self, length: u32, mtu: u32, sizes: &mut Vec<u32>) {
        let Some(chain) = &self.chain else { return };
        if self.mtu != mtu {
            self.mtu = mtu;
            let limits = Limits::new().mtu(mtu.into()).min_fragment(LEAST.min(mtu.into()));
            self.planner = Planner::new(chain.clone(), limits).ok();
        }
        let Some(planner) = &mut self.planner else { return };
        let pieces = planner.plan(length.into());
        self.is_behind |= !pieces.is_cached() && pieces.planned() > 1;
        sizes.extend(pieces.map(|size| size as u32));
        sizes.reverse();
    }

    /// Whether there is a plan to compute.
    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Computes one plan that was missed, when nothing hurries: until then, fragments are equal.
    pub(super) fn catch_up(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        self.is_behind = false;
        if let Some(computed) = planner.poll_wanted().and_then(|wanted| wanted.compute().ok()) {
            planner.install(computed);
        }
    }
}

#[cfg(test)]
mod tests {
    use midplane_pipeline::stage::Stage;
    use proptest::prelude::*;

    use super::*;

    fn chain() -> Pipeline {
        let stages = [(2.0, 0.01), (1.0, 0.03), (3.0, 0.01)];
        let stages = stages.map(|(overhead, byte)| Stage::new(overhead, byte).unwrap());
        Pipeline::new(stages.into()).unwrap()
    }

    /// The frames of a message whose memory lies in pieces of at most `piece`.
    fn cut(cutter: &mut Cutter, length: u32, mtu: u32, piece: u32) -> Vec<u32> {
        let (mut fragments, mut frames, mut moved) = (Fragments::default(), Vec::new(), 0);
        while moved < length {
            let most = fragments.next(cutter, moved, length, mtu);
            let bytes = most.min(piece - moved % piece).min(length - moved);
            fragments.on_cut(bytes);
            frames.push(bytes);
            moved += bytes;
        }
        frames
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever is planned: frames sum to the message, and none is longer than a frame may be.
        #[test]
        fn frames_sum_to_the_message(
            lengths in proptest::collection::vec(1_u32..200_000, 1..8),
            mtu in 64_u32..9_000, piece in 1_u32..50_000, planned: bool,
        ) {
            let mut cutter = Cutter::new(planned.then(chain));
            for length in lengths {
                let frames = cut(&mut cutter, length, mtu, piece.max(64));
                prop_assert_eq!(frames.iter().sum::<u32>(), length);
                prop_assert!(frames.iter().all(|bytes| (1..=mtu).contains(bytes)));
                cutter.catch_up();
            }
        }
    }

    #[test]
    fn without_a_chain_every_frame_is_full() {
        assert_eq!(cut(&mut Cutter::new(None), 3_500, 1_500, 1 << 20), [1_500, 1_500, 500]);
    }

    #[test]
    fn with_a_chain_a_message_is_cut_smaller_than_frames_may_be() {
        let frames = cut(&mut Cutter::new(Some(chain())), 3_500, 9_000, 1 << 20);
        assert!(frames.len() > 2, "{frames:?}");
    }
}
