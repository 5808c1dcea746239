//! A rate limiter on the server's NIC, without work of its host.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::nicvm::context::Context;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use serde::Serialize;

use crate::calls::{CALLS, Calls, Client, Rule, Server, call_until};
use crate::fleet::{self, Fleet, Meeting, Part, Question};

const EXAMPLES: &str = "\
Examples:
  lab limiter                                  four processes over UDP
  lab limiter --fabric shm --per-second 20000
  lab limiter --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 serves. Rank 1 requests at three quarters of its limit; all other ranks request as fast as they can, with
8 requests in flight. A second run applies the same rule on the host, which then receives every request.

Exit code: 0 no tenant got more answers than its limit, and rank 1 was never refused; 1 one of these failed, or a
process was lost; 2 bad input.";

/// Measure a rate limiter on a NIC, and the same rule on its host
///
/// The limiter is an extension: a token bucket per tenant, filled at one rate. Refused requests do not reach the
/// host.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
    /// Requests per second that each tenant may make, from 1 to 1000000
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    per_second: u64,
}

/// Burst: requests that a tenant may make at once.
const AT_ONCE: u64 = 20;
/// Requests in flight per impolite tenant.
const DEPTH: usize = 8;
const SERVER: NodeId = NodeId(0);
/// The tenant that stays below its limit; all others request as fast as they can.
const POLITE: NodeId = NodeId(1);
/// Largest number of requests that wait for the server's host; more are refused, too.
const WAITING: usize = 1_024;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    per_second: u64,
    seconds: f64,
    /// Requests of the polite tenant.
    polite_answered: u64,
    polite_refused: u64,
    median_us: f64,
    p99_us: f64,
    /// Requests of all other tenants.
    others_answered: u64,
    others_refused: u64,
    /// Their answered requests over those that their limit allows in that time: at most 1.
    others_of_limit: f64,
    /// Requests that reached the server's host.
    at_host: u64,
    holds: bool,
}

/// Token buckets of one size, one per tenant, filled at one rate (the generic cell rate algorithm: a bucket stores
/// only when it would be full again).
#[derive(Debug, Default)]
struct Buckets {
    /// Nanoseconds in which a bucket regains one request.
    each_ns: u64,
    /// Nanoseconds that a tenant may be ahead of its rate.
    ahead_ns: u64,
    full_at: BTreeMap<u64, Instant>,
}

impl Buckets {
    /// Creates buckets for `per_second` requests a second and bursts of `at_once`.
    fn new(per_second: u64, at_once: u64) -> Self {
        let each_ns = 1_000_000_000 / per_second.max(1);
        let ahead_ns = each_ns * at_once.saturating_sub(1);
        Self { each_ns, ahead_ns, full_at: BTreeMap::new() }
    }

    /// Returns whether a tenant may make a request now, and counts the request if so.
    fn admit(&mut self, now: Instant, tenant: u64) -> bool {
        let full_at = self.full_at.entry(tenant).or_insert(now);
        let from = (*full_at).max(now);
        if from.nanos_since(now) > self.ahead_ns {
            return false;
        }
        *full_at = from.plus_nanos(self.each_ns);
        true
    }
}

/// The limit on the NIC: the called word is the tenant, and the answer 1 or 0. Off until it is set.
#[derive(Debug, Default)]
struct Limit(Option<Buckets>);

impl Rule for Limit {
    fn decide(&mut self, nic: &Context<'_>, tenant: u64, waiting: usize) -> Option<Vec<u8>> {
        let buckets = self.0.as_mut()?;
        let admitted = waiting < WAITING && buckets.admit(nic.now(), tenant);
        (!admitted).then(|| 0_u64.to_le_bytes().to_vec())
    }

    fn learn(&mut self, _: &Context<'_>, _: u64, _: &[u8]) {}

    fn set(&mut self, _: &Context<'_>, [per_second, at_once, _]: [u64; 3], _: &[u8]) -> bool {
        self.0 = (per_second > 0).then(|| Buckets::new(per_second, at_once));
        true
    }
}

/// A tenant: its number, and its answered and refused requests.
struct Tenant(u64, [u64; 2]);

impl Client for Tenant {
    fn next(&mut self, _: usize) -> u64 {
        self.0
    }

    fn take(&mut self, _: usize, admitted: u64, _: &[u8]) -> bool {
        self.1[usize::from(admitted == 0)] += 1;
        admitted == 1
    }
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    fleet::conduct(arguments, |_| Ok(()))
}

impl Question for Arguments {
    type Run = Run;

    fn fleet(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    fn holds(runs: &[Run]) -> bool {
        runs.iter().all(|run| run.holds)
    }
}

impl Part for Arguments {
    type Outcome = Vec<Run>;

    fn equip(&self, unit: &mut Unit) {
        unit.install(CALLS, Calls::<Limit>::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H) -> Result<Vec<Run>, String> {
        let mut meeting = Meeting::new(&host, self.fleet.nodes).await?;
        let mut server = if host.node() == SERVER { Some(Server::open(&host, 0)?) } else { None };
        let mut runs = Vec::new();
        for on_nic in [true, false] {
            // Both parts start with full buckets.
            let buckets = (!on_nic).then(|| Buckets::new(self.per_second, AT_ONCE));
            if let Some(server) = &mut server {
                let per_second = if on_nic { self.per_second } else { 0 };
                server.set([per_second, AT_ONCE, 0]).await?;
            }
            meeting.barrier().await?;
            let begun = host.now();
            let mut words = [0; 7];
            if let Some(server) = &mut server {
                words[6] = serve(&host, server, buckets, &mut meeting).await?;
            } else {
                words[..6].copy_from_slice(&self.request(&host).await?);
                meeting.barrier().await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            runs.push(self.run(on_nic, words, took));
        }
        Ok(runs)
    }
}

/// Answers requests until all tenants are done, if the host has the buckets by the rule; returns their number.
async fn serve(
    host: &impl Host,
    server: &mut Server,
    mut buckets: Option<Buckets>,
    meeting: &mut Meeting,
) -> Result<u64, String> {
    let mut requests = 0;
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended.map(|()| requests),
            request = server.next() => {
                let Some(request) = request? else { continue };
                requests += 1;
                let admitted =
                    buckets.as_mut().is_none_or(|it| it.admit(host.now(), request.word));
                server.answer(&request, admitted.into(), &[])?;
            }
        }
    }
}

impl Arguments {
    /// Runs a tenant; returns the numbers to sum over the tenants. Latencies are the polite one's.
    async fn request(&self, host: &impl Host) -> Result<[u64; 6], String> {
        let is_polite = host.node() == POLITE;
        // Three quarters of its limit.
        let pause = Duration::from_nanos(4_000_000_000 / (3 * self.per_second));
        let (pause, depth) = if is_polite { (Some(pause), 1) } else { (None, DEPTH) };
        let end = host.now() + self.fleet.time();
        let mut tenant = Tenant(host.node().0.into(), [0; 2]);
        let latency = call_until(host, (SERVER, depth, 0), pause, end, &mut tenant).await?;
        let [answered, refused] = tenant.1;
        let at = |share| latency.value_at_quantile(share);
        Ok(match is_polite {
            true => [answered, refused, 0, 0, at(0.5), at(0.99)],
            false => [0, 0, answered, refused, 0, 0],
        })
    }

    fn run(&self, on_nic: bool, words: [u64; 7], took: Duration) -> Run {
        let [answered, refused, others_answered, others_refused, median_ns, p99_ns, at_host] =
            words;
        let seconds = took.as_secs_f64();
        let each = self.per_second as f64 * seconds + AT_ONCE as f64;
        let others_of_limit = others_answered as f64 / (each * f64::from(self.fleet.nodes - 2));
        // The polite tenant has one request in flight and stays below its limit: none may be refused.
        let kept = others_of_limit <= 1.0 && refused == 0 && answered > 0;
        Run {
            place: if on_nic { "nic" } else { "host" },
            per_second: self.per_second,
            seconds,
            polite_answered: answered,
            polite_refused: refused,
            median_us: median_ns as f64 / 1e3,
            p99_us: p99_ns as f64 / 1e3,
            others_answered,
            others_refused,
            others_of_limit,
            at_host,
            holds: kept && (!on_nic || at_host == others_answered + answered),
        }
    }
}
