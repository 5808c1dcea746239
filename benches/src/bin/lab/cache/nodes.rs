//! The owner and its clients, with the cache on the NIC or everything on hosts.

use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Completion, Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::time::Instant;

use crate::cache::extension::{CACHE, Cache, FILL, GET, MOST, PLACES, SERVE, SET};
use crate::cache::store::{Judge, Keys, Store};
use crate::fleet::{Meeting, Part};
use crate::relay::{Mail, RELAY, Relay};

const OWNER: NodeId = NodeId(0);
/// Misses that the owner's host may hold at once.
const SLOTS: u64 = 64;
/// Interval between two changes of a value by the owner.
const CHANGE_EVERY: Duration = Duration::from_micros(500);

/// Longest latency that is recorded, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) keys: u64,
    pub(crate) bytes: usize,
    /// Gets in flight per client.
    pub(crate) depth: usize,
    /// Entries of the NIC's cache, one measured part each; a part by hosts alone follows.
    pub(crate) places: Vec<u64>,
    /// Bytes of the NIC's memory.
    pub(crate) heap: usize,
    pub(crate) time: Duration,
    pub(crate) bar: ProgressBar,
}

/// Results of one part, from the clients but for `at_host`, which the owner counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Entries of the cache; `None` for hosts alone.
    pub(crate) places: Option<u64>,
    pub(crate) gets: u64,
    pub(crate) wrong: u64,
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    /// Gets that reached the owner's host.
    pub(crate) at_host: u64,
    pub(crate) took: Duration,
}

impl Part for Plan {
    type Outcome = Vec<Figures>;

    fn equip(&self, unit: &mut Unit) {
        unit.set_heap(CACHE, self.heap);
        unit.install(CACHE, Cache::default()).expect("the number is free");
        unit.install(RELAY, Relay::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H, mut meeting: Meeting) -> Result<Vec<Figures>, String> {
        let mut figures = Vec::new();
        let mut mail = Mail::open(&host)?;
        let mut owner = Owner::new(&host)?;
        let parts = self.places.iter().copied().map(Some).chain([None]);
        for places in parts {
            let mut words = [0; 5];
            if let (OWNER, Some(places)) = (host.node(), places) {
                owner.resize(places).await?;
            }
            meeting.barrier().await?;
            let begun = host.now();
            let end = begun + self.time;
            if host.node() == OWNER {
                words[4] = match places {
                    Some(_) => owner.serve(&host, &self, &mut meeting, end).await?,
                    None => serve_by_mail(&host, &self, &mut mail, &mut meeting, end).await?,
                };
            } else {
                let client = Client::new(&host, &self);
                let client = match places {
                    Some(_) => client.ask(&host, &self, end).await?,
                    None => client.ask_by_mail(&host, &self, &mut mail, end).await?,
                };
                words[..4].copy_from_slice(&client.words(host.node() == NodeId(1)));
                meeting.barrier().await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            let [gets, wrong, median_ns, p99_ns, at_host] = words;
            let part = Figures { places, gets, wrong, median_ns, p99_ns, at_host, took };
            figures.push(part);
            self.bar.inc(1);
        }
        Ok(figures)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The host that owns the values.
struct Owner {
    port: Port,
    memory: Region,
    store: Store,
}

impl Owner {
    fn new(host: &impl Host) -> Result<Self, String> {
        let options = PortOptions::default().depth(4 * SLOTS as usize);
        let mut port = host.open_port_with(options).map_err(text)?;
        let memory = port.register((SLOTS as usize + 1) * MOST).map_err(text)?;
        let mut owner = Self { port, memory, store: Store::default() };
        if host.node() == OWNER {
            (0..SLOTS).try_for_each(|slot| owner.post(SERVE, slot, &[], [0; 3], OWNER))?;
            owner.port.ring();
        }
        Ok(owner)
    }

    fn post(
        &mut self,
        opcode: u8,
        slot: u64,
        value: &[u8],
        args: [u64; 3],
        node: NodeId,
    ) -> Result<(), String> {
        let at = slot as usize * MOST;
        self.memory.write(at, value).map_err(text)?;
        let region = self.memory.range(at, value.len()).expect("within it");
        let (extension, cookie) = (CACHE, slot);
        let command =
            Command { extension, opcode, cookie, region, args, node, ..Command::default() };
        self.port.post(&command).map_err(text)
    }

    async fn resize(&mut self, places: u64) -> Result<(), String> {
        self.post(PLACES, SLOTS, &[], [places, 0, 0], OWNER)?;
        self.port.ring();
        while let Ok(done) = self.port.completion().await {
            if done.opcode == PLACES {
                let fits = done.status == Status::Done;
                return if fits {
                    Ok(())
                } else {
                    Err(format!("--cached {places}: more than --heap holds"))
                };
            }
        }
        Err("the NIC has stopped".into())
    }

    /// Answers misses and changes values until all clients are done; returns the number of misses.
    async fn serve(
        &mut self,
        host: &impl Host,
        plan: &Plan,
        meeting: &mut Meeting,
        end: Instant,
    ) -> Result<u64, String> {
        let mut keys = Keys::new(plan.keys, host.rng("changes"));
        let (mut misses, mut change_at, mut changing) = (0, host.now() + CHANGE_EVERY, false);
        let mut met = std::pin::pin!(meeting.barrier());
        loop {
            tokio::select! {
                biased;
                ended = &mut met => return ended.map(|()| misses),
                done = self.port.completion() => {
                    let done = done.map_err(text)?;
                    changing &= done.opcode != SET;
                    misses += u64::from(self.answer(plan, &done)?);
                }
                () = host.sleep_until(change_at), if !changing && host.now() < end => {
                    let key = keys.next();
                    let value = self.store.change(key, plan.bytes);
                    self.post(SET, SLOTS, &value, [key, 0, 0], OWNER)?;
                    self.port.ring();
                    (changing, change_at) = (true, change_at + CHANGE_EVERY);
                }
            }
        }
    }

    /// Answers the completed command; returns whether it was a miss.
    fn answer(&mut self, plan: &Plan, done: &Completion) -> Result<bool, String> {
        let is_miss = done.opcode == SERVE;
        if is_miss {
            let [key, number, ..] = done.args;
            let value = self.store.get(key, plan.bytes);
            self.post(FILL, done.cookie, &value, [key, number, 0], done.node)?;
        } else if done.opcode == FILL {
            self.post(SERVE, done.cookie, &[], [0; 3], OWNER)?;
        }
        self.port.ring();
        Ok(is_miss)
    }
}

/// Serves without a cache: each get is a message to the owner's host and an answer.
async fn serve_by_mail(
    host: &impl Host,
    plan: &Plan,
    mail: &mut Mail,
    meeting: &mut Meeting,
    end: Instant,
) -> Result<u64, String> {
    let (mut keys, mut store) = (Keys::new(plan.keys, host.rng("changes")), Store::default());
    let (mut gets, mut change_at) = (0, host.now() + CHANGE_EVERY);
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended.map(|()| gets),
            asked = mail.receive() => {
                let (node, ask) = asked?;
                let key = u64::from_le_bytes(ask[1..9].try_into().expect("a get has nine bytes"));
                let answer = [&ask[..1], &store.get(key, plan.bytes)[..]].concat();
                mail.send(node, &answer).await?;
                gets += 1;
            }
            () = host.sleep_until(change_at), if host.now() < end => {
                store.change(keys.next(), plan.bytes);
                change_at += CHANGE_EVERY;
            }
        }
    }
}

/// A client with a fixed number of gets in flight; it checks each answer.
struct Client {
    keys: Keys,
    judge: Judge,
    latency: Histogram<u64>,
    /// Key of each get in flight, and when it was sent.
    asked: Vec<(u64, Instant)>,
}

impl Client {
    fn new(host: &impl Host, plan: &Plan) -> Self {
        let keys = Keys::new(plan.keys, host.rng("keys"));
        let latency = Histogram::new_with_max(LONGEST_NS, 3).expect("three digits");
        let asked = vec![(0, Instant::ZERO); plan.depth];
        Self { keys, judge: Judge::default(), latency, asked }
    }

    /// Draws the next key, for the get in flight number `at`.
    fn next(&mut self, host: &impl Host, at: usize) -> u64 {
        let key = self.keys.next();
        self.asked[at] = (key, host.now());
        key
    }

    fn take(&mut self, host: &impl Host, plan: &Plan, at: usize, bytes: &[u8]) {
        let (key, since) = self.asked[at];
        self.judge.judge(key, bytes, plan.bytes);
        self.latency.saturating_record(host.now().nanos_since(since));
    }

    async fn ask(mut self, host: &impl Host, plan: &Plan, end: Instant) -> Result<Self, String> {
        let mut port = host.open_port().map_err(text)?;
        let memory = port.register(plan.depth * MOST).map_err(text)?;
        let get = |at: usize, key: u64| {
            let region = memory.range(at * MOST, MOST).expect("within it");
            let (cookie, args) = (at as u64, [key, 0, 0]);
            let (extension, opcode, node) = (CACHE, GET, OWNER);
            Command { extension, opcode, node, cookie, region, args, ..Command::default() }
        };
        for at in 0..plan.depth {
            port.submit(&get(at, self.next(host, at))).map_err(text)?;
        }
        let mut under_way = plan.depth;
        let mut bytes = [0; MOST];
        while under_way > 0 {
            let done = port.completion().await.map_err(text)?;
            if done.status != Status::Done {
                return Err(format!("a get ended as {:?}", done.status));
            }
            let at = done.cookie as usize;
            let bytes = &mut bytes[..done.length as usize];
            memory.read(at * MOST, bytes).map_err(text)?;
            self.take(host, plan, at, bytes);
            if host.now() < end {
                port.submit(&get(at, self.next(host, at))).map_err(text)?;
            } else {
                under_way -= 1;
            }
        }
        Ok(self)
    }

    async fn ask_by_mail(
        mut self,
        host: &impl Host,
        plan: &Plan,
        mail: &mut Mail,
        end: Instant,
    ) -> Result<Self, String> {
        let get = |at: usize, key: u64| [&[at as u8][..], &key.to_le_bytes()].concat();
        for at in 0..plan.depth {
            let key = self.next(host, at);
            mail.send(OWNER, &get(at, key)).await?;
        }
        let mut under_way = plan.depth;
        while under_way > 0 {
            let (_, answer) = mail.receive().await?;
            let at = usize::from(answer[0]);
            self.take(host, plan, at, &answer[1..]);
            if host.now() < end {
                let key = self.next(host, at);
                mail.send(OWNER, &get(at, key)).await?;
            } else {
                under_way -= 1;
            }
        }
        Ok(self)
    }

    /// Returns the numbers to sum over the clients; latencies are the first client's.
    fn words(&self, is_first: bool) -> [u64; 4] {
        let at = |share| if is_first { self.latency.value_at_quantile(share) } else { 0 };
        [self.latency.len(), self.judge.wrong, at(0.5), at(0.99)]
    }
}
