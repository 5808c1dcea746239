//! Draws the screen of `midplane top`.

use std::time::Duration;

use midplane::FailedDial;
use midplane::top::{Peer, Report, ServiceStreams};
use ratatui::Frame;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState, Widget, Wrap};

use crate::gang::listing::Job;

use super::board::{self, Board, State, queued, sum};

/// Columns of the plain text of `--once`, and most lines of each of its tables.
const COLUMNS: u16 = 120;
const MAX_LINES: u16 = 500;

/// The lower half of the screen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Panel {
    #[default]
    Services,
    Peers,
    Jobs,
}

/// Choices of the user: the selected node and the panel.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The name of the selected node; the first one if there is none of that name.
    selected: String,
    panel: Panel,
}

impl View {
    fn at(&self, board: &Board) -> usize {
        board.nodes.iter().position(|row| row.name == self.selected).unwrap_or(0)
    }

    /// Selects the node that is `by` rows below the selected one.
    pub(super) fn select(&mut self, board: &Board, by: isize) {
        let last = board.nodes.len().saturating_sub(1);
        let at = self.at(board).saturating_add_signed(by).min(last);
        self.selected = board.nodes.get(at).map(|row| row.name.clone()).unwrap_or_default();
    }

    /// Shows the next panel.
    pub(super) fn turn(&mut self, board: &Board) {
        self.panel = match self.panel {
            Panel::Services => Panel::Peers,
            Panel::Peers if board.jobs.is_some() => Panel::Jobs,
            Panel::Peers | Panel::Jobs => Panel::Services,
        };
    }
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, board: &Board, view: &View, period: Duration) {
    let problems = board.problems.join("; ");
    let is_full = board.readings > 0;
    let areas = [
        Constraint::Length(if problems.is_empty() { 0 } else { 3 }),
        Constraint::Length(rows_and_head(board.nodes.len()).min(frame.area().height / 2)),
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [problem, nodes, about, panel, help] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(paragraph(problems).bold(), problem);
    let at = view.at(board);
    if is_full {
        let mut state = TableState::new().with_selected(board.nodes.get(at).map(|_| at));
        frame.render_stateful_widget(nodes_table(board), nodes, &mut state);
    } else {
        frame.render_widget("searching for nodes ...", nodes);
    }
    match (board.nodes.get(at), view.panel, &board.jobs) {
        (_, Panel::Jobs, Some(jobs)) => frame.render_widget(jobs_table(jobs), panel),
        (Some(row), shown, _) => draw_node(frame, row, shown, about, panel),
        (None, ..) => {}
    }
    let jobs = if board.jobs.is_some() { "/jobs" } else { "" };
    let seconds = period.as_secs_f64();
    let help_text =
        format!(" q quit   up/down node   Tab services/peers{jobs}   every {seconds} s");
    frame.render_widget(Line::from(help_text).reversed(), help);
}

/// Draws the panel of the selected node.
fn draw_node(frame: &mut Frame<'_>, row: &board::Row, shown: Panel, about: Rect, panel: Rect) {
    let Some(report) = &row.report else {
        return frame.render_widget(paragraph(row.error.clone().unwrap_or_default()), about);
    };
    frame.render_widget(paragraph(summary(row, report)), about);
    let (above, below, rows) = match shown {
        Panel::Peers => (peers_table(row, report), why_table(report), report.peers.len()),
        _ => (services_table(report), losses_table(report), losses(report).count()),
    };
    let height = if rows == 0 { 0 } else { rows_and_head(rows).min(panel.height / 2) };
    let [upper, lower] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(panel);
    frame.render_widget(above, upper);
    frame.render_widget(below, lower);
}

/// Returns the height of a table of `rows` rows, with its title and head.
fn rows_and_head(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2)
}

fn paragraph(text: String) -> Paragraph<'static> {
    Paragraph::new(text).wrap(Wrap { trim: true })
}

/// Formats the nodes, and the last report of each, as text.
pub(super) fn text(board: &Board) -> String {
    let mut text = lines(nodes_table(board), board.nodes.len());
    for row in &board.nodes {
        let Some(report) = &row.report else { continue };
        text += &format!("\n{}\n", summary(row, report));
        text += &lines(services_table(report), report.services.len());
        text += &lines(peers_table(row, report), report.peers.len());
        text += &lines(losses_table(report), losses(report).count());
    }
    if let Some(jobs) = &board.jobs {
        text += &lines(jobs_table(jobs), jobs.len());
    }
    text
}

/// Renders a table of `rows` rows as lines of text.
fn lines(table: Table<'static>, rows: usize) -> String {
    let height = rows_and_head(rows).min(MAX_LINES);
    let mut buffer = Buffer::empty(Rect::new(0, 0, COLUMNS, height));
    Widget::render(table, buffer.area, &mut buffer);
    let lines = buffer.content.chunks(usize::from(COLUMNS));
    let lines = lines.map(|line| line.iter().map(Cell::symbol).collect::<String>());
    let lines = lines.map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty());
    lines.map(|line| line + "\n").collect()
}

/// Makes a table of rows of text, under a rule with its title. The first column is as wide as possible, each other one as its
/// head; it is aligned to the right unless its head ends with a space.
fn table(
    title: &'static str,
    heads: &[&'static str],
    rows: impl IntoIterator<Item = (Vec<String>, Style)>,
) -> Table<'static> {
    let cell = |(at, text): (usize, String)| match at == 0 || heads[at].ends_with(' ') {
        true => Text::from(text),
        false => Text::from(text).right_aligned(),
    };
    let row = |texts: Vec<String>| Row::new(texts.into_iter().enumerate().map(cell));
    let rows: Vec<_> = rows.into_iter().map(|(texts, style)| row(texts).style(style)).collect();
    let rest = heads[1..].iter().map(|head| Constraint::Length(head.len() as u16));
    Table::new(rows, std::iter::once(Constraint::Fill(1)).chain(rest))
        .header(row(heads.iter().map(|head| head.trim().to_owned()).collect()).bold())
        .block(Block::new().borders(Borders::TOP).title(title.bold()))
}

fn nodes_table(board: &Board) -> Table<'static> {
    const HEADS: [&str; 11] = [
        "node", "state ", "    up", "memory", "peers", " in/s", "out/s", "msg/s", "call/s",
        "queue", " lost",
    ];
    let row = |row: &board::Row| {
        let of = |text: fn(&Report) -> String| row.report.as_ref().map(text).unwrap_or_default();
        let rate =
            |text: fn(&board::Rates) -> String| row.rates.as_ref().map_or_else(|| "-".into(), text);
        let cells = vec![
            row.name.clone(),
            row.state.word().into(),
            of(|report| time(report.uptime_ms)),
            of(|report| bytes(report.memory_bytes as f64)),
            of(|report| report.peers.len().to_string()),
            rate(|rates| bytes(rates.received_bytes)),
            rate(|rates| bytes(rates.sent_bytes)),
            rate(|rates| number(rates.messages)),
            rate(|rates| number(rates.calls)),
            of(|report| number(queued(report) as f64)),
            of(|report| number(sum(report.losses.iter().map(|loss| loss.count)) as f64)),
        ];
        let style = match row.state {
            State::Live => Style::new(),
            State::Silent | State::Broken => Style::new().bold(),
            State::Denied | State::Gone => Style::new().dim(),
        };
        (cells, style)
    };
    let table = table("nodes", &HEADS, board.nodes.iter().map(row));
    table.row_highlight_style(Style::new().reversed())
}

/// Describes a node in two lines.
fn summary(row: &board::Row, report: &Report) -> String {
    let mut text =
        format!("{}: process {}, {}", row.name, report.process, report.transports.join(", "));
    if let Some(address) = &report.address {
        text += &format!(" at {address}");
    }
    text += &format!(
        "; messages: {} sent, {} received, {} wait",
        report.messages_sent, report.messages_received, report.messages_waiting
    );
    if let Some(tokens) = report.tokens {
        text += &format!(
            "; tokens: {} granted, {} expired, {} peers wait",
            tokens.granted, tokens.expired, tokens.waiting
        );
    }
    if report.left_out > 0 {
        text += &format!("; {} entries left out", report.left_out);
    }
    if let Some(error) = &row.error {
        text += &format!("; {error}");
    }
    // The peer chose the names: a terminal does not carry out what is in them.
    text.retain(|character| !character.is_control());
    text
}

fn services_table(report: &Report) -> Table<'static> {
    const HEADS: [&str; 9] =
        ["service", "role  ", " open", " wait", "accepted", "refused", "calls", "   in", "  out"];
    let row = |one: &ServiceStreams| {
        let numbers = [one.open, one.waiting, one.accepted, one.refused, one.calls];
        let numbers = numbers.map(|count| number(count as f64));
        let carried = [one.received_bytes, one.sent_bytes].map(|count| bytes(count as f64));
        let cells = [one.name.clone(), one.role.clone()].into_iter().chain(numbers).chain(carried);
        (cells.collect(), Style::new())
    };
    table("services", &HEADS, report.services.iter().map(row))
}

/// Returns a node's losses by cause, and the places that do not answer its dials.
fn losses(report: &Report) -> impl Iterator<Item = (String, u64)> {
    let lost = report.losses.iter().filter(|loss| loss.count > 0);
    let lost = lost.map(|loss| (loss.cause.clone(), loss.count));
    lost.chain(report.unanswered.iter().map(|one| {
        let FailedDial { place, dials, error, .. } = one;
        (format!("dials of {place}: {error}"), u64::from(*dials))
    }))
}

fn losses_table(report: &Report) -> Table<'static> {
    let row = |(cause, count)| (vec![cause, number(count as f64)], Style::new());
    table("lost", &["cause", " count"], losses(report).map(row))
}

fn peers_table(row: &board::Row, report: &Report) -> Table<'static> {
    const HEADS: [&str; 9] =
        ["peer", "state  ", "by ", "streams", " in/s", "out/s", "  trip", "flight", " lost"];
    let peer = |peer: &Peer| {
        let rates = row.rates.as_ref().and_then(|rates| rates.peers.get(&peer.id));
        let rate =
            |of: fn(&(f64, f64)) -> f64| rates.map_or_else(|| "-".into(), |rates| bytes(of(rates)));
        let trip = peer.round_trip_us.map(|time| scaled(time as f64, 1_000.0, &["us", "ms", "s"]));
        let cells = vec![
            peer.name.clone(),
            peer.state.clone(),
            peer.transport.clone(),
            number(peer.streams as f64),
            rate(|rates| rates.0),
            rate(|rates| rates.1),
            trip.unwrap_or_else(|| "-".into()),
            bytes(peer.in_flight_bytes as f64),
            number(peer.datagrams_lost as f64),
        ];
        (cells, Style::new())
    };
    table("peers", &HEADS, report.peers.iter().map(peer))
}

fn why_table(report: &Report) -> Table<'static> {
    let rows = report.peers.iter().map(|peer| (vec![peer.why.clone()], Style::new()));
    table("why", &["transport of each peer"], rows)
}

fn jobs_table(jobs: &[Job]) -> Table<'static> {
    const HEADS: [&str; 7] =
        ["command", "  job", "ranks", "state", " seconds", "     ran", " stops"];
    let row = |job: &Job| {
        let cells = vec![
            job.command.clone(),
            job.job.to_string(),
            job.ranks.to_string(),
            if job.runs { "runs" } else { "waits" }.into(),
            format!("{:.1}", job.seconds),
            format!("{:.1}", job.run_seconds),
            job.preemptions.to_string(),
        ];
        (cells, Style::new())
    };
    table("jobs", &HEADS, jobs.iter().map(row))
}

/// Shows a count in at most four characters: `999`, `1.5k`, `12M`.
fn number(count: f64) -> String {
    scaled(count, 1_000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Shows bytes in at most five characters: `999`, `1.5K`, `1000M`.
fn bytes(count: f64) -> String {
    scaled(count, 1_024.0, &["", "K", "M", "G", "T", "P", "E"])
}

fn scaled(mut count: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while count >= step - 0.5 && unit < units.len() - 1 {
        count /= step;
        unit += 1;
    }
    let digits = usize::from(count < 9.95 && count.fract() > 0.05);
    format!("{count:.digits$}{}", units[unit])
}

/// Shows a time by its two largest units.
fn time(milliseconds: u64) -> String {
    let seconds = milliseconds / 1_000;
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes:02}m"),
        (days, hours, ..) => format!("{days}d{hours:02}h"),
    }
}
