//! A cache on one page: the owner's NIC answers gets that hit, without its host.

use std::collections::{BTreeMap, VecDeque};

use midplane::nicvm::context::Context;
use midplane::nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, TimeoutId};
use midplane::nicvm::heap::Vector;
use midplane::simhw::frame::Frame;
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::{Command, Completion, Status};
use midplane::simhw::region::Payload;

pub(crate) const CACHE: ExtensionId = FIRST_USER_EXTENSION;
/// Gets the key of argument 0 from `node` into `region`.
pub(crate) const GET: u8 = 1;
/// Posts a slot for one miss to the owner's NIC: completes with the requester, the key and the number of its get.
pub(crate) const SERVE: u8 = 2;
/// Answers a miss with `region`: the arguments are the key and the number of the get, `node` the requester.
pub(crate) const FILL: u8 = 3;
/// Sets the owner's value of the key in argument 0 to `region`.
pub(crate) const SET: u8 = 4;
/// Empties the cache and resizes it to argument 0 entries; completes with the hits and misses so far.
pub(crate) const PLACES: u8 = 5;
/// Most bytes of a value.
pub(crate) const MOST: usize = 64;

/// Bytes of an empty entry.
pub(crate) const PLACE: usize = size_of::<Place>();

type Place = Option<(u64, Vector<u8>)>;

/// A direct-mapped table in the NIC's bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    table: Option<Vector<Place>>,
    counts: [u64; 2],
    slots: VecDeque<Command>,
    missed: VecDeque<(NodeId, u64, u64)>,
    asked: BTreeMap<u64, Command>,
    next: u64,
}

impl Cache {
    fn place(&mut self, key: u64) -> Option<&mut Place> {
        let table = self.table.as_mut().filter(|table| !table.is_empty())?;
        let at = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let at = at as usize % table.len();
        table.get_mut(at)
    }

    fn put(&mut self, nic: &Context<'_>, key: u64, value: &[u8]) {
        let heap = nic.heap().clone();
        if let Some(place) = self.place(key) {
            // Free the old value first: the heap may have no other room.
            *place = None;
            *place = heap.copy(value).ok().map(|value| (key, value));
        }
    }

    fn resize(&mut self, nic: &Context<'_>, places: usize) -> Option<()> {
        self.table = None;
        let mut table = nic.heap().vector(places).ok()?;
        (0..places).try_for_each(|_| table.push(None)).ok()?;
        self.table = Some(table);
        Some(())
    }

    /// Hands misses to the host, as far as it has posted slots.
    fn hand_out(&mut self, nic: &mut Context<'_>) {
        while !self.slots.is_empty() && !self.missed.is_empty() {
            let (slot, missed) = (self.slots.pop_front(), self.missed.pop_front());
            let Some((slot, (node, key, number))) = slot.zip(missed) else { return };
            let args = [key, number, 0, 0];
            let done = Completion { node, args, ..Completion::of(&slot, Status::Done) };
            nic.complete(slot.region.port, &done);
        }
    }
}

fn message(opcode: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    [&[opcode][..], &number.to_le_bytes(), rest].concat()
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

impl Extension for Cache {
    fn init(&mut self, _: &mut Context<'_>) -> Result<(), InitError> {
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        let Command { opcode, cookie, region, node, args: [key, number, _], .. } = command;
        let value = match opcode {
            FILL | SET => nic.read(region).map(|bytes| bytes.to_vec()).unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut args = [0; 4];
        let status = match opcode {
            SERVE => {
                self.slots.push_back(command);
                return self.hand_out(nic);
            }
            GET => {
                self.next += 1;
                let ask = message(GET, self.next, &key.to_le_bytes());
                if nic.send_control(node, &ask).is_ok() {
                    self.asked.insert(self.next, command);
                    return;
                }
                Status::Refused
            }
            FILL | SET if value.is_empty() || value.len() > MOST => Status::Invalid,
            FILL | SET => {
                self.put(nic, key, &value);
                // A requester that has disconnected needs no answer.
                let gone = opcode == FILL
                    && nic.send_control(node, &message(FILL, number, &value)).is_err();
                if gone { Status::PeerLost } else { Status::Done }
            }
            PLACES => {
                let counts = std::mem::take(&mut self.counts);
                args[..2].copy_from_slice(&counts);
                self.resize(nic, key as usize).map_or(Status::Refused, |()| Status::Done)
            }
            _ => Status::Invalid,
        };
        let done = Completion { status, opcode, cookie, args, ..Completion::default() };
        nic.complete(region.port, &done);
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message_: &[u8]) {
        let Some((opcode, rest)) = message_.split_first() else { return };
        let Some((number, rest)) = word(rest) else { return };
        if *opcode == GET {
            let Some((key, _)) = word(rest) else { return };
            let hit = self.place(key).and_then(|place| place.as_ref());
            let hit = hit.filter(|(there, _)| *there == key).map(|(_, value)| value.to_vec());
            self.counts[usize::from(hit.is_none())] += 1;
            match hit {
                // A requester that has disconnected needs no answer.
                Some(value) => drop(nic.send_control(from, &message(FILL, number, &value))),
                None => self.missed.push_back((from, key, number)),
            }
            self.hand_out(nic);
        } else if let Some(Command { cookie, region, .. }) = self.asked.remove(&number) {
            let length = rest.len().min(region.length as usize);
            let part = region.part(0, length as u32).expect("no longer than it");
            let written = nic.write(part, Payload::from(&rest[..length])).is_ok();
            let status = if written { Status::Done } else { Status::Region };
            let (opcode, length) = (GET, length as u64);
            let done = Completion { status, opcode, cookie, length, ..Completion::default() };
            nic.complete(region.port, &done);
        }
    }

    fn on_data(&mut self, _: &mut Context<'_>, _: NodeId, _: &Frame<'_>) {}
    fn on_timeout(&mut self, _: &mut Context<'_>, _: TimeoutId) {}

    fn held(&mut self) -> Vec<Command> {
        let asked = std::mem::take(&mut self.asked).into_values();
        self.slots.drain(..).chain(asked).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for command in self.held() {
            nic.refuse(&command, Status::Cancelled);
        }
    }
}
