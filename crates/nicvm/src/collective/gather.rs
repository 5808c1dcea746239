//! All-gather in a ring: each member forwards what it receives, until all have all parts.

use std::collections::BTreeMap;

use midplane_simhw::port::{Command, Status};

use super::{ALL_GATHER, Context, Group, Payload, Progress, SMALL};

/// In round k, the part of the member k + 1 before this one arrives. A member whose host is late forwards other
/// members' parts before it sends its own.
#[derive(Debug, Default)]
pub(super) struct Gather {
    command: Option<Command>,
    bytes: usize,
    /// Parts that arrived before the host posted the operation, by round.
    early: BTreeMap<u8, Vec<u8>>,
    /// True for each round whose part has arrived.
    heard: Vec<bool>,
    written: u16,
}

impl Gather {
    pub(super) fn begin(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        command: &Command,
    ) -> Progress {
        let bytes = command.args[0] as usize;
        let whole = bytes.checked_mul(group.size().into());
        let fits = bytes > 0 && bytes <= SMALL && group.size() <= MOST;
        if !fits || whole != Some(command.region.length as usize) {
            return Progress::Failed(Status::Invalid);
        }
        let own = command.region.part(bytes as u32 * u32::from(group.rank), bytes as u32);
        let own = own.and_then(|own| nic.read(own).ok().map(|bytes| bytes.to_vec()));
        let Some(own) = own else { return Progress::Failed(Status::Region) };
        self.command = Some(*command);
        self.bytes = bytes;
        if group.size() == 1 {
            return Progress::Done;
        }
        group.send(nic, group.after(1), (ALL_GATHER, 0, number), &own);
        let mut progress = Progress::Waiting;
        for (round, part) in std::mem::take(&mut self.early) {
            progress = self.take(nic, group, round, &part);
            if let Progress::Failed(_) = progress {
                break;
            }
        }
        progress
    }

    /// Handles a part from the member before this one, and forwards it at once, even if the host is late.
    pub(super) fn on_message(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        round: u8,
        body: &[u8],
    ) -> Option<Progress> {
        if group.size() > MOST {
            return None;
        }
        self.heard.resize(usize::from(group.size()) - 1, false);
        let heard = self.heard.get_mut(usize::from(round))?;
        if body.len() > SMALL || std::mem::replace(heard, true) {
            return None;
        }
        if u16::from(round) + 2 < group.size() {
            group.send(nic, group.after(1), (ALL_GATHER, round + 1, number), body);
        }
        if self.command.is_none() {
            self.early.insert(round, body.to_vec());
            return Some(Progress::Waiting);
        }
        Some(self.take(nic, group, round, body))
    }

    fn take(&mut self, nic: &mut Context<'_>, group: &Group, round: u8, part: &[u8]) -> Progress {
        let Some(command) = self.command else { return Progress::Waiting };
        let of = group.after(group.size() - u16::from(round) - 1);
        let place = command.region.part(self.bytes as u32 * u32::from(of), self.bytes as u32);
        let (Some(place), true) = (place, part.len() == self.bytes) else {
            return Progress::Failed(Status::Invalid);
        };
        if nic.write(place, Payload::from(part)).is_err() {
            return Progress::Failed(Status::Region);
        }
        self.written += 1;
        if self.written + 1 == group.size() { Progress::Done } else { Progress::Waiting }
    }
}

/// Most members, because a round's number has 8 bits.
const MOST: u16 = 256;
