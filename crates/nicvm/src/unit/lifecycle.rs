//! Versions of extensions: one replaces another while the unit runs.
//!
//! Every control message carries the version of the extension that sent it. A message of a later version than the
//! running one waits until that version runs. A message of the previous version goes to that version, which the unit
//! keeps for [`DRAIN`]. So no message is ever handled by another version than its sender's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use midplane_simhw::hardware::Hardware;
use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::time::Instant;

use super::slot::{self, Former, Handler, Parked, Slot};
use super::{Address, Body, Epoch, Extension, InitError, Unit, UnitEvent};
use crate::context::{Change, Context, Effect, LocalEffect, PortEvent};
use crate::heap::{self, Heap};

/// Time for which a replaced version still handles control messages of its own version. It is longer than a peer takes
/// to be declared dead, so by its end each awaited message has arrived or never will.
pub const DRAIN: Duration = Duration::from_secs(1);

impl Unit {
    /// Returns whether no local effect, change or event waits to be dispatched to this unit's extensions.
    pub(super) fn is_settled(&self) -> bool {
        let services = self.services.as_ref().expect("the unit has started");
        services.own.is_empty() && services.changes.is_empty() && self.events.is_empty()
    }

    /// Dispatches the local messages, commands and changes that extensions asked for, then the unit's events.
    pub(super) fn settle(&mut self, hw: &mut dyn Hardware) {
        if self.is_settled() {
            return;
        }
        let services = self.services.as_mut().expect("the unit has started");
        let (own, changes) =
            (std::mem::take(&mut services.own), std::mem::take(&mut services.changes));
        for (number, asked) in own {
            match asked {
                LocalEffect::Control { epoch, body } => {
                    let to = Address { extension: number, epoch };
                    let node = hw.node();
                    self.on_control(hw, node, to, &body);
                }
                LocalEffect::Command(mut command) => {
                    self.command(hw, command.region.port, &mut command);
                }
            }
        }
        for change in changes {
            match change {
                Change::Replace { number, epoch, extension } => {
                    self.replace(hw, number, epoch, extension);
                }
                Change::Withdraw(number) => {
                    self.take_down(hw, number);
                    self.events.push_back(UnitEvent::Withdrawn(number));
                }
            }
        }
        for event in std::mem::take(&mut self.events) {
            for number in self.numbers() {
                let _ = self.run(hw, number, Handler::Other, |extension, nic| {
                    extension.on_unit(nic, &event);
                });
            }
        }
    }

    /// Passes a control message to the version of the extension that it addresses.
    pub(super) fn on_control(
        &mut self,
        hw: &mut dyn Hardware,
        from: NodeId,
        to: Address,
        body: &Body,
    ) {
        let number = to.extension;
        let slot = self.slots.get(number.index()).and_then(Option::as_ref);
        let runs = slot.map_or(Epoch::FIRST, |slot| slot.epoch);
        if to.epoch == runs {
            // If no extension has the number, `run` counts the message.
            let _ = self.run(hw, number, Handler::Control, |extension, nic| {
                extension.on_control(nic, from, body);
            });
        } else if to.epoch.is_newer_than(runs) && self.has_room_to_park(hw.now(), from) {
            let (epoch, body, since) = (to.epoch, *body, hw.now());
            self.parked.push(Parked { number, epoch, from, body, since });
        } else if let Some(Some(slot)) = self.slots.get_mut(number.index())
            && let Some(former) = slot.former.take_if(|former| former.epoch == to.epoch)
        {
            self.call_former(hw, number, former, |extension, nic| {
                extension.on_control(nic, from, body);
            });
        } else {
            self.counters.other_versions += 1;
        }
    }

    /// Drops messages that have waited too long for a version. Returns whether one more of this peer may wait.
    fn has_room_to_park(&mut self, now: Instant, from: NodeId) -> bool {
        self.counters.other_versions += self.parked.expire(now);
        self.parked.has_room(from)
    }

    /// Calls a handler of a replaced version, and keeps that version unless the handler panics. Effects on timeouts and
    /// admissions are dropped: those belong to its successor.
    pub(super) fn call_former(
        &mut self,
        hw: &mut dyn Hardware,
        number: ExtensionId,
        mut former: Former,
        handler: impl FnOnce(&mut dyn Extension, &mut Context<'_>),
    ) {
        let services = self.services.as_mut().expect("the unit has started");
        let Former { extension, epoch, heap, .. } = &mut former;
        let epoch = *epoch;
        let mut context = Context { hw: &mut *hw, services, extension: number, epoch, heap };
        let ended = catch_unwind(AssertUnwindSafe(|| handler(&mut **extension, &mut context)));
        if ended.is_err() {
            services.abort(hw);
            self.counters.traps += 1;
            self.abandoned.extend(slot::held_by(&mut **extension));
            return;
        }
        services.effects.retain(|effect| {
            matches!(
                effect,
                Effect::Control { .. } | Effect::Local(_) | Effect::Send(_) | Effect::SendPacket(_)
            )
        });
        services.commit(hw, number, epoch);
        if let Some(Some(slot)) = self.slots.get_mut(number.index()) {
            slot.former = Some(former);
        }
    }

    /// Deactivates every replaced version whose [`DRAIN`] time has passed.
    pub(super) fn end_former(&mut self, hw: &mut dyn Hardware, now: Instant) {
        if now < self.drained_at {
            return;
        }
        self.drained_at = Instant::FAR_FUTURE;
        for index in 0..self.slots.len() {
            let Some(slot) = &mut self.slots[index] else { continue };
            let Some(former) = slot.former.take_if(|former| former.until <= now) else {
                if let Some(former) = &slot.former {
                    self.drained_at = self.drained_at.min(former.until);
                }
                continue;
            };
            self.dismiss(hw, ExtensionId(index as u8), former);
        }
    }

    fn dismiss(&mut self, hw: &mut dyn Hardware, number: ExtensionId, former: Former) {
        self.call_former(hw, number, former, |extension, nic| extension.deactivate(nic));
        let slot = self.slots.get_mut(number.index()).and_then(Option::as_mut);
        if let Some(mut former) = slot.and_then(|slot| slot.former.take()) {
            self.abandoned.extend(slot::held_by(&mut *former.extension));
        }
    }

    /// Replaces the running version, if the new one can be initialised and imports the old one's state. Otherwise
    /// reports [`UnitEvent::NotReplaced`] and changes nothing else.
    fn replace(
        &mut self,
        hw: &mut dyn Hardware,
        number: ExtensionId,
        epoch: Epoch,
        mut extension: Box<dyn Extension>,
    ) {
        let heap = Heap::new(self.heaps.get(&number).copied().unwrap_or(heap::DEFAULT_BYTES));
        if let Err(failure) = self.begin(hw, number, epoch, (&mut *extension, &heap)) {
            self.events.push_back(UnitEvent::NotReplaced(number, epoch, failure));
            return;
        }
        if number.index() >= self.slots.len() {
            self.slots.resize_with(number.index() + 1, || None);
        }
        let former = self.slots[number.index()].take();
        let mut slot = Slot::new(extension, epoch, heap);
        let mut before_that = None;
        if let Some(old) = former {
            let old_is_down = old.is_down;
            before_that = old.former;
            let until = hw.now() + DRAIN;
            let Slot { extension, epoch, heap, .. } = old;
            let former = Former { extension, epoch, until, heap };
            slot.former = (!old_is_down).then_some(former);
            self.drained_at = self.drained_at.min(until);
        }
        self.slots[number.index()] = Some(slot);
        if let Some(older) = before_that {
            let current = self.slots[number.index()].as_mut().and_then(|slot| slot.former.take());
            self.dismiss(hw, number, older);
            if let Some(Some(slot)) = self.slots.get_mut(number.index()) {
                slot.former = current;
            }
        }
        self.events.push_back(UnitEvent::Replaced(number, epoch));
        for parked in self.parked.take(number, epoch) {
            let to = Address { extension: number, epoch: parked.epoch };
            self.on_control(hw, parked.from, to, &parked.body);
        }
    }

    /// Initialises a new version and imports the old one's state. If both succeed, the effects that the new version
    /// asked for are committed, and the old version's timeouts and admission are removed.
    fn begin(
        &mut self,
        hw: &mut dyn Hardware,
        number: ExtensionId,
        epoch: Epoch,
        (extension, heap): (&mut dyn Extension, &Heap),
    ) -> Result<(), InitError> {
        let slot = self.slots.get_mut(number.index()).and_then(Option::as_mut);
        let state = match slot.filter(|slot| !slot.is_down) {
            Some(slot) => catch_unwind(AssertUnwindSafe(|| slot.extension.export())),
            None => Ok(None),
        };
        let Ok(state) = state else { return Err(InitError::Trapped(number)) };
        let services = self.services.as_mut().expect("the unit has started");
        let mut context = Context { hw: &mut *hw, services, extension: number, epoch, heap };
        let begun = catch_unwind(AssertUnwindSafe(|| {
            extension.init(&mut context)?;
            state.map_or(Ok(()), |state| extension.import(&state).map_err(InitError::from))
        }));
        let begun = begun.unwrap_or(Err(InitError::Trapped(number)));
        if begun.is_err() {
            services.abort(hw);
            return begun;
        }
        services.timeouts.cancel_all(number);
        let had_admission = services.transmit.uninstall(number);
        services.commit(hw, number, epoch);
        // If the new version has installed its own, that is an event already.
        if had_admission && !services.transmit.has_admission(number, epoch) {
            services.port_events.push_back(PortEvent::Admission);
        }
        Ok(())
    }
}
