//! A peer's connection attempts: which is the newest, and whether a peer restarts with an older incarnation.

use midplane_simhw::id::{Incarnation, NodeId};

/// Stale hellos in a row that show a restart; fewer may be late ones of the peer's former process.
const MANY_STALE: u32 = 3;

/// One connection attempt of one incarnation of a node: later ones are newer, none repeats.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Attempt {
    pub(super) incarnation: Incarnation,
    /// From 1, growing within the incarnation with wrap-around; 0 is none.
    pub(super) number: u32,
}

impl Attempt {
    pub(super) fn is_newer_than(self, other: Self) -> bool {
        if self.incarnation == other.incarnation {
            return self.number.wrapping_sub(other.number) as i32 > 0;
        }
        self.incarnation.is_newer_than(other.incarnation)
    }
}

/// Counts a peer's hellos of former incarnations since its last frame of the present one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StaleHellos(u32);

impl StaleHellos {
    /// Handles a frame of the peer's present incarnation. A restart that was reported is not reported again.
    pub(super) const fn on_present(&mut self) {
        if self.0 < MANY_STALE {
            self.0 = 0;
        }
    }

    /// Handles a hello of a former incarnation, `older`. If it shows that `node` has restarted with that one after
    /// `present`, emits a warning and returns true.
    pub(super) fn on_hello(
        &mut self,
        node: NodeId,
        older: Incarnation,
        present: Incarnation,
    ) -> bool {
        self.0 = self.0.saturating_add(1);
        let is_shown = self.0 == MANY_STALE;
        if is_shown {
            tracing::warn!(
                node = node.0,
                older = older.0,
                present = present.0,
                "a node has started with an older incarnation than before, and is ignored: its clock was set back; \
                 set its `incarnation`, or restart its peers"
            );
        }
        is_shown
    }
}
