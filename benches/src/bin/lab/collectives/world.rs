//! A group whose members are ranks of a communicator, over Virtual Interfaces.

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::via::message::collective::Operation as Combine;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::Peer;
use midplane::via::message::group::Rank;
use midplane::via::message::process::MessageError;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

use crate::collectives::arguments::{Operation, Where};
use crate::collectives::member::Plan;
use crate::fabric::text;

/// Bytes of the receive area that each member has for each other member.
const AREA: usize = 16 << 10;

/// A member with its communicator.
pub(crate) struct World {
    all: Communicator,
    by: Communicator,
    bytes: usize,
}

impl World {
    /// Opens the carrier and waits for the other members.
    pub(crate) async fn enter(host: &impl Host, plan: &Plan) -> Result<Self, String> {
        let nodes: Vec<NodeId> = (0..plan.nodes).map(NodeId).collect();
        let config = RdmaConfig::default().area(AREA);
        let own = Peer(host.node().0.into());
        let carrier = RdmaCarrier::open(host, own, &nodes, config).await;
        let carrier = carrier.map_err(text)?;
        let engine = Engine::new(carrier, Config::default());
        let all = Communicator::world(engine, plan.nodes.into()).map_err(text)?;
        let by = match plan.place {
            Where::Host => all.clone(),
            Where::Nic => all.on_nics(host).await.map_err(text)?,
        };
        Ok(Self { all, by, bytes: plan.bytes })
    }

    /// Runs one operation.
    pub(crate) async fn run(&self, operation: Operation) -> Result<(), String> {
        let words = vec![u64::from(self.by.rank().0); self.bytes / 8];
        let bytes = vec![self.by.rank().0 as u8; self.bytes];
        let ended: Result<(), MessageError> = match operation {
            Operation::Barrier => self.by.barrier().await,
            Operation::Broadcast => self.by.broadcast(Rank(0), bytes).await.map(drop),
            Operation::Reduce => self.by.reduce(Rank(0), &words, Combine::Sum).await.map(drop),
            Operation::AllReduce => self.by.all_reduce(&words, Combine::Sum).await.map(drop),
            Operation::AllGather => self.by.all_gather(bytes).await.map(drop),
        };
        ended.map_err(text)
    }

    /// Waits for all members, then closes the communicator.
    pub(crate) async fn leave(self) -> Result<(), String> {
        self.all.barrier().await.map_err(text)?;
        self.all.finalize().await;
        Ok(())
    }
}
