//! Quorum acknowledgement on one page, as an `async fn`: the leader's NIC sends an entry to all other NICs, which
//! write it into their hosts' logs and acknowledge it. The leader's host gets one completion, when a majority has the
//! entry.

use std::collections::{BTreeMap, BTreeSet};

use midplane::nicvm::extension::{FIRST_USER_EXTENSION, PeerEvent};
use midplane::nicvm::thread::{Event, Message, Nic, Request};
use midplane::simhw::id::{ExtensionId, NodeId};
use midplane::simhw::port::Status;
use midplane::simhw::region::{Payload, RegionRef};

pub(crate) const QUORUM: ExtensionId = FIRST_USER_EXTENSION;
/// Replicates `region`, one entry, as number argument 0; completes when a majority has it, with the number of nodes
/// that have it.
pub(crate) const PROPOSE: u8 = 1;
/// Posts `region` to the NIC as this node's log, [`ENTRY`] bytes per entry.
pub(crate) const LOG: u8 = 2;
/// Bytes of an entry.
pub(crate) const ENTRY: usize = 64;
const ACKNOWLEDGE: u8 = 3;

/// State of a node's NIC.
struct Replica {
    nic: Nic,
    nodes: u16,
    log: Option<RegionRef>,
    /// Entries in flight, and the number of nodes that have each.
    open: BTreeMap<u64, (Request, u16)>,
    down: BTreeSet<NodeId>,
}

/// Runs a replica, without end.
pub(crate) async fn replicate(nic: Nic, nodes: u16) {
    let (log, open, down) = (None, BTreeMap::new(), BTreeSet::new());
    let mut replica = Replica { nic, nodes, log, open, down };
    loop {
        match replica.nic.event().await {
            Event::Command(request) if request.opcode == LOG => {
                replica.log = Some(request.region);
                request.reply(0, [0; 4]);
            }
            Event::Command(request) => replica.propose(request).await,
            Event::Control(message) => replica.hear(&message).await,
            Event::Peer(event) => replica.note(event),
            Event::Stopped => return,
            _ => {}
        }
    }
}

impl Replica {
    const fn most(&self) -> u16 {
        self.nodes / 2 + 1
    }

    async fn propose(&mut self, request: Request) {
        let number = request.args[0];
        let Ok(entry) = request.read().await else { return request.refuse(Status::Region) };
        if request.opcode != PROPOSE || entry.len() > ENTRY || !self.write(number, &entry).await {
            return request.refuse(Status::Invalid);
        }
        let message = [&[PROPOSE][..], &number.to_le_bytes(), &entry].concat();
        let own = self.nic.node();
        for node in (0..self.nodes).map(NodeId).filter(|node| *node != own) {
            // A disconnected node does not answer; the others do.
            let _ = self.nic.send_control(node, &message).await;
        }
        self.open.insert(number, (request, 1));
    }

    async fn hear(&mut self, message: &Message) {
        let Some((kind, rest)) = message.bytes.split_first() else { return };
        let Some((number, entry)) = rest.split_first_chunk::<8>() else { return };
        let index = u64::from_le_bytes(*number);
        if *kind == PROPOSE {
            if self.write(index, entry).await {
                let answer = [&[ACKNOWLEDGE][..], number].concat();
                // A disconnected leader needs no answer.
                let _ = self.nic.send_control(message.from, &answer).await;
            }
            return;
        }
        let most = self.most();
        let Some((_, count)) = self.open.get_mut(&index) else { return };
        *count += 1;
        if *count >= most
            && let Some((request, count)) = self.open.remove(&index)
        {
            request.reply(ENTRY as u64, [count.into(), 0, 0, 0]);
        }
    }

    /// Handles the loss or return of a peer. Without a majority nothing can be decided, so waiting requests fail.
    fn note(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Up(node, _) | PeerEvent::Restarted(node, _) => drop(self.down.remove(&node)),
            PeerEvent::Down(node) => drop(self.down.insert(node)),
        }
        if self.nodes - (self.down.len() as u16) < self.most() {
            for (_, (request, _)) in std::mem::take(&mut self.open) {
                request.refuse(Status::PeerLost);
            }
        }
    }

    /// Writes an entry into this host's log; returns whether there was room.
    async fn write(&self, number: u64, entry: &[u8]) -> bool {
        let at = number.checked_mul(ENTRY as u64).and_then(|at| u32::try_from(at).ok());
        let place = self.log.zip(at).and_then(|(log, at)| log.part(at, entry.len() as u32));
        let (Some(place), entry) = (place, entry.to_vec()) else { return false };
        self.nic.with(move |nic| nic.write(place, Payload::from(&entry[..])).is_ok()).await
    }
}
