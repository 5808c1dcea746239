//! `midplane nic install` and its like: orders to a running node, which carries each out on all nodes or on none.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use midplane::nicvm::install::MAX_MODULE;
use midplane_kit::report;

use super::orders::{Answer, MAX_LINE, Order};

/// Node that accepts an order.
#[derive(Args, Clone, Debug)]
pub(crate) struct To {
    /// Send the order to this node of the cluster
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:24700")]
    node: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum What {
    /// Install a module on all nodes, or upgrade to it
    Install {
        #[command(flatten)]
        to: To,
        /// Number of the extension, from 16 to 255
        #[arg(value_parser = clap::value_parser!(u8).range(16..))]
        number: u8,
        /// File with the module, up to 64 KiB: WebAssembly, or one line "native: counter 1"
        file: PathBuf,
        /// Choose what a node does when the extension fails there
        #[arg(long, default_value = "deactivate", value_parser = ["deactivate", "roll-back", "restart"])]
        policy: String,
    },
    /// Return to the version before on all nodes
    Rollback {
        #[command(flatten)]
        to: To,
        /// Number of the extension
        number: u8,
    },
    /// Take an extension down on all nodes
    Quarantine {
        #[command(flatten)]
        to: To,
        /// Number of the extension
        number: u8,
    },
    /// List the extensions of a node with their versions
    List(To),
    /// Count the calls to each extension of a node
    Counters(To),
    /// Send a command to an extension of one node
    Call {
        #[command(flatten)]
        to: To,
        /// Number of the extension
        number: u8,
        /// Number of the command
        opcode: u8,
        /// Number of the node that the command is about
        #[arg(long, default_value_t = 0)]
        about: u16,
        /// Arguments of the command, up to three numbers
        #[arg(num_args = 0..=3)]
        args: Vec<u64>,
    },
}

/// Sends an order to a node, and prints its answer.
pub(crate) fn run(what: &What) -> ExitCode {
    let (What::Install { to, .. }
    | What::Rollback { to, .. }
    | What::Quarantine { to, .. }
    | What::List(to)
    | What::Counters(to)
    | What::Call { to, .. }) = what;
    let Some(address) = to.node.to_socket_addrs().ok().and_then(|mut found| found.next()) else {
        let what = format!("--node {}: it must be host:port with a host that resolves", to.node);
        return report::fail(&what, report::BAD_INPUT);
    };
    let (order, module) = match order(what) {
        Ok(order) => order,
        Err(error) => return report::fail(&error, report::BAD_INPUT),
    };
    match send(address, &order, &module) {
        Ok(answer) => {
            if to.json {
                report::print_json(&answer);
            } else {
                report::print(&text(what, &answer));
            }
            ExitCode::from(if answer.status == "done" { 0 } else { report::FAILED })
        }
        Err(error) => report::fail(&error, report::FAILED),
    }
}

fn order(what: &What) -> Result<(Order, Vec<u8>), String> {
    let order = match what.clone() {
        What::Install { number, file, policy, .. } => {
            let name = file.display();
            let module = std::fs::read(&file).map_err(|error| format!("{name}: {error}"))?;
            if module.is_empty() || module.len() > MAX_MODULE {
                return Err(format!("{name}: a module has from 1 to {MAX_MODULE} bytes"));
            }
            let order = Order::Install { number, policy, bytes: module.len() };
            return Ok((order, module));
        }
        What::Rollback { number, .. } => Order::RollBack { number },
        What::Quarantine { number, .. } => Order::Quarantine { number },
        What::List(_) | What::Counters(_) => Order::List,
        What::Call { number, opcode, about, args: given, .. } => {
            let mut args = [0; 3];
            args[..given.len()].copy_from_slice(&given);
            Order::Call { number, opcode, to: about, args }
        }
    };
    Ok((order, Vec::new()))
}

/// Gives a node an order, and waits for its answer.
///
/// # Errors
/// Sends an order with its module to a node, and returns the answer. Waits 3 s to connect and 15 s for the answer.
///
/// # Errors
/// One line that names the node.
pub(crate) fn send(address: SocketAddr, order: &Order, module: &[u8]) -> Result<Answer, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => {
            format!("node {address}: no node listens there; start some with `midplane nic node`")
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

/// Formats an answer as text.
fn text(what: &What, answer: &Answer) -> String {
    let why = answer.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
    if let Some(who) = answer.refused_by {
        return format!("refused by node {who}{why}\n");
    }
    if answer.status != "done" {
        return format!("{}{why}\n", answer.status);
    }
    match what {
        What::List(_) | What::Counters(_) => {
            let mut text = format!("node {}\n", answer.node);
            for line in &answer.installed {
                let state = if line.is_down { "down" } else { "runs" };
                text += &format!("  {:>3}  version {:<4} {state}  ", line.number, line.epoch);
                text += &if matches!(what, What::List(_)) {
                    let former = if line.has_former { ", can be rolled back" } else { "" };
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
        What::Install { .. } | What::Rollback { .. } => {
            let (epoch, nodes) =
                (answer.epoch.unwrap_or_default(), answer.nodes.unwrap_or_default());
            format!("version {epoch} runs on {nodes} nodes\n")
        }
    }
}
