//! Rank 0's control of the other ranks, over TCP: each order is a line of JSON, and so is its answer.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::{now, time_of_day};
use crate::contest::Contest;

/// Description of the cluster, which rank 0 sends to all ranks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cluster {
    /// Name under which NICs over shared memory find each other.
    pub(crate) name: String,
    /// Address of each rank.
    pub(crate) peers: Vec<SocketAddr>,
    /// Address at which each rank accepts connections of contests.
    pub(crate) listeners: Vec<SocketAddr>,
    /// Address of the switch over UDP, and of the relay over TCP.
    pub(crate) switch: SocketAddr,
    /// True if all ranks are on one host.
    pub(crate) is_one_host: bool,
    pub(crate) seed: u64,
    pub(crate) milliseconds: u64,
}

/// Order of rank 0.
#[derive(Debug, Deserialize, Serialize)]
enum Word {
    /// Asks for the time of day.
    Time,
    Cluster(Cluster),
    Begin(Contest, u32),
}

/// Answer of another rank.
#[derive(Debug, Deserialize, Serialize)]
enum Answer {
    Here(u16, SocketAddr),
    Time(Duration),
    Ended(Option<String>),
}

struct Line(BufReader<TcpStream>);

impl Line {
    fn new(stream: TcpStream) -> Result<Self, String> {
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self(BufReader::new(stream)))
    }

    async fn say(&mut self, word: &impl Serialize) -> Result<(), String> {
        let mut text = serde_json::to_vec(word).expect("plain data");
        text.push(b'\n');
        self.0.write_all(&text).await.map_err(|error| error.to_string())
    }

    async fn hear<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        let mut text = String::new();
        match self.0.read_line(&mut text).await {
            Ok(0) => Err("it closed the connection".into()),
            Ok(_) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Rank 0's connections to all other ranks.
pub(crate) struct Leader {
    /// Connections by rank, from 1.
    lines: Vec<Line>,
    /// Nanoseconds by which each rank's clock is ahead of rank 0's, by rank, from 1.
    pub(crate) ahead_ns: Vec<i64>,
}

impl Leader {
    /// Waits until all other ranks have connected. Returns the address at which each accepts connections, by rank from 1.
    ///
    /// # Errors
    /// One line that names a missing rank.
    pub(crate) async fn gather(
        own: SocketAddr,
        ranks: u16,
        wait: Duration,
    ) -> Result<(Self, Vec<SocketAddr>), String> {
        let at = TcpListener::bind(own).await.map_err(|error| {
            format!("--peers {own}: {error}; stop the other process or choose another port")
        })?;
        let mut found: Vec<Option<(Line, SocketAddr)>> = (1..ranks).map(|_| None).collect();
        let all = async {
            while found.iter().any(Option::is_none) {
                let (stream, _) = at.accept().await.map_err(|error| error.to_string())?;
                let mut line = Line::new(stream)?;
                // A connection that does not begin with this answer is dropped.
                if let Ok(Answer::Here(rank @ 1.., at)) = line.hear().await
                    && let Some(place) = found.get_mut(usize::from(rank) - 1)
                {
                    *place = Some((line, at));
                }
            }
            Ok::<_, String>(())
        };
        if let Ok(ended) = tokio::time::timeout(wait, all).await {
            ended?;
        }
        let mut leader = Self { lines: Vec::new(), ahead_ns: Vec::new() };
        let mut listeners = Vec::new();
        for (rank, place) in (1..).zip(found) {
            let missing =
                || format!("--peers: rank {rank} did not connect; start it, or raise --wait");
            let (mut line, at) = place.ok_or_else(missing)?;
            leader.ahead_ns.push(ahead(&mut line).await?);
            leader.lines.push(line);
            listeners.push(at);
        }
        Ok((leader, listeners))
    }

    /// Sends the description of the cluster to all ranks.
    ///
    /// # Errors
    /// One line that names a lost rank.
    pub(crate) async fn introduce(&mut self, cluster: &Cluster) -> Result<(), String> {
        for (rank, line) in (1..).zip(&mut self.lines) {
            line.say(&Word::Cluster(cluster.clone())).await.map_err(|why| lost(rank, &why))?;
        }
        Ok(())
    }

    /// Has all ranks begin a contest.
    ///
    /// # Errors
    /// One line that names a lost rank.
    pub(crate) async fn begin(&mut self, contest: Contest, number: u32) -> Result<(), String> {
        for (rank, line) in (1..).zip(&mut self.lines) {
            line.say(&Word::Begin(contest, number)).await.map_err(|why| lost(rank, &why))?;
        }
        Ok(())
    }

    /// Waits until all ranks have ended the contest; returns the error of one that failed.
    ///
    /// # Errors
    /// One line that names a lost rank.
    pub(crate) async fn ended(&mut self) -> Result<Option<String>, String> {
        let mut complaint = None;
        for (rank, line) in (1..).zip(&mut self.lines) {
            match line.hear().await.map_err(|why| lost(rank, &why))? {
                Answer::Ended(Some(why)) => complaint = Some(format!("rank {rank}: {why}")),
                Answer::Ended(None) => {}
                _ => return Err(lost(rank, "it sent another answer than expected")),
            }
        }
        Ok(complaint)
    }
}

fn lost(rank: u16, why: &str) -> String {
    format!("rank {rank} was lost: {why}")
}

/// Measures by how many ns the peer's clock is ahead of this one's, by the shortest of ten round trips.
async fn ahead(line: &mut Line) -> Result<i64, String> {
    let mut best = (Duration::MAX, 0);
    for _ in 0..10 {
        let (begun, here) = (now(), time_of_day());
        line.say(&Word::Time).await?;
        let Answer::Time(there) = line.hear().await? else {
            return Err("a rank sent no time".into());
        };
        let took = now() - begun;
        if took < best.0 {
            let middle = here + took / 2;
            best = (took, there.as_nanos() as i64 - middle.as_nanos() as i64);
        }
    }
    Ok(best.1)
}

/// Carries out rank 0's orders until it closes the connection.
///
/// # Errors
/// One line, if rank 0 is not reached.
pub(crate) async fn follow(own: u16, peers: &[SocketAddr], wait: Duration) -> Result<(), String> {
    let mut line = find(peers[0], wait).await?;
    let ip = peers[usize::from(own)].ip();
    let listener = TcpListener::bind((ip, 0)).await;
    let listener = listener.map_err(|error| format!("--peers {ip}: {error}"))?;
    let here = listener.local_addr().map_err(|error| error.to_string())?;
    line.say(&Answer::Here(own, here)).await?;
    let mut cluster = None;
    loop {
        // Rank 0 closes the connection when it has all rows.
        let Ok(word) = line.hear().await else { return Ok(()) };
        match (word, &cluster) {
            (Word::Time, _) => line.say(&Answer::Time(time_of_day())).await?,
            (Word::Cluster(told), _) => cluster = Some(told),
            (Word::Begin(contest, number), Some(cluster)) => {
                let site = crate::contest::Site { rank: own, cluster, listener: &listener };
                let ended = contest.take_part(&site, number).await.err();
                line.say(&Answer::Ended(ended)).await?;
            }
            (Word::Begin(..), None) => {
                return Err("rank 0 began a contest before it described the cluster".into());
            }
        }
    }
}

async fn find(at: SocketAddr, wait: Duration) -> Result<Line, String> {
    let until = now() + wait;
    loop {
        match TcpStream::connect(at).await {
            Ok(stream) => return Line::new(stream),
            Err(error) if now() > until => {
                return Err(format!("--peers: rank 0 does not answer at {at}: {error}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
