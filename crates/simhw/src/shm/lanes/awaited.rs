//! Processes that are waited for, and have not come yet.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use crate::id::NodeId;
use crate::live::clock::Clock;
use crate::time::Instant;

/// Who is waited for, and how long still.
#[derive(Debug)]
pub(super) struct Awaited {
    patience: Duration,
    /// In the order of their ends.
    nodes: Vec<(NodeId, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Awaited {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { patience, nodes: Vec::new(), timer: None }
    }

    /// Waits for `node` from now on, unless it is waited for already.
    #[cold]
    pub(super) fn begin(&mut self, node: NodeId) {
        if !self.nodes.iter().any(|(awaited, _)| *awaited == node) {
            self.nodes.push((node, Clock::now() + self.patience));
        }
    }

    /// It is there.
    pub(super) fn end(&mut self, node: NodeId) {
        self.nodes.retain(|(awaited, _)| *awaited != node);
        if self.nodes.is_empty() {
            self.timer = None;
        }
    }

    /// Who has not come in time; waited for no longer.
    #[inline]
    pub(super) fn overdue(&mut self) -> Option<NodeId> {
        let (node, until) = *self.nodes.first()?;
        if Clock::now() < until {
            return None;
        }
        self.nodes.remove(0);
        Some(node)
    }

    /// Whether somebody is overdue; wakes the context's task once somebody is.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let Some((_, until)) = self.nodes.first() else { return false };
        let left = until.since(Clock::now());
        let timer = self.timer.insert(Box::pin(tokio::time::sleep(left)));
        timer.as_mut().poll(context).is_ready()
    }
}
