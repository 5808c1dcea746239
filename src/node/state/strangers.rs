//! Nodes that are not of this node's cluster, or whose keys do not fit.

use super::Shared;
use crate::member::{self, Refusal, Stranger, Target};

impl Shared {
    /// Returns whether a node of another version was found.
    pub(in super::super) fn has_other_versions(&self) -> bool {
        let state = self.state();
        let mut strangers = state.members.strangers().values();
        strangers.any(|stranger| matches!(stranger, Stranger::Version(_)))
    }

    /// Returns whether nodes were found whose keys do not fit, or that refuse this one's.
    pub(in super::super) fn has_other_keys(&self) -> bool {
        let is_key =
            |stranger: &Stranger| matches!(stranger, Stranger::Key(..) | Stranger::Refuses(..));
        self.state().members.strangers().values().any(is_key) || self.dials.has_other_keys()
    }

    /// Describes which node has recently refused this one, and why.
    pub(in super::super) fn notice(&self) -> Option<String> {
        let state = self.state();
        let (by, why) = state.members.notice(self.now())?;
        Some(format!("{by} refuses this node: {}", refused(&state.hello.name, why)))
    }

    /// Returns the places whose node speaks another version, is of another cluster, or has a key that does not fit,
    /// each with a text.
    pub(in super::super) fn strangers(&self) -> Vec<(Target, String)> {
        let state = self.state();
        let own = &state.hello.cluster;
        let text = |stranger: &Stranger| match stranger {
            Stranger::Version(other) => {
                format!("speaks version {other}, this node {}", member::VERSION)
            }
            Stranger::Cluster(other) => format!("is of cluster {other:?}, this node of {own:?}"),
            Stranger::Key(name, why) => format!("is refused: {}", refused(name, *why)),
            Stranger::Refuses(by, why) => {
                format!("is {by}, which refuses this node: {}", refused(&state.hello.name, *why))
            }
        };
        let strangers = state.members.strangers().iter();
        strangers.map(|(target, stranger)| (*target, text(stranger))).collect()
    }
}

/// Returns the reason why the node called `name` is refused, and what to do.
pub(super) fn refused(name: &str, why: Refusal) -> String {
    let had = "the identity file that it had (`NodeBuilder::identity_file`)";
    match why {
        Refusal::Name => {
            format!(
                "{name:?} is the name of a node with another key: give it another name, or {had}"
            )
        }
        Refusal::Place => {
            format!("its place is listed with another key: correct the list, or give it {had}")
        }
        Refusal::Unproven => {
            "it has not proven the key that it states: its messages may be changed on the way"
                .into()
        }
        Refusal::Other(number) => format!("reason {number}, which this version does not know"),
    }
}
