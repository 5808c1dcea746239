//! `midplane top`: the nodes of a cluster, live.

mod board;
mod screen;
#[cfg(test)]
mod tests;

use std::future::{Future as _, poll_fn};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use clap::Args;
use midplane::gang::live::client::ask;
use midplane::gang::live::daemon::find_socket;
use midplane::gang::live::message::{Reply, Request};
use midplane::{Error, ErrorKind, Node};
use midplane_kit::command_line::within;
use midplane_kit::processes;
use midplane_kit::report::{self, Failure};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::gang::listing::Job;
use board::{Board, Reading};
use screen::View;

/// Time that the gang daemon gets to list its jobs.
const PATIENCE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  # The nodes of this user on this host; and those of another cluster
  midplane top
  midplane top --cluster orders

  # The nodes of other hosts
  midplane top --join 10.0.0.1:4700 --key-file fabric.key

  # The jobs of this host's gang daemon as well
  midplane top --gang

  # One document for a program
  midplane top --once --json

Nodes that do not call `allow_top` are listed without counters.";

/// Show the nodes of a cluster live: peers, transports, rates, queues, losses, jobs.
///
/// A node shows its counters if its program calls `Node::builder().allow_top()`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Cluster of the nodes [default: MIDPLANE_CLUSTER, or `default`]
    #[arg(long)]
    cluster: Option<String>,
    /// Address of a node of another host, or several with commas; a name may stand for many
    #[arg(long, value_name = "HOST:PORT")]
    join: Vec<String>,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Trust every host that can send to this host's address, without a key
    #[arg(long)]
    trusted_network: bool,
    /// Show the jobs of a gang daemon as well; its socket, or nothing for the one that `midplane gang list` finds
    #[arg(long, value_name = "SOCKET", num_args = 0..=1)]
    gang: Option<Option<PathBuf>>,
    /// Seconds between two readings, 0.1 to 3600; rates are means over them
    #[arg(long, default_value = "1", value_parser = within(0.1, 3_600.0))]
    interval: f64,
    /// Print the screen once, after two readings, and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON document instead
    #[arg(long, requires = "once")]
    json: bool,
}

/// Returns the error of a node: a configuration that is wrong is bad input.
fn failed(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::Config | ErrorKind::InUse => Failure::from(error.to_string()),
        _ => Failure::of_run(error),
    }
}

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    if !arguments.once && !std::io::stdout().is_terminal() {
        let text = "standard output is no terminal: add --once, or --once --json";
        return Err(text.to_owned().into());
    }
    processes::run(run(arguments)).map(|()| 0)
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut builder = Node::builder()
        .name(format!("midplane-top-{}", std::process::id()))
        .connect_timeout(Duration::ZERO)
        .drain(Duration::ZERO);
    if let Some(cluster) = &arguments.cluster {
        builder = builder.cluster(cluster);
    }
    builder = arguments.join.iter().fold(builder, |builder, place| builder.discover(place));
    if let Some(path) = &arguments.key_file {
        builder = builder.key_file(path);
    }
    if arguments.trusted_network {
        builder = builder.trusted_network();
    }
    let node = builder.start().await.map_err(|error| failed(&error))?;
    let gang = arguments.gang.clone().map(|socket| socket.unwrap_or_else(find_socket));
    let reader = Reader { node: node.clone(), gang };
    let done = match arguments.once {
        true => once(&reader, arguments).await,
        false => watch(reader, Duration::from_secs_f64(arguments.interval)).await,
    };
    node.shutdown().await;
    done
}

/// Reads the nodes and jobs that the screen shows.
struct Reader {
    node: Node,
    gang: Option<PathBuf>,
}

impl Reader {
    async fn read(&self) -> Reading {
        let (nodes, jobs) = tokio::join!(self.node.top(), self.jobs());
        Reading { nodes, jobs }
    }

    /// Lists the jobs of the gang daemon; `None` without `--gang`.
    async fn jobs(&self) -> Option<Result<Vec<Job>, String>> {
        let socket = self.gang.as_ref()?;
        let Ok(reply) = timeout(PATIENCE, ask(socket, &Request::List)).await else {
            return Some(Err(format!("the gang daemon does not answer within {PATIENCE:?}")));
        };
        Some(match reply {
            Ok(Reply::Listing(listing)) => Ok(listing.jobs.iter().map(Into::into).collect()),
            Ok(_) => {
                Err("the gang daemon sent an unexpected reply: run the same version on both sides"
                    .into())
            }
            Err(error) => Err(error.to_string()),
        })
    }
}

/// Prints the board after two readings.
async fn once(reader: &Reader, arguments: &Arguments) -> Result<(), Failure> {
    let mut board = Board::default();
    for is_second in [false, true] {
        if is_second {
            tokio::time::sleep(Duration::from_secs_f64(arguments.interval)).await;
        }
        let Reading { nodes, jobs } = reader.read().await;
        if let Some(Err(error)) = jobs {
            return Err(Failure::of_run(error));
        }
        let nodes = match nodes {
            // The jobs are shown though no node runs.
            Err(error) if jobs.is_some() && error.kind() == ErrorKind::NoService => Vec::new(),
            nodes => nodes.map_err(|error| failed(&error))?,
        };
        board.update(Reading { nodes: Ok(nodes), jobs });
    }
    report::print_document(arguments.json, &board, screen::text);
    Ok(())
}

/// A terminal in raw mode; restored when it is dropped, and on a panic.
struct Terminal(ratatui::DefaultTerminal);

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the board until the user or the system ends it.
async fn watch(reader: Reader, period: Duration) -> Result<(), Failure> {
    let mut ended = std::pin::pin!(processes::until_asked(None));
    // The first poll takes the signals, before the terminal changes.
    if poll_fn(|context| Poll::Ready(ended.as_mut().poll(context).is_ready())).await {
        return Ok(());
    }
    let (mut readings, mut events) = (readings(reader, period), events());
    let mut terminal = Terminal(ratatui::try_init().map_err(|error| {
        // It may have failed in raw mode.
        ratatui::restore();
        Failure::of_run(error)
    })?);
    let (mut board, mut view) = (Board::default(), View::default());
    loop {
        let drawn = terminal.0.draw(|frame| screen::draw(frame, &board, &view, period));
        drawn.map_err(Failure::of_run)?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if !on_key(key, &board, &mut view) => return Ok(()),
                Some(_) => {}
                None => return Err(Failure::of_run("the terminal is closed")),
            },
            Some(reading) = readings.recv() => board.update(reading),
            () = ended.as_mut() => return Ok(()),
        }
    }
}

/// Handles a key; returns `false` if it ends the program.
fn on_key(key: KeyEvent, board: &Board, view: &mut View) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Up => view.select(board, -1),
        KeyCode::Down => view.select(board, 1),
        KeyCode::Tab => view.turn(board),
        _ => {}
    }
    true
}

/// Reads once each period.
fn readings(reader: Reader, period: Duration) -> mpsc::Receiver<Reading> {
    let (sender, readings) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if sender.send(reader.read().await).await.is_err() {
                return;
            }
        }
    });
    readings
}

/// Reads the terminal's events on a thread, which ends with the process.
fn events() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(16);
    thread::spawn(
        move || while event::read().is_ok_and(|event| sender.blocking_send(event).is_ok()) {},
    );
    events
}
