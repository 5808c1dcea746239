//! Installs extensions on a cluster of running nodes, and looks after them.

mod demo;
#[path = "../common/orders.rs"]
mod orders;

use midplane_kit::{command_line, processes, report};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use midplane::nicvm::install::MAX_MODULE;
use orders::{Answer, MAX_LINE, Order};

const EXAMPLES: &str = "\
Examples:
  # All of it, on six nodes that it starts and ends itself
  nicctl

  # The same with WebAssembly: examples `node` and `nicctl` are built with --features wasm for it
  nicctl --sandboxed

  # A module under number 16, everywhere at once
  nicctl --node 127.0.0.1:24700 install 16 limiter.wat --policy roll-back

  # The version before, everywhere at once
  nicctl --node 127.0.0.1:24700 roll-back 16

Exit code: 0 done; 1 a node refused, is gone, or did not do what it should; 2 bad input.";

/// Installs extensions on a cluster of running nodes: on all or on none.
///
/// Any node takes the order and coordinates. Numbers from 16 on are free for extensions of yours.
#[derive(Debug, Parser)]
#[command(name = "nicctl", version, after_help = EXAMPLES)]
struct Arguments {
    /// A node, as host:port
    #[arg(long, global = true, value_name = "HOST:PORT")]
    node: Option<String>,
    /// Print one JSON document
    #[arg(long, global = true)]
    json: bool,
    /// Without an order: the modules of the demonstration are WebAssembly
    #[arg(long)]
    sandboxed: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Install a module on all nodes
    Install {
        /// Its number
        #[arg(value_parser = clap::value_parser!(u8).range(16..))]
        number: u8,
        /// The module, up to 64 KiB
        file: PathBuf,
        /// What follows when it fails on a node: deactivate, roll-back, restart
        #[arg(long, default_value = "deactivate", value_parser = ["deactivate", "roll-back", "restart"])]
        policy: String,
    },
    /// Go back to the version before, on all nodes
    RollBack {
        /// Its number
        number: u8,
    },
    /// Take an extension down, on all nodes
    Quarantine {
        /// Its number
        number: u8,
    },
    /// What is installed on the node
    List,
    /// How often the node's extensions were called
    Counters,
    /// Give an extension of the node a command
    Call {
        /// Its number
        number: u8,
        /// Which of its commands
        opcode: u8,
        /// The other node
        #[arg(long, default_value_t = 0)]
        to: u16,
        /// Up to three numbers
        #[arg(num_args = 0..=3)]
        args: Vec<u64>,
    },
}

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let Some(what) = &arguments.what else {
        if arguments.node.is_some() {
            return report::fail("--node: say which order it takes; see --help", report::BAD_INPUT);
        }
        return demo::run(arguments.json, arguments.sandboxed);
    };
    let Some(node) = &arguments.node else {
        return report::fail("--node: say which node takes the order", report::BAD_INPUT);
    };
    let Some(address) = node.to_socket_addrs().ok().and_then(|mut found| found.next()) else {
        return report::fail(
            &format!("--node {node}: it must be host:port with a host that resolves"),
            report::BAD_INPUT,
        );
    };
    let (order, module) = match order(what) {
        Ok(order) => order,
        Err(error) => return report::fail(&error, report::BAD_INPUT),
    };
    match send(address, &order, &module) {
        Ok(answer) => {
            if arguments.json {
                report::print_json(&answer);
            } else {
                report::say(&text(what, &answer));
            }
            ExitCode::from(if answer.status == "done" { 0 } else { report::DID_NOT_HOLD })
        }
        Err(error) => report::fail(&error, report::DID_NOT_HOLD),
    }
}

fn order(what: &What) -> Result<(Order, Vec<u8>), String> {
    let order = match what.clone() {
        What::Install { number, file, policy } => {
            let name = file.display();
            let module = std::fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
            if module.is_empty() || module.len() > MAX_MODULE {
                return Err(format!("{name}: a module has from 1 to {MAX_MODULE} bytes"));
            }
            let order = Order::Install { number, policy, bytes: module.len() };
            return Ok((order, module));
        }
        What::RollBack { number } => Order::RollBack { number },
        What::Quarantine { number } => Order::Quarantine { number },
        What::List | What::Counters => Order::List,
        What::Call { number, opcode, to, args: given } => {
            let mut args = [0; 3];
            args[..given.len()].copy_from_slice(&given);
            Order::Call { number, opcode, to, args }
        }
    };
    Ok((order, Vec::new()))
}

/// Gives a node an order, and waits for its answer.
///
/// # Errors
/// One line that names the node.
pub(crate) fn send(address: SocketAddr, order: &Order, module: &[u8]) -> Result<Answer, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => {
            format!("node {address}: nobody listens; start `node` there")
        }
        _ => format!("node {address}: {error}"),
    };
    let mut stream =
        TcpStream::connect_timeout(&address, Duration::from_secs(3)).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(15))).map_err(failed)?;
    let mut line = serde_json::to_string(order).expect("plain data");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(failed)?;
    stream.write_all(module).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE)).read_line(&mut line).map_err(failed)?;
    serde_json::from_str(&line).map_err(|error| format!("node {address}: not an answer: {error}"))
}

/// An answer, to read.
fn text(what: &What, answer: &Answer) -> String {
    let why = answer.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
    if let Some(who) = answer.refused_by {
        return format!("refused by node {who}{why}\n");
    }
    if answer.status != "done" {
        return format!("{}{why}\n", answer.status);
    }
    match what {
        What::List | What::Counters => {
            let mut text = format!("node {}\n", answer.node);
            for line in &answer.installed {
                let state = if line.is_down { "down" } else { "runs" };
                text += &format!("  {:>3}  version {:<4} {state}  ", line.number, line.epoch);
                text += &if matches!(what, What::List) {
                    let former = if line.has_former { ", can go back" } else { "" };
                    format!("{}{former}\n", &line.sha256[..16])
                } else {
                    format!(
                        "{} commands, {} control messages, {} frames, {} timeouts, {} failures\n",
                        line.commands,
                        line.control_messages,
                        line.frames,
                        line.timeouts,
                        line.failures
                    )
                };
            }
            text
        }
        What::Call { .. } => {
            let words = answer.words.unwrap_or_default();
            format!("done: length {}, words {words:?}\n", answer.length.unwrap_or_default())
        }
        What::Quarantine { .. } => "down on all nodes\n".into(),
        What::Install { .. } | What::RollBack { .. } => {
            let (epoch, nodes) =
                (answer.epoch.unwrap_or_default(), answer.nodes.unwrap_or_default());
            format!("version {epoch} runs on {nodes} nodes\n")
        }
    }
}
