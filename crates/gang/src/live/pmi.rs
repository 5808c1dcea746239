//! A PMI-1 server for the ranks of this host: programs of MPICH and its relatives start without a launcher of their own.
//!
//! Each rank has a socket, whose number is in `PMI_FD`. What ranks put is known to all of them after the next barrier: a
//! daemon reports what its ranks have put when they enter the barrier, and the root sends all of it to every host of the job
//! once all ranks are in. All other commands are answered here.
//!
//! A rank that sends what is no line of the protocol, or exceeds a bound, ends its job with the reason. Ranks can't start
//! further processes and name no services.

mod wire;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

use crate::node_core::message::{Pairs, RankEvent};
use wire::{Command, KEY_BYTES, LINE_BYTES, Malformed, NAME_BYTES, VALUE_BYTES};

/// Variables of a rank's environment, beside `PMI_RANK` and `PMI_SIZE`.
pub(super) const FD: &str = "PMI_FD";
/// The variable of a job's name: no other job on its hosts has it.
pub(super) const NAME: &str = "GANG_NAME";
/// Most pairs that a rank puts between two barriers.
const PAIRS: usize = 256;
/// The key of the hosts of all ranks.
const MAPPING: &str = "PMI_process_mapping";

/// Returns whether a variable describes a process of another launcher, which no rank is.
pub(super) fn is_foreign(variable: &[u8]) -> bool {
    variable.starts_with(b"PMI_") || variable.starts_with(b"PMIX_")
}

/// The server of a job's ranks on this host. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct PmiJob {
    shared: Arc<Shared>,
    /// Barriers that the job has left.
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
    /// Creates the server of a job whose ranks are on these hosts, in order.
    pub(super) fn new(name: &str, hosts: &[u16]) -> Self {
        let mapping = Some(mapping(hosts)).filter(|it| it.len() <= VALUE_BYTES);
        let store = mapping.into_iter().map(|it| (MAPPING.to_owned(), it)).collect();
        let (name, ranks) = (name.to_owned(), hosts.len() as u16);
        let shared = Arc::new(Shared { name, ranks, store: Mutex::new(store) });
        Self { shared, barriers: watch::Sender::new(0) }
    }

    /// Lets the ranks leave the barrier that all ranks of the job have entered, with what these have put.
    pub(super) fn barrier_out(&self, pairs: Pairs) {
        self.shared.store().extend(pairs);
        self.barriers.send_modify(|left| *left += 1);
    }

    /// Starts the task that serves a rank until no process has its end of the socket open, or it or this server ends.
    pub(super) fn serve(&self, end: OwnedFd, said: impl Fn(RankEvent) + Send + 'static) {
        tokio::spawn(serve(end, Arc::clone(&self.shared), self.barriers.subscribe(), said));
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hosts of all ranks as MPICH reads them: blocks of host, number of hosts and ranks on each. Hosts are numbered as
/// they first occur. If the text is too long for a value, MPI libraries compare the hosts' names instead.
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

/// The answer to a command.
#[derive(Debug, Eq, PartialEq)]
enum Answer {
    Reply(String),
    /// A reply once the job leaves the barrier.
    Barrier,
    /// The rank ends the job.
    Abort {
        code: i32,
        message: String,
    },
    Nothing,
}

/// The state of a rank's connection.
#[derive(Debug)]
struct Session {
    job: Arc<Shared>,
    /// Put since the last barrier.
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
        let reply = match wire::parse(line) {
            Ok(Command::Init { version: "1" }) => {
                "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n".into()
            }
            Ok(Command::Init { .. }) => {
                "cmd=response_to_init rc=1 pmi_version=1 pmi_subversion=1\n".into()
            }
            Ok(Command::Maxes) => format!(
                "cmd=maxes rc=0 kvsname_max={NAME_BYTES} keylen_max={KEY_BYTES} vallen_max={VALUE_BYTES}\n"
            ),
            Ok(Command::KvsName) => format!("cmd=my_kvsname rc=0 kvsname={}\n", self.job.name),
            Ok(Command::AppNumber) => "cmd=appnum rc=0 appnum=0\n".into(),
            Ok(Command::UniverseSize) => {
                format!("cmd=universe_size rc=0 size={}\n", self.job.ranks)
            }
            Ok(Command::Put { name, key, value }) => self.put(name, key, value),
            Ok(Command::Get { name, key }) => self.get(name, key),
            Ok(Command::BarrierIn { group: None }) => return Answer::Barrier,
            Ok(Command::BarrierIn { .. }) => "cmd=barrier_out rc=1 msg=no_groups\n".into(),
            Ok(Command::Finalize) => "cmd=finalize_ack rc=0\n".into(),
            Ok(Command::Abort { code, message }) => {
                return Answer::Abort { code, message: message.into() };
            }
            Ok(Command::SpawnBegins) => {
                self.is_spawning = true;
                return Answer::Nothing;
            }
            Ok(Command::Service { reply }) => format!("cmd={reply} rc=1 msg=no_services\n"),
            Err(malformed) => return refuse(malformed),
        };
        Answer::Reply(reply)
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

/// A command that is not understood: a missing or long word is the library's to report; on anything else nothing can follow.
fn refuse(malformed: Malformed<'_>) -> Answer {
    let message = match malformed {
        Malformed::Missing(word) => {
            return Answer::Reply(format!("cmd=error rc=1 msg=no_{word}\n"));
        }
        Malformed::Length(word) => {
            return Answer::Reply(format!("cmd=error rc=1 msg=length_of_{word}\n"));
        }
        Malformed::NoCommand => "it sent a line to PMI that is no command".into(),
        Malformed::Unknown(command) => {
            let shown: String = command.chars().take(40).collect();
            format!("PMI-1 has no command {shown:?}")
        }
    };
    Answer::Abort { code: 1, message }
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
            Line::End => return Ok(()),
            Line::Text(text) => session.answer(text),
            Line::Bad(why) => Answer::Abort { code: 1, message: why },
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

enum Line<'a> {
    Text(&'a str),
    Bad(String),
    End,
}

/// Reads the next line, or as much of it as a line may have.
async fn next_line<'a>(
    receiver: &mut BufReader<OwnedReadHalf>,
    line: &'a mut Vec<u8>,
) -> io::Result<Line<'a>> {
    line.clear();
    let mut bounded = receiver.take(LINE_BYTES as u64);
    if bounded.read_until(b'\n', line).await? == 0 {
        return Ok(Line::End);
    }
    if line.len() == LINE_BYTES && !line.ends_with(b"\n") {
        return Ok(Line::Bad(format!("it sent a line of more than {LINE_BYTES} bytes to PMI")));
    }
    Ok(match std::str::from_utf8(line) {
        Ok(text) => Line::Text(text),
        Err(_) => Line::Bad("it sent a line to PMI that is no text".into()),
    })
}

#[cfg(test)]
mod tests;
