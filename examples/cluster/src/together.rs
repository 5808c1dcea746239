//! Measures a barrier and a sum over all ranks: on the NICs, and over TCP.

use midplane::nicvm::collective::{self, COLLECTIVES, Collectives, Operation};
use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host as _;
use midplane::simhw::id::NodeId;
use midplane::simhw::nic::LiveHost;
use midplane::simhw::port::Status;
use midplane_kit::clock::now;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::claims::median;
use crate::contest::{Fabric, Side, Site};
use crate::report::text;

/// Measured rounds, and rounds before them.
const ROUNDS: u32 = 500;
const WARM_UP: u32 = 20;

/// Measures the median time of a barrier or a sum at rank 0, in us.
pub(crate) async fn measure(
    site: &Site<'_>,
    side: Side,
    number: u32,
    sums: bool,
) -> Result<Vec<f64>, String> {
    if side == Side::Ours {
        let members = (0..site.ranks()).map(NodeId).collect();
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).map_err(text)?;
        unit.install(COLLECTIVES, Collectives::new(members)).map_err(text)?;
        let work = async |host| on_nics(site, &host, sums).await;
        return site.with_nic((Fabric::Close, site.ranks()), number, unit, work).await;
    }
    let mut mesh = Mesh::new(site).await?;
    let mut took = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let begun = now();
        let all = mesh.gather(site, if sums { Some(site.rank.into()) } else { None }).await?;
        if sums && all.iter().sum::<u64>() != expected(site) {
            return Err("a sum is wrong".into());
        }
        if round >= WARM_UP {
            took.push((now() - begun).as_nanos() as f64 / 1e3);
        }
    }
    Ok(vec![median(took)])
}

/// Returns the sum of all ranks' numbers.
fn expected(site: &Site<'_>) -> u64 {
    (0..u64::from(site.ranks())).sum()
}

async fn on_nics(site: &Site<'_>, host: &LiveHost, sums: bool) -> Result<Vec<f64>, String> {
    let mut port = host.open_port().map_err(text)?;
    let memory = port.register(8).map_err(text)?;
    let mut took = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let command = if sums {
            memory.write(0, &u64::from(site.rank).to_le_bytes()).map_err(text)?;
            collective::all_reduce(Operation::Sum, memory.whole(), 0)
        } else {
            collective::barrier(0)
        };
        let begun = now();
        port.submit(&command).map_err(text)?;
        let done = port.completion().await.map_err(text)?;
        if done.status != Status::Done {
            return Err(format!("the collective ended with status {:?}", done.status));
        }
        let mut sum = [0; 8];
        memory.read(0, &mut sum).map_err(text)?;
        if sums && u64::from_le_bytes(sum) != expected(site) {
            return Err("a sum is wrong".into());
        }
        if round >= WARM_UP {
            took.push((now() - begun).as_nanos() as f64 / 1e3);
        }
    }
    Ok(vec![median(took)])
}

/// Connections to all other ranks, by rank.
struct Mesh(Vec<Option<TcpStream>>);

impl Mesh {
    async fn new(site: &Site<'_>) -> Result<Self, String> {
        let mut streams: Vec<Option<TcpStream>> = (0..site.ranks()).map(|_| None).collect();
        for rank in 0..site.rank {
            let mut stream = site.connect(site.cluster.listeners[usize::from(rank)]).await?;
            stream.write_u16(site.rank).await.map_err(text)?;
            streams[usize::from(rank)] = Some(stream);
        }
        for _ in site.rank + 1..site.ranks() {
            let mut stream = site.accept().await?;
            let rank = stream.read_u16().await.map_err(text)?;
            *streams.get_mut(usize::from(rank)).ok_or("there is no such rank")? = Some(stream);
        }
        Ok(Self(streams))
    }

    /// Gathers the words of all ranks in a logarithmic number of steps, each of which doubles the known words (Bruck's
    /// exchange). Without words it is a barrier.
    async fn gather(&mut self, site: &Site<'_>, word: Option<u64>) -> Result<Vec<u64>, String> {
        let (own, ranks) = (usize::from(site.rank), usize::from(site.ranks()));
        let mut known: Vec<u64> = word.into_iter().collect();
        let mut step = 1;
        while step < ranks {
            let count = if word.is_some() { step.min(ranks - step) } else { 0 };
            let (to, from) = ((own + ranks - step) % ranks, (own + step) % ranks);
            let mut bytes = vec![0];
            bytes.extend(known[..count].iter().flat_map(|word| word.to_le_bytes()));
            self.to(to)?.write_all(&bytes).await.map_err(text)?;
            self.to(from)?.read_exact(&mut bytes).await.map_err(text)?;
            let words = bytes[1..].chunks_exact(8);
            known.extend(words.filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes));
            step *= 2;
        }
        Ok(known)
    }

    fn to(&mut self, rank: usize) -> Result<&mut TcpStream, String> {
        self.0[rank].as_mut().ok_or_else(|| "a rank did not connect".into())
    }
}
