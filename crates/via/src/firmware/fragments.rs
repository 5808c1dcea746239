//! Cutting of messages into frames: by a plan for the chain of stages that they pass, or into frames of the
//! largest size.
//!
//! A plan lets the last byte of one message arrive soonest, but costs the stages more frames. If other messages
//! follow, full frames are better: the stages are busy anyway, and the cost per frame decides.

use midplane_nicvm::context::Context;
use midplane_pipeline::limits::Limits;
use midplane_pipeline::planner::Planner;
use midplane_pipeline::stage::{Pipeline, Stage};
use midplane_simhw::profile::{Costs, DmaCost};

/// Instructions of the coprocessor for one frame.
pub(super) const CUT_INSTRUCTIONS: u32 = 30;
/// Least bytes of a planned frame: in a smaller one, the header is more than a third.
const LEAST: f64 = 128.0;

/// The stages that frames pass.
#[derive(Debug, Default)]
pub(super) enum Chain {
    /// The stages of the NIC's model, if it has one; not read from the NIC yet.
    #[default]
    OfNic,
    Known(Pipeline),
    /// No plan: every frame carries as much as it can.
    None,
}

/// Cuts the messages of all interfaces of a NIC.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    chain: Chain,
    planner: Option<Planner>,
    mtu: u32,
    /// True if a message was cut without a plan of its size.
    is_behind: bool,
}

/// The rest of the message that an interface is sending: the sizes of its frames in bytes, the next one last.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    sizes: Vec<u32>,
}

impl Fragments {
    /// Returns the most bytes of the frame that follows after `moved` of a message's `length`; without a
    /// cutter, a full frame.
    pub(super) fn next(
        &mut self,
        cutter: Option<&mut Cutter>,
        moved: u32,
        length: u32,
        mtu: u32,
    ) -> u32 {
        if moved == 0 {
            self.sizes.clear();
            if let Some(cutter) = cutter {
                cutter.plan(length, mtu, &mut self.sizes);
            }
        }
        self.sizes.last().copied().unwrap_or(mtu)
    }

    /// Records that `bytes` bytes of that frame were contiguous in memory, and were sent as one frame.
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
    pub(super) const fn new(chain: Chain) -> Self {
        Self { chain, planner: None, mtu: 0, is_behind: false }
    }

    /// Reads the stages from the NIC, once.
    #[inline]
    pub(super) fn learn(&mut self, nic: &Context<'_>) {
        if matches!(self.chain, Chain::OfNic) {
            self.chain = modelled(nic).map_or(Chain::None, Chain::Known);
        }
    }

    /// Puts the frame sizes of a message into `sizes`, the first one last; none if there is no plan.
    fn plan(&mut self, length: u32, mtu: u32, sizes: &mut Vec<u32>) {
        let Chain::Known(chain) = &self.chain else { return };
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

    /// Returns whether a plan is still to be computed.
    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Computes one missing plan while no other work is urgent. Until then, messages of that size are cut into equal
    /// frames.
    pub(super) fn catch_up(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        self.is_behind = false;
        if let Some(computed) = planner.poll_ramp_request().and_then(|wanted| wanted.compute().ok())
        {
            planner.install(computed);
        }
    }
}

/// Returns the stages of a simulated NIC's frames: into the NIC, two lines with a switch between them, and out
/// of another NIC. If lines forward a frame piece by piece, all before the last copy is one stage: its pieces
/// overlap.
fn modelled(nic: &Context<'_>) -> Option<Pipeline> {
    let Costs { nic: costs, piece } = nic.costs()?;
    let instructions = |count: u32| f64::from(count) * f64::from(costs.instruction_ps) / 1e6;
    let copy = |cost: DmaCost, count: u32| {
        let overhead = f64::from(cost.setup_ns) / 1e3 + instructions(count);
        Stage::new(overhead, f64::from(cost.byte_ps) / 1e6)
    };
    let (empty, probe) = (nic.frame_nanos(0) as f64, nic.mtu_bytes() as usize);
    let byte = (nic.frame_nanos(probe) as f64 - empty) / probe as f64;
    let line = Stage::new(empty / 1e3, byte / 1e3).ok()?;
    let into = copy(costs.gather, CUT_INSTRUCTIONS).ok()?;
    let out_of = copy(costs.scatter, costs.event_instructions).ok()?;
    let chain = Pipeline::new(vec![into, line, line, out_of]).ok()?;
    if piece < costs.mtu { chain.overlapped(0..3).ok() } else { Some(chain) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain() -> Pipeline {
        let stages = [(2.0, 0.01), (1.0, 0.03), (3.0, 0.01)];
        let stages = stages.map(|(overhead, byte)| Stage::new(overhead, byte).unwrap());
        Pipeline::new(stages.into()).unwrap()
    }

    /// Returns the frame sizes of a message whose memory is in pieces of at most `piece` bytes.
    fn cut(cutter: &mut Cutter, length: u32, mtu: u32, piece: u32) -> Vec<u32> {
        let (mut fragments, mut frames, mut moved) = (Fragments::default(), Vec::new(), 0);
        while moved < length {
            let most = fragments.next(Some(cutter), moved, length, mtu);
            let bytes = most.min(piece - moved % piece).min(length - moved);
            fragments.on_cut(bytes);
            frames.push(bytes);
            moved += bytes;
        }
        frames
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Checks for any plan: the frames add up to the message, and none is longer than the MTU.
        #[test]
        fn frames_sum_to_the_message(
            lengths in proptest::collection::vec(1_u32..200_000, 1..8),
            mtu in 64_u32..9_000, piece in 1_u32..50_000, planned: bool,
        ) {
            let mut cutter = Cutter::new(if planned { Chain::Known(chain()) } else { Chain::None });
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
        assert_eq!(cut(&mut Cutter::new(Chain::None), 3_500, 1_500, 1 << 20), [1_500, 1_500, 500]);
    }

    #[test]
    fn with_a_chain_a_message_is_cut_smaller_than_frames_may_be() {
        let frames = cut(&mut Cutter::new(Chain::Known(chain())), 3_500, 9_000, 1 << 20);
        assert!(frames.len() > 2, "{frames:?}");
    }
}
