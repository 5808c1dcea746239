//! Runs rank 0: has every row measured in turns, and reports.

use std::net::SocketAddr;
use std::time::Duration;

use indicatif::ProgressBar;
use midplane_benches::meeting::Meeting;
use midplane_kit::report::{self, Failure};
use serde::Serialize;

use crate::arguments::{Arguments, Question};
use crate::claims::{self, Compared, Verdict, Watch, median};
use crate::contest::{Contest, Side, Site};
use crate::control::{self, Cluster};
use crate::processes::{Peer, free_at};

/// One row of the report; a missing number is null in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    /// Median of the rounds.
    pub(crate) ours: Option<f64>,
    pub(crate) theirs: Option<f64>,
    #[serde(flatten)]
    pub(crate) compared: Option<Compared>,
    /// Least ratio with which the row passes.
    pub(crate) wanted: f64,
    pub(crate) verdict: Verdict,
}

/// Lower bound of a goodput in a ratio, in Mb/s: less than one message in the measured time.
const MIN_MBPS: f64 = 0.1;

/// Wanted ratio of barriers and sums. A NIC over UDP is a task of its host here, so they run at 0.7 to 0.9 of TCP's speed
/// on two quiet cores. The bound detects changes that make them slower still.
const BEHIND: f64 = 0.4;
/// Wanted ratio of fan-in by tokens to TCP. Messages of 10 KB are sent in datagrams of 1,472 bytes, of which 48 are the
/// frame's header, and senders wait for tokens.
const NEAR: f64 = 0.85;

/// Comparison of a row.
struct Comparison {
    question: Question,
    what: &'static str,
    unit: &'static str,
    ours: Contest,
    theirs: Contest,
    /// True if more is better.
    more: bool,
    /// Least ratio with which the row passes.
    wanted: f64,
}

/// Returns the comparisons of all rows. The bounds are the same on one host and across several.
fn comparisons() -> Vec<Comparison> {
    use Contest::{Barrier, Bulk, FanIn, FanInUdp, FanInWarp, Fresh, Latency, Sum};
    use Side::{Ours, Theirs};
    let compare = |question, what, unit, [ours, theirs]: [Contest; 2], wanted| {
        // Times are better if they are less.
        let more = unit == "Mb/s";
        Comparison { question, what, unit, ours, theirs, more, wanted }
    };
    let fan_in = |what, sides, wanted| compare(Question::FanIn, what, "Mb/s", sides, wanted);
    let latency = [Latency(Ours), Latency(Theirs)];
    let (fresh, sum) = ([Fresh(Ours), Fresh(Theirs)], [Sum(Ours), Sum(Theirs)]);
    let barrier = [Barrier(Ours), Barrier(Theirs)];
    let bulk = "bulk, 4 MiB by plan, compared with 64 KiB pieces";
    vec![
        compare(
            Question::Latency,
            "request and reply, 64 B, compared with TCP",
            "us",
            latency,
            1.0,
        ),
        fan_in("fan-in by tokens, 10 KB, compared with UDP", [FanIn(Ours), FanInUdp], 1.5),
        fan_in("fan-in by tokens, 10 KB, compared with TCP", [FanIn(Ours), FanIn(Theirs)], NEAR),
        fan_in("fan-in by Warp, 10 KB, compared with UDP", [FanInWarp, FanInUdp], 1.5),
        compare(Question::Bulk, bulk, "ms", [Bulk, Bulk], 1.0),
        compare(Question::Fresh, "age of others' state, compared with TCP", "ms", fresh, 2.0),
        compare(Question::Together, "barrier on NICs, compared with TCP", "us", barrier, BEHIND),
        compare(Question::Together, "sum of all on NICs, compared with TCP", "us", sum, BEHIND),
        #[cfg(target_os = "linux")]
        compare(
            Question::Job,
            "preempted job of 4 ranks moved, compared with begun anew",
            "ms",
            [Contest::Job, Contest::Job],
            1.0,
        ),
    ]
}

/// Waits for the other ranks, measures everything, and returns the rows.
///
/// # Errors
/// One line that names a missing or lost rank.
pub(crate) async fn measure_all(
    arguments: &Arguments,
    peers: &[SocketAddr],
) -> Result<Vec<Row>, Failure> {
    let ip = peers[0].ip();
    let (listener, here) = control::listen(peers[0]).await?;
    // The peers' own ports are not bound yet: they may be among the free ones.
    let mut free = free_at(ip, peers.len() + 1).map_err(Failure::of_run)?;
    free.retain(|address| !peers.contains(address));
    let switch = free.remove(0);
    let _narrow = start_switch(switch, peers, here).map_err(Failure::of_run)?;
    let wait = Duration::from_secs(arguments.wait);
    let mut meeting = Meeting::start(0, peers, wait).await?;
    let cluster = Cluster {
        name: format!("midplane-cluster-{}", std::process::id()),
        peers: peers.to_vec(),
        listeners: meeting.gather_all(&here, wait).await?,
        switch,
        is_one_host: peers.iter().all(|peer| peer.ip() == ip),
        seed: arguments.seed,
        milliseconds: arguments.milliseconds,
    };
    meeting.gather_all(&Some(&cluster).cloned(), wait).await?;
    let site = Site { rank: 0, cluster: &cluster, listener: &listener };
    Rounds::new(arguments, meeting, &site).run().await
}

fn start_switch(at: SocketAddr, peers: &[SocketAddr], target: SocketAddr) -> Result<Peer, String> {
    let list: Vec<SocketAddr> = std::iter::once(at).chain(peers.iter().copied()).collect();
    Peer::start(&[format!("--serve-switch={target}"), "--peers=-".into()], &list)
}

/// State of the measurements.
struct Rounds<'a> {
    arguments: &'a Arguments,
    meeting: Meeting,
    site: &'a Site<'a>,
    /// Number of the next contest.
    number: u32,
    bar: ProgressBar,
}

impl<'a> Rounds<'a> {
    fn new(arguments: &'a Arguments, meeting: Meeting, site: &'a Site<'a>) -> Self {
        let bar = report::progress(0, "{bar:30} {pos}/{len} {msg}");
        Self { arguments, meeting, site, number: 0, bar }
    }

    async fn run(mut self) -> Result<Vec<Row>, Failure> {
        let mut asked = comparisons();
        asked.retain(|comparison| self.arguments.asks(comparison.question));
        let rounds = self.arguments.rounds as usize;
        self.bar.set_length((asked.len() * rounds) as u64);
        let mut asked: Vec<_> = asked.into_iter().map(|asked| (asked, Vec::new())).collect();
        for round in 0..rounds {
            self.measure(asked.iter_mut(), round).await?;
        }
        // A row that is missed or unclear is judged by three times as many rounds.
        let mut rows: Vec<Row> =
            asked.iter().map(|(asked, pairs)| row(asked, pairs, rounds)).collect();
        let open = rows.iter().filter(|row| row.verdict.is_open()).count();
        self.bar.inc_length((open * 2 * rounds) as u64);
        for round in rounds..3 * rounds {
            let open = asked.iter_mut().zip(&rows).filter(|(_, row)| row.verdict.is_open());
            self.measure(open.map(|(asked, _)| asked), round).await?;
        }
        for (old, (asked, pairs)) in rows.iter_mut().zip(&asked) {
            if old.verdict.is_open() {
                *old = row(asked, pairs, 3 * rounds);
            }
        }
        self.bar.finish_and_clear();
        Ok(rows)
    }

    /// Measures each of these comparisons once.
    async fn measure<'b>(
        &mut self,
        asked: impl Iterator<Item = &'b mut (Comparison, Vec<(f64, f64)>)>,
        round: usize,
    ) -> Result<(), Failure> {
        for (comparison, pairs) in asked {
            self.bar.set_message(comparison.what);
            match self.pair(comparison, round).await? {
                Ok(pair) => pairs.push(pair),
                Err(why) => self.bar.suspend(|| eprintln!("{}: {why}", comparison.what)),
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    /// Measures both sides of a comparison once, in every other round theirs before ours. The inner error is of this pair
    /// alone.
    async fn pair(
        &mut self,
        comparison: &Comparison,
        round: usize,
    ) -> Result<Result<(f64, f64), String>, Failure> {
        let (ours, theirs) = (comparison.ours, comparison.theirs);
        if ours == theirs {
            return Ok(self.contest(ours).await?.and_then(|both| match both[..] {
                [ours, theirs] => Ok((ours, theirs)),
                _ => Err("there is no number".into()),
            }));
        }
        let turns = if round.is_multiple_of(2) { [ours, theirs] } else { [theirs, ours] };
        let first =
            |numbers: Vec<f64>| numbers.first().copied().ok_or_else(|| "there is no number".into());
        let before = self.contest(turns[0]).await?.and_then(first);
        let after = self.contest(turns[1]).await?.and_then(first);
        Ok(before.and_then(|before| {
            after.map(|after| if turns[0] == ours { (before, after) } else { (after, before) })
        }))
    }

    async fn contest(&mut self, contest: Contest) -> Result<Result<Vec<f64>, String>, Failure> {
        self.number += 1;
        control::contest(&mut self.meeting, self.site, contest, self.number).await
    }
}

fn row(comparison: &Comparison, pairs: &[(f64, f64)], rounds: usize) -> Row {
    let compare = |&(ours, theirs): &(f64, f64)| match comparison.more {
        true => (ours / theirs.max(MIN_MBPS), theirs.max(MIN_MBPS)),
        false => (theirs / ours, theirs),
    };
    let compared = Compared::of(&pairs.iter().map(compare).collect::<Vec<_>>());
    let is_whole = pairs.len() == rounds;
    let verdict = compared.filter(|_| is_whole).map(|found| found.verdict(comparison.wanted));
    let known = |values: Vec<f64>| Some(median(values)).filter(|value| value.is_finite());
    Row {
        what: comparison.what,
        unit: comparison.unit,
        ours: known(pairs.iter().map(|pair| pair.0).collect()),
        theirs: known(pairs.iter().map(|pair| pair.1).collect()),
        compared,
        wanted: comparison.wanted,
        verdict: verdict.unwrap_or(Verdict::NoNumber),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    rows: &'a [Row],
}

/// Prints the report, and returns the exit code.
pub(crate) fn finish(arguments: &Arguments, rows: &[Row], watch: &Watch) -> u8 {
    report::print_document(arguments.json, &Document { rows }, text);
    claims::exit(&rows.iter().map(|row| row.verdict).collect::<Vec<_>>(), watch)
}

fn text(document: &Document<'_>) -> String {
    let number =
        |value: f64| if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    let known = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    let cells = |row: &Row| {
        let ends = |found: Compared| {
            format!("{} - {}", number(found.lowest_ratio), number(found.highest_ratio))
        };
        vec![
            row.what.into(),
            row.unit.into(),
            known(row.ours),
            known(row.theirs),
            known(row.compared.map(|found| found.ratio)),
            row.compared.map_or_else(|| "-".into(), ends),
            row.wanted.to_string(),
            row.verdict.text().into(),
        ]
    };
    let titles = "what, unit, ours, theirs, ratio, lowest - highest, wanted,";
    report::table(titles, document.rows.iter().map(cells))
}
