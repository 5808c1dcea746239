//! `midplane nic demo`: an extension is installed, upgraded, rolled back and taken down on six nodes; one of them is
//! killed and started again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::orders::{Answer, Order};
use midplane_kit::{processes, report};

use super::control::send;

const NODES: u16 = 6;
const NUMBER: u8 = 16;
/// Timeout for nodes to start, or to carry out an order.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which they are polled.
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize)]
struct Step {
    what: String,
    /// Milliseconds from the order to its answer.
    took_ms: f64,
    /// Version of each node afterwards; none where it is down.
    versions: Vec<Option<u16>>,
    holds: bool,
}

#[derive(Debug, Serialize)]
struct Document {
    nodes: u16,
    sandboxed: bool,
    steps: Vec<Step>,
    holds: bool,
}

/// Process of a node; dropping this kills it.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    program: PathBuf,
    addresses: Vec<SocketAddr>,
    nodes: Vec<Option<Node>>,
    steps: Vec<Step>,
    sandboxed: bool,
}

/// Counter as a WebAssembly module; the word STEP is replaced by the number to add.
const COUNTER: &str = include_str!("counter.wat");

/// Show the life of an extension on six nodes, started and ended by this.
///
/// Installs a counter, upgrades it, rolls it back, kills a node and starts it again, has the extension fail on one node,
/// and takes it down on all.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Install WebAssembly modules: needs a build with the feature wasm
    #[arg(long)]
    sandboxed: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs all steps, with modules that are sandboxed or built into the nodes.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    let &Arguments { sandboxed, json } = arguments;
    match play(sandboxed) {
        Ok(steps) => {
            let holds = steps.iter().all(|step| step.holds);
            if json {
                report::print_json(&Document { nodes: NODES, sandboxed, steps, holds });
            } else {
                for step in &steps {
                    let mark = if step.holds { "" } else { "  FAILED" };
                    let versions: Vec<String> = step
                        .versions
                        .iter()
                        .map(|v| v.map_or("-".into(), |v| v.to_string()))
                        .collect();
                    report::print(&format!(
                        "{:<52}{:>9.1} ms   versions {}{mark}\n",
                        step.what,
                        step.took_ms,
                        versions.join(" ")
                    ));
                }
            }
            ExitCode::from(if holds { 0 } else { report::FAILED })
        }
        Err(error) => report::fail(&error, report::FAILED),
    }
}

fn play(sandboxed: bool) -> Result<Vec<Step>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let addresses = processes::free_addresses(NODES.into())?;
    let nodes = (0..NODES).map(|_| None).collect();
    let mut cluster = Cluster { program, addresses, nodes, steps: Vec::new(), sandboxed };
    for rank in 0..NODES {
        cluster.start(rank)?;
    }
    cluster.wait_for_all()?;
    cluster.upgrade()?;
    cluster.go_back()?;
    cluster.lose_a_node()?;
    cluster.fail()?;
    Ok(cluster.steps)
}

/// The steps, in order; each starts from the state that the one before it left.
impl Cluster {
    /// Returns a module that counts by `step`.
    fn counter(&self, step: u8) -> String {
        match self.sandboxed {
            true => COUNTER.replace("STEP", &step.to_string()),
            false => format!("native: counter {step}"),
        }
    }

    /// Installs a module, and a later version that continues from the former's state.
    fn upgrade(&mut self) -> Result<(), String> {
        self.step(
            "counter by 1, through node 0",
            0,
            &install(&self.counter(1)),
            |a| a.epoch == Some(1),
            &[Some(1); 6],
        )?;
        self.step(
            "a command to node 1, which notifies node 2",
            1,
            &call(1, 2),
            |a| a.length == Some(1),
            &[Some(1); 6],
        )?;
        self.step(
            "upgrade to a counter by 10, through node 3",
            3,
            &install(&self.counter(10)),
            |a| a.epoch == Some(2),
            &[Some(2); 6],
        )?;
        self.step(
            "node 1 continues from 1",
            1,
            &call(1, 4),
            |a| a.length == Some(11),
            &[Some(2); 6],
        )
    }

    /// Rolls back to the version before, and sends a file that is no module, which is refused.
    fn go_back(&mut self) -> Result<(), String> {
        self.step(
            "rolled back, through node 5",
            5,
            &(Order::RollBack { number: NUMBER }, String::new()),
            |a| a.epoch == Some(3),
            &[Some(3); 6],
        )?;
        self.step(
            "node 1 continues from 11, by 1",
            1,
            &call(1, 2),
            |a| a.length == Some(12),
            &[Some(3); 6],
        )?;
        self.step(
            "a file that is no module is refused",
            2,
            &install(if self.sandboxed { "(module)" } else { "native: nonsense" }),
            |a| a.status == "refused",
            &[Some(3); 6],
        )
    }

    /// Kills a node, upgrades the others, and starts it again.
    fn lose_a_node(&mut self) -> Result<(), String> {
        self.nodes[4] = None;
        let five = [Some(4), Some(4), Some(4), Some(4), None, Some(4)];
        self.step(
            "node 4 is killed; the other five upgrade without it",
            0,
            &install(&self.counter(100)),
            |a| a.nodes == Some(5),
            &five,
        )?;
        self.start(4)?;
        self.wait_for_all()?;
        let listed = (Order::List, String::new());
        self.step(
            "node 4 is restarted, and has the others' version",
            4,
            &listed,
            |a| a.status == "done",
            &[Some(4); 6],
        )
    }

    /// Has the extension fail on one node, and takes it down on all.
    fn fail(&mut self) -> Result<(), String> {
        self.step(
            "the extension fails on node 2 alone",
            2,
            &call(3, 0),
            |a| a.status == "extension-down",
            &[Some(4), Some(4), None, Some(4), Some(4), Some(4)],
        )?;
        self.step(
            "taken down on all nodes",
            1,
            &(Order::Quarantine { number: NUMBER }, String::new()),
            |a| a.status == "done",
            &[None; 6],
        )
    }
}

fn install(module: &str) -> (Order, String) {
    let (policy, bytes) = ("deactivate".to_owned(), module.len());
    (Order::Install { number: NUMBER, policy, bytes }, module.to_owned())
}

fn call(opcode: u8, to: u16) -> (Order, String) {
    (Order::Call { number: NUMBER, opcode, to, args: [0; 3] }, String::new())
}

impl Cluster {
    fn start(&mut self, rank: u16) -> Result<(), String> {
        let mut child = Command::new(&self.program)
            .args(["nic", "node", "--rank", &rank.to_string(), "--peers", "-", "--child"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("starting a node: {error}"))?;
        let list: String = self.addresses.iter().map(|address| format!("{address}\n")).collect();
        if let Some(input) = &mut child.stdin {
            use std::io::Write;
            // A node that has exited does not answer, which `wait_for_all` reports.
            let _ = input.write_all(format!("{list}\n").as_bytes());
        }
        self.nodes[usize::from(rank)] = Some(Node(child));
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "real processes take real time")]
    fn wait_for_all(&self) -> Result<(), String> {
        let until = Instant::now() + TIMEOUT;
        for address in &self.addresses {
            while send(*address, &Order::List, &[]).is_err() {
                if Instant::now() > until {
                    return Err(format!("node {address} did not start within {TIMEOUT:?}"));
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Gives a node an order, and waits until all nodes run the expected versions. A refused order has changed nothing,
    /// and is given again: the nodes may not have noticed yet which of them are up.
    #[expect(clippy::disallowed_methods, reason = "it measures time")]
    fn step(
        &mut self,
        what: &str,
        node: usize,
        (order, module): &(Order, String),
        is_right: impl Fn(&Answer) -> bool,
        expected: &[Option<u16>],
    ) -> Result<(), String> {
        let begun = Instant::now();
        let answer = loop {
            let answer = send(self.addresses[node], order, module.as_bytes())?;
            let may_pass = answer.refused_by.is_some() && begun.elapsed() < TIMEOUT;
            if is_right(&answer) || !may_pass {
                break answer;
            }
            std::thread::sleep(POLL);
        };
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        // Nodes other than the coordinator receive the outcome a moment later.
        let mut versions = self.versions();
        while versions != expected && begun.elapsed() < TIMEOUT {
            std::thread::sleep(POLL);
            versions = self.versions();
        }
        let holds = is_right(&answer) && versions == expected;
        self.steps.push(Step { what: what.into(), took_ms, versions, holds });
        Ok(())
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
