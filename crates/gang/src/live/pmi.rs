//! A PMI-1 server for the ranks of this host: programs of MPICH and its derivatives start without a launcher of their
//! own.
//!
//! Each rank has a socket, whose descriptor is in `PMI_FD`. Pairs that ranks put become visible to all ranks at the
//! next barrier. A daemon reports its ranks' pairs when the ranks enter the barrier. Once all ranks have entered, the
//! root sends all pairs to every host of the job. The daemon answers all other commands itself.
//!
//! A command is a line of words `NAME=VALUE` separated by spaces; the first is `cmd=`. The request to start further
//! processes has a line for each word instead, from `mcmd=spawn` to `endcmd`. The sources are MPICH's description of
//! the protocol (`src/pmi/maint/pmi-1.2.txt`) and the messages of MPICH 5.0.2.
//!
//! If a rank sends a malformed line or exceeds a bound, its job ends with the reason. Ranks can't start further
//! processes, nor publish names of services.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

use crate::node_core::message::{Pairs, RankEvent};

/// Environment variable with the descriptor of a rank's socket. `PMI_RANK` and `PMI_SIZE` accompany it.
pub(super) const FD: &str = "PMI_FD";
/// Environment variable with a job's name, which is unique among the jobs on its hosts.
pub(super) const NAME: &str = "GANG_NAME";
/// Most bytes of a key, of a value and of a name of a key space: the limits that MPICH's Hydra reports.
const KEY_BYTES: usize = 64;
const VALUE_BYTES: usize = 1_024;
const NAME_BYTES: usize = 256;
/// Most bytes of a line: about twice those of the longest `put`.
const LINE_BYTES: usize = 4_096;
/// Most pairs that a rank puts between two barriers.
const PAIRS: usize = 256;
/// Key of the mapping of ranks to hosts.
const MAPPING: &str = "PMI_process_mapping";

/// Returns whether an environment variable comes from another launcher's PMI; ranks don't inherit those.
pub(super) fn is_foreign(variable: &[u8]) -> bool {
    variable.starts_with(b"PMI_") || variable.starts_with(b"PMIX_")
}

/// The PMI server of a job's ranks on this host. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct PmiJob {
    shared: Arc<Shared>,
    /// Number of barriers that the job has left.
    barriers: watch::Sender<u64>,
}

/// The state that the ranks of a job on this host share.
#[derive(Debug)]
struct Shared {
    name: String,
    ranks: u16,
    store: Mutex<BTreeMap<String, String>>,
}

impl PmiJob {
    /// Creates the server of a job. `hosts` has the host of each rank, in order.
    pub(super) fn new(name: &str, hosts: &[u16]) -> Self {
        let mapping = Some(mapping(hosts)).filter(|it| it.len() <= VALUE_BYTES);
        let store = mapping.into_iter().map(|it| (MAPPING.to_owned(), it)).collect();
        let (name, ranks) = (name.to_owned(), hosts.len() as u16);
        let shared = Arc::new(Shared { name, ranks, store: Mutex::new(store) });
        Self { shared, barriers: watch::Sender::new(0) }
    }

    /// Lets the ranks leave the barrier that all ranks of the job have entered, and makes all ranks' pairs visible.
    pub(super) fn barrier_out(&self, pairs: Pairs) {
        self.shared.store().extend(pairs);
        self.barriers.send_modify(|left| *left += 1);
    }

    /// Starts the task that serves a rank until the other end of the socket is closed, the rank aborts, or this server
    /// is dropped.
    pub(super) fn serve(&self, end: OwnedFd, said: impl Fn(RankEvent) + Send + 'static) {
        let (job, left) = (Arc::clone(&self.shared), self.barriers.subscribe());
        let mut server = left.clone();
        tokio::spawn(async move {
            tokio::select! {
                // The rank sees an error as the end of its connection.
                _ = serve(end, job, left, said) => {}
                () = async { while server.changed().await.is_ok() {} } => {}
            }
        });
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the mapping of ranks to hosts in MPICH's format: blocks of host, number of hosts, and ranks on each. Hosts
/// are numbered in the order in which they first occur. If the text is too long for a value, MPI libraries compare the
/// hosts' names instead.
fn mapping(hosts: &[u16]) -> String {
    let mut numbers = BTreeMap::new();
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for host in hosts {
        let next = numbers.len();
        let number = *numbers.entry(*host).or_insert(next);
        match blocks.last_mut() {
            Some((last, ranks)) if *last == number => *ranks += 1,
            _ => blocks.push((number, 1)),
        }
    }
    let blocks = blocks.into_iter().map(|(number, ranks)| format!(",({number},1,{ranks})"));
    format!("(vector{})", blocks.collect::<String>())
}

/// The reaction to a command.
#[derive(Debug, Eq, PartialEq)]
enum Answer {
    Reply(String),
    /// Replies once the job leaves the barrier.
    Barrier,
    /// Ends the job.
    Abort {
        code: i32,
        message: String,
    },
    Nothing,
}

impl Answer {
    fn refused(message: impl Into<String>) -> Self {
        Self::Abort { code: 1, message: message.into() }
    }
}

/// The words of a command after the first.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        let mut words = self.0.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        words.find(|(its, _)| *its == name).map(|(_, value)| value)
    }

    /// Returns a word, or the reply to a command that lacks it.
    fn needed(&self, name: &str) -> Result<&'a str, Answer> {
        self.get(name).ok_or_else(|| Answer::Reply(format!("cmd=error rc=1 msg=no_{name}\n")))
    }

    /// Returns a word of 1 to `most` bytes.
    fn short(&self, name: &str, most: usize) -> Result<&'a str, Answer> {
        match self.needed(name)? {
            word if (1..=most).contains(&word.len()) => Ok(word),
            _ => Err(Answer::Reply(format!("cmd=error rc=1 msg=length_of_{name}\n"))),
        }
    }
}

/// The state of a rank's connection.
#[derive(Debug)]
struct Session {
    job: Arc<Shared>,
    /// Pairs that the rank has put since the last barrier.
    pairs: Pairs,
    /// True between the lines of a request to start processes.
    is_spawning: bool,
}

impl Session {
    const fn new(job: Arc<Shared>) -> Self {
        Self { job, pairs: Vec::new(), is_spawning: false }
    }

    fn answer(&mut self, line: &str) -> Answer {
        if self.is_spawning {
            if line.trim_ascii() != "endcmd" {
                return Answer::Nothing;
            }
            self.is_spawning = false;
            return Answer::Reply(
                "cmd=spawn_result rc=1 msg=gang_jobs_start_no_processes\n".into(),
            );
        }
        let line = line.trim_ascii();
        if line.starts_with("mcmd=spawn") {
            self.is_spawning = true;
            return Answer::Nothing;
        }
        let Some(line) = line.strip_prefix("cmd=") else {
            return Answer::refused("it sent a line to PMI that is no command");
        };
        let (command, words) = line.split_once(' ').unwrap_or((line, ""));
        self.carry_out(command, &Words(words)).map_or_else(|answer| answer, Answer::Reply)
    }

    /// Carries a command out. Returns its reply as `Ok`, and each other reaction as `Err`.
    fn carry_out(&mut self, command: &str, words: &Words<'_>) -> Result<String, Answer> {
        Ok(match command {
            "init" => {
                let status = i32::from(words.needed("pmi_version")? != "1");
                format!("cmd=response_to_init rc={status} pmi_version=1 pmi_subversion=1\n")
            }
            "get_maxes" => format!(
                "cmd=maxes rc=0 kvsname_max={NAME_BYTES} keylen_max={KEY_BYTES} vallen_max={VALUE_BYTES}\n"
            ),
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={}\n", self.job.name),
            "get_appnum" => "cmd=appnum rc=0 appnum=0\n".into(),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}\n", self.job.ranks),
            "put" => {
                let name = words.needed("kvsname")?;
                let (key, value) =
                    (words.short("key", KEY_BYTES)?, words.short("value", VALUE_BYTES)?);
                self.put(name, key, value)
            }
            "get" => self.get(words.needed("kvsname")?, words.short("key", KEY_BYTES)?),
            "barrier_in" if words.get("group").is_none() => return Err(Answer::Barrier),
            "barrier_in" => "cmd=barrier_out rc=1 msg=no_groups\n".into(),
            "finalize" => "cmd=finalize_ack rc=0\n".into(),
            "abort" => {
                let code = words.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                // The message may contain spaces.
                let message = words.0.split_once("message=").map_or("", |(_, message)| message);
                return Err(Answer::Abort { code, message: message.into() });
            }
            "publish_name" => "cmd=publish_result rc=1 msg=no_services\n".into(),
            "unpublish_name" => "cmd=unpublish_result rc=1 msg=no_services\n".into(),
            "lookup_name" => "cmd=lookup_result rc=1 msg=no_services\n".into(),
            unknown => {
                let shown: String = unknown.chars().take(40).collect();
                return Err(Answer::refused(format!("PMI-1 has no command {shown:?}")));
            }
        })
    }

    fn put(&mut self, name: &str, key: &str, value: &str) -> String {
        if name != self.job.name {
            return "cmd=put_result rc=1 msg=another_kvsname\n".into();
        }
        if self.pairs.len() == PAIRS {
            return format!("cmd=put_result rc=1 msg=more_than_{PAIRS}_before_a_barrier\n");
        }
        self.pairs.push((key.into(), value.into()));
        self.job.store().insert(key.into(), value.into());
        "cmd=put_result rc=0\n".into()
    }

    fn get(&self, name: &str, key: &str) -> String {
        match self.job.store().get(key).filter(|_| name == self.job.name) {
            Some(value) => format!("cmd=get_result rc=0 value={value}\n"),
            None => "cmd=get_result rc=1 msg=not_found\n".into(),
        }
    }
}

async fn serve(
    end: OwnedFd,
    job: Arc<Shared>,
    mut left: watch::Receiver<u64>,
    said: impl Fn(RankEvent) + Send + 'static,
) -> io::Result<()> {
    let stream = UnixStream::from(end);
    stream.set_nonblocking(true)?;
    let (receiver, mut sender) = tokio::net::UnixStream::from_std(stream)?.into_split();
    let (mut receiver, mut line) = (BufReader::new(receiver), Vec::new());
    let mut session = Session::new(job);
    loop {
        let answer = match next_line(&mut receiver, &mut line).await? {
            None => return Ok(()),
            Some(Ok(text)) => session.answer(text),
            Some(Err(why)) => Answer::refused(why),
        };
        match answer {
            Answer::Reply(reply) => sender.write_all(reply.as_bytes()).await?,
            Answer::Barrier => {
                left.mark_unchanged();
                said(RankEvent::BarrierIn(std::mem::take(&mut session.pairs)));
                if left.changed().await.is_err() {
                    return Ok(());
                }
                sender.write_all(b"cmd=barrier_out rc=0\n").await?;
            }
            Answer::Abort { code, message } => {
                said(RankEvent::Aborted { code, message });
                return Ok(());
            }
            Answer::Nothing => {}
        }
    }
}

/// Reads the next line, up to the longest permitted length. Returns an error text for a line that no correct rank sends.
async fn next_line<'a>(
    receiver: &mut BufReader<OwnedReadHalf>,
    line: &'a mut Vec<u8>,
) -> io::Result<Option<Result<&'a str, String>>> {
    line.clear();
    let mut bounded = receiver.take(LINE_BYTES as u64);
    if bounded.read_until(b'\n', line).await? == 0 {
        return Ok(None);
    }
    if line.len() == LINE_BYTES && !line.ends_with(b"\n") {
        let why = format!("it sent a line of more than {LINE_BYTES} bytes to PMI");
        return Ok(Some(Err(why)));
    }
    let text = std::str::from_utf8(line);
    Ok(Some(text.map_err(|_| "it sent a line to PMI that is no text".into())))
}

#[cfg(test)]
mod tests;
