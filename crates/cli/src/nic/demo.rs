//! `midplane nic demo`: an extension is installed, upgraded, rolled back and taken down on six nodes; one of them is
//! killed and started again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use midplane_kit::processes::{self, Peer};
use midplane_kit::report::{self, FAILED, Failure, print_document};
use serde::Serialize;

use super::control::send;
use super::orders::{Order, PolicyName};
use super::serve::start;

use Action::{Call, Install, InstallText, Kill, Quarantine, Restart, RollBack};

const NODES: usize = 6;
const NUMBER: u8 = 16;
/// Node that is killed and started again.
const KILLED: usize = 4;
/// Timeout for nodes to start, or to carry out an order.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which they are polled.
const POLL: Duration = Duration::from_millis(20);
/// Counter as a WebAssembly module; the word STEP is replaced by the number to add.
const COUNTER: &str = include_str!("counter.wat");

const EXAMPLES: &str = "\
Example:
  midplane nic demo

Exit code: 0 all steps did what they should; 1 one did not, and was the last; 2 bad input.";

const NO_WASM: &str = "--sandboxed needs a build with WebAssembly: cargo run --release -p midplane-cli --features wasm -- \
                       nic demo --sandboxed";

/// Show the versions of an extension on six nodes, which this command starts and ends.
///
/// Installs a counter, upgrades it, rolls it back, kills a node and starts it again, has the extension fail on one node,
/// and takes it down on all.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Install WebAssembly modules: needs a build with the feature wasm
    #[arg(long)]
    sandboxed: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Action of a step.
#[derive(Clone, Copy)]
enum Action {
    /// Installs a counter by this number.
    Install(u8),
    /// Installs a file that is no module.
    InstallText,
    RollBack,
    /// Sends the command of this number, about a node.
    Call(u8, u16),
    /// Kills a node, and installs a counter by this number on the others.
    Kill(u8),
    /// Starts the node again, and lists its extensions.
    Restart,
    Quarantine,
}

/// A step: its title, the node that receives its order, the order, a field of the expected answer with its value, and
/// each node's version of the extension afterwards, or "-" where it is down.
type Step = (&'static str, usize, Action, (&'static str, &'static str), &'static str);

/// The steps; each starts from the state that the one before it left.
const STEPS: [Step; 11] = [
    ("counter by 1, through node 0", 0, Install(1), ("epoch", "1"), "1 1 1 1 1 1"),
    ("a command to node 1 notifies node 2", 1, Call(1, 2), ("length", "1"), "1 1 1 1 1 1"),
    ("upgrade to a counter by 10, by node 3", 3, Install(10), ("epoch", "2"), "2 2 2 2 2 2"),
    ("node 1 continues from 1", 1, Call(1, 4), ("length", "11"), "2 2 2 2 2 2"),
    ("rolled back, through node 5", 5, RollBack, ("epoch", "3"), "3 3 3 3 3 3"),
    ("node 1 continues from 11, by 1", 1, Call(1, 2), ("length", "12"), "3 3 3 3 3 3"),
    ("a file that is no module", 2, InstallText, ("status", "\"refused\""), "3 3 3 3 3 3"),
    ("node 4 is killed, others upgrade", 0, Kill(100), ("nodes", "5"), "4 4 4 4 - 4"),
    ("node 4 restarts, and upgrades", KILLED, Restart, ("status", "\"done\""), "4 4 4 4 4 4"),
    ("fails on node 2", 2, Call(3, 0), ("status", "\"extension-down\""), "4 4 - 4 4 4"),
    ("taken down on all nodes", 1, Quarantine, ("status", "\"done\""), "- - - - - -"),
];

#[derive(Debug, Serialize)]
struct Done {
    what: &'static str,
    /// Milliseconds from the order to its answer.
    took_ms: f64,
    /// Version of each node afterwards; none where it is down.
    versions: Vec<Option<u16>>,
    holds: bool,
    /// Reason why the step failed.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Document {
    nodes: usize,
    sandboxed: bool,
    steps: Vec<Done>,
    holds: bool,
}

/// Runs the steps until one fails, with modules that are sandboxed or built into the nodes.
pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.sandboxed && !cfg!(feature = "wasm") {
        return Err(NO_WASM.to_owned().into());
    }
    let addresses = processes::free_addresses(NODES).map_err(Failure::of_run)?;
    let nodes = (0..NODES).map(|rank| start(rank, &addresses)).collect::<Result<Vec<_>, _>>()?;
    let mut cluster = Cluster { addresses, nodes, sandboxed: arguments.sandboxed };
    cluster.wait_for_all()?;
    let (mut steps, mut holds) = (Vec::new(), true);
    for step in STEPS.iter() {
        let done = cluster.run(step)?;
        holds = done.holds;
        steps.push(done);
        // Each step starts from the state that the one before it left.
        if !holds {
            break;
        }
    }
    let document = Document { nodes: NODES, sandboxed: arguments.sandboxed, steps, holds };
    print_document(arguments.json, &document, text);
    Ok(if holds { 0 } else { FAILED })
}

fn text(document: &Document) -> String {
    let rows = document.steps.iter().map(|step| {
        let mark = step.why.as_ref().map_or(String::new(), |why| format!("FAILED: {why}"));
        vec![step.what.into(), format!("{:.1}", step.took_ms), line(&step.versions), mark]
    });
    report::table("step, ms, versions,", rows)
}

fn line(versions: &[Option<u16>]) -> String {
    let words = versions.iter().map(|version| version.map_or("-".into(), |v| v.to_string()));
    words.collect::<Vec<_>>().join(" ")
}

struct Cluster {
    addresses: Vec<SocketAddr>,
    nodes: Vec<Peer>,
    sandboxed: bool,
}

impl Cluster {
    /// Does what precedes an action's order, and returns the order with its module.
    fn prepare(&mut self, action: Action) -> Result<(Order, String), Failure> {
        let install = |module: String| {
            let (policy, bytes) = (PolicyName::Deactivate, module.len());
            (Order::Install { number: NUMBER, policy, bytes }, module)
        };
        let without_module = |order| (order, String::new());
        Ok(match action {
            Install(step) if self.sandboxed => install(COUNTER.replace("STEP", &step.to_string())),
            Install(step) => install(format!("native: counter {step}")),
            InstallText if self.sandboxed => install("(module)".into()),
            InstallText => install("native: nonsense".into()),
            Kill(step) => {
                self.nodes[KILLED].kill();
                return self.prepare(Install(step));
            }
            Restart => {
                self.nodes[KILLED] = start(KILLED, &self.addresses)?;
                self.wait_for_all()?;
                without_module(Order::List)
            }
            RollBack => without_module(Order::RollBack { number: NUMBER }),
            Quarantine => without_module(Order::Quarantine { number: NUMBER }),
            Call(opcode, to) => {
                without_module(Order::Call { number: NUMBER, opcode, to, args: [0; 3] })
            }
        })
    }

    /// Waits until all nodes answer.
    #[expect(clippy::disallowed_methods, reason = "real processes take real time")]
    fn wait_for_all(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + TIMEOUT;
        for (address, node) in self.addresses.iter().zip(&mut self.nodes) {
            while send(*address, &Order::List, &[]).is_err() {
                if let Some(what) = node.complaint() {
                    return Err(Failure::of_run(format!("node {address}: {what}")));
                }
                if Instant::now() > until {
                    let what = format!("node {address} did not start within {TIMEOUT:?}");
                    return Err(Failure::of_run(what));
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Sends a node an order, and waits until all nodes run the expected versions. A refused order has changed nothing,
    /// and is sent again: the nodes may not have detected yet which of them are up.
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    fn run(&mut self, &(what, node, action, right, expected): &Step) -> Result<Done, Failure> {
        let (order, module) = self.prepare(action)?;
        let begun = Instant::now();
        let wrong = loop {
            let answer = send(self.addresses[node], &order, module.as_bytes())?;
            let may_pass = answer.refused_by.is_some() && begun.elapsed() < TIMEOUT;
            let fields = serde_json::to_value(&answer).expect("plain data");
            let field = fields[right.0].to_string();
            if field == right.1 {
                break None;
            }
            if !may_pass {
                let what = || format!("{} is {field}, not {}", right.0, right.1);
                break Some(answer.why.unwrap_or_else(what));
            }
            std::thread::sleep(POLL);
        };
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        // Nodes other than the coordinator receive the outcome a moment later.
        let mut versions = self.versions();
        while wrong.is_none() && line(&versions) != expected && begun.elapsed() < TIMEOUT {
            std::thread::sleep(POLL);
            versions = self.versions();
        }
        let differ = || format!("the versions are not {expected}");
        let why = wrong.or_else(|| (line(&versions) != expected).then(differ));
        Ok(Done { what, took_ms, versions, holds: why.is_none(), why })
    }

    /// Returns the version of each node; `None` where the node or its extension is down.
    fn versions(&self) -> Vec<Option<u16>> {
        let of = |address: &SocketAddr| {
            let answer = send(*address, &Order::List, &[]).ok()?;
            let line = answer.installed.into_iter().find(|line| line.number == NUMBER)?;
            (!line.is_down).then_some(line.epoch)
        };
        self.addresses.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "wasm"))]
    #[test]
    fn a_build_without_webassembly_refuses_sandboxed_modules_before_it_starts_a_node() {
        let refused = main(&Arguments { sandboxed: true, json: false }).unwrap_err();
        assert!(refused.to_string().contains("--features wasm"), "{refused}");
    }

    /// Regression: a node that could not start was waited for until the time limit, and its error was not printed.
    #[test]
    fn a_node_that_exits_at_its_start_is_reported_with_its_error() {
        let addresses = processes::free_addresses(1).unwrap();
        // The node is this test's own program, which has no such option.
        let node = Peer::start(&["--no-such-option".to_owned()], &addresses).unwrap();
        let mut cluster = Cluster { addresses, nodes: vec![node], sandboxed: false };
        let failure = cluster.wait_for_all().unwrap_err().to_string();
        assert!(!failure.contains("did not start within"), "{failure}");
    }

    #[test]
    fn a_failed_step_names_its_reason() {
        let (versions, why) = (vec![Some(1), None], Some("no module".to_owned()));
        let step = Done { what: "upgrade", took_ms: 1.0, versions, holds: false, why };
        let document = Document { nodes: 2, sandboxed: false, steps: vec![step], holds: false };
        assert!(text(&document).ends_with("upgrade  1.0  1 -       FAILED: no module\n"));
    }
}
