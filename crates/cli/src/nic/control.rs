//! `midplane nic install` and similar commands: orders to a running node, which carries each out on all nodes or on
//! none.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use midplane::nicvm::install::MAX_MODULE;
use midplane_kit::ranks::resolve;
use midplane_kit::report::{FAILED, Failure, plain, print_document, table};

use super::orders::{Answer, Installed, MAX_LINE, Order, PolicyName};

const EXAMPLES: &str = "\
Example, after midplane nic node and echo 'native: counter 1' > counter:
  midplane nic install 16 counter
  midplane nic call 16 1 --about 2      # 1: count here and at node 2
  midplane nic call 16 2                # 2: read the count (3 makes it fail)
  midplane nic counters
  midplane nic rollback 16              # after a second install
  midplane nic quarantine 16
  midplane nic list --json

Exit code: 0 done; 1 a node refused, was lost, or failed; 2 bad input.";

/// Node that accepts an order.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct To {
    /// Send the order to this node of the cluster
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:24700")]
    node: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Extension that an order is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct About {
    #[command(flatten)]
    to: To,
    /// Number of the extension
    number: u8,
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
        /// Choose what a node does when the extension fails on it
        #[arg(long, value_enum, default_value = "deactivate")]
        policy: PolicyName,
    },
    /// Return to the previous version on all nodes
    Rollback(About),
    /// Take an extension down on all nodes
    Quarantine(About),
    /// List the extensions of a node with their versions
    List(To),
    /// Count the calls to each extension of a node
    Counters(To),
    /// Send a command to an extension of one node
    Call {
        #[command(flatten)]
        about: About,
        /// Number of the command
        opcode: u8,
        /// Number of the node that the command is about
        #[arg(long = "about", value_name = "NODE", default_value_t = 0)]
        peer: u16,
        /// Arguments of the command, up to three numbers
        #[arg(num_args = 0..=3)]
        args: Vec<u64>,
    },
}

/// Sends an order to a node, and prints its answer.
pub(crate) fn run(what: &What) -> Result<u8, Failure> {
    let (What::Install { to, .. }
    | What::List(to)
    | What::Counters(to)
    | What::Rollback(About { to, .. })
    | What::Quarantine(About { to, .. })
    | What::Call { about: About { to, .. }, .. }) = what;
    let address = resolve("--node", &to.node)?;
    let (order, module) = order(what)?;
    let answer = send(address, &order, &module)?;
    print_document(to.json, &answer, |answer| text(what, answer));
    Ok(if answer.status == "done" { 0 } else { FAILED })
}

fn order(what: &What) -> Result<(Order, Vec<u8>), String> {
    let order = match what {
        What::Install { number, file, policy, .. } => {
            let name = file.display();
            let module = std::fs::read(file).map_err(|error| {
                format!("{name}: {error}; name a file with a module that can be read")
            })?;
            if module.is_empty() || module.len() > MAX_MODULE {
                return Err(format!("{name}: a module has from 1 to {MAX_MODULE} bytes"));
            }
            let bytes = module.len();
            return Ok((Order::Install { number: *number, policy: *policy, bytes }, module));
        }
        What::Rollback(about) => Order::RollBack { number: about.number },
        What::Quarantine(about) => Order::Quarantine { number: about.number },
        What::List(_) | What::Counters(_) => Order::List,
        What::Call { about, opcode, peer, args: given } => {
            let mut args = [0; 3];
            args[..given.len()].copy_from_slice(given);
            Order::Call { number: about.number, opcode: *opcode, to: *peer, args }
        }
    };
    Ok((order, Vec::new()))
}

/// Sends an order with its module to a node, and returns the answer. Waits 3 s to connect and 15 s for the answer.
///
/// # Errors
/// One line that names the node.
pub(crate) fn send(address: SocketAddr, order: &Order, module: &[u8]) -> Result<Answer, Failure> {
    let failed = |error: std::io::Error| {
        let what = match error.kind() {
            ErrorKind::ConnectionRefused => {
                "no node listens there; start some with `midplane nic node`, or name one with --node".into()
            }
            _ => error.to_string(),
        };
        Failure::of_run(format!("node {address}: {what}"))
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
    serde_json::from_str(&line)
        .map_err(|error| Failure::of_run(format!("node {address}: not an answer: {error}")))
}

/// Formats an answer as text.
fn text(what: &What, answer: &Answer) -> String {
    let why = answer.why.as_deref().map_or(String::new(), |why| format!(": {}", plain(why)));
    if let Some(node) = answer.refused_by {
        return format!("refused by node {node}{why}\n");
    }
    if answer.status != "done" {
        return format!("{}{why}{}\n", plain(&answer.status), cure(what, answer));
    }
    match what {
        What::List(_) => listing(answer, "sha256, former", |line| {
            let former = if line.has_former { "can be rolled back" } else { "none" };
            vec![line.sha256.chars().take(16).collect(), former.into()]
        }),
        What::Counters(_) => {
            listing(answer, "commands, control messages, frames, timeouts, failures", |line| {
                [line.commands, line.control_messages, line.frames, line.timeouts, line.failures]
                    .map(|count| count.to_string())
                    .into()
            })
        }
        What::Call { .. } => {
            let words = answer.words.unwrap_or_default();
            format!("done: length {}, words {words:?}\n", answer.length.unwrap_or_default())
        }
        What::Quarantine(_) => "down on all nodes\n".into(),
        What::Install { .. } | What::Rollback(_) => {
            let (epoch, nodes) =
                (answer.epoch.unwrap_or_default(), answer.nodes.unwrap_or_default());
            format!("version {epoch} runs on {nodes} nodes\n")
        }
    }
}

/// Returns what to do after a call that an extension has not carried out.
fn cure(what: &What, answer: &Answer) -> String {
    let What::Call { about: About { number, .. }, .. } = what else { return String::new() };
    match &answer.status[..] {
        "invalid" => format!(
            ": node {} has no extension {number}, or that has no such command; `midplane nic list` shows its extensions",
            answer.node
        ),
        "extension-down" => format!(
            ": extension {number} has failed or was taken down; `midplane nic install` or `rollback` starts it again"
        ),
        _ => String::new(),
    }
}

/// Formats the extensions of a node as a table, with the given columns.
fn listing(answer: &Answer, columns: &str, cells: impl Fn(&Installed) -> Vec<String>) -> String {
    let rows = answer.installed.iter().map(|line| {
        let state = if line.is_down { "down" } else { "runs" };
        [vec![line.number.to_string(), line.epoch.to_string(), state.into()], cells(line)].concat()
    });
    format!("node {}\n{}", answer.node, table(&format!("number, version, state, {columns}"), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the status went to the terminal as it was.
    #[test]
    fn a_node_s_answer_controls_no_terminal() {
        let answer = Answer {
            status: "\u{1b}[2Jdown".into(),
            why: Some("\u{1b}]0;title\u{7}".into()),
            ..Answer::default()
        };
        let about = About { to: To { node: String::new(), json: false }, number: 16 };
        assert_eq!(text(&What::Quarantine(about), &answer), " [2Jdown:  ]0;title \n");
    }
}
