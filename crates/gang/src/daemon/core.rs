//! A daemon's core: receives orders, forwards them, carries them out and reports.

use std::sync::Arc;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;

use super::early_save::until;
use super::messenger::{Halt, Messenger};
use super::node_agent::NodeAgent;
use super::order::Message;
use super::{Action, DaemonConfig, DaemonError, Order, Outcome, Relay, Start};
use crate::names::Rank;
use crate::tree::Tree;

/// Longest time that an ending daemon waits for the others to receive its last message.
const LINGER: Duration = Duration::from_secs(1);

/// The daemon and the result of its last work.
pub(super) type Done<H> = (Box<Core<H>>, Result<Outcome, DaemonError>);

/// A daemon while no call or task works for it.
pub(super) struct Core<H> {
    pub(super) agent: NodeAgent<H>,
    pub(super) messenger: Messenger,
    tree: Tree,
    relay: Relay<u32>,
    next_order: u32,
    has_quit: bool,
}

impl<H: Host> Core<H> {
    pub(super) async fn open(
        host: H,
        config: DaemonConfig,
        start: Start<H>,
    ) -> Result<Box<Self>, DaemonError> {
        let messenger = Messenger::open(&host, config.nodes).await?;
        let tree = Tree::new(config.nodes, config.arity);
        let relay = Relay::new(tree.children(host.node().0));
        let agent = NodeAgent::open(host, config, start)?;
        Ok(Box::new(Self { agent, messenger, tree, relay, next_order: 0, has_quit: false }))
    }

    pub(super) fn node(&self) -> NodeId {
        self.agent.host.node()
    }

    pub(super) fn halt(&self) -> Arc<Halt> {
        self.messenger.halt()
    }

    pub(super) const fn has_quit(&self) -> bool {
        self.has_quit
    }

    /// Carries out orders until the order to quit.
    pub(super) async fn serve(mut self: Box<Self>) -> Done<H> {
        let served = self.serve_all().await;
        (self, served.map(|()| Outcome::default()))
    }

    async fn serve_all(&mut self) -> Result<(), DaemonError> {
        while !self.has_quit {
            let (from, message) = self.next_message().await?;
            let Message::Order(order) = message else { continue };
            let outcome = self.carry(&order).await?;
            self.messenger.send(from, &Message::Done { number: order.number, outcome }).await?;
        }
        // Parents may end before they acknowledge the report.
        let end = self.agent.host.sleep_until(self.agent.host.now() + LINGER);
        until(self.messenger.flush(), end).await.map_or(Ok(()), |flushed| Ok(flushed?))
    }

    /// Gives an order to all daemons, and waits until all have carried it out.
    pub(super) async fn order(mut self: Box<Self>, action: Action) -> Done<H> {
        self.next_order += 1;
        let order = Order { number: self.next_order, action };
        let carried = self.carry(&order).await;
        (self, carried)
    }

    /// Forwards an order, carries it out, and waits until all daemons below have.
    async fn carry(&mut self, order: &Order) -> Result<Outcome, DaemonError> {
        self.relay.handle_order(order.clone());
        while let Some((child, order)) = self.relay.poll_order() {
            self.messenger.send(Rank(child), &Message::Order(order)).await?;
        }
        if let Some((number, action)) = self.relay.poll_action() {
            self.has_quit = matches!(action, Action::Quit);
            let outcome = self.execute(&action).await?;
            self.relay.handle_own(number, outcome);
        }
        loop {
            if let Some((_, outcome)) = self.relay.poll_done() {
                return Ok(outcome);
            }
            let (from, message) = self.next_message().await?;
            if let Message::Done { number, outcome } = message {
                self.relay.handle_report(from.0, number, outcome);
            }
        }
    }

    /// Carries out this daemon's own part, unless a daemon fails meanwhile: a channel to a failed node may never be
    /// steady.
    async fn execute(&mut self, action: &Action) -> Result<Outcome, DaemonError> {
        let host = self.agent.host.clone();
        let (mut why, messenger) = (None, &mut self.messenger);
        let given_up = async { why = Some(messenger.wait_for_failure(&host).await) };
        match until(self.agent.execute(action), given_up).await {
            Some(outcome) => outcome,
            None => Err(why.expect("the work is only given up for a reason")),
        }
    }

    /// Ends all processes of this daemon, and notifies its parent and children that the daemon of `node` is gone.
    pub(super) async fn leave(mut self: Box<Self>, node: NodeId) {
        self.agent.kill_all();
        let (host, own) = (self.agent.host.clone(), self.node().0);
        let relatives = self.tree.parent(own).into_iter().chain(self.tree.children(own));
        let end = host.sleep_until(host.now() + LINGER);
        let _ = until(self.messenger.send_gone(node, relatives), end).await;
    }
}
