//! Shared test firmware: a firmware of closures, and one that sends what a script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::{Firmware, Hardware, Source, TransmitRefused};
use midplane_simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

pub(crate) const A: NodeId = NodeId(0);
pub(crate) const B: NodeId = NodeId(1);
pub(crate) const C: NodeId = NodeId(2);

/// 100 Mb/s: a byte takes 80 ns.
pub(crate) const RATE: LineRate = LineRate::mbps(100);
/// A switch whose buffer never fills in these tests.
pub(crate) const ROOMY: SwitchProfile = SwitchProfile::new(Buffer::Bytes(1 << 24));

pub(crate) fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Plain links of 100 Mb/s and 500 ns to one switch.
pub(crate) fn star(hosts: u16) -> Topology {
    Topology::star(hosts, LinkProfile::plain(RATE, Duration::from_nanos(500)), ROOMY)
}

/// An event that a firmware handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening<'a> {
    Start,
    Doorbell(PortId),
    Frame(Frame<'a>),
    DmaDone(DmaId),
    Timer(TimerId),
}

type Handler = Box<dyn FnMut(&mut dyn Hardware, Happening<'_>) + Send>;

/// A firmware that is one closure.
pub(crate) struct Probe(Handler);

impl Probe {
    pub(crate) fn new(
        handler: impl FnMut(&mut dyn Hardware, Happening<'_>) + Send + 'static,
    ) -> Self {
        Self(Box::new(handler))
    }

    /// A firmware that does nothing.
    pub(crate) fn idle() -> Self {
        Self::new(|_, _| {})
    }
}

impl Firmware for Probe {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        (self.0)(hw, Happening::Start);
    }
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        (self.0)(hw, Happening::Doorbell(port));
    }
    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        (self.0)(hw, Happening::Frame(frame));
    }
    fn on_dma_done(&mut self, hw: &mut impl Hardware, dma: DmaId) {
        (self.0)(hw, Happening::DmaDone(dma));
    }
    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        (self.0)(hw, Happening::Timer(timer));
    }
}

/// A log that several firmwares write in order.
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

/// Sends `length` bytes derived from sender and sequence number.
pub(crate) fn send(
    hw: &mut dyn Hardware,
    destination: NodeId,
    sequence: u32,
    length: u16,
) -> Result<Instant, TransmitRefused> {
    let bytes = vec![mark(hw.node(), sequence); usize::from(length)];
    let header = Header {
        source: hw.node(),
        destination,
        incarnation: hw.incarnation(),
        length,
        sequence,
        ..Header::default()
    };
    hw.transmit(&header, Source::Bytes(Payload::from(&bytes[..])))
}

fn mark(source: NodeId, sequence: u32) -> u8 {
    (u32::from(source.0) * 31 + sequence * 7) as u8
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) at: u64,
    pub(crate) to: NodeId,
    pub(crate) length: u16,
}

/// A frame that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) source: NodeId,
    pub(crate) destination: NodeId,
    pub(crate) sequence: u32,
    pub(crate) length: u16,
    pub(crate) incarnation: Incarnation,
}

/// Returns a firmware that sends what `script` says, in its order and not before its times, and logs the frames that
/// arrive.
pub(crate) fn scripted(script: Vec<Sending>, log: Log<Received>) -> Probe {
    let mut waiting: VecDeque<(u32, Sending)> = (0..).zip(script).collect();
    Probe::new(move |hw, happening| match happening {
        Happening::Start => {
            // Frames that were due in a former incarnation are not sent.
            waiting.retain(|(_, sending)| at(sending.at) >= hw.now());
            work_off(hw, &mut waiting);
        }
        Happening::Timer(_) => work_off(hw, &mut waiting),
        Happening::Frame(Frame { header, payload }) => {
            let expected = vec![mark(header.source, header.sequence); payload.len()];
            assert_eq!(payload.to_vec(), expected, "a frame arrives as it was sent");
            log.add(Received {
                at: hw.now(),
                source: header.source,
                destination: hw.node(),
                sequence: header.sequence,
                length: header.length,
                incarnation: header.incarnation,
            });
        }
        _ => {}
    })
}

fn work_off(hw: &mut dyn Hardware, waiting: &mut VecDeque<(u32, Sending)>) {
    while let Some((sequence, sending)) = waiting.front().copied() {
        let next = if at(sending.at) > hw.now() {
            at(sending.at)
        } else {
            match send(hw, sending.to, sequence, sending.length) {
                Ok(_) => {
                    waiting.pop_front();
                    continue;
                }
                Err(TransmitRefused::Busy { until }) => until,
                Err(refused) => panic!("{refused}"),
            }
        };
        hw.set_timer(TimerId(0), next);
        break;
    }
    hw.commit();
}

/// A world of scripted NICs.
pub(crate) fn scripted_world(
    topology: &Topology,
    profile: NicProfile,
    seed: u64,
    scripts: Vec<Vec<Sending>>,
) -> (World<Probe>, Log<Received>) {
    let log = Log::new();
    let out = log.clone();
    let world = World::new(topology, profile, seed, move |node, _| {
        scripted(scripts.get(node.index()).cloned().unwrap_or_default(), log.clone())
    });
    (world, out)
}

/// Asserts that frames sent are delivered, dropped for a named cause, or in flight.
#[track_caller]
pub(crate) fn assert_conserved<F: Firmware>(world: &World<F>) {
    let traffic = world.traffic();
    let ended = traffic.delivered + traffic.drops.total();
    assert_eq!(traffic.sent, ended + world.frames_under_way() as u64, "{traffic:?}");
    let named: u64 = DropCause::ALL.iter().map(|cause| traffic.drops.of(*cause)).sum();
    assert_eq!(traffic.drops.total(), named);
}
