//! Writes a run as a Perfetto trace: a track for each engine of each NIC, each link and each queue, and arrows
//! that follow each frame across them.
//!
//! The format is Perfetto's own, a stream of `TracePacket`s with synthetic track events. The messages below
//! have only the fields that are written, with the numbers of `protos/perfetto/trace` in Perfetto's sources.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use super::{Engine, Record, TracedFrame};
use crate::id::NodeId;
use crate::time::Instant;
use crate::topology::{End, LinkId, Topology};

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;

/// One track of the trace.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Track {
    Engine(Engine),
    /// A node's completions, as its applications see them.
    Completions(u16),
    Queue(u32),
    /// Spans of a node's code; those of one track follow each other.
    Spans(u16, u16),
    Logs(u16),
    Drops,
    Faults,
}

/// Writes tracks. Each node is a process with its engines, its uplink, and the spans and logs of its code. One more
/// process has the network: the switches' links and queues, the drops and the faults.
pub(crate) struct PerfettoWriter<W: Write> {
    out: W,
    /// For each link, its name, and the node that it leaves if it begins at one.
    links: Vec<(String, Option<u16>)>,
    /// For each track, its number and the end of its last slice.
    tracks: BTreeMap<Track, (u64, Instant)>,
    processes: BTreeMap<Option<u16>, u64>,
    /// The names of the nodes.
    hosts: Vec<String>,
    next: u64,
    /// Names of frames in flight.
    names: BTreeMap<u64, String>,
}

impl<W: Write> std::fmt::Debug for PerfettoWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerfettoWriter").field("tracks", &self.tracks).finish_non_exhaustive()
    }
}

impl<W: Write> PerfettoWriter<W> {
    /// Begins a file for runs on `topology`.
    #[must_use]
    pub(crate) fn new(out: W, topology: &Topology) -> Self {
        let links = (0..topology.links.len() as u32).map(|link| {
            let node = match topology.links[link as usize].from {
                End::Nic(node) => Some(node.0),
                End::Switch(_) | End::Medium(_) => None,
            };
            (topology.link_name(LinkId(link)), node)
        });
        Self {
            out,
            links: links.collect(),
            tracks: BTreeMap::new(),
            processes: BTreeMap::new(),
            hosts: (0..topology.hosts()).map(|node| topology.host_name(NodeId(node))).collect(),
            next: 1,
            names: BTreeMap::new(),
        }
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub(crate) fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        match *record {
            Record::Sent { frame, .. } => {
                self.names.insert(frame.number, name_of(&frame));
                Ok(())
            }
            Record::Delivered { frame, .. } => {
                self.names.remove(&frame.number);
                Ok(())
            }
            Record::Busy { engine, begins, ends, what, frame } => {
                self.slice(engine, begins, ends, what, frame)
            }
            Record::Queue { at, link, used } => {
                let event = TrackEvent {
                    kind: Some(COUNTER),
                    counter_value: Some(i64::from(used)),
                    ..TrackEvent::default()
                };
                self.event(Track::Queue(link.0), at, event)
            }
            Record::Dropped { at, cause, frame, .. } => {
                let name = self.names.remove(&frame.number).unwrap_or_else(|| name_of(&frame));
                self.instant(Track::Drops, at, format!("{cause}: {name}"), Some(frame.number))
            }
            Record::Completed { at, node, port } => {
                self.instant(Track::Completions(node.0), at, format!("port {port}"), None)
            }
            Record::Fault { at, kind, begins } => {
                let what = if begins { "begins" } else { "ends" };
                self.instant(Track::Faults, at, format!("{kind} {what}"), None)
            }
            Record::Span { node, begins, ends, name } => {
                let track = self.free_track(node.0, begins)?;
                let begin = TrackEvent {
                    kind: Some(SLICE_BEGIN),
                    name: Some(name.to_owned()),
                    ..TrackEvent::default()
                };
                self.between(track, begins, ends, begin)
            }
            Record::Log { at, node, text } => {
                self.instant(Track::Logs(node.0), at, text.to_owned(), None)
            }
            Record::Passed { .. } => Ok(()),
        }
    }

    /// Returns the first track of a node's spans that is free from `begins` on.
    fn free_track(&mut self, node: u16, begins: Instant) -> io::Result<Track> {
        for number in 0..u16::MAX {
            let track = Track::Spans(node, number);
            if self.track(track)?.1 <= begins {
                return Ok(track);
            }
        }
        Ok(Track::Spans(node, u16::MAX))
    }

    /// Writes a slice of a track.
    fn between(
        &mut self,
        track: Track,
        begins: Instant,
        ends: Instant,
        begin: TrackEvent,
    ) -> io::Result<()> {
        self.event(track, begins, begin)?;
        self.tracks.get_mut(&track).expect("the event created it").1 = ends;
        self.event(track, ends, TrackEvent { kind: Some(SLICE_END), ..TrackEvent::default() })
    }

    fn slice(
        &mut self,
        engine: Engine,
        begins: Instant,
        ends: Instant,
        what: &str,
        frame: Option<u64>,
    ) -> io::Result<()> {
        let track = Track::Engine(engine);
        let (_, free) = self.track(track)?;
        // Slices of a track must not overlap, but doorbells may ring at the same time, and times on a line are
        // rounded.
        let begins = begins.max(free);
        let ends = ends.max(begins);
        let known = frame.and_then(|number| self.names.get(&number));
        let name = known.map_or_else(|| what.to_owned(), |name| format!("{what} {name}"));
        let annotate =
            |number| DebugAnnotation { uint_value: Some(number), name: Some("frame".to_owned()) };
        let begin = TrackEvent {
            kind: Some(SLICE_BEGIN),
            name: Some(name),
            flow_ids: frame.into_iter().collect(),
            debug_annotations: frame.into_iter().map(annotate).collect(),
            ..TrackEvent::default()
        };
        self.between(track, begins, ends, begin)
    }

    fn instant(
        &mut self,
        track: Track,
        at: Instant,
        name: String,
        frame: Option<u64>,
    ) -> io::Result<()> {
        let event = TrackEvent {
            kind: Some(INSTANT),
            name: Some(name),
            flow_ids: frame.into_iter().collect(),
            ..TrackEvent::default()
        };
        self.event(track, at, event)
    }

    fn event(&mut self, track: Track, at: Instant, event: TrackEvent) -> io::Result<()> {
        let (uuid, _) = self.track(track)?;
        self.packet(TracePacket {
            timestamp: Some(at.as_nanos()),
            track_event: Some(TrackEvent { track_uuid: Some(uuid), ..event }),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: Some(1), ..packet };
        // A trace is a message of packets; the messages of single packets can therefore be concatenated.
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the number of a track and the end of its last slice; creates the track if it is new.
    fn track(&mut self, track: Track) -> io::Result<(u64, Instant)> {
        if let Some(known) = self.tracks.get(&track) {
            return Ok(*known);
        }
        let link = |link: u32| match self.links.get(link as usize) {
            Some((name, node)) => (name.clone(), *node),
            None => (format!("link {link}"), None),
        };
        let (name, node) = match track {
            Track::Engine(Engine::Doorbell(node)) => ("doorbell".to_owned(), Some(node.0)),
            Track::Engine(Engine::Coprocessor(node)) => ("coprocessor".to_owned(), Some(node.0)),
            Track::Engine(Engine::Gather(node)) => ("DMA from host".to_owned(), Some(node.0)),
            Track::Engine(Engine::Scatter(node)) => ("DMA to host".to_owned(), Some(node.0)),
            Track::Completions(node) => ("completions".to_owned(), Some(node)),
            Track::Engine(Engine::Link(LinkId(number))) => link(number),
            Track::Queue(number) => (format!("queue before {}", link(number).0), None),
            Track::Spans(node, _) => ("spans".to_owned(), Some(node)),
            Track::Logs(node) => ("logs".to_owned(), Some(node)),
            Track::Drops => ("drops".to_owned(), None),
            Track::Faults => ("faults".to_owned(), None),
        };
        let parent = self.process(node)?;
        let uuid = self.number();
        let counter = matches!(track, Track::Queue(_)).then(CounterDescriptor::default);
        self.packet(TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(name),
                parent_uuid: Some(parent),
                counter,
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })?;
        self.tracks.insert(track, (uuid, Instant::ZERO));
        Ok((uuid, Instant::ZERO))
    }

    fn process(&mut self, node: Option<u16>) -> io::Result<u64> {
        if let Some(uuid) = self.processes.get(&node) {
            return Ok(*uuid);
        }
        let uuid = self.number();
        let name = match node {
            None => "network".to_owned(),
            Some(node) => self.hosts.get(usize::from(node)).cloned().unwrap_or_default(),
        };
        let pid = node.map_or(1 << 17, |node| i32::from(node) + 1);
        let process = ProcessDescriptor { pid: Some(pid), process_name: Some(name) };
        self.packet(TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(uuid),
                process: Some(process),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })?;
        self.processes.insert(node, uuid);
        Ok(uuid)
    }

    /// Returns the underlying writer.
    pub(crate) fn into_inner(self) -> W {
        self.out
    }
}

fn name_of(frame: &TracedFrame<'_>) -> String {
    let header = frame.header;
    format!("{:?} {} > {}", header.kind, header.source, header.destination)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Header;
    use crate::id::NodeId;
    use crate::link::LinkProfile;
    use crate::switch::{Buffer, SwitchProfile};
    use crate::time::LineRate;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn slices_of_a_track_follow_each_other_and_flows_join_them() {
        let link = LinkProfile::plain(LineRate::mbps(100), std::time::Duration::ZERO);
        let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(1 << 16)));
        let mut writer = PerfettoWriter::new(Vec::new(), &topology);
        let header = Header { destination: NodeId(1), ..Header::default() };
        let frame = TracedFrame { number: 7, header: &header, payload: &[] };
        let busy = |engine, begins, ends| Record::Busy {
            engine,
            begins: at(begins),
            ends: at(ends),
            what: "send",
            frame: Some(7),
        };
        let records = [
            Record::Sent { at: at(1), node: NodeId(0), frame },
            busy(Engine::Link(LinkId(0)), 5, 10),
            busy(Engine::Link(LinkId(0)), 9, 12),
            busy(Engine::Coprocessor(NodeId(1)), 20, 30),
            Record::Queue { at: at(11), link: LinkId(3), used: 9 },
        ];
        for record in &records {
            writer.record(record).unwrap();
        }
        let trace = Trace::decode(&writer.into_inner()[..]).unwrap();
        let events = trace.packet.iter().filter_map(|packet| {
            let event = packet.track_event.as_ref()?;
            Some((packet.timestamp?, event.kind?, event.track_uuid?, event.flow_ids.clone()))
        });
        let events: Vec<_> = events.collect();
        let of = |kind| events.iter().filter(move |(_, is, ..)| *is == kind).map(|event| event.0);
        assert_eq!(of(SLICE_BEGIN).collect::<Vec<_>>(), [5, 10, 20]);
        assert_eq!(of(SLICE_END).collect::<Vec<_>>(), [10, 12, 30]);
        assert_eq!(events.iter().filter(|event| event.3 == [7]).count(), 3);
        let named = trace.packet.iter().filter_map(|packet| packet.track_descriptor.clone());
        let named: Vec<_> = named.collect();
        let tracks: Vec<_> = named.iter().filter_map(|track| track.name.as_deref()).collect();
        assert_eq!(tracks, ["node 0 > switch 0", "coprocessor", "queue before switch 0 > node 1"]);
        let parents = named.iter().filter_map(|track| track.parent_uuid);
        assert!(parents.into_iter().all(|parent| named.iter().any(|t| t.uuid == Some(parent))));
    }
}
