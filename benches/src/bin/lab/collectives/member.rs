//! One member of a group: its operations, and their times.

use midplane::nicvm::collective::host::HostGroup;
use midplane::nicvm::collective::{self, Operation as Combine};
use midplane::simhw::host::Host;
use midplane::simhw::id::{NodeId, PortId};
use midplane::simhw::port::{Command, Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;
use midplane::via::message::collective::Operation::Sum;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::Peer;
use midplane::via::message::group::Rank;
use midplane::via::message::process::MessageError;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};

use crate::collectives::arguments::{Operation, Where};
use crate::report::text;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) place: Where,
    /// True if the members are ranks of a communicator.
    pub(crate) communicator: bool,
    pub(crate) nodes: u16,
    /// Bytes of each member of a communicator.
    pub(crate) bytes: usize,
    pub(crate) rounds: u32,
    /// Number of the members' ports, if they could differ otherwise.
    pub(crate) port: Option<PortId>,
}

/// When a member began and ended a round.
pub(crate) type Times = (Instant, Instant);

/// Bytes of a broadcast, of a member's words, or of its part.
pub(crate) const BYTES: usize = 8;
/// Bytes of the receive area that each member of a communicator has for each other member.
const AREA: usize = 16 << 10;
/// Rounds of warm-up, which are not counted.
const WARM_UP: u32 = 3;

/// Runs all rounds; `ready` completes when all members have opened their ports. Returns the times of the rounds.
pub(crate) async fn play<H: Host>(
    host: &H,
    plan: Plan,
    ready: impl Future<Output = ()>,
) -> Result<Vec<Times>, String> {
    let members: Vec<NodeId> = (0..plan.nodes).map(NodeId).collect();
    let mut side = match plan.place {
        _ if plan.communicator => {
            let config = RdmaConfig::default().area(AREA);
            let carrier = RdmaCarrier::open(host, Peer(host.node().0.into()), &members, config);
            let engine = Engine::new(carrier.await.map_err(text)?, Config::default());
            let all = Communicator::world(engine, plan.nodes.into()).map_err(text)?;
            let by = match plan.place {
                Where::Host => all.clone(),
                Where::Nic => all.on_nics(host).await.map_err(text)?,
            };
            Side::World(Box::new([all, by]))
        }
        Where::Host => {
            let options = PortOptions::default();
            let options = plan.port.map_or(options, |number| options.number(number));
            let group = HostGroup::with(host, options, members, BYTES);
            Side::Host(Box::new(group.map_err(text)?))
        }
        Where::Nic => {
            let mut port = host.open_port().map_err(text)?;
            let whole = match plan.operation {
                Operation::AllGather => BYTES * usize::from(plan.nodes),
                _ => BYTES,
            };
            let region = port.register(whole).map_err(text)?;
            Side::Nic(port, region)
        }
    };
    ready.await;
    let mut times = Vec::new();
    for round in 0..WARM_UP + plan.rounds {
        if plan.operation != Operation::Barrier {
            side.run(Operation::Barrier, host, plan.bytes).await?;
        }
        let begun = host.now();
        side.run(plan.operation, host, plan.bytes).await?;
        if round >= WARM_UP {
            times.push((begun, host.now()));
        }
    }
    match side {
        Side::Host(mut group) => group.flush().await.map_err(text)?,
        Side::World(world) => {
            world[0].barrier().await.map_err(text)?;
            world[0].finalize().await;
        }
        Side::Nic(..) => {}
    }
    Ok(times)
}

enum Side {
    Nic(Port, Region),
    Host(Box<HostGroup>),
    /// The communicator of all ranks, and the one whose operations are measured.
    World(Box<[Communicator; 2]>),
}

impl Side {
    async fn run(
        &mut self,
        operation: Operation,
        host: &impl Host,
        bytes: usize,
    ) -> Result<(), String> {
        let rank = host.node().0;
        match self {
            Self::World(world) => in_world(&world[1], operation, bytes).await.map_err(text),
            Self::Nic(port, region) => {
                port.submit(&command(operation, region)).map_err(text)?;
                let done = port.completion().await.map_err(text)?;
                match done.status {
                    Status::Done => Ok(()),
                    status => Err(format!("{operation} ended as {status:?}")),
                }
            }
            Self::Host(group) => {
                let mut words = vec![rank as u8; BYTES];
                let ended = match operation {
                    Operation::Barrier => group.barrier().await,
                    Operation::Broadcast => group.broadcast(0, &mut words).await,
                    Operation::Reduce => group.reduce(0, Combine::Sum, &mut words).await,
                    Operation::AllReduce => group.all_reduce(Combine::Sum, &mut words).await,
                    Operation::AllGather => group.all_gather(&words).await.map(drop),
                };
                ended.map_err(text)
            }
        }
    }
}

/// Runs one operation of a communicator.
async fn in_world(
    world: &Communicator,
    operation: Operation,
    length: usize,
) -> Result<(), MessageError> {
    let words = vec![u64::from(world.rank().0); length / 8];
    let bytes = vec![world.rank().0 as u8; length];
    match operation {
        Operation::Barrier => world.barrier().await,
        Operation::Broadcast => world.broadcast(Rank(0), bytes).await.map(drop),
        Operation::Reduce => world.reduce(Rank(0), &words, Sum).await.map(drop),
        Operation::AllReduce => world.all_reduce(&words, Sum).await.map(drop),
        Operation::AllGather => world.all_gather(bytes).await.map(drop),
    }
}

fn command(operation: Operation, region: &Region) -> Command {
    let here = region.whole();
    match operation {
        Operation::Barrier => collective::barrier(0),
        Operation::Broadcast => collective::broadcast(0, here, 0),
        Operation::Reduce => collective::reduce(0, Combine::Sum, here, 0),
        Operation::AllReduce => collective::all_reduce(Combine::Sum, here, 0),
        Operation::AllGather => collective::all_gather(BYTES, here, 0),
    }
}
