//! Draws the first message as SVG: each engine and link that it kept busy, over time.

use std::collections::{BTreeMap, BTreeSet};

use midplane::pipeline::gantt::{self, Chart};
use midplane::pipeline::timing::Row;
use midplane::simhw::frame::{Header, Kind};
use midplane::simhw::topology::Topology;
use midplane::simhw::trace::{Engine, Record};

/// Time during which the message kept an engine or link busy.
#[derive(Clone, Debug)]
struct Span {
    track: String,
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
                let span = Span { track: self.track(engine), what, begins, ends };
                let is_ours = frame.is_some_and(|number| self.frames.contains(&number));
                if is_ours || self.is_first_turn(engine, &span.track) {
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
                    let track = format!("node {node} application");
                    self.spans.push(Span { track, what: "completion", begins: at, ends: at });
                    self.done = Some(at);
                }
            }
            _ => {}
        }
    }

    /// Returns true for the coprocessor's turn that started the message. It ends after the first frame is sent.
    fn is_first_turn(&self, engine: Engine, track: &str) -> bool {
        let Some(first) = self.first else { return false };
        engine == Engine::Coprocessor(first.source)
            && !self.spans.iter().any(|span| span.track == track)
    }

    /// Adds the recent spans that led to a frame of the message: its gather DMA and its sender's last doorbell.
    fn keep_recent(&mut self, frame: u64, sender: u16) {
        let engine = format!("node {sender} ");
        let recent = std::mem::take(&mut self.recent);
        let last = |what: &str| {
            recent
                .iter()
                .rposition(|(_, span)| span.track.starts_with(&engine) && span.what == what)
        };
        let bell = if self.spans.is_empty() { last("doorbell") } else { None };
        for (at, (of, span)) in recent.iter().enumerate() {
            if *of == Some(frame) || Some(at) == bell {
                self.spans.push(span.clone());
            }
        }
    }

    fn track(&self, engine: Engine) -> String {
        match engine {
            Engine::Doorbell(node) => format!("node {node} doorbell"),
            Engine::Coprocessor(node) => format!("node {node} coprocessor"),
            Engine::Gather(node) => format!("node {node} DMA read"),
            Engine::Scatter(node) => format!("node {node} DMA write"),
            Engine::Link(link) => self.links.get(link.0 as usize).cloned().unwrap_or_default(),
        }
    }

    /// Renders the picture as SVG, the tracks in the order of their first spans.
    pub(crate) fn svg(&self) -> String {
        let mut first: BTreeMap<&str, u64> = BTreeMap::new();
        for Span { track, begins, .. } in &self.spans {
            let known = first.entry(track).or_insert(*begins);
            *known = (*known).min(*begins);
        }
        let mut tracks: Vec<(u64, &str)> =
            first.into_iter().map(|(track, at)| (at, track)).collect();
        tracks.sort_unstable();
        let origin = tracks.first().map_or(0, |(begins, _)| *begins);
        let us = |at: u64| (at - origin) as f64 / 1e3;
        let rows = tracks.iter().enumerate().flat_map(|(stage, (_, track))| {
            let spans = self.spans.iter().filter(move |span| span.track == *track).enumerate();
            spans.filter_map(move |(number, span)| {
                Row::new(stage, number, 0.0, us(span.begins)..us(span.ends))
            })
        });
        let rows: Vec<Row> = rows.collect();
        let names: Vec<&str> = tracks.iter().map(|(_, track)| *track).collect();
        gantt::svg(&[Chart { title: "the first message", rows: &rows }], &names)
    }
}
