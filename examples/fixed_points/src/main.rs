//! Page rank and shortest paths by processes that iterate asynchronously.
//!
//! ```text
//! cargo run -p fixed_points -- page-rank
//! cargo run -p fixed_points -- shortest-paths --to home roads.txt --ranks 8 --json
//! ```

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use fixed_points::graph::Graph;
use fixed_points::page_rank::PageRank;
use fixed_points::ranks::{collect, work};
use fixed_points::shortest_paths::ShortestPaths;
use midplane::warp::iterate::FixedPoint;
use midplane::{Node, time};
use serde::Serialize;
use tokio::time::Instant;

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Largest distance of an accepted page rank from its update, on the scale on which a page without links to it has 1.
const TOLERANCE: f64 = 1e-10;
/// Lines of the table of results.
const LINES: usize = 20;

const EXAMPLES: &str = "\
Examples:
  # The built-in graph of nine pages, by four processes
  fixed_points page-rank

  # Distances to one node of a graph from a file, with an edge `from to length` a line
  fixed_points shortest-paths --to home roads.txt --ranks 8 --json

Exit code: 0 the answer was found and checked; 1 a rank was lost, or the time limit passed; 2 bad input.";

/// Solve x = F(x) on a graph by asynchronous iteration
///
/// Starts ranks as processes of this host. Each computes some nodes of the graph from the latest values that it has of the
/// others, and waits for none. Lines of the file are `from to weight`; without a weight it is 1, and # begins a comment.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, arg_required_else_help = false)]
struct Arguments {
    #[command(subcommand)]
    problem: Problem,
}

#[derive(Subcommand)]
enum Problem {
    /// Rank pages by the links between them
    PageRank(Run),
    /// Find the distance of every node to one node
    ShortestPaths {
        /// Name of the node to which the paths lead
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        run: Run,
    },
}

#[derive(Args)]
struct Run {
    /// File of the graph; a small one is built in
    file: Option<PathBuf>,
    /// Processes, 1 to 64, at most one for each node
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Time limit in seconds, 1 to 3600
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Work as this rank until the input ends, and do nothing else
    #[arg(long, hide = true)]
    rank: Option<u16>,
}

/// The answer as it is printed.
#[derive(Serialize)]
struct Report {
    ranks: u16,
    seconds: f64,
    /// Largest distance of a value from its update.
    residual: f64,
    /// Value of each node: its page rank, or its distance, `null` without a path.
    values: Vec<(String, f64)>,
}

impl Report {
    /// Prints the report. A closed pipe ends the output.
    fn print(&self, json: bool) -> Result<(), Fail> {
        let text = if json { serde_json::to_string(self)? + "\n" } else { self.text() };
        match std::io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn text(&self) -> String {
        let lines = self.values.iter().take(LINES);
        let mut text: String =
            lines.map(|(name, value)| format!("{value:12.6}  {name}\n")).collect();
        if self.values.len() > LINES {
            text += &format!("... and {} more; --json prints all\n", self.values.len() - LINES);
        }
        text + &format!("found by {} ranks in {:.2} s\n", self.ranks, self.seconds)
    }
}

fn start(rank: u16, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).args(["--rank", &rank.to_string()]);
    Ok(command.env("MIDPLANE_CLUSTER", cluster).stdin(Stdio::piped()).spawn()?)
}

/// Returns an error once one of the ranks has ended.
async fn lost(ranks: &mut [Child]) -> Fail {
    loop {
        for (number, rank) in ranks.iter_mut().enumerate() {
            if let Ok(Some(status)) = rank.try_wait() {
                return format!("rank {number} was lost: {status}").into();
            }
        }
        time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the answer to `problem` and its residual: starts the ranks, and collects their values. A process with
/// `--rank` is one of them, and has no answer.
async fn solve(run: &Run, problem: impl FixedPoint, most: f64) -> Result<(Vec<f64>, f64), Fail> {
    if let Some(rank) = run.rank {
        // Exits with the process that started it, which holds the input open.
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        });
        let node = Node::builder().name(format!("rank-{rank}")).start().await?;
        work(&node, problem, rank.into(), run.ranks.into()).await?;
        return Err("the node was shut down".into());
    }
    let cluster = format!("fixed-points-{}", std::process::id());
    let ranks = (0..run.ranks).map(|rank| start(rank, &cluster));
    let mut ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let node = Node::builder().cluster(&cluster).name("collector").start().await?;
    let collected = collect(&node, &problem, most);
    let answer = tokio::select! {
        answer = time::timeout(Duration::from_secs(run.seconds), collected) => answer,
        lost = lost(&mut ranks) => return Err(lost),
    };
    let late = |_| format!("no answer within {} s; give more --seconds", run.seconds);
    Ok(answer.map_err(late)??.ok_or("the node was shut down")?)
}

impl Problem {
    const fn run(&self) -> &Run {
        let (Self::PageRank(run) | Self::ShortestPaths { run, .. }) = self;
        run
    }

    /// Reads the graph, and returns it with the number of the target node; 0 if the problem has none.
    fn read(&self) -> Result<(Graph, usize), String> {
        let run = self.run();
        let graph = Graph::read(run.file.as_deref())?;
        let nodes = graph.names.len();
        if usize::from(run.ranks) > nodes {
            let ranks = run.ranks;
            return Err(format!("--ranks {ranks}: give at most {nodes}, the number of nodes"));
        }
        if let Some(rank) = run.rank.filter(|rank| *rank >= run.ranks) {
            return Err(format!("--rank {rank}: give a number below --ranks, {}", run.ranks));
        }
        let target = match self {
            Self::PageRank(_) => 0,
            Self::ShortestPaths { to, .. } => {
                graph.find(to).map_err(|error| format!("--to {error}"))?
            }
        };
        Ok((graph, target))
    }

    async fn answer(&self, graph: Graph, target: usize) -> Result<(), Fail> {
        let (began, run) = (Instant::now(), self.run());
        let (values, residual) = match self {
            Self::PageRank(_) => {
                let (values, residual) = solve(run, PageRank::new(&graph), TOLERANCE).await?;
                (PageRank::normalized(values), residual)
            }
            Self::ShortestPaths { .. } => {
                solve(run, ShortestPaths::new(&graph, target), 0.0).await?
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        let mut values: Vec<(String, f64)> = graph.names.into_iter().zip(values).collect();
        values.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        if matches!(self, Self::PageRank(_)) {
            values.reverse();
        }
        Report { ranks: run.ranks, seconds, residual, values }.print(run.json)
    }
}

/// Prints one line with an error, and returns the exit code.
fn fail(error: impl std::fmt::Display, code: u8) -> ExitCode {
    let error = error.to_string();
    eprintln!("error: {}", error.trim_start_matches("error: ").lines().next().unwrap_or_default());
    ExitCode::from(code)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let problem = match Arguments::try_parse() {
        Err(bad) if bad.use_stderr() => return fail(bad.to_string().replace("\n  ", " "), 2),
        parsed => parsed.unwrap_or_else(|help| help.exit()).problem,
    };
    let (graph, target) = match problem.read() {
        Err(bad) => return fail(bad, 2),
        Ok(read) => read,
    };
    let ended = problem.answer(graph, target).await;
    ended.map_or_else(|error| fail(error, 1), |()| ExitCode::SUCCESS)
}
