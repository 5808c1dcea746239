//! The server and its tenants, with the limit on the NIC or on the host.

use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Port, PortOptions, Status};
use midplane::simhw::time::Instant;

use crate::fleet::{Meeting, Part};
use crate::limiter::bucket::Buckets;
use crate::limiter::extension::{ANSWER, LIMIT, LIMITER, Limiter, REQUEST, SERVE};
use crate::relay::{Mail, RELAY, Relay};

const SERVER: NodeId = NodeId(0);
/// The tenant that stays below its limit; all others request as fast as they can.
const POLITE: NodeId = NodeId(1);
/// Requests that the server's host may hold at once.
const SLOTS: u64 = 64;
/// Longest latency that is recorded, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) per_second: u64,
    pub(crate) at_once: u64,
    /// Requests in flight per impolite tenant.
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    pub(crate) bar: ProgressBar,
}

/// Results of one part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) on_nic: bool,
    /// Answered and refused requests of the polite tenant.
    pub(crate) polite: [u64; 2],
    /// Answered and refused requests of all other tenants.
    pub(crate) others: [u64; 2],
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    /// Requests that reached the server's host.
    pub(crate) at_host: u64,
    pub(crate) took: Duration,
}

impl Part for Plan {
    type Outcome = Vec<Figures>;

    fn equip(&self, unit: &mut Unit) {
        unit.install(LIMITER, Limiter::default()).expect("the number is free");
        unit.install(RELAY, Relay::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H, mut meeting: Meeting) -> Result<Vec<Figures>, String> {
        let mut figures = Vec::new();
        let mut mail = Mail::open(&host)?;
        for on_nic in [true, false] {
            let mut words = [0; 7];
            let is_server = host.node() == SERVER;
            let door = if is_server && on_nic { Some(open(&host, &self).await?) } else { None };
            meeting.barrier().await?;
            let begun = host.now();
            if let Some(port) = door {
                words[6] = serve(port, &mut meeting).await?;
            } else if is_server {
                words[6] = serve_by_mail(&host, &self, &mut mail, &mut meeting).await?;
            } else {
                let tenant = Tenant::new(&host, &self);
                let end = begun + self.time;
                let tenant = if on_nic {
                    tenant.ask(&host, end).await?
                } else {
                    tenant.ask_by_mail(&host, &mut mail, end).await?
                };
                words[..6].copy_from_slice(&tenant.words());
                meeting.barrier().await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            let [a, b, c, d, median_ns, p99_ns, at_host] = words;
            let (polite, others) = ([a, b], [c, d]);
            figures.push(Figures { on_nic, polite, others, median_ns, p99_ns, at_host, took });
            self.bar.inc(1);
        }
        Ok(figures)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn command(opcode: u8, node: NodeId, cookie: u64, args: [u64; 3]) -> Command {
    Command { extension: LIMITER, opcode, node, cookie, args, ..Command::default() }
}

/// Sets the limit on the NIC, and posts slots for admitted requests.
async fn open(host: &impl Host, plan: &Plan) -> Result<Port, String> {
    let options = PortOptions::default().depth(4 * SLOTS as usize);
    let mut port = host.open_port_with(options).map_err(text)?;
    let limit = [plan.per_second, plan.at_once, 0];
    port.submit(&command(LIMIT, SERVER, 0, limit)).map_err(text)?;
    port.completion().await.map_err(text)?;
    for slot in 0..SLOTS {
        port.post(&command(SERVE, SERVER, slot, [0; 3])).map_err(text)?;
    }
    port.ring();
    Ok(port)
}

/// Answers admitted requests until all tenants are done; returns their number.
async fn serve(mut port: Port, meeting: &mut Meeting) -> Result<u64, String> {
    let mut requests = 0;
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended.map(|()| requests),
            done = port.completion() => {
                let done = done.map_err(text)?;
                if done.opcode == SERVE {
                    requests += 1;
                    let answer = command(ANSWER, done.node, done.cookie, [done.args[1], 0, 0]);
                    port.submit(&answer).map_err(text)?;
                } else if done.opcode == ANSWER {
                    port.submit(&command(SERVE, SERVER, done.cookie, [0; 3])).map_err(text)?;
                }
            }
        }
    }
}

/// Applies the same rule on the host: every request reaches it.
async fn serve_by_mail(
    host: &impl Host,
    plan: &Plan,
    mail: &mut Mail,
    meeting: &mut Meeting,
) -> Result<u64, String> {
    let mut buckets = Buckets::new(plan.per_second, plan.at_once);
    let mut requests = 0;
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended.map(|()| requests),
            asked = mail.receive() => {
                let (node, request) = asked?;
                requests += 1;
                let admitted = buckets.admit(host.now(), node.0.into());
                mail.send(node, &[request[0], u8::from(admitted)]).await?;
            }
        }
    }
}

/// A tenant; its number is its node's.
struct Tenant {
    node: NodeId,
    /// Requests in flight, and the pause between those of a polite tenant.
    depth: usize,
    pause: Option<Duration>,
    since: Vec<Instant>,
    /// Answered and refused requests.
    counts: [u64; 2],
    latency: Histogram<u64>,
}

impl Tenant {
    fn new(host: &impl Host, plan: &Plan) -> Self {
        let node = host.node();
        // Three quarters of its limit.
        let pause = Duration::from_nanos(4_000_000_000 / (3 * plan.per_second.max(1)));
        let pause = (node == POLITE).then_some(pause);
        let depth = if pause.is_some() { 1 } else { plan.depth };
        let latency = Histogram::new_with_max(LONGEST_NS, 3).expect("three digits");
        Self { node, depth, pause, since: vec![Instant::ZERO; depth], counts: [0; 2], latency }
    }

    fn take(&mut self, host: &impl Host, at: usize, answered: bool) {
        self.counts[usize::from(!answered)] += 1;
        if answered {
            self.latency.saturating_record(host.now().nanos_since(self.since[at]));
        }
    }

    /// Waits until the next request is due: at once, unless the tenant is polite.
    async fn wait(&mut self, host: &impl Host, at: usize) {
        if let Some(pause) = self.pause {
            let due = self.since[at] + pause;
            host.sleep_until(due).await;
        }
        self.since[at] = host.now();
    }

    fn request(&self, port: &mut Port, at: usize) -> Result<(), String> {
        let tenant = [self.node.0.into(), 0, 0];
        port.submit(&command(REQUEST, SERVER, at as u64, tenant)).map_err(text)
    }

    async fn ask(mut self, host: &impl Host, end: Instant) -> Result<Self, String> {
        let mut port = host.open_port().map_err(text)?;
        for at in 0..self.depth {
            self.since[at] = host.now();
            self.request(&mut port, at)?;
        }
        let mut under_way = self.depth;
        while under_way > 0 {
            let done = port.completion().await.map_err(text)?;
            let at = done.cookie as usize;
            match done.status {
                Status::Done | Status::Refused => self.take(host, at, done.status == Status::Done),
                status => return Err(format!("a request ended as {status:?}")),
            }
            if host.now() < end {
                self.wait(host, at).await;
                self.request(&mut port, at)?;
            } else {
                under_way -= 1;
            }
        }
        Ok(self)
    }

    async fn ask_by_mail(
        mut self,
        host: &impl Host,
        mail: &mut Mail,
        end: Instant,
    ) -> Result<Self, String> {
        for at in 0..self.depth {
            self.since[at] = host.now();
            mail.send(SERVER, &[at as u8]).await?;
        }
        let mut under_way = self.depth;
        while under_way > 0 {
            let (_, answer) = mail.receive().await?;
            let at = usize::from(answer[0]);
            self.take(host, at, answer[1] == 1);
            if host.now() < end {
                self.wait(host, at).await;
                mail.send(SERVER, &[at as u8]).await?;
            } else {
                under_way -= 1;
            }
        }
        Ok(self)
    }

    /// Returns the numbers to sum over the tenants; latencies are the polite one's.
    fn words(&self) -> [u64; 6] {
        let [answered, refused] = self.counts;
        if self.pause.is_none() {
            return [0, 0, answered, refused, 0, 0];
        }
        let at = |share| self.latency.value_at_quantile(share);
        [answered, refused, 0, 0, at(0.5), at(0.99)]
    }
}
