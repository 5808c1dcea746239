//! Measures request and reply over tokio's TCP, and over messages between ranks.

use std::time::Duration;

use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::nic::LiveHost;
use midplane::via::VIA;
use midplane::via::firmware::{Via, ViaConfig};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, DEFAULT_EAGER, Engine};
use midplane::via::message::envelope::{Peer, Tag};
use midplane::via::message::group::Rank;
use midplane::via::rdma::{RdmaCarrier, RdmaConfig};
use midplane_kit::clock::now;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::claims::median;
use crate::contest::{Fabric, Side, Site};
use crate::report::text;

/// Bytes of a request.
const BYTES: usize = 64;
/// Requests before the measured ones; a quarter of the time at most.
const WARM_UP: u32 = 100;
const TAG: Tag = Tag(0);
/// Time limit for the other process to start.
const PATIENCE: Duration = Duration::from_secs(20);

type Request = [u8; BYTES];

/// Measures the median time of a request in us: rank 0 sends requests, rank 1 serves, other ranks do nothing.
pub(crate) async fn measure(site: &Site<'_>, side: Side, number: u32) -> Result<Vec<f64>, String> {
    match (side, site.rank) {
        (Side::Ours, 0 | 1) => {
            let work = async |host| over_nics(site, &host, number).await;
            site.with_nic((Fabric::Close, 2), number, unit()?, work).await
        }
        (Side::Theirs, 0) => {
            let mut stream = site.connect(site.cluster.listeners[1]).await?;
            ask(site, async |request| over_tcp(&mut stream, request).await).await
        }
        (Side::Theirs, 1) => serve_tcp(site.accept().await?).await,
        (_, _) => Ok(Vec::new()),
    }
}

/// Builds the firmware that carries messages over Virtual Interfaces.
fn unit() -> Result<Unit, String> {
    let mut unit = Unit::default();
    unit.install(VIA, Via::new(ViaConfig::default())).map_err(text)?;
    Ok(unit)
}

async fn over_nics(site: &Site<'_>, host: &LiveHost, job: u32) -> Result<Vec<f64>, String> {
    let (nodes, own) = ([NodeId(0), NodeId(1)], Peer(site.rank.into()));
    let config = RdmaConfig::default().job(job).eager(DEFAULT_EAGER);
    let carrier = RdmaCarrier::open(host, own, &nodes, config).await.map_err(text)?;
    let engine = Engine::new(carrier, Config::default().eager(DEFAULT_EAGER));
    let world = Communicator::world(engine, 2).map_err(text)?;
    let met = timeout(PATIENCE, world.barrier()).await;
    met.map_err(|_| format!("a process did not start within {PATIENCE:?}"))?.map_err(text)?;
    let took = if site.rank == 0 {
        let took = ask(site, async |request| over_messages(&world, request).await).await?;
        world.send(Rank(1), TAG, Vec::new()).await.map_err(text)?;
        took
    } else {
        serve_messages(&world).await?
    };
    // All answers have arrived; a rank that has disconnected is done.
    let _ = world.barrier().await;
    world.finalize().await;
    Ok(took)
}

async fn over_tcp(stream: &mut TcpStream, request: Request) -> Result<Request, String> {
    stream.write_all(&request).await.map_err(text)?;
    let mut answer = [0; BYTES];
    stream.read_exact(&mut answer).await.map_err(text)?;
    Ok(answer)
}

async fn over_messages(world: &Communicator, request: Request) -> Result<Request, String> {
    world.send(Rank(1), TAG, request.to_vec()).await.map_err(text)?;
    let answer = world.receive(Rank(1), TAG).await.map_err(text)?;
    answer.bytes[..].try_into().map_err(text)
}

/// Answers each request with its bytes in reverse order, until the stream ends.
async fn serve_tcp(mut stream: TcpStream) -> Result<Vec<f64>, String> {
    let mut bytes = [0; BYTES];
    while stream.read_exact(&mut bytes).await.is_ok() {
        bytes.reverse();
        stream.write_all(&bytes).await.map_err(text)?;
    }
    Ok(Vec::new())
}

/// Answers each request with its bytes in reverse order, until an empty message arrives.
async fn serve_messages(world: &Communicator) -> Result<Vec<f64>, String> {
    loop {
        let mut bytes = world.receive(Rank(0), TAG).await.map_err(text)?.bytes.to_vec();
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        bytes.reverse();
        world.send(Rank(0), TAG, bytes).await.map_err(text)?;
    }
}

/// Sends requests by `call`, and returns the median of their times, in us.
async fn ask(
    site: &Site<'_>,
    mut call: impl AsyncFnMut(Request) -> Result<Request, String>,
) -> Result<Vec<f64>, String> {
    let request: Request = std::array::from_fn(|at| at as u8);
    let mut took = Vec::new();
    let mut asked = 0;
    let mut begun = now();
    let (warm, end) = (begun + site.time() / 4, begun + site.time());
    while begun < end {
        let mut answer = call(request).await?;
        answer.reverse();
        if answer != request {
            return Err("a request has a wrong answer".into());
        }
        let done = now();
        asked += 1;
        if asked > WARM_UP || done > warm {
            took.push((done - begun).as_nanos() as f64 / 1e3);
        }
        begun = done;
    }
    Ok(vec![median(took)])
}
