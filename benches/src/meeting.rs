//! Brings the ranks of a run together. In each step every rank gives a value, and gets those of all.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use midplane_kit::clock::now;
use midplane_kit::hash::{EMPTY, fnv1a};
use midplane_kit::report::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Interval at which a process that has not started is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Time in which a process that has connected names its rank: others wait for it meanwhile.
const HELLO: Duration = Duration::from_secs(10);
/// Longest line of a peer, in bytes.
const LINE: u64 = 1 << 20;
/// Numbers of all ranks in a line: with their commas, the longest ones take two thirds of it.
const NUMBERS: usize = 1 << 15;

/// Returns a number by which ranks check that they were started for the same run (FNV-1a of the text as JSON).
pub fn fingerprint(parameters: &impl Serialize) -> u64 {
    let text = serde_json::to_string(parameters).expect("plain data");
    fnv1a(EMPTY, text.as_bytes())
}

/// Describes ranks that did not start: bad input.
pub fn unreachable(ranks: &[u16]) -> Failure {
    let ranks: Vec<String> = ranks.iter().map(u16::to_string).collect();
    let ranks = ranks.join(", ");
    format!("--peers: rank {ranks} did not answer; start it, or see --wait").into()
}

/// Describes ranks that were lost during a run.
pub fn lost(ranks: &[u16]) -> Failure {
    Failure::of_run(format!("rank {ranks:?} was lost during the run"))
}

/// Connects to a process that may not have started yet, and tries again for `wait`. The stream delays no writes.
///
/// # Errors
/// The system's.
pub async fn reach(at: SocketAddr, wait: Duration) -> std::io::Result<TcpStream> {
    let until = now() + wait;
    loop {
        match TcpStream::connect(at).await {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) if now() > until => return Err(error),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// One rank's part in the meetings of a run: in one process, or over TCP by way of rank 0.
#[derive(Debug)]
pub enum Meeting {
    /// Ranks in one process, on any executor.
    Local { rank: usize, step: usize, table: Arc<Mutex<Table>> },
    /// Rank 0, with its connections to the others in their order; those of lost ranks are `None`.
    Lead(Vec<Option<Line>>),
    /// Another rank, with its connection to rank 0.
    Follow(Line),
}

/// The values of ranks in one process, as JSON: by step, and by rank.
#[derive(Debug)]
pub struct Table {
    ranks: usize,
    steps: Vec<Vec<Option<String>>>,
    wakers: Vec<Waker>,
}

impl Meeting {
    /// Creates the parts of `ranks` ranks in one process.
    pub fn local(ranks: u16) -> impl Iterator<Item = Self> {
        let ranks = usize::from(ranks);
        let table = Table { ranks, steps: Vec::new(), wakers: Vec::new() };
        let table = Arc::new(Mutex::new(table));
        (0..ranks).map(move |rank| Self::Local { rank, step: 0, table: Arc::clone(&table) })
    }

    /// Takes the part of `rank` among the ranks at `peers`; waits up to `wait` for those that have not started.
    ///
    /// # Errors
    /// Bad input: an address is not free, or ranks are missing.
    pub async fn start(rank: u16, peers: &[SocketAddr], wait: Duration) -> Result<Self, Failure> {
        if rank > 0 {
            return Self::follow(peers[0], rank, wait).await;
        }
        let listener = TcpListener::bind(peers[0]).await.map_err(|error| {
            let own = peers[0];
            format!("--peers {own}: {error}; stop the other process or choose another port")
        })?;
        Self::lead(&listener, peers.len(), wait).await
    }

    /// Waits up to `wait` until `ranks` ranks, this one included, have connected.
    ///
    /// # Errors
    /// Bad input: ranks are missing.
    pub async fn lead(
        listener: &TcpListener,
        ranks: usize,
        wait: Duration,
    ) -> Result<Self, Failure> {
        let mut lines: Vec<Option<Line>> = (1..ranks).map(|_| None).collect();
        let all = async {
            while lines.iter().any(Option::is_none) {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let mut line = Line(BufReader::new(stream));
                // A connection that does not begin with a rank is dropped.
                if let Ok(Ok(Hello(rank @ 1..))) = timeout(HELLO, line.receive()).await
                    && let Some(place) = lines.get_mut(rank - 1)
                {
                    *place = Some(line);
                }
            }
            Ok::<_, std::io::Error>(())
        };
        if let Ok(ended) = timeout(wait, all).await {
            ended.map_err(Failure::of_run)?;
        }
        let missing = (1..).zip(&lines).filter(|(_, line)| line.is_none());
        let missing: Vec<u16> = missing.map(|(rank, _)| rank).collect();
        if missing.is_empty() { Ok(Self::Lead(lines)) } else { Err(unreachable(&missing)) }
    }

    /// Connects to rank 0 at `at`, and tries again for `wait`.
    ///
    /// # Errors
    /// Bad input: rank 0 does not answer.
    pub async fn follow(at: SocketAddr, rank: u16, wait: Duration) -> Result<Self, Failure> {
        let stream = reach(at, wait).await.map_err(|_| unreachable(&[0]))?;
        let mut line = Line(BufReader::new(stream));
        line.send(&Hello(rank.into())).await.map_err(Failure::of_run)?;
        Ok(Self::Follow(line))
    }

    /// Gives this rank's value of the next step, and returns those of all ranks. Rank 0 waits up to `limit` for the others,
    /// and declares those lost that give none: their values are `None`, also in later steps.
    ///
    /// # Errors
    /// Rank 0 is lost.
    pub async fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        own: &T,
        limit: Duration,
    ) -> Result<Vec<Option<T>>, Failure> {
        match self {
            Self::Local { rank, step, table } => {
                let own = serde_json::to_string(own).expect("plain data");
                table.lock().unwrap_or_else(PoisonError::into_inner).give(*step, *rank, own);
                let all = collected(table, *step).await;
                *step += 1;
                let read = |text: &String| serde_json::from_str(text).expect("it was written here");
                Ok(all.iter().map(|text| text.as_ref().map(read)).collect())
            }
            Self::Lead(lines) => {
                let until = tokio::time::Instant::now() + limit;
                let mut all = vec![serde_json::to_value(own).ok()];
                for place in &mut *lines {
                    let received = async { place.as_mut()?.receive().await.ok() };
                    let value = tokio::time::timeout_at(until, received).await.ok().flatten();
                    if value.is_none() {
                        *place = None;
                    }
                    all.push(value);
                }
                // In brackets: a value may be null, as that of a lost rank is.
                let values: Vec<_> = all.iter().map(|value| Some((value.as_ref()?,))).collect();
                for place in lines {
                    let sent = async { place.as_mut()?.send(&values).await.ok() };
                    if sent.await.is_none() {
                        *place = None;
                    }
                }
                Ok(all.into_iter().map(|value| serde_json::from_value(value?).ok()).collect())
            }
            Self::Follow(line) => {
                let exchanged = async {
                    line.send(own).await?;
                    line.receive().await
                };
                // Rank 0 may begin to wait when this rank is done waiting for it.
                let received = timeout(2 * limit, exchanged).await;
                let values: Vec<Option<(T,)>> =
                    received.ok().and_then(Result::ok).ok_or_else(|| lost(&[0]))?;
                Ok(values.into_iter().map(|value| value.map(|(value,)| value)).collect())
            }
        }
    }

    /// Returns the values of a step in which none may be lost.
    ///
    /// # Errors
    /// A rank is lost.
    pub async fn gather_all<T: Serialize + DeserializeOwned>(
        &mut self,
        own: &T,
        limit: Duration,
    ) -> Result<Vec<T>, Failure> {
        let all = self.gather(own, limit).await?;
        let gone = (0..).zip(&all).filter(|(_, value)| value.is_none());
        let gone: Vec<u16> = gone.map(|(rank, _)| rank).collect();
        if gone.is_empty() { Ok(all.into_iter().flatten().collect()) } else { Err(lost(&gone)) }
    }

    /// Gives this rank's numbers, as many as each of the `ranks` ranks has, and returns those of all, in several steps.
    ///
    /// # Errors
    /// A rank is lost.
    pub async fn gather_numbers(
        &mut self,
        own: &[u64],
        ranks: u16,
        limit: Duration,
    ) -> Result<Vec<Vec<u64>>, Failure> {
        let mut all = vec![Vec::new(); ranks.into()];
        for part in own.chunks((NUMBERS / usize::from(ranks)).max(1)) {
            let parts = self.gather_all(&part.to_vec(), limit).await?;
            for (numbers, more) in all.iter_mut().zip(parts) {
                numbers.extend(more);
            }
        }
        Ok(all)
    }

    /// Begins a run: checks that all ranks were started with the parameters of this `fingerprint`.
    ///
    /// # Errors
    /// Bad input: a rank was started with others; or a rank is lost.
    pub async fn begin(&mut self, fingerprint: u64, limit: Duration) -> Result<(), Failure> {
        let all = self.gather_all(&fingerprint, limit).await?;
        match all.iter().position(|other| *other != fingerprint) {
            None => Ok(()),
            Some(rank) => {
                let what = "was started with other parameters; give all ranks the same";
                Err(format!("rank {rank} {what}").into())
            }
        }
    }
}

impl Table {
    fn give(&mut self, step: usize, rank: usize, value: String) {
        while self.steps.len() <= step {
            self.steps.push(vec![None; self.ranks]);
        }
        self.steps[step][rank] = Some(value);
        if self.steps[step].iter().all(Option::is_some) {
            self.wakers.drain(..).for_each(Waker::wake);
        }
    }
}

/// Waits until all ranks in this process have given their values of a step.
async fn collected(table: &Mutex<Table>, step: usize) -> Vec<Option<String>> {
    std::future::poll_fn(|context| {
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.steps[step].iter().all(Option::is_some) {
            return Poll::Ready(table.steps[step].clone());
        }
        table.wakers.push(context.waker().clone());
        Poll::Pending
    })
    .await
}

/// The first line of a connection: the rank of its process.
#[derive(Deserialize, Serialize)]
struct Hello(usize);

/// A connection of lines of JSON.
#[derive(Debug)]
pub struct Line(BufReader<TcpStream>);

impl Line {
    async fn send(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(value)?;
        text.push(b'\n');
        self.0.write_all(&text).await
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> std::io::Result<T> {
        let mut text = String::new();
        (&mut self.0).take(LINE).read_line(&mut text).await?;
        // An empty text, of a connection that was closed, is no value.
        Ok(serde_json::from_str(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_value_that_is_null_is_no_lost_rank() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, wait) = (listener.local_addr().unwrap(), Duration::from_secs(10));
        let follower = tokio::spawn(async move {
            let mut meeting = Meeting::follow(at, 1, wait).await.unwrap();
            let units = meeting.gather_all(&(), wait).await.unwrap();
            (units, meeting.gather_all(&Some(7), wait).await.unwrap())
        });
        let mut leader = Meeting::lead(&listener, 2, wait).await.unwrap();
        assert_eq!(leader.gather_all(&(), wait).await.unwrap(), [(), ()]);
        assert_eq!(leader.gather_all(&None::<u8>, wait).await.unwrap(), [None, Some(7)]);
        assert_eq!(follower.await.unwrap(), (vec![(), ()], vec![None, Some(7)]));
    }

    /// Regression: the times of a long run were one line, longer than a peer's may be.
    #[tokio::test]
    async fn long_values_of_many_ranks_arrive() {
        const RANKS: u16 = 4;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, wait) = (listener.local_addr().unwrap(), Duration::from_secs(60));
        let numbers = |rank: u16| vec![u64::MAX - u64::from(rank); 40_000];
        let followers: Vec<_> = (1..RANKS)
            .map(|rank| {
                tokio::spawn(async move {
                    let mut meeting = Meeting::follow(at, rank, wait).await.unwrap();
                    meeting.gather_numbers(&numbers(rank), RANKS, wait).await.unwrap()
                })
            })
            .collect();
        let all: Vec<_> = (0..RANKS).map(numbers).collect();
        let mut leader = Meeting::lead(&listener, RANKS.into(), wait).await.unwrap();
        assert!(leader.gather_numbers(&all[0], RANKS, wait).await.unwrap() == all);
        for follower in followers {
            assert!(follower.await.unwrap() == all);
        }
    }
}
