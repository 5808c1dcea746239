//! Deadlines of the processes that must connect.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use crate::id::NodeId;
use crate::live::clock::Clock;
use crate::time::Instant;

/// The processes that must connect, each with its deadline.
#[derive(Debug)]
pub(super) struct Awaited {
    timeout: Duration,
    /// Entries in the order of their deadlines.
    nodes: Vec<(NodeId, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Awaited {
    pub(super) const fn new(timeout: Duration) -> Self {
        Self { timeout, nodes: Vec::new(), timer: None }
    }

    /// Sets the deadline of `node`, unless it has one already.
    #[cold]
    pub(super) fn begin(&mut self, node: NodeId) {
        if !self.nodes.iter().any(|(awaited, _)| *awaited == node) {
            self.nodes.push((node, Clock::now() + self.timeout));
        }
    }

    /// Removes the deadline of `node`, which has connected.
    pub(super) fn end(&mut self, node: NodeId) {
        self.nodes.retain(|(awaited, _)| *awaited != node);
        if self.nodes.is_empty() {
            self.timer = None;
        }
    }

    /// Removes and returns a process that has missed its deadline.
    #[inline]
    pub(super) fn overdue(&mut self) -> Option<NodeId> {
        let (node, until) = *self.nodes.first()?;
        if Clock::now() < until {
            return None;
        }
        self.nodes.remove(0);
        Some(node)
    }

    /// Returns whether the first deadline has passed; if not, the context's task is woken when it does.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let Some((_, until)) = self.nodes.first() else { return false };
        let left = until.since(Clock::now());
        let timer = self.timer.insert(Box::pin(tokio::time::sleep(left)));
        timer.as_mut().poll(context).is_ready()
    }
}
