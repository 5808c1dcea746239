//! Draws the first message as SVG: each engine and link that it kept busy, over time.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use midplane::simhw::frame::{Header, Kind};
use midplane::simhw::topology::Topology;
use midplane::simhw::trace::{Engine, Record};

/// Time during which the message kept an engine or link busy.
#[derive(Clone, Debug)]
struct Span {
    lane: String,
    what: &'static str,
    begins: u64,
    ends: u64,
}

/// Collects the spans of the first message of data.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    links: Vec<String>,
    /// Header of the message's first frame.
    first: Option<Header>,
    /// Numbers of the message's frames.
    frames: BTreeSet<u64>,
    spans: Vec<Span>,
    /// Latest spans that are not yet known to be the message's: the doorbell and the gather DMA precede its frame.
    recent: Vec<(Option<u64>, Span)>,
    /// Time of the completion at the receiver's application, in ns.
    done: Option<u64>,
}

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 150.0;
const LANE: f64 = 30.0;
/// Most entries of [`Picture::recent`].
const RECENT: usize = 16;

impl Picture {
    pub(crate) fn new(topology: &Topology) -> Self {
        let links = topology.links().map(|link| topology.link_name(link)).collect();
        Self { links, ..Self::default() }
    }

    pub(crate) fn record(&mut self, record: &Record<'_>) {
        match *record {
            Record::Sent { frame, .. } if frame.header.kind == Kind::Data => {
                let first = *self.first.get_or_insert(*frame.header);
                // The low half of the first word is the message's number.
                let number = |header: &Header| (header.source, header.words[0] as u32);
                if number(&first) == number(frame.header) {
                    self.frames.insert(frame.number);
                    self.keep_recent(frame.number, first.source.0);
                }
            }
            Record::Busy { engine, begins, ends, what, frame } if self.done.is_none() => {
                let (begins, ends) = (begins.as_nanos(), ends.as_nanos());
                let span = Span { lane: self.lane(engine), what, begins, ends };
                let is_ours = frame.is_some_and(|number| self.frames.contains(&number));
                if is_ours || self.is_first_turn(engine, &span.lane) {
                    self.spans.push(span);
                } else {
                    if self.recent.len() == RECENT {
                        self.recent.remove(0);
                    }
                    self.recent.push((frame, span));
                }
            }
            Record::Completed { at, node, .. } => {
                let receiver = self.first.map(|header| header.destination);
                if receiver == Some(node) && self.done.is_none() {
                    let at = at.as_nanos();
                    let lane = format!("node {node} application");
                    self.spans.push(Span { lane, what: "completion", begins: at, ends: at });
                    self.done = Some(at);
                }
            }
            _ => {}
        }
    }

    /// Returns true for the coprocessor's turn that started the message. It ends after the first frame is sent.
    fn is_first_turn(&self, engine: Engine, lane: &str) -> bool {
        let Some(first) = self.first else { return false };
        engine == Engine::Coprocessor(first.source)
            && !self.spans.iter().any(|span| span.lane == lane)
    }

    /// Adds the recent spans that led to a frame of the message: its gather DMA and its sender's last doorbell.
    fn keep_recent(&mut self, frame: u64, sender: u16) {
        let engine = format!("node {sender} ");
        let recent = std::mem::take(&mut self.recent);
        let last = |what: &str| {
            recent.iter().rposition(|(_, span)| span.lane.starts_with(&engine) && span.what == what)
        };
        let bell = if self.spans.is_empty() { last("doorbell") } else { None };
        for (at, (of, span)) in recent.iter().enumerate() {
            if *of == Some(frame) || Some(at) == bell {
                self.spans.push(span.clone());
            }
        }
    }

    fn lane(&self, engine: Engine) -> String {
        match engine {
            Engine::Doorbell(node) => format!("node {node} doorbell"),
            Engine::Coprocessor(node) => format!("node {node} coprocessor"),
            Engine::Gather(node) => format!("node {node} DMA from host"),
            Engine::Scatter(node) => format!("node {node} DMA to host"),
            Engine::Link(link) => self.links.get(link.0 as usize).cloned().unwrap_or_default(),
        }
    }

    /// Renders the picture as SVG.
    pub(crate) fn svg(&self) -> String {
        let mut lanes: Vec<(u64, &str)> = Vec::new();
        for span in &self.spans {
            match lanes.iter_mut().find(|(_, lane)| *lane == span.lane) {
                Some(known) => known.0 = known.0.min(span.begins),
                None => lanes.push((span.begins, &span.lane)),
            }
        }
        lanes.sort_unstable();
        let begins = lanes.first().map_or(0, |(begins, _)| *begins);
        let ends = self.spans.iter().map(|span| span.ends).max().unwrap_or(begins + 1);
        let scale = (WIDTH - MARGIN - 40.0) / (ends - begins).max(1) as f64;
        let height = LANE * (lanes.len() as f64 + 1.5);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{WIDTH}\" \
             height=\"{height}\" fill=\"white\"/>\n"
        );
        let x = |at: u64| MARGIN + (at - begins) as f64 * scale;
        for (row, (_, lane)) in lanes.iter().enumerate() {
            let y = LANE * (row as f64 + 0.5);
            let _ = writeln!(
                svg,
                "<text x=\"8\" y=\"{:.1}\">{}</text>",
                y + 15.0,
                lane.replace('>', "&gt;")
            );
            let _ = writeln!(
                svg,
                "<line x1=\"{MARGIN}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>",
                y + 22.0
            );
            for span in self.spans.iter().filter(|span| span.lane == *lane) {
                let width = ((span.ends - span.begins) as f64 * scale).max(2.0);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"20\" rx=\"2\" \
                     fill=\"{}\" stroke=\"white\"><title>{}: {:.2} us</title></rect>",
                    x(span.begins),
                    colour(lane),
                    span.what,
                    (span.ends - span.begins) as f64 / 1_000.0
                );
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{:.1}\">0</text><text x=\"{WIDTH}\" y=\"{:.1}\" \
             text-anchor=\"end\">{:.1} us</text>\n</svg>",
            height - 8.0,
            height - 8.0,
            (ends - begins) as f64 / 1_000.0
        );
        svg
    }
}

fn colour(lane: &str) -> &'static str {
    match lane {
        lane if lane.contains("DMA") => "#e0a030",
        lane if lane.contains("coprocessor") => "#4070c0",
        lane if lane.contains('>') => "#50a060",
        _ => "#a05080",
    }
}
