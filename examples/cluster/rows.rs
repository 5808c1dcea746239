//! What rank 0 does: has everything measured in turns, and reports.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::arguments::{Arguments, Question};
use crate::contest::{Contest, Side, Site, median};
use crate::control::{Cluster, Leader};
#[cfg(target_os = "linux")]
use crate::job;
use crate::processes::{Peer, free_at};
use crate::{picture, report};

/// One row of the report; what there is no number for is null.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: Option<f64>,
    pub(crate) theirs: Option<f64>,
    /// How far ours is ahead: the median of the rounds'.
    pub(crate) ratio: Option<f64>,
    /// Whether the ratio is what it should be.
    pub(crate) ok: bool,
    #[serde(skip)]
    pub(crate) wanted: f64,
}

/// Less than one message in the measured time: what a goodput is at least taken for.
const LEAST_MBPS: f64 = 0.1;

/// What a row compares.
struct Comparison {
    question: Question,
    what: &'static str,
    unit: &'static str,
    ours: Contest,
    theirs: Contest,
    /// Whether more is better.
    more: bool,
    /// The least ratio with which the row holds.
    wanted: f64,
}

impl Comparison {
    /// Of times: less is better.
    const fn faster(
        question: Question,
        (what, unit): (&'static str, &'static str),
        (ours, theirs): (Contest, Contest),
        wanted: f64,
    ) -> Self {
        Self { question, what, unit, ours, theirs, more: false, wanted }
    }

    /// Of goodputs into one receiver, in Mb/s.
    const fn fan_in(what: &'static str, (ours, theirs): (Contest, Contest), wanted: f64) -> Self {
        Self { question: Question::FanIn, what, unit: "Mb/s", ours, theirs, more: true, wanted }
    }
}

/// Both sides of a contest.
fn sides(of: fn(Side) -> Contest) -> (Contest, Contest) {
    (of(Side::Ours), of(Side::Theirs))
}

fn comparisons(is_one_host: bool) -> Vec<Comparison> {
    // Across hosts request and reply go over UDP, where the kernel's TCP is quicker.
    let close = if is_one_host { 1.0 } else { 0.1 };
    let udp = Contest::FanInUdp;
    let (latency, bulk) = (sides(Contest::Latency), (Contest::Bulk, Contest::Bulk));
    let (barrier, sum) = (sides(Contest::Barrier), sides(Contest::Sum));
    let fresh = sides(Contest::Fresh);
    vec![
        Comparison::faster(
            Question::Latency,
            ("request and reply, 64 B, beside TCP", "us"),
            latency,
            close,
        ),
        Comparison::fan_in(
            "fan-in by tokens, 10 KB, beside UDP",
            (Contest::FanIn(Side::Ours), udp),
            1.5,
        ),
        Comparison::fan_in("fan-in by tokens, 10 KB, beside TCP", sides(Contest::FanIn), 0.9),
        Comparison::fan_in("fan-in by Warp, 10 KB, beside UDP", (Contest::FanInWarp, udp), 1.5),
        Comparison::faster(
            Question::Bulk,
            ("bulk, 4 MiB by plan, beside 64 KiB pieces", "ms"),
            bulk,
            1.0,
        ),
        Comparison::faster(Question::Fresh, ("age of others' state, beside TCP", "ms"), fresh, 2.0),
        Comparison::faster(
            Question::Together,
            ("barrier on NICs, beside TCP", "us"),
            barrier,
            close,
        ),
        Comparison::faster(
            Question::Together,
            ("sum of all on NICs, beside TCP", "us"),
            sum,
            close,
        ),
    ]
}

/// Everything, from meeting the others to the rows.
///
/// # Errors
/// One line: a rank is missing, or was lost.
pub(crate) async fn measure_all(
    arguments: &Arguments,
    peers: &[SocketAddr],
) -> Result<Vec<Row>, String> {
    let ip = peers[0].ip();
    let listener = TcpListener::bind((ip, 0)).await;
    let listener = listener.map_err(|error| format!("--peers {ip}: {error}"))?;
    let here = listener.local_addr().map_err(|error| error.to_string())?;
    // Nobody listens at the peers' own yet: they look free.
    let mut free = free_at(ip, peers.len() + 1)?;
    free.retain(|address| !peers.contains(address));
    let switch = free.remove(0);
    let _narrow = start_switch(switch, peers, here)?;
    let wait = Duration::from_secs(arguments.wait);
    let (mut leader, others) = Leader::gather(peers[0], peers.len() as u16, wait).await?;
    let cluster = Cluster {
        name: format!("midplane-cluster-{}", std::process::id()),
        peers: peers.to_vec(),
        listeners: std::iter::once(here).chain(others).collect(),
        switch,
        is_one_host: peers.iter().all(|peer| peer.ip() == ip),
        seed: arguments.seed,
        milliseconds: arguments.milliseconds,
    };
    leader.introduce(&cluster).await?;
    let site = Site { rank: 0, cluster: &cluster, listener: &listener };
    Rounds::new(arguments, &mut leader, &site).run().await
}

fn start_switch(at: SocketAddr, peers: &[SocketAddr], target: SocketAddr) -> Result<Peer, String> {
    let list: Vec<SocketAddr> = std::iter::once(at).chain(peers.iter().copied()).collect();
    Peer::start(&[format!("--serve-switch={target}"), "--peers=-".into()], &list)
}

/// What was measured so far.
struct Rounds<'a> {
    arguments: &'a Arguments,
    leader: &'a mut Leader,
    site: &'a Site<'a>,
    /// Which contest of this cluster comes next.
    number: u32,
    bar: ProgressBar,
}

impl<'a> Rounds<'a> {
    fn new(arguments: &'a Arguments, leader: &'a mut Leader, site: &'a Site<'a>) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a constant");
        let bar = ProgressBar::new(0).with_style(style);
        Self { arguments, leader, site, number: 0, bar }
    }

    async fn run(mut self) -> Result<Vec<Row>, String> {
        let mut asked = comparisons(self.site.cluster.is_one_host);
        asked.retain(|comparison| self.arguments.asks(comparison.question));
        let rounds = self.arguments.rounds as usize;
        self.bar.set_length((asked.len() * rounds) as u64);
        let mut pairs: Vec<Vec<(f64, f64)>> = vec![Vec::new(); asked.len()];
        for _ in 0..rounds {
            for (comparison, pairs) in asked.iter().zip(&mut pairs) {
                self.bar.set_message(comparison.what);
                match self.pair(comparison).await? {
                    Ok(pair) => pairs.push(pair),
                    Err(why) => self.complain(comparison.what, &why),
                }
                self.bar.inc(1);
            }
        }
        self.bar.finish_and_clear();
        let mut rows: Vec<Row> =
            asked.iter().zip(pairs).map(|(asked, pairs)| row(asked, &pairs)).collect();
        #[cfg(target_os = "linux")]
        if self.arguments.asks(Question::Job) {
            rows.push(self.background_job().await);
        }
        Ok(rows)
    }

    fn complain(&self, what: &str, why: &str) {
        self.bar.suspend(|| eprintln!("{what}: {why}"));
    }

    /// Both sides of a comparison, once; the inner error is of this pair alone.
    async fn pair(
        &mut self,
        comparison: &Comparison,
    ) -> Result<Result<(f64, f64), String>, String> {
        let ours = self.contest(comparison.ours).await?;
        if comparison.ours == comparison.theirs {
            return Ok(ours.and_then(|both| match both[..] {
                [ours, theirs] => Ok((ours, theirs)),
                _ => Err("there is no number".into()),
            }));
        }
        let theirs = self.contest(comparison.theirs).await?;
        let first =
            |numbers: Vec<f64>| numbers.first().copied().ok_or_else(|| "there is no number".into());
        Ok(ours.and_then(first).and_then(|ours| Ok((ours, theirs.and_then(first)?))))
    }

    async fn contest(&mut self, contest: Contest) -> Result<Result<Vec<f64>, String>, String> {
        let number = self.number;
        self.number += 1;
        self.leader.begin(contest, number).await?;
        let numbers = contest.take_part(self.site, number).await;
        // Who could not do its part knows better why than who misses it.
        Ok(match self.leader.ended().await? {
            Some(why) => Err(why),
            None => numbers,
        })
    }

    #[cfg(target_os = "linux")]
    async fn background_job(&self) -> Row {
        // Removed with this future: whoever stops it leaves no files behind, and no processes of the thread's.
        let folder = tempfile::tempdir().map_err(|error| format!("a folder for it: {error}"));
        let measured = match &folder {
            Ok(folder) => {
                let path = folder.path().to_owned();
                // It has runtimes of its own, which are none within this one.
                let measured = tokio::task::spawn_blocking(move || job::measure(&path)).await;
                measured.unwrap_or_else(|_| Err("its thread failed".into()))
            }
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &measured {
            self.complain("background job", why);
        }
        let (ours, theirs) = measured.ok().unzip();
        let ratio = ours.zip(theirs).map(|(ours, theirs)| theirs / ours);
        let wanted = 1.0;
        let ok = ratio.is_some_and(|ratio| ratio >= wanted);
        let what = "preempted job of 4 ranks moved, beside begun anew";
        Row { what, unit: "ms", ours, theirs, ratio, ok, wanted }
    }
}

fn row(comparison: &Comparison, pairs: &[(f64, f64)]) -> Row {
    let ratio = |(ours, theirs): &(f64, f64)| {
        if comparison.more { ours / theirs.max(LEAST_MBPS) } else { theirs / ours }
    };
    let known = |values: Vec<f64>| Some(median(values)).filter(|value| value.is_finite());
    let ratio = known(pairs.iter().map(ratio).collect());
    Row {
        what: comparison.what,
        unit: comparison.unit,
        ours: known(pairs.iter().map(|pair| pair.0).collect()),
        theirs: known(pairs.iter().map(|pair| pair.1).collect()),
        ratio,
        ok: ratio.is_some_and(|ratio| ratio >= comparison.wanted),
        wanted: comparison.wanted,
    }
}

#[derive(Serialize)]
struct Document<'a> {
    rows: &'a [Row],
}

/// Reports, and says how the process is to end.
pub(crate) fn finish(arguments: &Arguments, rows: &[Row]) -> ExitCode {
    if let Some(path) = &arguments.plot
        && let Err(what) = picture::draw(path, rows)
    {
        return report::fail(&what, report::BAD_INPUT);
    }
    if arguments.json {
        report::print_json(&Document { rows });
    } else {
        report::say(&table(rows));
    }
    ExitCode::from(if rows.iter().all(|row| row.ok) { 0 } else { report::DID_NOT_HOLD })
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<56}{:>6}{:>10}{:>10}{:>9}{:>8}\n",
        "what", "unit", "ours", "theirs", "ratio", "wanted"
    );
    let number = |value: Option<f64>| match value {
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.1}"),
        None => "-".into(),
    };
    for row in rows {
        text += &format!(
            "{:<56}{:>6}{:>10}{:>10}{:>9}{:>8}{}\n",
            row.what,
            row.unit,
            number(row.ours),
            number(row.theirs),
            number(row.ratio),
            row.wanted,
            if row.ok { "" } else { "  does not hold" },
        );
    }
    text
}
