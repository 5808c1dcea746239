//! Measures request and reply, by the same code over tokio's TCP and over Midplane's byte streams.

use midplane::simhw::host::Host;
use midplane::via::message::engine::DEFAULT_EAGER;
use midplane::via::message::group::Rank;
use midplane::via::service::Streams;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::claims::median;
use crate::clock::now;
use crate::contest::{Fabric, Side, Site, Work};
use crate::messages::{self, World};

/// Bytes of a request.
const BYTES: usize = 64;
/// Requests before the measured ones; a quarter of the time at most.
const WARM_UP: u32 = 100;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Measures the median time of a request in us: rank 0 sends requests, rank 1 serves, other ranks do nothing.
pub(crate) async fn measure(site: &Site<'_>, side: Side, number: u32) -> Result<Vec<f64>, String> {
    match (side, site.rank) {
        (Side::Ours, 0 | 1) => {
            let joined = (Fabric::Close, 2);
            site.with_nic(joined, number, messages::unit()?, Streamed { number }).await
        }
        (Side::Theirs, 0) => ask(site, site.connect(site.cluster.listeners[1]).await?).await,
        (Side::Theirs, 1) => serve(site.accept().await?).await,
        (_, _) => Ok(Vec::new()),
    }
}

struct Streamed {
    number: u32,
}

impl Work for Streamed {
    async fn work<H: Host>(self, site: &Site<'_>, host: H) -> Result<Vec<f64>, String> {
        let carrier =
            messages::interfaces(&host, (site.rank, 2), self.number, DEFAULT_EAGER).await?;
        messages::over(carrier, 2, DEFAULT_EAGER, async |world: World| {
            let streams = Streams::new(world.duplicate().await.map_err(text)?);
            match site.rank {
                0 => ask(site, streams.connect(Rank(1)).await.map_err(text)?).await,
                _ => serve(streams.accept().await.map_err(text)?).await,
            }
        })
        .await
    }
}

/// Answers each request with its bytes in reverse order, until the stream ends.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<Vec<f64>, String> {
    let mut bytes = [0; BYTES];
    while stream.read_exact(&mut bytes).await.is_ok() {
        bytes.reverse();
        stream.write_all(&bytes).await.map_err(text)?;
    }
    stream.shutdown().await.map_err(text)?;
    Ok(Vec::new())
}

/// Sends requests, and returns the median of their times, in us.
async fn ask(
    site: &Site<'_>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<Vec<f64>, String> {
    let request: [u8; BYTES] = std::array::from_fn(|at| at as u8);
    let mut took = Vec::new();
    let mut asked = 0;
    let mut begun = now();
    let (warm, end) = (begun + site.time() / 4, begun + site.time());
    while begun < end {
        stream.write_all(&request).await.map_err(text)?;
        let mut answer = [0; BYTES];
        stream.read_exact(&mut answer).await.map_err(text)?;
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
    stream.shutdown().await.map_err(text)?;
    match stream.read(&mut [0]).await.map_err(text)? {
        0 => Ok(vec![median(took)]),
        _ => Err("a request has two answers".into()),
    }
}
