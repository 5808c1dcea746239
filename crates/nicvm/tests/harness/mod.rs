//! One unit on mock hardware that records all effects.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::VecDeque;

use midplane_nicvm::control::{Address, Control, ControlConfig};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::{Frame, HEADER_BYTES, Header, Kind, MAX_PAYLOAD};
use midplane_simhw::hardware::{
    Dma, DmaRefused, Firmware, Hardware, Source, TIMERS, TransmitRefused,
};
use midplane_simhw::id::{DmaId, ExtensionId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::region::{Access, Payload, RegionError, RegionRef};
use midplane_simhw::time::{Instant, LineRate};

/// An effect that the hardware has carried out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    Sent(Header),
    Written(RegionRef, Vec<u8>),
    Completed(PortId, Completion),
}

/// Hardware that refuses nothing except regions of generation 0, and records all effects.
pub(crate) struct RecordingHardware {
    pub(crate) now: Instant,
    pub(crate) commands: VecDeque<(PortId, Command)>,
    pub(crate) alarms: [Instant; TIMERS],
    pub(crate) done: Vec<Effect>,
    /// Instant before which the line accepts no frame.
    pub(crate) busy_until: Instant,
    /// A node that has no room for frames.
    pub(crate) full: Option<NodeId>,
    /// The number of each fence, if writes take time.
    pub(crate) fence: Option<DmaId>,
    incarnation: Incarnation,
    staged: Vec<Effect>,
    staged_alarms: Vec<(TimerId, Instant)>,
}

impl Hardware for RecordingHardware {
    fn node(&self) -> NodeId {
        NodeId(1)
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn mtu(&self) -> usize {
        MAX_PAYLOAD
    }

    fn line_rate(&self) -> LineRate {
        LineRate::mbps(1000)
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        (HEADER_BYTES + payload) as u32
    }

    fn line_lag(&self) -> u64 {
        0
    }

    fn charge(&mut self, _: u64) {}

    fn transmit(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        if self.now < self.busy_until {
            return Err(TransmitRefused::Busy { until: self.busy_until });
        }
        if self.full == Some(header.destination) {
            return Err(TransmitRefused::PeerBusy { until: self.now.plus_nanos(1_000) });
        }
        if let Source::Region(at) = source
            && at.generation == 0
        {
            return Err(RegionError::Stale.into());
        }
        self.staged.push(Effect::Sent(*header));
        Ok(self.now.plus_nanos(1000))
    }

    fn check(&self, region: RegionRef, _: Access) -> Result<(), RegionError> {
        if region.generation == 0 { Err(RegionError::Stale) } else { Ok(()) }
    }

    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        if from.generation == 0 { Err(RegionError::Stale) } else { Ok(Payload::EMPTY) }
    }

    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        if to.generation == 0 || from.len() > to.length as usize {
            return Err(RegionError::Stale);
        }
        self.staged.push(Effect::Written(to, from.to_vec()));
        Ok(())
    }

    fn complete(&mut self, port: PortId, completion: &Completion) {
        self.staged.push(Effect::Completed(port, *completion));
    }

    fn dma(&mut self, _: Dma) -> Result<DmaId, DmaRefused> {
        Ok(DmaId(0))
    }

    fn fence(&mut self) -> Option<DmaId> {
        self.fence
    }

    fn next_command(&mut self, port: PortId) -> Option<Command> {
        let at = self.commands.iter().position(|(of, _)| *of == port)?;
        self.commands.remove(at).map(|(_, command)| command)
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        self.staged_alarms.push((timer, at));
    }

    fn commit(&mut self) {
        self.done.append(&mut self.staged);
        for (timer, at) in self.staged_alarms.drain(..) {
            self.alarms[timer.index()] = at;
        }
    }

    fn abort(&mut self) {
        self.staged.clear();
        self.staged_alarms.clear();
    }
}

/// A unit on recording hardware.
pub(crate) struct Harness {
    pub(crate) unit: Unit,
    pub(crate) hw: RecordingHardware,
}

impl Harness {
    pub(crate) fn new(unit: Unit) -> Self {
        Self::in_incarnation(unit, Incarnation::FIRST)
    }

    pub(crate) fn in_incarnation(unit: Unit, incarnation: Incarnation) -> Self {
        let hw = RecordingHardware {
            now: Instant::from_nanos(1_000),
            commands: VecDeque::new(),
            alarms: [Instant::FAR_FUTURE; TIMERS],
            done: Vec::new(),
            busy_until: Instant::ZERO,
            full: None,
            fence: None,
            incarnation,
            staged: Vec::new(),
            staged_alarms: Vec::new(),
        };
        let mut harness = Self { unit, hw };
        harness.turn(|unit, hw| unit.on_start(hw));
        harness
    }

    /// Runs one turn, and drops the effects that are not committed at its end.
    pub(crate) fn turn(&mut self, turn: impl FnOnce(&mut Unit, &mut RecordingHardware)) {
        turn(&mut self.unit, &mut self.hw);
        self.hw.abort();
    }

    pub(crate) fn post(&mut self, port: PortId, command: Command) {
        self.hw.commands.push_back((port, command));
        self.turn(|unit, hw| unit.on_doorbell(hw, port));
    }

    pub(crate) fn frame(&mut self, header: Header, payload: &[u8]) {
        let header = Header { length: payload.len() as u16, ..header };
        self.turn(|unit, hw| unit.on_frame(hw, Frame { header, payload: Payload::from(payload) }));
    }

    /// Advances the time by `nanos`, with all alarms due until then.
    pub(crate) fn pass(&mut self, nanos: u64) {
        let end = self.hw.now.plus_nanos(nanos);
        while self.hw.alarms[0] <= end {
            self.hw.now = self.hw.now.max(self.hw.alarms[0]);
            self.hw.alarms[0] = Instant::FAR_FUTURE;
            self.turn(|unit, hw| unit.on_timer(hw, TimerId(0)));
        }
        self.hw.now = end;
    }

    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.hw.done)
    }

    /// Takes all recorded effects, and returns the completions among them.
    pub(crate) fn completions(&mut self) -> Vec<(PortId, Completion)> {
        let completed = |effect| match effect {
            Effect::Completed(port, completion) => Some((port, completion)),
            _ => None,
        };
        self.take().into_iter().filter_map(completed).collect()
    }
}

/// The control messages of another unit, which talks to the harness's unit.
pub(crate) struct Peer {
    pub(crate) control: Control,
}

impl Peer {
    pub(crate) fn new(node: NodeId) -> Self {
        Self { control: Control::new(node, Incarnation::FIRST, ControlConfig::default()) }
    }

    /// Sends a control message to an extension of the harness's unit; returns the effects there.
    pub(crate) fn send(&mut self, harness: &mut Harness, to: Address, body: &[u8]) -> Vec<Effect> {
        self.control.send(harness.hw.now, NodeId(1), to, body).expect("the queue is long");
        self.exchange(harness)
    }

    /// Exchanges the frames of the two units; returns the effects at the harness's unit.
    pub(crate) fn exchange(&mut self, harness: &mut Harness) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..4 {
            while let Some(transmit) = self.control.poll_transmit(harness.hw.now) {
                let (header, body) = (transmit.header, transmit.body.to_vec());
                harness.frame(header, &body);
            }
            for effect in harness.take() {
                if let Effect::Sent(header) = &effect
                    && header.kind != Kind::Data
                {
                    let body = vec![0; header.length.into()];
                    self.control.handle_frame(harness.hw.now, header, &body);
                }
                effects.push(effect);
            }
        }
        effects
    }
}

pub(crate) fn command(extension: ExtensionId, opcode: u8) -> Command {
    Command { extension, opcode, cookie: u64::from(opcode), ..Command::default() }
}

/// Returns the region of a port's memory.
pub(crate) fn memory(port: PortId, length: u32) -> RegionRef {
    RegionRef { port, generation: 1, length, ..RegionRef::default() }
}

/// Silences panics with the message `on purpose`.
pub(crate) fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"on purpose") {
                usual(info);
            }
        }));
    });
}

pub(crate) const fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}
