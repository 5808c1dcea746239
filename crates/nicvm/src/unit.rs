//! The execution unit: the firmware that runs on every NIC's coprocessor and hosts the extensions.

mod events;
mod lifecycle;
mod slot;
mod turn;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::Hardware;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::time::Instant;

use crate::context::{Context, PortEvent, UnitServices};
use crate::control::{self, Address, Body, ControlConfig, MAX_MESSAGE};
use crate::extension::{Epoch, Extension, InitError, PeerEvent, UnitEvent};
use crate::heap::{self, Heap};
use crate::planted::{self, Bug};

use slot::{Handler, ParkedMessages, Slot};

pub use lifecycle::DRAIN;
pub use slot::ExtensionCounters;

/// The one timer that a unit uses.
const ALARM: TimerId = TimerId(0);
/// Commands that one turn takes from a port; the rest waits for the next turn.
const COMMANDS_PER_TURN: usize = 64;
/// Rounds of dispatching and sending in one turn, at most.
const ROUNDS_PER_TURN: usize = 32;
/// Instructions charged for dispatching one event to an extension.
const DISPATCH_INSTRUCTIONS: u64 = 20;

/// Counts a unit's events since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct UnitCounters {
    /// Commands taken from ports.
    pub commands: u64,
    /// Data frames passed to an extension.
    pub data_frames: u64,
    /// Frames for another incarnation of this unit or for another node, and control frames that are too long.
    pub stale_frames: u64,
    /// Frames and commands for extensions that are not installed, or are quarantined.
    pub without_extension: u64,
    /// Handlers that panicked.
    pub traps: u64,
    /// Control messages that extensions sent and that were refused because the peer's queue was full.
    pub control_refused: u64,
    /// Packets that extensions sent and that were dropped because too many waited to leave before them.
    pub packets_dropped: u64,
    /// Control messages of versions that no longer run here, and those that found no room to wait for a later version.
    pub other_versions: u64,
}

/// Reason for which a handler did not complete.
enum Failure {
    /// The extension is not installed, or is down.
    Absent,
    Refused(InitError),
    Trapped,
}

/// Time for which a stopping NIC still answers its peers after their last control frame. Peers that stop at the same
/// time return what it granted them, and would otherwise wait for its acknowledgements until `dead_after`. 10 ms is
/// some tens of round trips.
const ANSWERS_FOR: Duration = Duration::from_millis(10);

/// An execution unit with its extensions.
pub struct Unit {
    slots: Vec<Option<Slot>>,
    services: Option<UnitServices>,
    config: ControlConfig,
    counters: UnitCounters,
    failure: Option<InitError>,
    /// Control frames that the line or their destinations did not take, one for each destination.
    waiting: Vec<(Header, [u8; MAX_MESSAGE])>,
    /// Ports that still have commands in their rings.
    unfinished: Vec<PortId>,
    alarm: Instant,
    /// Control messages of versions that do not run here yet.
    parked: ParkedMessages,
    /// Events that are not yet dispatched to the extensions.
    events: VecDeque<UnitEvent>,
    /// When the first of the replaced versions ends.
    drained_at: Instant,
    /// True once the NIC was requested to stop. It answers peers until `quiet_at`, which each control frame moves.
    is_stopping: bool,
    quiet_at: Instant,
    /// Commands that a downed extension held; they complete with an error.
    abandoned: Vec<Command>,
    /// Heap sizes in bytes, where they differ from the default.
    heaps: BTreeMap<ExtensionId, usize>,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Default for Unit {
    fn default() -> Self {
        Self::new(ControlConfig::default())
    }
}

impl Unit {
    /// Creates a unit without extensions.
    #[must_use]
    pub fn new(config: ControlConfig) -> Self {
        Self {
            slots: Vec::new(),
            services: None,
            config,
            counters: UnitCounters::default(),
            failure: None,
            waiting: Vec::new(),
            unfinished: Vec::new(),
            alarm: Instant::FAR_FUTURE,
            parked: ParkedMessages::default(),
            events: VecDeque::new(),
            drained_at: Instant::FAR_FUTURE,
            is_stopping: false,
            quiet_at: Instant::FAR_FUTURE,
            abandoned: Vec::new(),
            heaps: BTreeMap::new(),
        }
    }

    /// Installs an extension under a number, before the NIC starts.
    ///
    /// # Errors
    /// [`InitError::Occupied`] if the number is taken.
    pub fn install(
        &mut self,
        number: ExtensionId,
        extension: impl Extension + 'static,
    ) -> Result<(), InitError> {
        if number.index() >= self.slots.len() {
            self.slots.resize_with(number.index() + 1, || None);
        }
        let slot = &mut self.slots[number.index()];
        if slot.is_some() {
            return Err(InitError::Occupied(number));
        }
        let heap = Heap::new(self.heaps.get(&number).copied().unwrap_or(heap::DEFAULT_BYTES));
        *slot = Some(Slot::new(Box::new(extension), Epoch::FIRST, heap));
        Ok(())
    }

    /// Sets the heap size, in bytes, of every later version of the extension with this number. An installed version
    /// gets it too, if the NIC has not started. The default is 64 KiB.
    pub fn set_heap(&mut self, number: ExtensionId, bytes: usize) {
        self.heaps.insert(number, bytes);
        if let (None, Some(Some(slot))) = (&self.services, self.slots.get_mut(number.index())) {
            slot.heap = Heap::new(bytes);
        }
    }

    /// Returns the heap of the extension with this number.
    #[must_use]
    pub fn heap(&self, number: ExtensionId) -> Option<&Heap> {
        Some(&self.slots.get(number.index())?.as_ref()?.heap)
    }

    /// Returns the unit's counters.
    #[must_use]
    pub fn counters(&self) -> UnitCounters {
        let refused =
            |services: &UnitServices| (services.control_refused, services.transmit.dropped());
        let (control_refused, packets_dropped) = self.services.as_ref().map_or((0, 0), refused);
        UnitCounters { control_refused, packets_dropped, ..self.counters }
    }

    /// Returns the extension with this number for inspection, if it is a `T`.
    #[must_use]
    pub fn extension<T: Extension>(&self, number: ExtensionId) -> Option<&T> {
        let slot = self.slots.get(number.index())?.as_ref()?;
        let extension: &dyn Any = &*slot.extension;
        extension.downcast_ref()
    }

    /// Returns the version of the extension with this number that runs; `None` if none does.
    #[must_use]
    pub fn epoch(&self, number: ExtensionId) -> Option<Epoch> {
        let slot = self.slots.get(number.index())?.as_ref()?;
        (!slot.is_down).then_some(slot.epoch)
    }

    /// Returns the handler-call counts of the extension with this number, over all its versions.
    #[must_use]
    pub fn extension_counters(&self, number: ExtensionId) -> Option<ExtensionCounters> {
        self.slots.get(number.index())?.as_ref()?;
        Some(self.services.as_ref()?.counters[number.index()])
    }

    /// Returns how many frames, messages and control messages to `node` still have to leave or be acknowledged.
    #[must_use]
    pub fn pending(&self, node: NodeId) -> usize {
        self.services.as_ref().map_or(0, |services| {
            services.control.pending(node) + services.transmit.waiting_to(node)
        })
    }

    /// Returns the counters of the unit's control messages; `None` before the NIC has started.
    #[must_use]
    pub fn control_counters(&self) -> Option<&control::Counters> {
        self.services.as_ref().map(|services| services.control.counters())
    }

    /// Returns why an extension failed to initialise, if one did: that extension is quarantined.
    #[must_use]
    pub const fn failure(&self) -> Option<&InitError> {
        self.failure.as_ref()
    }

    /// Runs one handler. Its effects are committed when it returns, and dropped if it panics.
    fn run(
        &mut self,
        hw: &mut dyn Hardware,
        number: ExtensionId,
        kind: Handler,
        handler: impl FnOnce(&mut dyn Extension, &mut Context<'_>),
    ) -> Result<(), Failure> {
        self.attempt(hw, number, kind, |extension, nic| {
            handler(extension, nic);
            Ok(())
        })
    }

    /// Runs a handler that may refuse. If it refuses or panics, its effects are dropped and the extension is taken
    /// down.
    fn attempt(
        &mut self,
        hw: &mut dyn Hardware,
        number: ExtensionId,
        kind: Handler,
        handler: impl FnOnce(&mut dyn Extension, &mut Context<'_>) -> Result<(), InitError>,
    ) -> Result<(), Failure> {
        let services = self.services.as_mut().expect("the unit has started");
        let slot = self.slots.get_mut(number.index()).and_then(Option::as_mut);
        let Some(slot) = slot.filter(|slot| !slot.is_down) else {
            self.counters.without_extension += 1;
            return Err(Failure::Absent);
        };
        hw.charge(DISPATCH_INSTRUCTIONS);
        services.counters[number.index()].count(kind);
        let epoch = slot.epoch;
        let (extension, heap) = (&mut *slot.extension, &slot.heap);
        let mut context = Context { hw: &mut *hw, services, extension: number, epoch, heap };
        let failure = match catch_unwind(AssertUnwindSafe(|| handler(extension, &mut context))) {
            Ok(Ok(())) => {
                services.commit(hw, number, epoch);
                return Ok(());
            }
            Ok(Err(refused)) => Failure::Refused(refused),
            Err(_) => Failure::Trapped,
        };
        if planted::is(Bug::TrapCommits) {
            services.commit(hw, number, epoch);
        }
        services.abort(hw);
        if matches!(failure, Failure::Trapped) {
            services.counters[number.index()].traps += 1;
            self.counters.traps += 1;
            self.events.push_back(UnitEvent::Trapped(number, epoch));
        }
        self.take_down(hw, number);
        Err(failure)
    }

    /// Takes an extension down: cancels its timeouts, ends its waiting messages and collects the commands that it held.
    fn take_down(&mut self, hw: &mut dyn Hardware, number: ExtensionId) {
        if let Some(Some(slot)) = self.slots.get_mut(number.index()) {
            if !std::mem::replace(&mut slot.is_down, true) {
                self.abandoned.extend(slot::held_by(&mut *slot.extension));
            }
            if let Some(mut former) = slot.former.take() {
                self.abandoned.extend(slot::held_by(&mut *former.extension));
            }
        }
        let services = self.services.as_mut().expect("the unit has started");
        services.timeouts.cancel_all(number);
        services.fences.retain(|(_, of, ..)| *of != number);
        if services.transmit.uninstall(number) {
            services.port_events.push_back(PortEvent::Admission);
        }
        // No extension opens the gate any more for the frames that wait there.
        let steered = services.gate_controller == Some(number);
        services.transmit.withdraw(hw, Status::ExtensionDown, |waiting| {
            waiting.extension == number || (steered && waiting.controlled)
        });
        if steered {
            services.gate_controller = None;
            services.transmit.forget_gate_news();
        }
        hw.commit();
    }

    fn take_commands(&mut self, hw: &mut dyn Hardware, port: PortId) {
        for _ in 0..COMMANDS_PER_TURN {
            // A suspended process's commands stay in its ring: they are part of the state that it is resumed with.
            if self.services.as_ref().is_some_and(|services| services.stopped.contains_key(&port)) {
                return;
            }
            let Some(mut command) = hw.next_command(port) else { return };
            self.counters.commands += 1;
            self.command(hw, port, &mut command);
        }
        if !self.unfinished.contains(&port) && !planted::is(Bug::CommandsLeft) {
            self.unfinished.push(port);
        }
    }

    #[inline]
    fn command(&mut self, hw: &mut dyn Hardware, port: PortId, command: &mut Command) {
        let status = if command.region.length > 0 && command.region.port != port {
            Status::Region
        } else {
            command.region.port = port;
            let number = command.extension;
            match self.run(hw, number, Handler::Command, |extension, nic| {
                extension.on_command(nic, *command);
            }) {
                Ok(()) => return,
                Err(_) if self.is_installed(number) => Status::ExtensionDown,
                Err(_) => Status::Invalid,
            }
        };
        // The command's own extension may have listed it as held; it must complete only once.
        self.abandoned
            .iter()
            .position(|held| held == command)
            .map(|at| self.abandoned.swap_remove(at));
        hw.complete(port, &Completion::of(command, status));
        self.answer_abandoned(hw);
        hw.commit();
    }

    /// Completes the commands of downed extensions with an error.
    fn answer_abandoned(&mut self, hw: &mut dyn Hardware) {
        for held in self.abandoned.drain(..) {
            hw.complete(held.region.port, &Completion::of(&held, Status::ExtensionDown));
        }
    }

    fn is_installed(&self, number: ExtensionId) -> bool {
        self.slots.get(number.index()).is_some_and(Option::is_some)
    }

    fn on_control_frame(&mut self, hw: &mut dyn Hardware, frame: &Frame<'_>) {
        let mut body = [0; MAX_MESSAGE];
        if frame.payload.len() > MAX_MESSAGE {
            self.counters.stale_frames += 1;
            return;
        }
        let length = frame.payload.copy_to(&mut body);
        if self.is_stopping {
            self.quiet_at = hw.now() + ANSWERS_FOR;
        }
        let services = self.services.as_mut().expect("the unit has started");
        services.control.handle_frame(hw.now(), &frame.header, &body[..length]);
        self.drain_control(hw);
    }

    fn drain_control(&mut self, hw: &mut dyn Hardware) {
        loop {
            let services = self.services.as_mut().expect("the unit has started");
            let Some(event) = services.control.poll_event() else { return };
            match event {
                control::Event::Message { from, to, body } => self.on_control(hw, from, to, &body),
                control::Event::PeerUp { node, incarnation } => {
                    self.notify(hw, PeerEvent::Up(node, incarnation));
                }
                control::Event::PeerRestarted { node, incarnation } => {
                    self.notify(hw, PeerEvent::Restarted(node, incarnation));
                }
                control::Event::PeerDown { node } => self.notify(hw, PeerEvent::Down(node)),
            }
        }
    }

    /// Notifies every extension of a peer's event.
    fn notify(&mut self, hw: &mut dyn Hardware, event: PeerEvent) {
        if let PeerEvent::Down(node) | PeerEvent::Restarted(node, _) = event {
            // Its messages for a version that does not run yet would arrive after this event.
            self.parked.forget_peer(node);
        }
        for number in self.numbers() {
            let _ = self
                .run(hw, number, Handler::Other, |extension, nic| extension.on_peer(nic, event));
        }
    }

    fn numbers(&self) -> Vec<ExtensionId> {
        let live = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| !slot.is_down);
        let numbers = (0_u8..=u8::MAX).zip(&self.slots).filter(|(_, slot)| live(slot));
        numbers.map(|(number, _)| ExtensionId(number)).collect()
    }

    fn init(&mut self, hw: &mut dyn Hardware, number: ExtensionId) {
        let failure =
            match self.attempt(hw, number, Handler::Other, |extension, nic| extension.init(nic)) {
                Ok(()) => return,
                Err(Failure::Refused(refused)) => refused,
                Err(Failure::Trapped | Failure::Absent) => InitError::Trapped(number),
            };
        self.failure.get_or_insert(failure);
    }

    /// Returns whether a data frame is for this incarnation of this unit.
    fn is_for(&self, node: NodeId, incarnation: Incarnation, header: &Header) -> bool {
        let meant = header.destination_incarnation;
        let any = meant == Incarnation::UNKNOWN || planted::is(Bug::StaleAccepted);
        header.destination == node && (any || meant == incarnation)
    }

    /// Deactivates every extension and sends the messages that their `deactivate` handlers asked for. Messages that
    /// have not left, and all later commands, complete with [`Status::ExtensionDown`].
    pub fn deactivate(&mut self, hw: &mut impl Hardware) {
        for number in self.numbers() {
            let _ =
                self.run(hw, number, Handler::Other, |extension, nic| extension.deactivate(nic));
            self.take_down(hw, number);
        }
        self.finish(hw);
    }
}
